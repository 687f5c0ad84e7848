//! The node has an address for the pod. The reference has no such filter: it binds pods that then
//! wait for ever for a network.

use std::borrow::Cow;

use podplane_api::pod_ips;
use podplane_ipam::capacity::{Basis, NodeCapacity};

use super::node_resources_fit::free_percentage;
use crate::{
    framework::{
        CycleInput, NodeFilter, NodeScorer, NodeShortage, Plugin, PluginEvent, PreFilter, Refusal,
    },
    node::{NodeChange, NodeInfo},
    pod::PodInfo,
};

/// The plugin `PodIPs`.
#[derive(Debug)]
pub struct PodIps {
    weight: i64,
}

impl PodIps {
    /// With the weight of its score; 0 turns the score off.
    pub fn new(weight: u32) -> Self {
        Self {
            weight: weight.into(),
        }
    }
}

/// The state for a pod that needs an address.
#[derive(Debug)]
struct NeedsAddress;

const REASON: &str = "Insufficient pod IPs";
/// The IPAM plugin whose full nodes need no explanation, since its blocks are known to be finite.
const USUAL: &str = "host-local";

impl Plugin for PodIps {
    fn name(&self) -> &'static str {
        "PodIPs"
    }

    fn pre_filter<'a>(&'a self, input: CycleInput<'a>) -> PreFilter<'a> {
        match input.pod.needs_ip() {
            true => PreFilter::Filter(Box::new(NeedsAddress)),
            false => PreFilter::Skip,
        }
    }

    fn pre_score<'a>(
        &'a self,
        input: CycleInput<'a>,
        _feasible: &[&'a NodeInfo],
    ) -> Option<Box<dyn NodeScorer + 'a>> {
        let needs_ip = input.pod.needs_ip();
        needs_ip.then(|| Box::new(NeedsAddress) as Box<dyn NodeScorer>)
    }

    fn weight(&self) -> i64 {
        self.weight
    }

    fn heeds(&self, _pod: &PodInfo, event: &PluginEvent<'_>) -> bool {
        match event {
            PluginEvent::NodeChanged(change) => *change == NodeChange::PodIps,
            PluginEvent::PodFreed(freed) => freed.needs_ip(),
            PluginEvent::PodPlaced(_) | PluginEvent::NamespaceChanged => false,
        }
    }
}

impl NodeFilter for NeedsAddress {
    fn filter(&self, node: &NodeInfo) -> Result<(), Refusal> {
        if node.known_free_pod_ips() > 0 {
            return Ok(());
        }
        Err(match node.known_pod_ip_capacity() {
            ..=0 => Refusal::unresolvable(0),
            1.. => Refusal::unschedulable(0),
        })
    }

    fn reasons(&self, _refusal: Refusal, _node: &NodeInfo) -> Vec<Cow<'static, str>> {
        vec![REASON.into()]
    }

    fn detail(&self, node: &NodeInfo) -> Option<NodeShortage> {
        Some(detail(node))
    }

    fn tells_detail(&self, node: &NodeInfo) -> bool {
        node.is_shortage_unusual()
    }
}

impl NodeScorer for NeedsAddress {
    /// The free percentage of the node's addresses with the pod on it, as least-allocated has it
    /// for cpu and memory.
    fn score(&self, node: &NodeInfo) -> i64 {
        let (capacity, free) = (node.known_pod_ip_capacity(), node.known_free_pod_ips());
        free_percentage(capacity, capacity - free + 1).unwrap_or(0)
    }
}

/// The shortage of the node, with the count that it follows from.
pub(crate) fn detail(node: &NodeInfo) -> NodeShortage {
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
