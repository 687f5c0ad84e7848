//! Evidence for the network: the places of live pods' addresses.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use podplane_ipam::audit::Pod;

use super::{Ipam, Marker};
use crate::{
    dump::Node,
    prefixes::Prefixes,
    records::{Records, System},
};

/// Counts of addresses of live pods on nodes that are there and are not virtual.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    pub(super) total: usize,
    /// In a podCIDR of the pod's own node, or in a range that a podplane node reports.
    pub(super) in_pod_cidr: usize,
    /// In no podCIDR of any node, and outside of the cluster CIDR of the flags.
    pub(super) elsewhere: usize,
    /// Nodes with a podCIDR.
    pub(super) with_pod_cidr: usize,
    pub(super) markers: BTreeSet<Marker>,
    /// For each kind of records that there are, how many addresses they explain.
    explained: Vec<(Ipam, usize)>,
}

/// The systems whose records give a node blocks of its own.
const WITH_NODE_BLOCKS: [System; 3] = [System::Cilium, System::Ovn, System::Azure];

impl Evidence {
    pub(crate) fn new(
        nodes: &[Node],
        pods: &[Pod],
        records: &Records,
        cluster_cidrs: &[IpNet],
        mut markers: BTreeSet<Marker>,
    ) -> Self {
        let has_object = |system| records.node_objects.iter().any(|one| one.system == system);
        markers.extend(has_object(System::Aws).then_some(Marker::VpcCni));
        markers.extend(has_object(System::Azure).then_some(Marker::AzureCni));
        markers.extend(has_object(System::Cilium).then_some(Marker::Cilium));
        let by_name: BTreeMap<&str, &Node> = nodes
            .iter()
            .map(|node| (node.name.as_str(), node))
            .collect();
        let own = Prefixes::from_iter(nodes.iter().flat_map(Node::pod_cidr_claims));
        let cluster = Prefixes::from_iter(cluster_cidrs.iter().copied());
        let mut evidence = Self {
            with_pod_cidr: nodes
                .iter()
                .filter(|node| !node.pod_cidr_claims().is_empty())
                .count(),
            markers,
            ..Self::default()
        };
        let mut explanations = explanations(&by_name, records);
        let live = pods.iter().filter(|pod| pod.uses_pod_network());
        for pod in live {
            let node = pod.node.as_deref().and_then(|name| by_name.get(name));
            let Some(node) = node.filter(|node| !node.is_virtual) else {
                continue;
            };
            let claims = node.pod_cidr_claims();
            for ip in &pod.ips {
                evidence.total += 1;
                let mut own_blocks = claims.iter().chain(&node.pod_ranges);
                let is_inside = own_blocks.any(|block| block.contains(ip));
                evidence.in_pod_cidr += usize::from(is_inside);
                let is_near = is_inside || own.contains(*ip) || cluster.contains(*ip);
                evidence.elsewhere += usize::from(!is_near);
                for explanation in &mut explanations {
                    explanation.count += usize::from(explanation.explains(&node.name, *ip));
                }
            }
        }
        evidence.explained = explanations
            .into_iter()
            .map(|one| (one.ipam, one.count))
            .collect();
        evidence
    }

    /// The records that explain most addresses; of equals, those of blocks.
    pub(super) fn best_records(&self) -> Option<(Ipam, usize)> {
        let mut best: Option<(Ipam, usize)> = None;
        for (ipam, count) in &self.explained {
            if best.is_none_or(|(_, most)| *count > most) {
                best = Some((*ipam, *count));
            }
        }
        best
    }
}

/// Records of one kind, as an explanation of pods' addresses.
struct Explanation<'a> {
    ipam: Ipam,
    blocks: BTreeMap<&'a str, Vec<IpNet>>,
    shared: Prefixes,
    addresses: BTreeSet<(&'a str, IpAddr)>,
    count: usize,
}

impl Explanation<'_> {
    fn explains(&self, node: &str, ip: IpAddr) -> bool {
        let blocks = self.blocks.get(node).map(Vec::as_slice).unwrap_or_default();
        blocks.iter().any(|block| block.contains(&ip))
            || self.shared.contains(ip)
            || self.addresses.contains(&(node, ip))
    }
}

fn explanations<'a>(nodes: &BTreeMap<&str, &Node>, records: &'a Records) -> Vec<Explanation<'a>> {
    let none = |ipam| Explanation {
        ipam,
        blocks: BTreeMap::new(),
        shared: Prefixes::default(),
        addresses: BTreeSet::new(),
        count: 0,
    };
    let of_system = |system| {
        let blocks = records.blocks.iter();
        blocks.filter(move |block| block.system == system && block.scope.is_empty())
    };
    let mut all = Vec::new();
    let shared = Prefixes::from_iter(of_system(System::Calico).map(|record| record.block));
    if !shared.is_empty() {
        all.push(Explanation {
            shared,
            ..none(Ipam::SharedBlocks)
        });
    }
    for system in WITH_NODE_BLOCKS {
        let mut blocks = BTreeMap::<&str, Vec<IpNet>>::new();
        for record in of_system(system) {
            let node = record.node.as_deref().unwrap_or_default();
            blocks.entry(node).or_default().push(record.block);
        }
        if !blocks.is_empty() && !repeats_pod_cidrs(&blocks, nodes) {
            all.push(Explanation {
                blocks,
                ..none(Ipam::NodeBlocks(system))
            });
        }
    }
    for system in [System::Cilium, System::Azure] {
        let records = records.node_addresses.iter();
        let of_system = records.filter(|one| one.system == system);
        let addresses: BTreeSet<_> = of_system.map(|one| (one.node.as_str(), one.ip)).collect();
        if !addresses.is_empty() {
            all.push(Explanation {
                addresses,
                ..none(Ipam::NodeAddresses(system))
            });
        }
    }
    all
}

/// True if most nodes have exactly their podCIDRs in these records, as with Cilium's IPAM mode
/// `kubernetes`: then these are copies.
fn repeats_pod_cidrs(blocks: &BTreeMap<&str, Vec<IpNet>>, nodes: &BTreeMap<&str, &Node>) -> bool {
    let is_same = |(node, blocks): (&&str, &Vec<IpNet>)| {
        let claims = nodes.get(*node).map(|node| node.pod_cidr_claims());
        claims.is_some_and(|claims| blocks.iter().all(|block| claims.contains(block)))
    };
    let same = blocks.iter().filter(|one| is_same(*one)).count();
    same * 2 > blocks.len()
}
