//! Metrics of the node's addresses, with the names that the kubelet's have.

use std::sync::atomic::{AtomicI64, AtomicU64};

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::{
    account::NodeAccount,
    sources::{IpamKind, NodeIpam},
};

type NodeLabels = [(&'static str, String); 1];
type FamilyLabels = [(&'static str, &'static str); 1];

/// The metrics. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct NodeAgentMetrics {
    capacity: Family<NodeLabels, Gauge<i64, AtomicI64>>,
    used: Family<NodeLabels, Gauge<i64, AtomicI64>>,
    orphaned: Family<NodeLabels, Gauge<i64, AtomicI64>>,
    published: Family<NodeLabels, Gauge<i64, AtomicI64>>,
    addresses: Family<FamilyLabels, Gauge<i64, AtomicI64>>,
    allocated: Family<FamilyLabels, Gauge<i64, AtomicI64>>,
    source: Family<FamilyLabels, Gauge<i64, AtomicI64>>,
    failures: Counter<u64, AtomicU64>,
    writes: Counter<u64, AtomicU64>,
}

impl NodeAgentMetrics {
    /// Registers the metrics.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "podplane_node_pod_ips_capacity",
            "Pods that the node has addresses for, orphaned addresses included",
            metrics.capacity.clone(),
        );
        registry.register(
            "podplane_node_pod_ips_used",
            "Addresses that the pods bound to the node hold",
            metrics.used.clone(),
        );
        registry.register(
            "podplane_node_pod_ips_orphaned",
            "Addresses that are not free and that no pod bound to the node owns",
            metrics.orphaned.clone(),
        );
        registry.register(
            "podplane_node_pod_ips_published",
            "The amount of the resource in the node's capacity",
            metrics.published.clone(),
        );
        registry.register(
            "podplane_node_agent_addresses",
            "Addresses that pods can have, by family",
            metrics.addresses.clone(),
        );
        registry.register(
            "podplane_node_agent_allocated_addresses",
            "Addresses that are allocated, by family; absent if the source does not know them",
            metrics.allocated.clone(),
        );
        registry.register(
            "podplane_node_agent_source",
            "1 for the rule by which the node's addresses are counted",
            metrics.source.clone(),
        );
        registry.register(
            "podplane_node_agent_failures",
            "Attempts to read or to publish the node's addresses that failed",
            metrics.failures.clone(),
        );
        registry.register(
            "podplane_node_agent_writes",
            "Writes of the node's status",
            metrics.writes.clone(),
        );
        metrics
    }

    /// Records what was found out about a node.
    pub fn observe(&self, node: &str, kind: IpamKind, ipam: &NodeIpam, account: &NodeAccount) {
        let of_node = |family: &Family<NodeLabels, Gauge<i64, AtomicI64>>, count| {
            let gauge = family.get_or_create_owned(&[("node", node.to_owned())]);
            gauge.set(signed(count));
        };
        of_node(&self.capacity, account.total);
        of_node(&self.used, account.held);
        of_node(&self.orphaned, account.orphaned);
        of_node(&self.published, account.published());
        self.source.clear();
        let source = self.source.get_or_create_owned(&[("ipam", kind.name())]);
        source.set(1);
        let families = [
            ("ipv4", ipam.capacity.ipv4, true),
            ("ipv6", ipam.capacity.ipv6, false),
        ];
        for (family, capacity, is_ipv4) in families {
            let labels = [("family", family)];
            let allocated = capacity.and_then(|_| ipam.allocated_of(is_ipv4));
            for (gauges, count) in [(&self.addresses, capacity), (&self.allocated, allocated)] {
                match count {
                    Some(count) => _ = gauges.get_or_create_owned(&labels).set(signed(count)),
                    None => _ = gauges.remove(&labels),
                }
            }
        }
    }

    /// Counts an attempt that failed.
    pub fn failed(&self) {
        self.failures.inc();
    }

    /// Counts a write of the node's status.
    pub fn written(&self) {
        self.writes.inc();
    }
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
