//! The findings about the addresses of a cluster, by its map.

use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use podplane_map::{
    AddressRecord, AddressSpace, AddressState, Holder, Network, Overlap, OverlapPart,
};
use serde::Serialize;

use crate::documents::NodeRow;

/// The most findings of a summary.
pub const MOST_FINDINGS: usize = 200;

/// The rule that is violated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FindingRule {
    /// Several holders have one address.
    DuplicateAddress,
    /// Blocks or networks share addresses.
    OverlappingBlocks,
    /// A pod has an address outside of its node's blocks.
    OutsideBlock,
    /// Addresses are not free, and no pod owns them.
    Orphaned,
    /// A node has no block.
    MissingBlock,
}

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum FindingSeverity {
    /// Traffic goes to the wrong pod, or may.
    Error,
    /// Addresses are wasted or missing.
    Warning,
}

impl FindingRule {
    const fn severity(self) -> FindingSeverity {
        match self {
            Self::DuplicateAddress | Self::OverlappingBlocks | Self::OutsideBlock => {
                FindingSeverity::Error
            }
            Self::Orphaned | Self::MissingBlock => FindingSeverity::Warning,
        }
    }
}

/// A finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// The rule.
    pub rule: FindingRule,
    /// The severity.
    pub severity: FindingSeverity,
    /// A sentence.
    pub message: String,
    /// The place on the map, if it has one.
    pub prefix: Option<IpNet>,
    /// The narrowest network around the place.
    pub network: Option<IpNet>,
    /// The pods, as `NAMESPACE/NAME`.
    pub pods: Vec<String>,
    /// The nodes.
    pub nodes: Vec<String>,
}

/// The findings of a space and its nodes, the worst first, at most [`MOST_FINDINGS`], and their
/// number.
pub(crate) fn of<'a>(
    space: &AddressSpace,
    nodes: impl Iterator<Item = &'a Arc<NodeRow>>,
) -> (Vec<Finding>, usize) {
    let everywhere = [
        IpNet::from(Ipv4Net::default()),
        IpNet::from(Ipv6Net::default()),
    ];
    let faults: Vec<AddressRecord<'_>> = everywhere
        .iter()
        .flat_map(|all| space.faults(all))
        .collect();
    let of_state = |state| faults.iter().filter(move |fault| fault.state == state);
    let mut list = FindingList::default();
    for fault in of_state(AddressState::Duplicate) {
        list.add(|| of_address(space, fault, FindingRule::DuplicateAddress));
    }
    for overlap in space.overlaps() {
        list.add(|| of_overlap(space, overlap));
    }
    for fault in of_state(AddressState::Outside) {
        list.add(|| of_address(space, fault, FindingRule::OutsideBlock));
    }
    for fault in of_state(AddressState::Orphaned) {
        list.add(|| of_address(space, fault, FindingRule::Orphaned));
    }
    for node in nodes {
        if node.orphaned > 0 {
            list.add(|| of_node(node, FindingRule::Orphaned, orphaned(node)));
        }
        if node.capacity == 0 && node.blocks.is_empty() {
            let message = format!("node {} has no block: it takes no pods", node.name);
            list.add(|| of_node(node, FindingRule::MissingBlock, message));
        }
    }
    (list.findings, list.total)
}

#[derive(Default)]
struct FindingList {
    findings: Vec<Finding>,
    total: usize,
}

impl FindingList {
    fn add(&mut self, finding: impl FnOnce() -> Finding) {
        self.total += 1;
        if self.findings.len() < MOST_FINDINGS {
            self.findings.push(finding());
        }
    }
}

fn of_address(space: &AddressSpace, fault: &AddressRecord<'_>, rule: FindingRule) -> Finding {
    let holders = || fault.claims.iter().map(|claim| claim.holder());
    let holder_list: Vec<String> = holders().map(ToString::to_string).collect();
    let holder_list = holder_list.join(", ");
    let ip = fault.ip;
    let message = match rule {
        FindingRule::DuplicateAddress => format!("{ip} has several holders: {holder_list}"),
        FindingRule::OutsideBlock => {
            format!("{ip} is not in a block of its pod's node: {holder_list}")
        }
        _ => format!("{ip} is allocated, and its owner does not exist: {holder_list}"),
    };
    let pods = holders().filter(|holder| matches!(holder, Holder::Pod { .. }));
    let mut nodes: Vec<String> = holders()
        .filter_map(Holder::node)
        .map(str::to_owned)
        .collect();
    nodes.sort();
    nodes.dedup();
    let prefix = IpNet::from(ip);
    Finding {
        rule,
        severity: rule.severity(),
        message,
        prefix: Some(prefix),
        network: network_around(space, &prefix),
        pods: pods.map(|holder| holder.name().to_owned()).collect(),
        nodes,
    }
}

fn of_overlap(space: &AddressSpace, overlap: &Overlap) -> Finding {
    let parts = [&overlap.wide, &overlap.narrow];
    let nodes = parts.into_iter().filter_map(|part| match part {
        OverlapPart::Block { node, .. } => node.clone(),
        OverlapPart::Network { .. } => None,
    });
    let prefix = overlap.narrow.cidr();
    Finding {
        rule: FindingRule::OverlappingBlocks,
        severity: FindingRule::OverlappingBlocks.severity(),
        message: overlap.to_string(),
        prefix: Some(prefix),
        network: network_around(space, &prefix),
        pods: Vec::new(),
        nodes: nodes.collect(),
    }
}

fn of_node(node: &NodeRow, rule: FindingRule, message: String) -> Finding {
    Finding {
        rule,
        severity: rule.severity(),
        message,
        prefix: None,
        network: None,
        pods: Vec::new(),
        nodes: vec![node.name.clone()],
    }
}

fn orphaned(node: &NodeRow) -> String {
    let addresses = if node.orphaned == 1 {
        "address"
    } else {
        "addresses"
    };
    format!(
        "node {} has {} {addresses} that are not free and that no pod owns",
        node.name, node.orphaned
    )
}

/// The narrowest network that contains the prefix.
fn network_around(space: &AddressSpace, prefix: &IpNet) -> Option<IpNet> {
    let networks = space.networks().iter().map(Network::cidr);
    let around = networks.filter(|cidr| cidr.contains(prefix));
    around.max_by_key(IpNet::prefix_len)
}
