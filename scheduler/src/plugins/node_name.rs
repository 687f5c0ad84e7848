//! The node is the one that the pod names, if it names one.

use std::borrow::Cow;

use crate::{
    framework::{CycleInput, NodeFilter, Plugin, PluginEvent, PreFilter, Refusal},
    names,
    node::NodeInfo,
    pod::PodInfo,
    remedy::Remedy,
};

/// The plugin `NodeName`.
#[derive(Debug)]
pub struct NodeName;

/// The state for a pod that names this node.
#[derive(Debug)]
struct Named(names::NodeName);

impl Plugin for NodeName {
    fn name(&self) -> &'static str {
        "NodeName"
    }

    fn pre_filter<'a>(&'a self, input: CycleInput<'a>) -> PreFilter<'a> {
        match input.pod.node_name.clone() {
            Some(name) => PreFilter::Filter(Box::new(Named(name))),
            None => PreFilter::Skip,
        }
    }

    fn heeds(&self, _pod: &PodInfo, _event: &PluginEvent<'_>) -> bool {
        false
    }
}

impl NodeFilter for Named {
    fn filter(&self, node: &NodeInfo) -> Result<(), Refusal> {
        match node.name == self.0 {
            true => Ok(()),
            false => Err(Refusal::unresolvable(0)),
        }
    }

    fn reasons(&self, _refusal: Refusal, _node: &NodeInfo) -> Vec<Cow<'static, str>> {
        vec!["node(s) didn't match the requested node name".into()]
    }

    fn remedies(&self, _node: &NodeInfo) -> Vec<Remedy> {
        vec![Remedy::Pod("remove spec.nodeName".to_owned())]
    }
}
