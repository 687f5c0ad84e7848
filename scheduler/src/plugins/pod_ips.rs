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
    remedy::Remedy,
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

/// The state for a pod that needs addresses.
#[derive(Debug)]
struct NeedsAddresses {
    needed: i64,
}

impl NeedsAddresses {
    fn of(pod: &PodInfo) -> Option<Box<Self>> {
        let needed = i64::try_from(pod.needs.ips).unwrap_or(i64::MAX);
        pod.needs.needs_ip().then(|| Box::new(Self { needed }))
    }
}

const REASON: &str = "Insufficient pod IPs";
/// The IPAM plugin whose full nodes need no explanation, since its blocks are known to be finite.
const USUAL: &str = "host-local";

impl Plugin for PodIps {
    fn name(&self) -> &'static str {
        "PodIPs"
    }

    fn pre_filter<'a>(&'a self, input: CycleInput<'a>) -> PreFilter<'a> {
        match NeedsAddresses::of(input.pod) {
            Some(state) => PreFilter::Filter(state),
            None => PreFilter::Skip,
        }
    }

    fn pre_score<'a>(
        &'a self,
        input: CycleInput<'a>,
        _feasible: &[&'a NodeInfo],
    ) -> Option<Box<dyn NodeScorer + 'a>> {
        let state = NeedsAddresses::of(input.pod)?;
        Some(state)
    }

    fn weight(&self) -> i64 {
        self.weight
    }

    fn heeds(&self, _pod: &PodInfo, event: &PluginEvent<'_>) -> bool {
        match event {
            PluginEvent::NodeChanged(change) => {
                matches!(change, NodeChange::PodIpCapacity | NodeChange::PodIps)
            }
            PluginEvent::PodFreed(freed) => freed.needs.needs_ip(),
            PluginEvent::PodPlaced(_) | PluginEvent::NamespaceChanged => false,
        }
    }
}

impl NodeFilter for NeedsAddresses {
    fn filter(&self, node: &NodeInfo) -> Result<(), Refusal> {
        if node.free_pod_ips() >= self.needed {
            return Ok(());
        }
        Err(match self.needed > node.obtainable_pod_ips() {
            true => Refusal::unresolvable(0),
            false => Refusal::unschedulable(0),
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

    fn remedies(&self, node: &NodeInfo) -> Vec<Remedy> {
        let amount = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let addresses = node.addresses();
        let (capacity, free) = (node.pod_ip_capacity(), amount(addresses.free()));
        let remedy = match addresses.capacity {
            NodeCapacity::AwaitsBlock => Remedy::at_node("wait for the podCIDR of"),
            NodeCapacity::Pods { .. } if self.needed > capacity && self.needed > 1 => {
                Remedy::Request {
                    resource: node.pod_ip_resource.to_string(),
                    requested: self.needed,
                    free,
                    allocatable: capacity,
                }
            }
            NodeCapacity::Pods { .. } if self.needed > capacity => {
                Remedy::at_node("give a larger podCIDR to")
            }
            NodeCapacity::Pods { .. } if free < self.needed => Remedy::Addresses {
                missing: self.needed - free,
                held: amount(addresses.held),
                orphaned: amount(addresses.orphaned),
            },
            NodeCapacity::Pods { .. } => {
                Remedy::at_node("wait for the next report of the kubelet of")
            }
        };
        vec![remedy]
    }
}

impl NodeScorer for NeedsAddresses {
    /// The free percentage of the node's addresses with the pod on it, as least-allocated has it
    /// for cpu and memory.
    fn score(&self, node: &NodeInfo) -> i64 {
        let (capacity, free) = (node.pod_ip_capacity(), node.free_pod_ips());
        free_percentage(capacity, capacity - free + self.needed).unwrap_or(0)
    }
}

/// The shortage of the node, with the count that it follows from.
pub(crate) fn detail(node: &NodeInfo) -> NodeShortage {
    let plugin = pod_ips::ipam(&node.node);
    let ipam = plugin.map_or_else(
        || "its IPAM plugin".to_owned(),
        |name| format!("IPAM {name}"),
    );
    let addresses = node.addresses();
    let silent = format!("{ipam} reports no capacity");
    let (text, is_reported) = match addresses.capacity {
        NodeCapacity::AwaitsBlock => {
            let network = plugin.map_or_else(String::new, |name| format!(" (IPAM {name})"));
            (format!("{addresses}{network}"), false)
        }
        NodeCapacity::Pods { basis, .. } => {
            let source = match basis {
                Basis::Report => format!("as {ipam} reports"),
                Basis::Allocatable => {
                    format!("by allocatable {}; {silent}", node.pod_ip_resource)
                }
                Basis::Blocks => {
                    format!("by podCIDR {}; {silent}", node.pod_cidrs().join(","))
                }
                Basis::Pods => format!("by allocatable pods; it has no podCIDR and {silent}"),
            };
            let is_usual = plugin.is_none_or(|name| name == USUAL);
            let text = format!("{addresses}, {source}");
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
