//! Blocks of nodes, compared with one another and with the flags.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use podplane_ipam::{Family, invariants, parse_cidr};

use super::{JoinedList, node as object};
use crate::{
    dump::{Dump, DumpedNode},
    expected::{ExpectationSource, ExpectedBlocks},
    finding::{Code, Finding, Severity},
};

/// Overlaps, grouped by block, whatever the number of nodes.
#[derive(Debug, Default)]
pub(super) struct Overlaps {
    /// Nodes by the block that they all have.
    equal: BTreeMap<IpNet, BTreeSet<String>>,
    /// Narrower blocks and their nodes, by the widest block around them.
    inside: BTreeMap<IpNet, BTreeSet<(IpNet, String)>>,
}

impl Overlaps {
    pub(super) fn add(&mut self, wide: (String, IpNet), narrow: (String, IpNet)) {
        if wide.1 == narrow.1 {
            self.equal
                .entry(wide.1)
                .or_default()
                .extend([wide.0, narrow.0]);
        } else {
            self.inside
                .entry(wide.1)
                .or_default()
                .insert((narrow.1, narrow.0));
        }
    }

    /// The findings, with the objects that `holder` names for a node and its block, and with
    /// `repair` as advice.
    pub(super) fn findings(
        self,
        nodes: &[invariants::Node],
        holder: impl Fn(&str, &IpNet) -> Vec<String>,
        repair: &str,
    ) -> Vec<Finding> {
        let mut holders = BTreeMap::<IpNet, Vec<&str>>::new();
        for node in nodes {
            for block in node
                .pod_cidrs
                .iter()
                .filter(|block| self.inside.contains_key(block))
            {
                holders.entry(*block).or_default().push(&node.name);
            }
        }
        let finding =
            |code, objects: BTreeSet<String>, prefixes: BTreeSet<IpNet>, message| Finding {
                prefixes: prefixes.into_iter().collect(),
                code,
                severity: Severity::Error,
                objects: objects.into_iter().collect(),
                message,
                repair: repair.to_owned(),
            };
        let equal = self.equal.iter().map(|(block, nodes)| {
            let names: Vec<_> = nodes.iter().collect();
            let message = format!(
                "block {block} is assigned to {} nodes: {}",
                names.len(),
                JoinedList(&names)
            );
            let objects = nodes.iter().flat_map(|name| holder(name, block));
            let prefixes = [*block].into();
            finding(Code::DuplicatePodCidr, objects.collect(), prefixes, message)
        });
        let inside = self.inside.iter().map(|(wide, narrow)| {
            // A draining block has no node in the dump.
            let around = holders.get(wide).map(Vec::as_slice).unwrap_or_default();
            let each: Vec<_> = narrow
                .iter()
                .map(|(block, name)| format!("{block} of {name}"))
                .collect();
            let of = if around.is_empty() {
                "that drains".into()
            } else {
                format!("of {}", JoinedList(around))
            };
            let objects = around
                .iter()
                .flat_map(|name| holder(name, wide))
                .chain(narrow.iter().flat_map(|(block, name)| holder(name, block)));
            let message = format!("block {wide} {of} contains {}", JoinedList(&each));
            let narrow = narrow.iter().map(|(block, _)| *block);
            let prefixes = narrow.chain([*wide]).collect();
            finding(
                Code::OverlappingPodCidr,
                objects.collect(),
                prefixes,
                message,
            )
        });
        equal.chain(inside).collect()
    }
}

/// Findings about a node's blocks that do not depend on other nodes.
pub(crate) fn of_node(node: &DumpedNode, dump: &Dump, expected: &ExpectedBlocks) -> Vec<Finding> {
    let network = &dump.network;
    if node.is_virtual {
        return Vec::new();
    }
    let another_block = network.another_block();
    let blocks = node.blocks();
    let finding = |code, severity, message, repair: &str| Finding {
        prefixes: blocks.clone(),
        code,
        severity,
        objects: vec![match code {
            Code::MissingPodCidr => object(&node.name),
            _ => network.holder(&node.name),
        }],
        message,
        repair: repair.into(),
    };
    // The flags do not apply to blocks of another network, but these must not overlap the service
    // range either.
    let is_of_network = node.ipam == network.ipam;
    let applies = |finding: &Finding| match is_of_network {
        true => network.excludes(finding.code).is_none(),
        false => finding.code == Code::ServiceRangeOverlap,
    };
    let name = &node.name;
    let texts = node.texts();
    if texts.is_empty() {
        let lacking = missing(node, dump).map(|(message, repair)| {
            finding(Code::MissingPodCidr, Severity::Error, message, repair)
        });
        return lacking.into_iter().filter(applies).collect();
    }
    let mut findings = Vec::new();
    if let Some(message) = mismatch(node) {
        let repair = "write the node anew, with spec.podCIDR as the first of spec.podCIDRs; write the steps with: podplane audit --repair DIR";
        findings.push(finding(
            Code::PodCidrMismatch,
            Severity::Error,
            message,
            repair,
        ));
    }
    for text in &texts {
        let Ok(block) = parse_cidr(text) else {
            let message = format!("{text:?} of node {name} is not a valid block");
            findings.push(Finding {
                prefixes: Vec::new(),
                ..finding(
                    Code::ForeignPodCidr,
                    Severity::Warning,
                    message,
                    another_block,
                )
            });
            continue;
        };
        let of_block = of_block(node, &block.trunc(), expected);
        findings.extend(
            of_block
                .into_iter()
                .map(|(code, severity, message)| Finding {
                    prefixes: vec![block.trunc()],
                    ..finding(code, severity, message, another_block)
                }),
        );
    }
    if let Some((severity, message)) = families(node, expected) {
        findings.push(finding(
            Code::WrongFamilyPodCidr,
            severity,
            message,
            another_block,
        ));
    }
    findings.retain(applies);
    findings
}

/// The message and the advice for a node without any block.
fn missing(node: &DumpedNode, dump: &Dump) -> Option<(String, &'static str)> {
    let name = &node.name;
    if dump.network.uses_pod_cidr() {
        // Its IPAM plugin has ranges of its own.
        if !node.pod_ranges.is_empty() {
            return None;
        }
        return Some((
            format!(
                "node {name} has no block: the network assigns addresses from spec.podCIDR, so its pods get none"
            ),
            "the controller gives it a block when the range has room; a free block can also be set once by hand, \
            even while the node runs; write the steps with: podplane audit --repair DIR",
        ));
    }
    Some((
        format!("node {name} has no block in {}", dump.network.name),
        "see the log of the network's operator: it gives nodes their blocks, and may have no free one",
    ))
}

/// Compares a block with the flags.
fn of_block(
    node: &DumpedNode,
    block: &IpNet,
    expected: &ExpectedBlocks,
) -> Vec<(Code, Severity, String)> {
    let name = &node.name;
    let family = Family::of(block);
    let mut found = Vec::new();
    let of_family: Vec<_> = expected
        .ranges
        .iter()
        .filter(|range| Family::of(range) == family)
        .collect();
    if !of_family.is_empty() && !of_family.iter().any(|range| range.contains(block)) {
        let message = format!(
            "block {block} of node {name} is outside of {}",
            JoinedList(&of_family)
        );
        found.push((Code::ForeignPodCidr, Severity::Warning, message));
    }
    if let Some((mask, known)) = expected
        .masks
        .get(&family)
        .filter(|(mask, _)| *mask != block.prefix_len())
    {
        let (severity, should) = match known {
            ExpectationSource::Given => (Severity::Warning, "blocks should be"),
            ExpectationSource::Inferred => (Severity::Info, "most blocks are"),
        };
        let message = format!(
            "block {block} of node {name} is a /{}, {should} /{mask}",
            block.prefix_len()
        );
        found.push((Code::WrongSizePodCidr, severity, message));
    }
    if let Some(services) = expected.services.overlapping(block) {
        let message = format!("block {block} of node {name} overlaps the service range {services}");
        found.push((Code::ServiceRangeOverlap, Severity::Error, message));
    }
    found
}

/// Only a list makes a mismatch: very old clusters had `spec.podCIDR` alone.
fn mismatch(node: &DumpedNode) -> Option<String> {
    let first = node.pod_cidrs.first()?;
    let same = match (parse_cidr(first), parse_cidr(&node.pod_cidr)) {
        (Ok(first), Ok(single)) => first.trunc() == single.trunc(),
        _ => *first == node.pod_cidr,
    };
    let DumpedNode { name, pod_cidr, .. } = node;
    (!same).then(|| match pod_cidr.as_str() {
        "" => format!("node {name} has spec.podCIDRs[0] {first} and no spec.podCIDR"),
        _ => format!("node {name} has spec.podCIDR {pod_cidr} and spec.podCIDRs[0] {first}"),
    })
}

fn families(node: &DumpedNode, expected: &ExpectedBlocks) -> Option<(Severity, String)> {
    let name = &node.name;
    let has: Vec<Family> = node.blocks().iter().map(Family::of).collect();
    // Networks that give a node several do not come here.
    if let Some(twice) = [Family::V4, Family::V6]
        .into_iter()
        .find(|family| has.iter().filter(|each| *each == family).count() > 1)
    {
        return Some((
            Severity::Error,
            format!("node {name} has more than one {twice} block"),
        ));
    }
    let (families, known) = expected.families.as_ref()?;
    let (severity, who) = match known {
        ExpectationSource::Given => (Severity::Error, "the cluster has"),
        ExpectationSource::Inferred => (Severity::Warning, "most nodes have"),
    };
    let stray = has.iter().find(|family| !families.contains(family));
    let lacking = families.iter().find(|family| !has.contains(family));
    let wanted: Vec<_> = families.iter().collect();
    // An invalid block may be the one that is missing; it has a finding of its own.
    match (stray, lacking) {
        (Some(family), _) => Some((
            severity,
            format!(
                "node {name} has an {family} block; {who} {}",
                JoinedList(&wanted)
            ),
        )),
        (None, Some(family)) if !has.is_empty() => Some((
            severity,
            format!(
                "node {name} has no {family} block; {who} {}",
                JoinedList(&wanted)
            ),
        )),
        _ => None,
    }
}
