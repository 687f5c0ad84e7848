//! The pod's host ports are free on the node.

use std::borrow::Cow;

use crate::{
    framework::{CycleInput, NodeFilter, Plugin, PluginEvent, PreFilter, Refusal},
    node::NodeInfo,
    pod::{HostPort, PodInfo},
    remedy::Remedy,
};

/// The plugin `NodePorts`.
#[derive(Debug)]
pub struct NodePorts;

/// The ports that the pod wants.
#[derive(Debug)]
struct WantedPorts<'a>(&'a [HostPort]);

impl Plugin for NodePorts {
    fn name(&self) -> &'static str {
        "NodePorts"
    }

    fn pre_filter<'a>(&'a self, input: CycleInput<'a>) -> PreFilter<'a> {
        match input.pod.needs.host_ports.as_slice() {
            [] => PreFilter::Skip,
            ports => PreFilter::Filter(Box::new(WantedPorts(ports))),
        }
    }

    fn heeds(&self, pod: &PodInfo, event: &PluginEvent<'_>) -> bool {
        matches!(event, PluginEvent::PodFreed(freed) if conflict(&pod.needs.host_ports, &freed.needs.host_ports))
    }
}

impl NodeFilter for WantedPorts<'_> {
    fn filter(&self, node: &NodeInfo) -> Result<(), Refusal> {
        match conflict(self.0, node.pods().host_ports()) {
            true => Err(Refusal::unschedulable(0)),
            false => Ok(()),
        }
    }

    fn reasons(&self, _refusal: Refusal, _node: &NodeInfo) -> Vec<Cow<'static, str>> {
        vec!["node(s) didn't have free ports for the requested pod ports".into()]
    }

    fn remedies(&self, node: &NodeInfo) -> Vec<Remedy> {
        let used = node.pods().host_ports();
        let taken = self
            .0
            .iter()
            .filter(|port| used.iter().any(|one| one.conflicts(port)));
        taken
            .map(|port| Remedy::at_node(&format!("free the host port {port} on")))
            .collect()
    }
}

fn conflict(wanted: &[HostPort], used: &[HostPort]) -> bool {
    let taken = |port: &HostPort| used.iter().any(|other| other.conflicts(port));
    wanted.iter().any(taken)
}
