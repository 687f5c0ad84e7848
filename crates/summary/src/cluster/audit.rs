//! The audit of the facts.

use ipnet::IpNet;
use podplane_audit::{
    ControllerFlags, DumpCollector, DumpScope, ExpectedBlocks, audit, lacks_addresses,
};
use podplane_ipam::{
    addresses::NodeAddresses,
    invariants::{DrainingBlock, Pod, PodKey},
};
use podplane_map::{AddressSpace, BlockState, NodeBlock};

use super::Cluster;
use crate::findings::FindingReport;

impl Cluster {
    /// Audits the cluster. `space` is that of the [parts](Self::space_parts) of the same moment.
    ///
    /// It costs the size of the cluster, several times as much as [`summary`](Self::summary).
    /// Objects of other networks, such as Calico's, are not among the facts. An
    /// [unaudited](Self::unaudited) cluster has no findings.
    #[must_use]
    pub fn findings(&self, space: &AddressSpace) -> FindingReport {
        if self.is_unaudited {
            return FindingReport::default();
        }
        let mut collector = self.collector();
        for (key, waiting) in &self.waiting {
            if lacks_addresses(&waiting.message) {
                collector.add_starved(pod_key(key));
            }
        }
        for record in &self.records {
            let was_a_nodes = matches!(
                record.state(),
                BlockState::Draining | BlockState::Held | BlockState::Quarantined
            );
            if was_a_nodes {
                collector.drain(DrainingBlock {
                    node: record.node().unwrap_or_default().to_owned(),
                    block: record.cidr(),
                });
            }
        }
        let ranges = self.ranges_of_pods();
        let mut flags = ControllerFlags {
            cluster_cidr: Some(listed(&ranges)),
            pod_ip_resource: Some(self.resource.to_string()),
            ..ControllerFlags::default()
        };
        let dump = collector.finish(&flags);
        // A flag has a range for each family, and objects may have any number.
        flags.cluster_cidr = None;
        flags.service_cidr = Some(listed(&self.services_of_cluster()));
        let expected = ExpectedBlocks::new(&flags, &dump);
        let expected = expected.or_else(|_| {
            flags.service_cidr = None;
            ExpectedBlocks::new(&flags, &dump)
        });
        let Ok(mut expected) = expected else {
            return FindingReport::default();
        };
        expected.ranges = ranges;
        let orphaned = self.nodes.iter().filter_map(|(name, entry)| {
            let report = &entry.facts.as_ref()?.report;
            Some((
                name.to_string(),
                NodeAddresses::of(report, entry.held).orphaned,
            ))
        });
        FindingReport::new(audit(&dump, &expected), space, orphaned)
    }

    /// Returns true if pods have addresses of their nodes' blocks, as the audit detects it. The
    /// records of the cluster's network are not among the facts: without them, a network that keeps
    /// blocks elsewhere than in Node objects is one that has no blocks.
    pub(super) fn has_node_blocks(&self) -> bool {
        let flags = ControllerFlags {
            cluster_cidr: Some(listed(&self.ranges_of_pods())),
            ..ControllerFlags::default()
        };
        self.collector().finish(&flags).has_node_blocks()
    }

    /// The nodes and pods.
    fn collector(&self) -> DumpCollector {
        let mut collector = DumpCollector::new(DumpScope::Fields);
        for item in self.nodes.values().filter_map(|entry| entry.item.as_ref()) {
            collector.add_node(item);
        }
        for (key, entry) in &self.pods {
            let PodKey { namespace, name } = pod_key(key);
            collector.add_pod(Pod {
                namespace,
                name,
                uid: String::new(),
                node: entry.node.as_deref().map(str::to_owned),
                host_network: entry.is_host_network,
                released: entry.has_ended,
                deleting: entry.is_deleting,
                ips: entry.ips.to_vec(),
            });
        }
        collector
    }

    fn ranges_of_pods(&self) -> Vec<IpNet> {
        self.pod_ranges.values().flatten().copied().collect()
    }

    /// The ranges of Services: those of objects, else those among the records of blocks.
    fn services_of_cluster(&self) -> Vec<IpNet> {
        let stated: Vec<IpNet> = self.service_ranges.values().flatten().copied().collect();
        if !stated.is_empty() {
            return stated;
        }
        let records = self.records.iter();
        let reserved = records.filter(|record| record.state() == BlockState::Reserved);
        reserved.map(NodeBlock::cidr).collect()
    }
}

fn listed(ranges: &[IpNet]) -> String {
    let ranges: Vec<String> = ranges.iter().map(ToString::to_string).collect();
    ranges.join(",")
}

/// The key of the facts, `NAMESPACE/NAME`.
fn pod_key(key: &str) -> PodKey {
    let (namespace, name) = key.split_once('/').unwrap_or(("", key));
    PodKey {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}
