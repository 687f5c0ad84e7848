//! host-local: the ranges of its configuration, and its allocation files.

use std::path::{Path, PathBuf};

use podplane_cni::NetworkConfigList;
use podplane_host::fs;
use podplane_host_local::Range;

use super::{AllocatedAddress, FamilyCounts, NodeIpam, SourceError};

/// The reference's directory of networks.
const DEFAULT_DATA_DIR: &str = "/var/lib/cni/networks";

/// The addresses of a network whose IPAM plugin is host-local, with those in its files. It blocks.
///
/// # Errors
///
/// [`SourceError::Config`] if the plugin would refuse the configuration, and [`SourceError::Files`].
pub fn of_network(list: &NetworkConfigList) -> Result<NodeIpam, SourceError> {
    let config = podplane_host_local::Config::of_network(list);
    let config = config.map_err(|error| SourceError::Config(error.to_string()))?;
    let capacity = podplane_host_local::capacity(&config);
    let saturated = |count: Option<u128>| Some(u64::try_from(count?).unwrap_or(u64::MAX));
    let ranges = config.sets.iter().flat_map(|set| set.ranges());
    Ok(NodeIpam {
        capacity: FamilyCounts {
            ipv4: saturated(capacity.ipv4),
            ipv6: saturated(capacity.ipv6),
        },
        ranges: ranges.map(Range::subnet).collect(),
        allocated: Some(allocated(&config.dir())?),
    })
}

/// The addresses in the allocation files of a directory; none if it does not exist. It blocks, and
/// takes host-local's lock.
///
/// # Errors
///
/// [`SourceError::Files`].
pub fn allocated(dir: &Path) -> Result<Vec<AllocatedAddress>, SourceError> {
    let leases = podplane_host_local::usage(dir).map_err(|error| SourceError::Files {
        dir: dir.display().to_string(),
        error: error.to_string(),
    })?;
    let addresses = leases.into_iter().map(|lease| AllocatedAddress {
        address: lease.ip,
        pod: None,
        allocation: lease.container_id,
    });
    Ok(addresses.collect())
}

/// The directory of allocation files of a network whose plugin calls host-local with ranges that the
/// configuration does not have, such as flannel's; `None` if it does not exist on this node.
pub fn directory(list: &NetworkConfigList) -> Option<PathBuf> {
    let plugin = list.plugins.first()?;
    let data_dir = plugin.get("ipam").and_then(|ipam| ipam.get("dataDir"));
    let data_dir = data_dir.and_then(serde_json::Value::as_str);
    let data_dir = data_dir.filter(|dir| !dir.is_empty());
    let dir = Path::new(data_dir.unwrap_or(DEFAULT_DATA_DIR)).join(&list.name);
    fs::is_dir(&dir).then_some(dir)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn network(dir: &Path, ranges: &Value) -> NetworkConfigList {
        let list = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [
            {"type": "bridge", "ipam": {"type": "host-local", "dataDir": dir, "ranges": ranges}}]});
        NetworkConfigList::from_list(list.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn counts_what_the_configuration_can_give() {
        let dir = tempfile::tempdir().unwrap();
        for (ranges, counts) in [
            (json!([[{"subnet": "10.0.0.0/29"}]]), (Some(5), None)),
            (
                json!([[{"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.10", "rangeEnd": "10.0.0.19"}]]),
                (Some(10), None),
            ),
            (
                json!([[{"subnet": "10.0.0.0/29"}, {"subnet": "10.0.1.0/29"}]]),
                (Some(10), None),
            ),
            (
                json!([[{"subnet": "10.0.0.0/29"}], [{"subnet": "fd00::/64"}]]),
                (Some(5), Some(u64::MAX - 1)),
            ),
        ] {
            let ipam = of_network(&network(dir.path(), &ranges)).unwrap();
            let FamilyCounts { ipv4, ipv6 } = ipam.capacity;
            assert_eq!((ipv4, ipv6), counts, "{ranges}");
            assert_eq!(ipam.allocated, Some(Vec::new()));
        }
        let small = json!([[{"subnet": "10.0.0.0/31"}]]);
        let refused = of_network(&network(dir.path(), &small)).unwrap_err();
        assert!(refused.to_string().contains("too small"), "{refused}");
    }

    #[test]
    fn the_files_name_sandboxes_and_not_pods() {
        let dir = tempfile::tempdir().unwrap();
        let leases = dir.path().join("net");
        fs::create_dir_all(&leases).unwrap();
        fs::write(leases.join("10.0.0.2"), "sandbox\r\neth0").unwrap();
        fs::write(leases.join("last_reserved_ip.0"), "10.0.0.2").unwrap();
        let ranges = json!([[{"subnet": "10.0.0.0/29"}]]);
        let ipam = of_network(&network(dir.path(), &ranges)).unwrap();
        let lease = AllocatedAddress {
            address: "10.0.0.2".parse().unwrap(),
            pod: None,
            allocation: "sandbox".into(),
        };
        assert_eq!(ipam.allocated, Some(vec![lease]));
    }
}
