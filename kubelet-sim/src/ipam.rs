//! What a node's network can give, and what it has given: host-local's configuration and files.

use std::{
    collections::BTreeSet,
    io,
    net::IpAddr,
    path::{Path, PathBuf},
};

use ipnet::IpNet;
use podplane_cni::{
    CniError, NetworkConfigList,
    host_local::{self, Capacity, Lease, Range},
};
use serde_json::Value;

/// The addresses of a network whose IPAM plugin is host-local.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipam {
    /// Addresses for pods, by family.
    pub capacity: Capacity,
    /// What they are in.
    pub subnets: Vec<IpNet>,
    /// How its directory is used.
    pub options: host_local::Options,
    dir: PathBuf,
}

impl Ipam {
    /// The IPAM plugin of a network.
    pub fn plugin(list: &NetworkConfigList) -> Option<&str> {
        let ipam = list.plugins.first().and_then(|plugin| plugin.get("ipam"));
        ipam.and_then(|ipam| ipam.get("type"))
            .and_then(Value::as_str)
    }

    /// The addresses of a network; `None` if another plugin gives them, which keeps its books elsewhere.
    ///
    /// # Errors
    ///
    /// [`CniError`] as the plugin itself would print it: it can give no address either.
    pub fn of(list: &NetworkConfigList) -> Result<Option<Self>, CniError> {
        if Self::plugin(list) != Some("host-local") {
            return Ok(None);
        }
        let config = host_local::Config::of_network(list)?;
        Ok(Some(Self {
            capacity: host_local::capacity(&config),
            subnets: config
                .sets
                .iter()
                .flat_map(|set| set.ranges())
                .map(Range::subnet)
                .collect(),
            options: config.options,
            dir: config.dir(),
        }))
    }

    /// The directory of allocation files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether the address is of the ranges as they are configured now; the files may have more, of an earlier block.
    pub fn gives(&self, address: IpAddr) -> bool {
        self.subnets.iter().any(|subnet| subnet.contains(&address))
    }

    /// Every allocation file. It blocks.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn leases(&self) -> io::Result<Vec<Lease>> {
        host_local::usage(&self.dir)
    }
}

/// How many pods a node's network has room for, and how much of it is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Pods that could have an address each of every family if there were none.
    pub capacity: i64,
    /// Taken by sandboxes.
    pub allocated: i64,
    /// Taken by nobody who exists.
    pub leaked: i64,
}

impl Usage {
    /// Counts `leases`; `is_known` says whether there is a sandbox of that id. A pod takes an address of each family, so the family of which more are taken counts.
    pub fn count<'a>(
        capacity: Capacity,
        leases: impl Iterator<Item = &'a Lease>,
        is_known: impl Fn(&str) -> bool,
    ) -> Self {
        let (known, leaked): (Vec<_>, Vec<_>) =
            leases.partition(|lease| is_known(&lease.container_id));
        Self {
            capacity: i64::try_from(capacity.pods()).unwrap_or(i64::MAX),
            allocated: larger_family(&known),
            leaked: larger_family(&leaked),
        }
    }

    /// What the scheduler may count on.
    pub fn allocatable(&self) -> i64 {
        (self.capacity - self.leaked).max(0)
    }
}

fn larger_family(leases: &[&Lease]) -> i64 {
    let addresses: BTreeSet<_> = leases.iter().map(|lease| lease.ip).collect();
    let v4 = addresses.iter().filter(|ip| ip.is_ipv4()).count();
    i64::try_from(v4.max(addresses.len() - v4)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_an_earlier_block_are_not_of_this_one() {
        let dir = tempfile::tempdir().unwrap();
        let text = r#"{"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "bridge",
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.0.1.0/24"}]]}}]}"#;
        let path = dir.path().join("x.conflist");
        std::fs::write(&path, text).unwrap();
        let list = NetworkConfigList::load_first(dir.path()).unwrap();
        let ipam = Ipam::of(&list).unwrap().unwrap();
        assert!(ipam.gives("10.0.1.7".parse().unwrap()));
        assert!(!ipam.gives("10.0.0.7".parse().unwrap()));
    }

    #[test]
    fn the_family_with_more_taken_counts_and_leaks_are_no_allocations() {
        let lease = |ip: &str, id: &str| Lease {
            ip: ip.parse().unwrap(),
            container_id: id.into(),
            ifname: Some("eth0".into()),
        };
        let leases = [
            lease("10.0.0.2", "a"),
            lease("fd00::2", "a"),
            lease("10.0.0.3", "b"),
            lease("10.0.0.4", "gone"),
        ];
        let capacity = Capacity {
            ipv4: Some(5),
            ipv6: Some(1 << 64),
        };
        let usage = Usage::count(capacity, leases.iter(), |id| id != "gone");
        let want = Usage {
            capacity: 5,
            allocated: 2,
            leaked: 1,
        };
        assert_eq!(usage, want);
        assert_eq!(usage.allocatable(), 4);
    }
}
