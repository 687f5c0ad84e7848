//! The node is not cordoned, or the pod tolerates that.

use std::borrow::Cow;

use podplane_api::core::Taint;

use super::taint_toleration::tolerates;
use crate::{
    framework::{CycleInput, NodeFilter, Plugin, PluginEvent, PreFilter, Refusal},
    node::{NodeChange, NodeInfo},
    pod::PodInfo,
    remedy::Remedy,
};

/// The plugin `NodeUnschedulable`.
#[derive(Debug)]
pub struct NodeUnschedulable;

/// The state for a pod that does not tolerate a cordon.
#[derive(Debug)]
struct Intolerant;

impl Plugin for NodeUnschedulable {
    fn name(&self) -> &'static str {
        "NodeUnschedulable"
    }

    fn pre_filter<'a>(&'a self, input: CycleInput<'a>) -> PreFilter<'a> {
        let cordon = Taint {
            key: "node.kubernetes.io/unschedulable".to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        };
        match tolerates(&input.pod.needs.tolerations, &cordon) {
            true => PreFilter::Skip,
            false => PreFilter::Filter(Box::new(Intolerant)),
        }
    }

    fn heeds(&self, _pod: &PodInfo, event: &PluginEvent<'_>) -> bool {
        matches!(event, PluginEvent::NodeChanged(NodeChange::Unschedulable))
    }
}

impl NodeFilter for Intolerant {
    fn filter(&self, node: &NodeInfo) -> Result<(), Refusal> {
        match node.is_unschedulable() {
            true => Err(Refusal::unresolvable(0)),
            false => Ok(()),
        }
    }

    fn reasons(&self, _refusal: Refusal, _node: &NodeInfo) -> Vec<Cow<'static, str>> {
        vec!["node(s) were unschedulable".into()]
    }

    fn remedies(&self, _node: &NodeInfo) -> Vec<Remedy> {
        vec![Remedy::at_node("uncordon")]
    }
}
