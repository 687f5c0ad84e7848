//! Evidence for the network: the places of live pods' addresses.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use podplane_ipam::invariants::Pod;

use super::{BlockPlace, Marker};
use crate::{
    dump::DumpedNode,
    prefixes::Prefixes,
    records::{Records, System},
};

/// Counts of addresses of live pods on nodes that are there and are not virtual.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    pub(super) total: usize,
    /// In a podCIDR of the pod's own node, or in a range that a podplane node reports.
    pub(super) in_pod_cidr: usize,
    /// In no podCIDR of the pod's node, and in one of its network's records.
    pub(super) only_in_records: usize,
    /// In no podCIDR of any node, and outside of a cluster CIDR of the flags that has podCIDRs.
    pub(super) elsewhere: usize,
    /// Nodes with a podCIDR, or with ranges that a podplane node reports.
    pub(super) with_pod_cidr: usize,
    /// True if objects of the network repeat podCIDRs.
    pub(super) has_copies: bool,
    /// True if that is so, or if podCIDRs are those of GKE's instances.
    pub(super) is_confirmed: bool,
    markers: Markers,
    /// For each kind of records that there are, how many addresses they explain, and their nodes.
    explained: Vec<(BlockPlace, usize, BTreeSet<String>)>,
    by_node: BTreeMap<String, NodeEvidence>,
}

/// Software by the node that it was seen on; under the empty name what has none.
pub(crate) type Markers = BTreeMap<String, BTreeSet<Marker>>;

/// The counts of one node.
#[derive(Clone, Debug, Default)]
struct NodeEvidence {
    total: usize,
    in_pod_cidr: usize,
    /// In the order of [`Evidence::explained`].
    explained: Vec<usize>,
}

/// The systems whose records give a node blocks of its own.
const WITH_NODE_BLOCKS: [System; 3] = [System::Cilium, System::Ovn, System::Azure];

impl Evidence {
    pub(crate) fn new(
        nodes: &[DumpedNode],
        pods: &[Pod],
        records: &Records,
        cluster_cidrs: &[IpNet],
        mut markers: Markers,
    ) -> Self {
        for object in &records.node_objects {
            let marker = match object.system {
                System::Aws => Marker::VpcCni,
                System::Azure => Marker::AzureCni,
                System::Cilium => Marker::Cilium,
                System::Calico | System::Ovn | System::Whereabouts => continue,
            };
            markers
                .entry(object.node.clone())
                .or_default()
                .insert(marker);
        }
        let by_name: BTreeMap<&str, &DumpedNode> = nodes
            .iter()
            .map(|node| (node.name.as_str(), node))
            .collect();
        let own = Prefixes::from_iter(nodes.iter().flat_map(DumpedNode::pod_cidr_claims));
        // A cluster CIDR without podCIDRs says nothing of podCIDRs.
        let has_pod_cidrs = |range: &&IpNet| {
            let mut claims = nodes.iter().flat_map(DumpedNode::pod_cidr_claims);
            claims.any(|claim| range.contains(&claim))
        };
        let cluster = Prefixes::from_iter(cluster_cidrs.iter().filter(has_pod_cidrs).copied());
        let has_block =
            |node: &&DumpedNode| !node.pod_cidr_claims().is_empty() || !node.pod_ranges.is_empty();
        let mut evidence = Self {
            with_pod_cidr: nodes.iter().filter(has_block).count(),
            markers,
            ..Self::default()
        };
        let (mut explanations, has_copies) = explanations(&by_name, records);
        evidence.has_copies = has_copies;
        evidence.is_confirmed = has_copies || nodes.iter().any(|node| node.is_gke);
        let live = pods.iter().filter(|pod| pod.uses_pod_network());
        for pod in live {
            let node = pod.node.as_deref().and_then(|name| by_name.get(name));
            let Some(node) = node.filter(|node| !node.is_virtual) else {
                continue;
            };
            let claims = node.pod_cidr_claims();
            let of_node = evidence.by_node.entry(node.name.clone()).or_default();
            of_node.explained.resize(explanations.len(), 0);
            for ip in &pod.ips {
                evidence.total += 1;
                of_node.total += 1;
                let mut own_blocks = claims.iter().chain(&node.pod_ranges);
                let is_inside = own_blocks.any(|block| block.contains(ip));
                evidence.in_pod_cidr += usize::from(is_inside);
                of_node.in_pod_cidr += usize::from(is_inside);
                let is_near = is_inside || own.contains(*ip) || cluster.contains(*ip);
                evidence.elsewhere += usize::from(!is_near);
                let mut is_recorded = false;
                for (explanation, of_node) in explanations.iter_mut().zip(&mut of_node.explained) {
                    let explains = explanation.explains(&node.name, *ip);
                    explanation.count += usize::from(explains);
                    *of_node += usize::from(explains);
                    is_recorded |= explains;
                }
                evidence.only_in_records += usize::from(is_recorded && !is_inside);
            }
        }
        evidence.explained = explanations
            .into_iter()
            .map(|one| (one.ipam, one.count, one.nodes()))
            .collect();
        evidence
    }

    /// The software that names the network.
    pub(super) fn own_marker(&self) -> Option<Marker> {
        let all = self.markers.values().flatten().copied();
        all.filter(|marker| !marker.always_uses_pod_cidr()).min()
    }

    /// True if software is there that uses podCIDRs and nothing else.
    pub(super) fn has_pod_cidr_marker(&self) -> bool {
        let mut all = self.markers.values().flatten();
        all.any(|marker| marker.always_uses_pod_cidr())
    }

    /// The software on a node.
    pub(super) fn markers_of(&self, node: &str) -> impl Iterator<Item = Marker> {
        self.markers.get(node).into_iter().flatten().copied()
    }

    /// True if the network's records name the node.
    pub(super) fn covers(&self, ipam: BlockPlace, node: &str) -> bool {
        let mut of_ipam = self.explained.iter().filter(|one| one.0 == ipam);
        of_ipam.any(|(_, _, nodes)| nodes.contains(node))
    }

    /// True if pods of the node have addresses.
    pub(super) fn has_addresses(&self, node: &str) -> bool {
        self.by_node.get(node).is_some_and(|one| one.total > 0)
    }

    /// True if the network has given one of the node's pods its address.
    pub(super) fn explains_any(&self, ipam: BlockPlace, node: &str) -> bool {
        let Some(of_node) = self.by_node.get(node) else {
            return false;
        };
        if ipam == BlockPlace::PodCidr {
            return of_node.in_pod_cidr > 0;
        }
        let mut each = self.explained.iter().zip(&of_node.explained);
        each.any(|((one, ..), count)| *one == ipam && *count > 0)
    }

    /// The network that has given all of the node's pods their addresses.
    pub(super) fn explanation_of_all(&self, node: &str) -> Option<BlockPlace> {
        let of_node = self.by_node.get(node).filter(|one| one.total > 0)?;
        let mut each = self.explained.iter().zip(&of_node.explained);
        let recorded = each.find(|(_, count)| **count == of_node.total);
        let in_pod_cidr = || (of_node.in_pod_cidr == of_node.total).then_some(BlockPlace::PodCidr);
        recorded.map(|((ipam, ..), _)| *ipam).or_else(in_pod_cidr)
    }

    /// The records that explain most addresses; of equals, those of blocks.
    pub(super) fn best_records(&self) -> Option<(BlockPlace, usize)> {
        let mut best: Option<(BlockPlace, usize)> = None;
        for (ipam, count, _) in &self.explained {
            if best.is_none_or(|(_, most)| *count > most) {
                best = Some((*ipam, *count));
            }
        }
        best
    }
}

/// Records of one kind, as an explanation of pods' addresses.
struct Explanation<'a> {
    ipam: BlockPlace,
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

    fn nodes(&self) -> BTreeSet<String> {
        let blocks = self.blocks.keys();
        let addresses = self.addresses.iter().map(|(node, _)| node);
        blocks.chain(addresses).map(|node| (*node).into()).collect()
    }
}

/// The explanations, and whether others were left out because they repeat podCIDRs.
fn explanations<'a>(
    nodes: &BTreeMap<&str, &DumpedNode>,
    records: &'a Records,
) -> (Vec<Explanation<'a>>, bool) {
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
    let mut has_copies = false;
    let blocks_by_node = |system| {
        let mut blocks = BTreeMap::<&str, Vec<IpNet>>::new();
        for record in of_system(system) {
            let node = record.node.as_deref().unwrap_or_default();
            blocks.entry(node).or_default().push(record.block);
        }
        blocks
    };
    let shared = Prefixes::from_iter(of_system(System::Calico).map(|record| record.block));
    if !shared.is_empty() {
        all.push(Explanation {
            shared,
            blocks: blocks_by_node(System::Calico),
            ..none(BlockPlace::SharedBlocks)
        });
    }
    for system in WITH_NODE_BLOCKS {
        let blocks = blocks_by_node(system);
        if blocks.is_empty() {
            continue;
        }
        if repeats_pod_cidrs(&blocks, nodes) {
            has_copies = true;
        } else {
            all.push(Explanation {
                blocks,
                ..none(BlockPlace::NodeBlocks(system))
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
                ..none(BlockPlace::NodeAddresses(system))
            });
        }
    }
    (all, has_copies)
}

/// True if most nodes have exactly their podCIDRs in these records, as with Cilium's IPAM mode
/// `kubernetes`: then these are copies.
fn repeats_pod_cidrs(
    blocks: &BTreeMap<&str, Vec<IpNet>>,
    nodes: &BTreeMap<&str, &DumpedNode>,
) -> bool {
    let is_same = |(node, blocks): (&&str, &Vec<IpNet>)| {
        let claims = nodes.get(*node).map(|node| node.pod_cidr_claims());
        claims.is_some_and(|claims| blocks.iter().all(|block| claims.contains(block)))
    };
    let same = blocks.iter().filter(|one| is_same(*one)).count();
    same * 2 > blocks.len()
}
