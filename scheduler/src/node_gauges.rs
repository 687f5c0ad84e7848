//! Gauges of the addresses of each node, computed from the caches whenever they are read.

use std::collections::BTreeMap;

use podplane_api::{Object as _, core::Node, pod_ips::PodIpResource};
use podplane_client::Cache;
use podplane_ipam::{NodeAddresses, capacity::NodeCapacity};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::gauge::ConstGauge,
};

use crate::{names::NodeName, pod::PodInfo};

/// The collector of the gauges.
#[derive(Debug)]
pub struct NodeAddressCollector {
    nodes: Cache<Node>,
    pods: Cache<PodInfo>,
    resource: PodIpResource,
}

impl NodeAddressCollector {
    /// Gauges of these nodes with these pods.
    pub fn new(nodes: Cache<Node>, pods: Cache<PodInfo>, resource: PodIpResource) -> Self {
        Self {
            nodes,
            pods,
            resource,
        }
    }

    /// The addresses of each node, by its name.
    fn addresses(&self) -> BTreeMap<String, NodeAddresses> {
        let mut held = BTreeMap::<NodeName, u64>::new();
        for pod in self.pods.list() {
            if let Some(node) = &pod.node_name {
                *held.entry(node.clone()).or_default() += pod.held_ips;
            }
        }
        let nodes = self.nodes.list();
        let each = nodes.iter().map(|node| {
            let held = held.get(node.name()).copied().unwrap_or(0);
            let addresses = self.resource.addresses(node, held);
            (node.name().to_owned(), addresses)
        });
        each.collect()
    }
}

/// A gauge: its name, its help text and its value; no value while the node waits for its block.
type NodeGauge = (
    &'static str,
    &'static str,
    fn(&NodeAddresses) -> Option<u64>,
);

const GAUGES: [NodeGauge; 3] = [
    (
        "podplane_node_pod_ips_capacity",
        "Pods that the node has addresses for, orphaned addresses included",
        |node| match node.capacity {
            NodeCapacity::AwaitsBlock => None,
            NodeCapacity::Pods { count, .. } => Some(count),
        },
    ),
    (
        "podplane_node_pod_ips_used",
        "Addresses that the pods bound to the node hold",
        |node| Some(node.held),
    ),
    (
        "podplane_node_pod_ips_orphaned",
        "Addresses that are not free and that no pod bound to the node owns",
        |node| Some(node.orphaned),
    ),
];

impl Collector for NodeAddressCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let nodes = self.addresses();
        for (name, help, value) in GAUGES {
            let gauge = ConstGauge::new(0_i64);
            let mut family = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            for (node, addresses) in &nodes {
                let Some(value) = value(addresses) else {
                    continue;
                };
                let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
                let labels = [("node", node.as_str())];
                gauge.encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
