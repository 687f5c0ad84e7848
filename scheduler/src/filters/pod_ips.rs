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
        if !pod.needs_ip() || node.free_pod_ips() > 0 {
            return Ok(());
        }
        let objection = match node.pod_ip_capacity() {
            ..=0 => Objection::unresolvable(REASON),
            1.. => Objection::unschedulable(REASON),
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
    let (text, is_reported) = match node.pod_ips {
        NodeCapacity::AwaitsBlock => {
            let network = plugin.map_or_else(String::new, |name| format!(" (IPAM {name})"));
            (format!("waits for its podCIDR{network}"), false)
        }
        NodeCapacity::Pods { count, basis } => {
            let taken = node.taken_pod_ips();
            let silent = format!("{ipam} reports no capacity");
            let text = match basis {
                Basis::Report => {
                    format!("{taken} of {count} pod IPs that {ipam} reports are taken")
                }
                Basis::Allocatable => format!(
                    "{taken} of {count} allocatable {} are taken; {silent}",
                    pod_ips::POD_IPS
                ),
                Basis::Blocks => format!(
                    "{taken} of {count} pod IPs of podCIDR {} are taken; {silent}",
                    node.pod_cidrs().join(",")
                ),
                Basis::Pods => format!(
                    "{taken} of {count} allocatable pods are taken; it has no podCIDR and {silent}"
                ),
            };
            let is_usual = plugin.is_none_or(|name| name == USUAL);
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
