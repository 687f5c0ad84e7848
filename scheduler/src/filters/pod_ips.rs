//! The node has an address for the pod. The reference has no such filter: it binds pods that then wait for ever for a network.

use super::{Filter, Objection};
use crate::{
    node::{NodeChange, NodeInfo},
    pod::PodInfo,
};

/// See the module.
#[derive(Debug)]
pub struct PodIps;

const REASON: &str = "Insufficient pod IPs";

impl Filter for PodIps {
    fn name(&self) -> &'static str {
        "PodIPs"
    }

    fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Objection> {
        if !pod.needs_ip() || node.free_pod_ips() > 0 {
            return Ok(());
        }
        Err(match node.pod_ip_capacity() {
            ..=0 => Objection::unresolvable(REASON),
            1.. => Objection::unschedulable(REASON),
        })
    }

    fn heeds(&self, change: NodeChange) -> bool {
        change == NodeChange::PodIps
    }

    fn freed_by(&self, _pod: &PodInfo, freed: &PodInfo) -> bool {
        freed.needs_ip()
    }
}
