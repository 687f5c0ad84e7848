//! The node is not cordoned, or the pod tolerates that.

use podplane_api::core::Taint;

use super::{NodeFilter, Objection, taint_toleration::tolerates};
use crate::{
    node::{NodeChange, NodeInfo},
    pod::PodInfo,
};

/// The filter `NodeUnschedulable`.
#[derive(Debug)]
pub struct NodeUnschedulable;

impl NodeFilter for NodeUnschedulable {
    fn name(&self) -> &'static str {
        "NodeUnschedulable"
    }

    fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Objection> {
        let cordon = Taint {
            key: "node.kubernetes.io/unschedulable".to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        };
        if node.is_unschedulable() && !tolerates(pod, &cordon) {
            return Err(Objection::unresolvable("node(s) were unschedulable"));
        }
        Ok(())
    }

    fn heeds(&self, change: NodeChange) -> bool {
        change == NodeChange::Unschedulable
    }
}
