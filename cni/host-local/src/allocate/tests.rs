use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::{
    Lease,
    lease::OwnerMatch,
    store::{Options, Store},
    usage,
};

/// Opens a store whose index is in the same temporary directory.
fn open(dir: &tempfile::TempDir) -> Store {
    let store = Store::open(&dir.path().join("net"), Options::default()).unwrap();
    store.with_index_dir(&dir.path().join("state/index"))
}

/// Does what an ADD does.
fn add(store: &Store, config: &Config, id: &str) -> Result<Vec<IpConfig>, String> {
    let owner = LeaseOwner::new(id, "eth0");
    let mut locked = store.lock(Some(&owner)).unwrap();
    allocate(&mut locked, config, id, &owner).map_err(|refusal| match refusal {
        Refusal::Exhausted(error) | Refusal::Other(error) => error,
    })
}

/// Does what a DEL does.
fn del(store: &Store, id: &str) {
    let owner = LeaseOwner::new(id, "eth0");
    let mut locked = store.lock(Some(&owner)).unwrap();
    locked.release(OwnerMatch::Exact).unwrap();
}

fn leases(store: &Store) -> Vec<Lease> {
    let mut leases = Vec::new();
    let keep = |lease: &Lease| {
        leases.push(lease.clone());
        true
    };
    store.retain(keep).unwrap();
    leases
}

fn config(ipam: &str) -> Config {
    let text = format!(r#"{{"name": "n", "cniVersion": "1.0.0", "ipam": {ipam}}}"#);
    Config::parse(text.as_bytes(), "").unwrap()
}

fn order(config: &Config, last: Option<&str>) -> Vec<String> {
    let last = last.map(|last| last.parse().unwrap());
    Candidates::new(&config.sets[0], last)
        .map(|(ip, _)| ip.to_string())
        .collect()
}

#[test]
fn candidates_begin_after_the_last_address_and_wrap_around() {
    let config = config(r#"{"subnet": "10.0.0.0/29"}"#);
    assert_eq!(
        order(&config, None),
        ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"]
    );
    assert_eq!(
        order(&config, Some("10.0.0.4")),
        ["10.0.0.5", "10.0.0.6", "10.0.0.2", "10.0.0.3", "10.0.0.4"]
    );
    assert_eq!(order(&config, Some("10.0.0.6"))[0], "10.0.0.2");
    assert_eq!(order(&config, Some("10.9.9.9"))[0], "10.0.0.2");
}

#[test]
fn candidates_come_from_all_ranges_of_the_set() {
    let config = config(
        r#"{"ranges": [[{"subnet": "10.0.0.0/30"}, {"subnet": "10.0.1.0/24", "rangeStart": "10.0.1.0", "rangeEnd": "10.0.1.2"}]]}"#,
    );
    assert_eq!(order(&config, None), ["10.0.0.2", "10.0.1.0", "10.0.1.2"]);
    assert_eq!(
        order(&config, Some("10.0.1.0")),
        ["10.0.1.2", "10.0.0.2", "10.0.1.0"]
    );
}

#[test]
fn a_range_with_only_the_gateway_has_no_candidates() {
    let config =
        config(r#"{"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.1", "rangeEnd": "10.0.0.1"}"#);
    assert_eq!(order(&config, None), Vec::<String>::new());
    assert_eq!(order(&config, Some("10.0.0.1")), Vec::<String>::new());
}

#[test]
fn a_failed_add_keeps_existing_leases() {
    let dir = tempfile::tempdir().unwrap();
    let dual = config(r#"{"ranges": [[{"subnet": "10.0.0.0/29"}], [{"subnet": "fd00::/126"}]]}"#);
    let v6 = config(r#"{"ranges": [[{"subnet": "fd00::/126"}]]}"#);
    let store = open(&dir);
    add(&store, &v6, "c1").unwrap();
    let error = add(&store, &dual, "c1").unwrap_err();
    assert_eq!(
        error,
        "failed to allocate for range 1: fd00::2 has been allocated to c1, duplicate allocation is not allowed"
    );
    let left = leases(&store);
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].ip.to_string(), "fd00::2");
}

#[test]
fn frees_the_lease_if_the_cursor_cannot_be_written() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("net/last_reserved_ip.0")).unwrap();
    let store = open(&dir);
    let config = config(r#"{"subnet": "10.0.0.0/29"}"#);
    assert!(add(&store, &config, "c1").is_err());
    assert_eq!(leases(&store), []);
}

#[derive(Debug, Clone)]
enum AllocateOp {
    Add {
        id: u8,
        wish: Option<u8>,
    },
    Del {
        id: u8,
    },
    /// An empty lease file, as a killed reference leaves it.
    EmptyLease {
        host: u8,
    },
}

fn op() -> impl Strategy<Value = AllocateOp> {
    prop_oneof![
        4 => (0..9_u8, proptest::option::weighted(0.2, 0..9_u8)).prop_map(|(id, wish)| AllocateOp::Add { id, wish }),
        3 => (0..9_u8).prop_map(|id| AllocateOp::Del { id }),
        1 => (2..7_u8).prop_map(|host| AllocateOp::EmptyLease { host }),
    ]
}

/// The model of a /29 with its gateway at .1: hosts 2 to 6, handed out round robin.
#[derive(Default)]
struct RoundRobinModel {
    leases: BTreeMap<u8, BTreeSet<u8>>,
    last: Option<u8>,
}

impl RoundRobinModel {
    fn add(&mut self, id: u8, wish: Option<u8>) -> Option<u8> {
        let taken: BTreeSet<u8> = self.leases.values().flatten().copied().collect();
        let start = self.last.unwrap_or(1);
        let is_in_set = |host: &u8| (1..=6).contains(host);
        let host = match wish.filter(is_in_set) {
            Some(wish) => Some(wish).filter(|wish| *wish != 1 && !taken.contains(wish)),
            None if self.leases.contains_key(&id) => None,
            None => (start + 1..=6)
                .chain(2..=start)
                .find(|host| !taken.contains(host)),
        };
        self.last = host.or(self.last);
        // A wish that no set can grant fails the ADD at its end; only the cursor has moved.
        let host = host.filter(|_| wish.is_none_or(|wish| is_in_set(&wish)));
        if let Some(host) = host {
            self.leases.entry(id).or_default().insert(host);
        }
        host
    }
}

proptest! {
    #[test]
    fn allocates_as_the_model_does(ops in proptest::collection::vec(op(), 1..60)) {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&dir);
        let mut model = RoundRobinModel::default();
        for op in ops {
            match op {
                AllocateOp::Add { id, wish } => {
                    let mut config = config(r#"{"subnet": "10.0.0.0/29"}"#);
                    config.requested.extend(wish.map(|host| IpAddr::from([10, 0, 0, host])));
                    let given = add(&store, &config, &format!("c{id}"));
                    let given = given.ok().map(|ips| ips[0].address.addr());
                    prop_assert_eq!(given, model.add(id, wish).map(|host| IpAddr::from([10, 0, 0, host])));
                }
                AllocateOp::Del { id } => {
                    del(&store, &format!("c{id}"));
                    model.leases.remove(&id);
                }
                AllocateOp::EmptyLease { host } => {
                    let path = dir.path().join(format!("net/10.0.0.{host}"));
                    if !path.exists() {
                        std::fs::write(path, "").unwrap();
                    }
                }
            }
            let found: Vec<_> = usage(&dir.path().join("net")).unwrap();
            let leases: BTreeSet<_> = found.into_iter().map(|lease| (lease.container_id, lease.ip)).collect();
            let expected: BTreeSet<_> = model.leases.iter().flat_map(|(id, hosts)| {
                hosts.iter().map(move |host| (format!("c{id}"), IpAddr::from([10, 0, 0, *host])))
            }).collect();
            prop_assert_eq!(leases, expected);
        }
    }
}
