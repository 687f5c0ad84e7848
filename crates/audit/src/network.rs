//! Detection of the cluster's network: where it keeps the blocks of nodes, and so which rules
//! apply.
//!
//! A dump does not name its network. [`NetworkKind::detect`] goes by where the addresses of live
//! pods lie: in podCIDRs, in blocks or addresses that a network has recorded, or in none of these.

mod evidence;
mod marker;
mod members;

use std::collections::BTreeMap;

use ipnet::IpNet;
use podplane_ipam::Family;
use serde::Serialize;

use crate::{
    dump::DumpedNode,
    finding::Code,
    records::{Records, System},
};

pub(crate) use evidence::{Evidence, Markers};
pub(crate) use marker::Marker;

/// Source of pods' addresses, as the user states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpamChoice {
    /// Blocks in `spec.podCIDRs` of nodes.
    PodCidr,
    /// Anything else: no rule on blocks of nodes applies.
    Own,
}

/// Place of the blocks of nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BlockPlace {
    /// In `spec.podCIDRs` of nodes.
    #[default]
    PodCidr,
    /// In records of the nodes.
    NodeBlocks(System),
    /// In blocks that several nodes may take addresses from.
    SharedBlocks,
    /// Nowhere: nodes have single addresses.
    NodeAddresses(System),
    /// Unknown, but not in podCIDRs.
    Own,
}

/// The network of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NetworkKind {
    /// Its name, for display.
    pub name: String,
    /// The evidence for it, in one sentence.
    pub reason: String,
    #[serde(skip)]
    pub(crate) ipam: BlockPlace,
    /// Set if nodes get further blocks when theirs are full.
    #[serde(skip)]
    pub(crate) grows: bool,
    /// Set if podCIDRs are ranges of cloud instances, which only the cloud can change.
    #[serde(skip)]
    pub(crate) is_of_cloud: bool,
    /// Set if objects of the network repeat podCIDRs.
    #[serde(skip)]
    pub(crate) has_copies: bool,
    /// Set if the evidence leaves no doubt.
    #[serde(skip)]
    pub(crate) is_sure: bool,
    /// The nodes that are in another network.
    #[serde(skip)]
    pub(crate) others: BTreeMap<String, BlockPlace>,
}

impl Default for NetworkKind {
    fn default() -> Self {
        Self {
            name: "podCIDR".into(),
            reason: String::new(),
            ipam: BlockPlace::PodCidr,
            grows: false,
            is_of_cloud: false,
            has_copies: false,
            is_sure: true,
            others: BTreeMap::new(),
        }
    }
}

impl System {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Cilium => "Cilium",
            Self::Calico => "Calico",
            Self::Ovn => "OVN-Kubernetes",
            Self::Azure => "Azure CNI",
            Self::Aws => "Amazon VPC CNI",
            Self::Whereabouts => "Whereabouts",
        }
    }

    /// The objects in which it records the blocks of nodes.
    const fn place(self) -> &'static str {
        match self {
            Self::Cilium => "CiliumNodes",
            Self::Calico => "IPAMBlocks",
            Self::Ovn => "annotations k8s.ovn.org/node-subnets",
            Self::Azure => "NodeNetworkConfigs",
            Self::Aws => "CNINodes",
            Self::Whereabouts => "Whereabouts' IPPools",
        }
    }
}

impl NetworkKind {
    /// The network whose blocks explain most addresses of live pods.
    pub(crate) fn detect(
        evidence: &Evidence,
        nodes: &[DumpedNode],
        records: &Records,
        choice: Option<IpamChoice>,
    ) -> Self {
        let network = match choice {
            Some(IpamChoice::PodCidr) => Self::chosen(BlockPlace::PodCidr, "pod-cidr"),
            Some(IpamChoice::Own) => Self::chosen(BlockPlace::Own, "own"),
            None => Self::from_records(evidence, records)
                .unwrap_or_else(|| Self::from_addresses(evidence)),
        };
        let is_gke = nodes.iter().any(|node| node.is_gke);
        let virtual_nodes = nodes.iter().filter(|node| node.is_virtual).count();
        let mut network = Self {
            is_of_cloud: is_gke && network.ipam == BlockPlace::PodCidr,
            has_copies: evidence.has_copies,
            ..network
        };
        if network.is_of_cloud {
            network.name = "podCIDR (ranges of GKE instances)".into();
        }
        if choice.is_none() {
            network.others = members::others(evidence, &network, nodes);
        }
        if !network.others.is_empty() {
            let machines = nodes.len() - virtual_nodes;
            let others = members::described(&network.others, evidence, machines);
            network.reason = format!("{}; {others}", network.reason);
        }
        if virtual_nodes > 0 {
            let nodes = if virtual_nodes == 1 { "node" } else { "nodes" };
            network.reason = format!(
                "{}; rules on blocks leave out {virtual_nodes} virtual {nodes}",
                network.reason
            );
        }
        network
    }

    fn chosen(ipam: BlockPlace, flag: &str) -> Self {
        let name = match ipam {
            BlockPlace::PodCidr => "podCIDR",
            _ => "own addresses",
        };
        Self {
            name: name.into(),
            reason: format!("--ipam {flag} says so"),
            ipam,
            ..Self::default()
        }
    }

    /// The network with the records that explain most addresses, unless podCIDRs explain more.
    fn from_records(evidence: &Evidence, records: &Records) -> Option<Self> {
        let (ipam, explained) = evidence.best_records()?;
        // A few pods with wrong addresses must not hide whose records these are.
        const FEW: usize = 3;
        if explained < evidence.in_pod_cidr || (explained == 0 && evidence.total >= FEW) {
            return None;
        }
        let total = evidence.total;
        let (system, what) = match ipam {
            BlockPlace::NodeBlocks(system) => (system, "blocks of their nodes"),
            BlockPlace::NodeAddresses(system) => (system, "addresses of their nodes"),
            _ => (System::Calico, "blocks"),
        };
        let has_pools = records
            .blocks
            .iter()
            .any(|block| block.system == system && block.pool.is_some());
        let grows = has_pools || have_several_blocks(records, system);
        let name = match ipam {
            BlockPlace::NodeBlocks(System::Cilium) if has_pools => "Cilium (multi-pool)".into(),
            BlockPlace::NodeBlocks(System::Cilium) => "Cilium (cluster-pool)".into(),
            BlockPlace::NodeAddresses(System::Cilium) => "Cilium (addresses of the cloud)".into(),
            BlockPlace::NodeBlocks(System::Azure) if grows => "Azure CNI (blocks)".into(),
            BlockPlace::NodeBlocks(System::Azure) => "Azure CNI (overlay)".into(),
            _ => system.name().to_owned(),
        };
        let place = system.place();
        let reason = match total {
            0 => format!("the input has {place} with {what}, and no pod has an address"),
            _ => format!("{explained} of {total} pod addresses lie in {what} that {place} record"),
        };
        Some(Self {
            name,
            reason,
            ipam,
            grows,
            ..Self::default()
        })
    }

    /// Without records: podCIDR if most addresses lie there.
    fn from_addresses(evidence: &Evidence) -> Self {
        let Evidence {
            total,
            in_pod_cidr,
            with_pod_cidr,
            ..
        } = evidence;
        let marker = evidence.own_marker();
        let reason = match (total, with_pod_cidr) {
            (0, 0) => "no pod has an address, and no node has a podCIDR".to_owned(),
            (0, 1) => "1 node has a podCIDR, and no pod has an address".into(),
            (0, nodes) => format!("{nodes} nodes have a podCIDR, and no pod has an address"),
            (1, 0) => "no node has a podCIDR, and a pod has an address".into(),
            (total, 0) => format!("no node has a podCIDR, and pods have {total} addresses"),
            _ => {
                format!("{in_pod_cidr} of {total} pod addresses lie in the podCIDRs of their nodes")
            }
        };
        if Self::has_own_addresses(evidence, marker) {
            let name = marker.map_or("own addresses", Marker::name);
            return Self {
                name: name.into(),
                reason,
                ipam: BlockPlace::Own,
                ..Self::default()
            };
        }
        let counted = total - evidence.only_in_records;
        let is_sure = match marker {
            _ if evidence.is_confirmed => true,
            // It may have been left by a network that was replaced.
            _ if evidence.has_pod_cidr_marker() => in_pod_cidr * 2 >= counted,
            Some(marker) if *total == 0 => marker.is_cloud(),
            _ => in_pod_cidr * 4 >= counted * 3,
        };
        Self {
            reason: match is_sure {
                true => reason,
                false => format!("{reason}, too few to be sure"),
            },
            is_sure,
            ..Self::default()
        }
    }

    /// True if too few addresses lie in podCIDRs for a network that uses these.
    fn has_own_addresses(evidence: &Evidence, marker: Option<Marker>) -> bool {
        // So few pods may all have wrong addresses.
        const FEW: usize = 3;
        let Evidence {
            total,
            in_pod_cidr,
            with_pod_cidr,
            elsewhere,
            ..
        } = *evidence;
        let counted = total - evidence.only_in_records;
        // A cloud's machines are not evidence for the cloud's network.
        let is_doubtful =
            marker.is_some_and(|marker| !marker.is_cloud()) && !evidence.has_pod_cidr_marker();
        match (total, with_pod_cidr) {
            (0, 0) => marker.is_some_and(Marker::never_uses_pod_cidr),
            (0, _) => false,
            (_, 0) => true,
            _ if evidence.is_confirmed => in_pod_cidr == 0 && elsewhere * 2 > total,
            // A range of another network can be the same, and some of its blocks by chance.
            _ if is_doubtful => in_pod_cidr * 2 <= counted,
            _ if total < FEW => in_pod_cidr == 0 && elsewhere * 2 > total,
            _ => in_pod_cidr * 2 < counted,
        }
    }

    /// True if the blocks of nodes are their podCIDRs.
    #[must_use]
    pub fn uses_pod_cidr(&self) -> bool {
        self.ipam == BlockPlace::PodCidr
    }

    /// The network of a node.
    pub(crate) fn ipam_of(&self, node: &str) -> BlockPlace {
        self.others.get(node).copied().unwrap_or(self.ipam)
    }

    /// The networks of all nodes.
    pub(crate) fn ipams(&self) -> impl Iterator<Item = BlockPlace> {
        self.others.values().copied().chain([self.ipam])
    }

    /// The object that has a node's block.
    pub(crate) fn holder(&self, node: &str) -> String {
        match self.ipam_of(node) {
            BlockPlace::NodeBlocks(System::Cilium) => format!("CiliumNode/{node}"),
            BlockPlace::NodeBlocks(System::Azure) => format!("NodeNetworkConfig/{node}"),
            _ => format!("Node/{node}"),
        }
    }

    /// The reason for which a rule does not apply; `None` if it does.
    pub(crate) fn excludes(&self, code: Code) -> Option<String> {
        use Code::{
            ForeignPodCidr, IpCapacity, MissingPodCidr, PodCidrMismatch, PodOutsideBlock,
            ServiceRangeOverlap, WrongFamilyPodCidr, WrongSizePodCidr,
        };
        let has_node_blocks = matches!(self.ipam, BlockPlace::PodCidr | BlockPlace::NodeBlocks(_));
        let has_blocks = has_node_blocks || self.ipam == BlockPlace::SharedBlocks;
        let applies = match code {
            PodCidrMismatch => self.uses_pod_cidr(),
            MissingPodCidr => has_node_blocks,
            WrongSizePodCidr | WrongFamilyPodCidr | IpCapacity => has_node_blocks && !self.grows,
            ForeignPodCidr | ServiceRangeOverlap => has_blocks,
            PodOutsideBlock => self.ipam != BlockPlace::Own,
            _ => true,
        };
        (!applies).then(|| {
            let why = if !has_node_blocks {
                "nodes have no blocks of their own"
            } else if self.uses_pod_cidr() || code == PodCidrMismatch {
                "it does not use podCIDRs"
            } else {
                "nodes get further blocks when they need them"
            };
            format!("off: {}: {why}", self.name)
        })
    }

    /// Advice on giving a node another block.
    pub(crate) fn another_block(&self) -> &'static str {
        match self.ipam {
            BlockPlace::PodCidr if self.is_of_cloud => {
                "replace the instance of one of the nodes: its block is a range of the instance, and a Node object with another block would not move it"
            }
            BlockPlace::NodeBlocks(System::Cilium) => {
                "drain one of the nodes, delete its CiliumNode, and restart the Cilium agent there: the operator gives it another block"
            }
            BlockPlace::NodeBlocks(System::Ovn) => {
                "drain one of the nodes, delete its Node object, and restart its kubelet and ovnkube-node: it is given another subnet"
            }
            BlockPlace::NodeBlocks(System::Azure) => {
                "drain one of the nodes and replace its instance: Azure gives it another block"
            }
            BlockPlace::NodeBlocks(_)
            | BlockPlace::SharedBlocks
            | BlockPlace::NodeAddresses(_)
            | BlockPlace::Own => {
                "drain one of the nodes, and change the configuration of its IPAM plugin"
            }
            BlockPlace::PodCidr => {
                "give the node another block; write the steps with: podplane audit --repair DIR"
            }
        }
    }

    /// The reason for which no repair can be written; `None` if one can.
    pub(crate) fn refuses_repair(&self) -> Option<String> {
        if self.is_of_cloud {
            return Some(
                "podCIDRs of GKE nodes are ranges of their instances: a Node object with another block would not move them. Replace the node's instance instead"
                    .into(),
            );
        }
        let but = if !self.uses_pod_cidr() {
            "does not take pod addresses from them"
        } else if !self.is_sure {
            "may not take pod addresses from them"
        } else if !self.others.is_empty() {
            "is not the only one of the cluster"
        } else {
            return None;
        };
        Some(format!(
            "a repair gives nodes other podCIDRs, and this network ({}) {but}: {}. The findings say what to do; --ipam pod-cidr overrides the detection",
            self.name, self.reason
        ))
    }
}

/// True if records give a node several blocks of one family: then another one is added when it
/// needs addresses.
fn have_several_blocks(records: &Records, system: System) -> bool {
    let of_system = records
        .blocks
        .iter()
        .filter(|one| one.system == system && one.scope.is_empty());
    let mut by_node = BTreeMap::<(&str, Family), IpNet>::new();
    for record in of_system {
        let Some(node) = record.node.as_deref() else {
            continue;
        };
        let first = by_node.entry((node, Family::of(&record.block)));
        if *first.or_insert(record.block) != record.block {
            return true;
        }
    }
    false
}
