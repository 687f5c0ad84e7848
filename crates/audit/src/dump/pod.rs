//! Pods, as they are read.

use std::net::IpAddr;

use podplane_ipam::invariants;

use crate::item::{ItemMetadata, ItemSpec, ItemStatus, LenientValue, RawObject};

/// A pod as the rules take it, and what its object has beside that.
#[derive(Debug)]
pub(super) struct ReadPod {
    pub(super) pod: invariants::Pod,
    /// True if it could not be scheduled for want of addresses.
    pub(super) is_starved: bool,
    /// The texts that are not addresses.
    pub(super) odd: Vec<String>,
}

impl ReadPod {
    pub(super) fn of(item: &RawObject<'_>) -> Self {
        let RawObject {
            metadata:
                LenientValue(ItemMetadata {
                    name,
                    namespace,
                    deletion_timestamp,
                    ..
                }),
            spec:
                LenientValue(ItemSpec {
                    node_name,
                    host_network,
                    ..
                }),
            status:
                LenientValue(ItemStatus {
                    phase,
                    pod_ip,
                    pod_ips,
                    conditions,
                    ..
                }),
            ..
        } = item;
        let listed = pod_ips.0.iter().map(|LenientValue(ip)| &ip.ip);
        let texts = listed
            .chain([pod_ip])
            .map(|text| text.as_str())
            .filter(|text| !text.is_empty());
        let (mut ips, mut odd) = (Vec::new(), Vec::new());
        for text in texts {
            match text.parse::<IpAddr>() {
                Ok(ip) if ips.contains(&ip) => {}
                Ok(ip) => ips.push(ip),
                Err(_) => odd.push(text.to_owned()),
            }
        }
        odd.dedup();
        let finished = matches!(phase.as_str(), "Failed" | "Succeeded");
        let is_starved = !node_name.is_set()
            && !finished
            && conditions.0.iter().any(|LenientValue(condition)| {
                condition.kind.as_str() == "PodScheduled"
                    && condition.status.as_str() == "False"
                    && lacks_addresses(condition.message.as_str())
            });
        let pod = invariants::Pod {
            namespace: namespace.as_str().into(),
            name: name.as_str().into(),
            uid: String::new(),
            node: node_name.is_set().then(|| node_name.as_str().into()),
            host_network: host_network.as_str() == "true",
            // A foreign kubelet may not report the end of the sandbox; older ones do not.
            released: finished,
            deleting: deletion_timestamp.is_set(),
            ips,
        };
        let odd = if pod.uses_pod_network() {
            odd
        } else {
            Vec::new()
        };
        Self {
            pod,
            is_starved,
            odd,
        }
    }
}

/// Returns true for the message of a scheduler that found no node with a free address.
#[must_use]
pub fn lacks_addresses(message: &str) -> bool {
    // Of podplane's scheduler, or of Kubernetes' about a resource.
    message.contains("Insufficient pod IPs") || message.contains("Insufficient podplane.io/pod-ips")
}
