//! The node is the one that the pod names, if it names one.

use super::{NodeFilter, Objection};
use crate::{
    node::{NodeChange, NodeInfo},
    pod::PodInfo,
};

/// The filter `NodeName`.
#[derive(Debug)]
pub struct NodeName;

impl NodeFilter for NodeName {
    fn name(&self) -> &'static str {
        "NodeName"
    }

    fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Objection> {
        match pod.node_name() {
            Some(name) if name != node.name => Err(Objection::unresolvable(
                "node(s) didn't match the requested node name",
            )),
            Some(_) | None => Ok(()),
        }
    }

    fn heeds(&self, _change: NodeChange) -> bool {
        false
    }
}
