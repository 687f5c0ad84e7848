//! The node's labels match the pod's `nodeSelector` and the required terms of its node affinity.

use super::{NodeFilter, Objection};
use crate::{
    node::{NodeChange, NodeInfo},
    pod::PodInfo,
};

/// The filter `NodeAffinity`.
#[derive(Debug)]
pub struct NodeAffinity;

impl NodeFilter for NodeAffinity {
    fn name(&self) -> &'static str {
        "NodeAffinity"
    }

    fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Objection> {
        let required = pod.required_nodes.as_ref();
        if selected(pod, node) && required.is_none_or(|required| required.matches(&node.node)) {
            return Ok(());
        }
        Err(Objection::unresolvable(
            "node(s) didn't match Pod's node affinity/selector",
        ))
    }

    fn heeds(&self, change: NodeChange) -> bool {
        change == NodeChange::Labels
    }
}

fn selected(pod: &PodInfo, node: &NodeInfo) -> bool {
    let spec = pod.pod.spec.as_ref();
    let selector = spec.and_then(|s| s.node_selector.as_ref());
    let mut selector = selector.into_iter().flatten();
    let labels = node.node.metadata.labels.as_ref();
    selector.all(|(key, value)| labels.is_some_and(|labels| labels.get(key) == Some(value)))
}
