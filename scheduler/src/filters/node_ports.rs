//! The pod's host ports are free on the node.

use super::{NodeFilter, Objection};
use crate::{
    node::{NodeChange, NodeInfo},
    pod::PodInfo,
};

/// The filter `NodePorts`.
#[derive(Debug)]
pub struct NodePorts;

impl NodeFilter for NodePorts {
    fn name(&self) -> &'static str {
        "NodePorts"
    }

    fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Objection> {
        if !pod.host_ports.is_empty() && node.pods.iter().any(|other| conflict(pod, other)) {
            return Err(Objection::unschedulable(
                "node(s) didn't have free ports for the requested pod ports",
            ));
        }
        Ok(())
    }

    fn heeds(&self, _change: NodeChange) -> bool {
        false
    }

    fn freed_by(&self, pod: &PodInfo, freed: &PodInfo) -> bool {
        conflict(pod, freed)
    }
}

fn conflict(pod: &PodInfo, other: &PodInfo) -> bool {
    let taken = |port| other.host_ports.iter().any(|o| o.conflicts(port));
    pod.host_ports.iter().any(taken)
}
