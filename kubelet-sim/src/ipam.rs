//! The addresses that a node's network can give, and those that it has given: from host-local's
//! configuration and files, or from another IPAM plugin's report.

use std::{
    collections::BTreeSet,
    io,
    net::IpAddr,
    path::{Path, PathBuf},
};

use ipnet::IpNet;
use podplane_cni::{CniError, NetworkConfigList, ipam_report::IpamReport};
use podplane_host_local::{Capacity, Lease, Range};
use serde_json::Value;

/// The addresses of a network whose IPAM plugin is host-local, or reports them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkAddresses {
    /// Addresses for pods, by family.
    pub capacity: Capacity,
    /// The ranges that they are in; empty if the plugin's report has none.
    pub subnets: Vec<IpNet>,
    books: AddressSource,
}

/// The record of given addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
enum AddressSource {
    /// The allocation files in host-local's directory.
    Files {
        dir: PathBuf,
        options: podplane_host_local::Options,
    },
    /// The addresses in the report; `None` if that has none.
    Reported(Option<Vec<Lease>>),
}

impl NetworkAddresses {
    /// The IPAM plugin of a network: the one that its first plugin names, or else that plugin
    /// itself, which then gives addresses.
    pub fn plugin(list: &NetworkConfigList) -> Option<&str> {
        let plugin = list.plugins.first()?;
        let ipam = plugin.get("ipam").and_then(|ipam| ipam.get("type"));
        ipam.or(plugin.get("type")).and_then(Value::as_str)
    }

    /// The addresses of a network; `None` if another plugin than host-local gives them, whose
    /// records are elsewhere.
    ///
    /// # Errors
    ///
    /// [`CniError`], as the plugin itself would print it: it cannot give an address either.
    pub fn of(list: &NetworkConfigList) -> Result<Option<Self>, CniError> {
        if Self::plugin(list) != Some("host-local") {
            return Ok(None);
        }
        let config = podplane_host_local::Config::of_network(list)?;
        Ok(Some(Self {
            capacity: podplane_host_local::capacity(&config),
            subnets: config
                .sets
                .iter()
                .flat_map(|set| set.ranges())
                .map(Range::subnet)
                .collect(),
            books: AddressSource::Files {
                dir: config.dir(),
                options: config.options,
            },
        }))
    }

    /// The addresses that a plugin reports.
    pub fn reported(report: &IpamReport) -> Self {
        let leases = report.addresses.as_ref().map(|held| {
            let lease = held.iter().map(|held| Lease {
                ip: held.address,
                container_id: held.container_id.clone(),
                ifname: held.ifname.clone(),
            });
            lease.collect()
        });
        Self {
            capacity: Capacity {
                ipv4: report.capacity.ipv4.map(u128::from),
                ipv6: report.capacity.ipv6.map(u128::from),
            },
            subnets: report.ranges.clone(),
            books: AddressSource::Reported(leases),
        }
    }

    /// host-local's directory of allocation files, and how it is used.
    pub fn files(&self) -> Option<(&Path, podplane_host_local::Options)> {
        match &self.books {
            AddressSource::Files { dir, options } => Some((dir, *options)),
            AddressSource::Reported(_) => None,
        }
    }

    /// Returns true if host-local's files have the given addresses at any moment.
    pub fn has_files(&self) -> bool {
        self.files().is_some()
    }

    /// Returns true if the given addresses are known, and not only their number.
    pub fn knows_leases(&self) -> bool {
        self.books != AddressSource::Reported(None)
    }

    /// Returns true if the address is in the configured ranges, or if those are not known. The
    /// files may have more addresses, of an earlier block.
    pub fn gives(&self, address: IpAddr) -> bool {
        self.subnets.is_empty() || self.subnets.iter().any(|subnet| subnet.contains(&address))
    }

    /// Every allocation file, or every address that the plugin reports as held. It blocks.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn leases(&self) -> io::Result<Vec<Lease>> {
        match &self.books {
            AddressSource::Files { dir, .. } => podplane_host_local::usage(dir),
            AddressSource::Reported(leases) => Ok(leases.clone().unwrap_or_default()),
        }
    }
}

/// The number of pods that a node's network has room for, and the number of addresses in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressUsage {
    /// Pods that could have an address of every family, if none were in use; `None` if the IPAM
    /// plugin does not say.
    pub capacity: Option<i64>,
    /// Addresses of sandboxes.
    pub allocated: i64,
    /// Addresses without a sandbox.
    pub leaked: i64,
    /// Addresses that no pod bound to the node owns: the leaked ones, and those of sandboxes whose
    /// pods are gone.
    pub orphaned: i64,
}

/// The owner of an allocated address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseOwner {
    /// A sandbox of a pod that is bound to the node and holds an address.
    BoundPod,
    /// A sandbox of a pod that is gone, or that says it has no address any more.
    GonePod,
    /// No sandbox: the address is leaked, or the plugin lets it cool down.
    Nobody,
}

impl AddressUsage {
    /// Counts `leases` by their owners. A pod takes an address of each family, so of each count only
    /// the family with more leases matters.
    pub fn count<'a>(
        capacity: Capacity,
        leases: impl Iterator<Item = &'a Lease>,
        owner: impl Fn(&Lease) -> LeaseOwner,
    ) -> Self {
        let leases: Vec<_> = leases.map(|lease| (lease.ip, owner(lease))).collect();
        let count = |counts: fn(LeaseOwner) -> bool| {
            larger_family(leases.iter().filter(|(_, owner)| counts(*owner)))
        };
        Self {
            capacity: Some(i64::try_from(capacity.pods()).unwrap_or(i64::MAX)),
            allocated: count(|owner| owner != LeaseOwner::Nobody),
            leaked: count(|owner| owner == LeaseOwner::Nobody),
            orphaned: count(|owner| owner != LeaseOwner::BoundPod),
        }
    }

    /// The capacity without orphaned addresses, if the IPAM plugin reports one.
    pub fn allocatable(&self) -> Option<i64> {
        Some(self.capacity?.saturating_sub(self.orphaned).max(0))
    }
}

fn larger_family<'a>(leases: impl Iterator<Item = &'a (IpAddr, LeaseOwner)>) -> i64 {
    let addresses: BTreeSet<_> = leases.map(|(ip, _)| ip).collect();
    let v4 = addresses.iter().filter(|ip| ip.is_ipv4()).count();
    i64::try_from(v4.max(addresses.len() - v4)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_an_earlier_block_do_not_match() {
        let dir = tempfile::tempdir().unwrap();
        let text = r#"{"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "bridge",
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.0.1.0/24"}]]}}]}"#;
        let path = dir.path().join("x.conflist");
        std::fs::write(&path, text).unwrap();
        let list = NetworkConfigList::load_first(dir.path()).unwrap();
        let ipam = NetworkAddresses::of(&list).unwrap().unwrap();
        assert!(ipam.gives("10.0.1.7".parse().unwrap()));
        assert!(!ipam.gives("10.0.0.7".parse().unwrap()));
    }

    #[test]
    fn the_main_plugin_is_the_ipam_plugin_if_none_is_named() {
        let plugin = |text: &str| {
            let list = NetworkConfigList::from_list(text.as_bytes()).unwrap();
            NetworkAddresses::plugin(&list).map(str::to_owned)
        };
        let list = r#"{"name": "x", "plugins": [{"type": "bridge", "ipam": {"type": "my-ipam"}}]}"#;
        assert_eq!(plugin(list).as_deref(), Some("my-ipam"));
        let list = r#"{"name": "x", "plugins": [{"type": "all-in-one"}, {"type": "portmap"}]}"#;
        assert_eq!(plugin(list).as_deref(), Some("all-in-one"));
    }

    #[test]
    fn a_report_without_ranges_matches_any_address() {
        let report = |text: &str| IpamReport::parse(text.as_bytes()).unwrap();
        let silent = NetworkAddresses::reported(&report(r#"{"capacity": {"ipv4": 3}}"#));
        assert!(silent.gives("192.0.2.1".parse().unwrap()));
        assert!(!silent.knows_leases());
        assert_eq!(silent.leases().unwrap(), []);
        let text = r#"{"capacity": {"ipv4": 3, "ipv6": 2}, "ranges": ["10.0.0.0/29"],
            "addresses": [{"address": "10.0.0.2", "containerID": "a"}]}"#;
        let ipam = NetworkAddresses::reported(&report(text));
        assert!(!ipam.gives("192.0.2.1".parse().unwrap()));
        assert!(ipam.knows_leases());
        assert_eq!(ipam.leases().unwrap()[0].container_id, "a");
        assert_eq!(ipam.capacity.pods(), 2);
    }

    #[test]
    fn counts_the_fuller_family_and_separates_orphans() {
        let lease = |ip: &str, id: &str| Lease {
            ip: ip.parse().unwrap(),
            container_id: id.into(),
            ifname: Some("eth0".into()),
        };
        let leases = [
            lease("10.0.0.2", "a"),
            lease("fd00::2", "a"),
            lease("10.0.0.3", "b"),
            lease("10.0.0.4", "leaked"),
            lease("10.0.0.5", "ending"),
            lease("fd00::5", "ending"),
        ];
        let capacity = Capacity {
            ipv4: Some(5),
            ipv6: Some(1 << 64),
        };
        let usage = AddressUsage::count(capacity, leases.iter(), |lease| {
            match &*lease.container_id {
                "leaked" => LeaseOwner::Nobody,
                "ending" => LeaseOwner::GonePod,
                _ => LeaseOwner::BoundPod,
            }
        });
        let want = AddressUsage {
            capacity: Some(5),
            allocated: 3,
            leaked: 1,
            orphaned: 2,
        };
        assert_eq!(usage, want);
        assert_eq!(usage.allocatable(), Some(3));
    }
}
