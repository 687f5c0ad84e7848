//! The node has an address for the pod. The reference has no such filter: it binds pods that then
//! wait for ever for a network.

use podplane_api::pod_ips;
use podplane_ipam::capacity::{Basis, NodeCapacity};

use super::{NodeFilter, NodeShortage, Objection};
use crate::{
    node::{NodeChange, NodeInfo},
    pod::PodInfo,
};

/// The filter `PodIPs`.
#[derive(Debug)]
pub struct PodIps;

const REASON: &str = "Insufficient pod IPs";
/// The IPAM plugin whose full nodes need no explanation, since its blocks are known to be finite.
const USUAL: &str = "host-local";

impl NodeFilter for PodIps {
    fn name(&self) -> &'static str {
        "PodIPs"
    }

    fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Objection> {
        if !pod.needs_ip() || node.free_pod_ips() >= pod.needed_ips.into() {
            return Ok(());
        }
        // Pods that leave do not free orphaned addresses.
        let addresses = node.addresses();
        let available = addresses
            .capacity
            .count()
            .saturating_sub(addresses.orphaned);
        let objection = match pod.needed_ips > available {
            true => Objection::unresolvable(REASON),
            false => Objection::unschedulable(REASON),
        };
        Err(objection.with(detail(node)))
    }

    fn heeds(&self, change: NodeChange) -> bool {
        matches!(change, NodeChange::PodIpCapacity | NodeChange::PodIps)
    }

    fn freed_by(&self, _pod: &PodInfo, freed: &PodInfo) -> bool {
        freed.needs_ip()
    }
}

/// The shortage of the node, with the count that it follows from.
fn detail(node: &NodeInfo) -> NodeShortage {
    let plugin = pod_ips::ipam(&node.node);
    let ipam = plugin.map_or_else(
        || "its IPAM plugin".to_owned(),
        |name| format!("IPAM {name}"),
    );
    let addresses = node.addresses();
    let silent = format!("{ipam} reports no capacity");
    let (text, is_reported) = match addresses.capacity {
        NodeCapacity::AwaitsBlock => {
            let network = plugin.map_or_else(String::new, |name| format!(" (IPAM {name})"));
            (format!("{addresses}{network}"), false)
        }
        NodeCapacity::Pods { basis, .. } => {
            let source = match basis {
                Basis::Report => format!("as {ipam} reports"),
                Basis::Allocatable => {
                    format!("by allocatable {}; {silent}", node.pod_ip_resource)
                }
                Basis::Blocks => {
                    format!("by podCIDR {}; {silent}", node.pod_cidrs().join(","))
                }
                Basis::Pods => format!("by allocatable pods; it has no podCIDR and {silent}"),
            };
            let is_usual = plugin.is_none_or(|name| name == USUAL);
            let text = format!("{addresses}, {source}");
            (text, is_usual && basis <= Basis::Blocks)
        }
    };
    let refused = "its kubelet refused a pod for want of an address and has not reported since";
    NodeShortage {
        text: match node.is_refused_for_ips() {
            true => format!("{text}; {refused}"),
            false => text,
        },
        is_in_message: !is_reported,
    }
}
