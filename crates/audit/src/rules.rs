//! The rules: from a dump and its expected state to findings.

mod allocations;
mod blocks;
mod capacity;
mod every_node;
mod pods;
mod recorded;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use podplane_ipam::invariants::{self, Violation, pods_by_node};
use serde::Serialize;

use crate::{
    dump::Dump,
    expected::{ExpectationSource, ExpectedBlocks},
    finding::{Code, Finding, Severity},
    summary::Summary,
};

pub(crate) use blocks::of_node;
pub(crate) use every_node::severity;

/// The result of the audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditReport {
    /// The worst first, then by code and object.
    pub findings: Vec<Finding>,
    /// The counts of the whole cluster.
    pub summary: Summary,
}

impl AuditReport {
    /// Returns whether any finding has at least this severity.
    #[must_use]
    pub fn is_at_least(&self, severity: Severity) -> bool {
        self.findings
            .iter()
            .any(|finding| finding.severity >= severity)
    }

    /// False if objects that some rules need could not be read.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.summary.unread.is_empty()
    }
}

/// Audits the cluster in `dump`.
#[must_use]
pub fn audit(dump: &Dump, expected: &ExpectedBlocks) -> AuditReport {
    let used = pods_by_node(&dump.world);
    let mut findings = Vec::new();
    let mut overlaps = blocks::Overlaps::default();
    let mut over = BTreeSet::new();
    for violation in invariants::check(&dump.world) {
        match violation {
            Violation::OverlappingBlocks { wide, narrow } => overlaps.add(wide, narrow),
            Violation::DuplicateAddress { ip, pods } => findings.push(pods::duplicate(ip, &pods)),
            Violation::OutsideBlock {
                pod,
                ip,
                node,
                blocks,
            } => findings.extend(pods::outside(dump, &pod, ip, &node, &blocks)),
            Violation::OverCapacity { node, .. } => over.extend([node]),
            // A dump has neither files of nodes nor a history.
            Violation::LeakedAddress(_)
            | Violation::LostWrite { .. }
            | Violation::UndoneDelete { .. } => {}
        }
    }
    let holder = |node: &str, _: &ipnet::IpNet| vec![dump.network.holder(node)];
    findings.extend(overlaps.findings(&dump.world.nodes, holder, dump.network.another_block()));
    findings.extend(pods::odd(dump));
    findings.extend(pods::with_addresses_of_nodes(dump));
    findings.extend(recorded::findings(dump, expected));
    findings.extend(allocations::findings(dump));
    findings.extend(every_node::findings(dump, expected));
    findings.extend(capacity::of_nodes(dump, &used, &over));
    let mut summary = Summary::new(dump, expected, checks(dump, expected));
    findings.extend(capacity::of_cluster(dump, &summary));
    for finding in &mut findings {
        finding.prefixes.sort_unstable();
        finding.prefixes.dedup();
    }
    findings.sort_unstable_by(|a, b| {
        let key = |finding: &Finding| (std::cmp::Reverse(finding.severity), finding.code);
        let order = key(a).cmp(&key(b)).then_with(|| a.objects.cmp(&b.objects));
        order.then_with(|| a.message.cmp(&b.message))
    });
    findings.dedup();
    summary.count(&findings);
    AuditReport { findings, summary }
}

/// The state of each code's check.
fn checks(dump: &Dump, expected: &ExpectedBlocks) -> BTreeMap<&'static str, String> {
    let of = |code: Code| {
        if let Some(why) = dump.network.excludes(code) {
            return why;
        }
        match code {
            Code::ForeignPodCidr if expected.ranges.is_empty() => {
                "off: needs --cluster-cidr".to_owned()
            }
            Code::ServiceRangeOverlap if expected.services.as_slice().is_empty() => {
                "off: needs --service-cidr".into()
            }
            Code::WrongSizePodCidr => sizes(expected),
            Code::WrongFamilyPodCidr => match &expected.families {
                None => "inferred: a node has no two blocks of one family".into(),
                Some((_, ExpectationSource::Given)) => "on".into(),
                Some((families, ExpectationSource::Inferred)) => {
                    let families: Vec<_> = families.iter().collect();
                    format!("inferred: most nodes have {}", JoinedList(&families))
                }
            },
            Code::PodOutsideBlock if dump.nodes.is_empty() => {
                "off: there are no nodes in the input".into()
            }
            Code::DuplicateAllocation | Code::LeakedAllocation
                if dump.records.allocations.is_empty()
                    && dump.records.node_addresses.is_empty() =>
            {
                "off: the input has no objects with allocations".into()
            }
            Code::MissingAllocation if dump.records.allocations.is_empty() => {
                "off: the input has no objects with allocations".into()
            }
            Code::OrphanedBlock
                if dump.records.node_objects.is_empty() && dump.records.blocks.is_empty() =>
            {
                "off: the input has no objects of networks".into()
            }
            Code::BlockOutsidePool if dump.records.pools.is_empty() => {
                "off: the input has no pools".into()
            }
            _ => "on".into(),
        }
    };
    let with_unread = |code: Code| {
        let unread = dump.unread.iter().filter(|unread| unread.concerns(code));
        let unread: Vec<String> = unread.map(ToString::to_string).collect();
        match unread.is_empty() {
            true => of(code),
            false => format!("incomplete: {}", unread.join(", ")),
        }
    };
    Code::ALL
        .map(|code| (code.as_str(), with_unread(code)))
        .into()
}

/// The state of the check of blocks' sizes.
fn sizes(expected: &ExpectedBlocks) -> String {
    let inferred = expected
        .masks
        .iter()
        .filter(|(_, (_, known))| *known == ExpectationSource::Inferred);
    let inferred: Vec<_> = inferred
        .map(|(family, (mask, _))| format!("/{mask} for {family}"))
        .collect();
    match inferred.is_empty() {
        _ if expected.masks.is_empty() => "off: needs --node-cidr-mask-size".into(),
        true => "on".into(),
        false => format!("inferred: most blocks are {}", JoinedList(&inferred)),
    }
}

/// `a`, `a and b`, `a, b and c`, `a, b, c and 7 more`.
struct JoinedList<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for JoinedList<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 3;
        let more = self.0.len().saturating_sub(SHOWN);
        let shown = if more > 1 { &self.0[..SHOWN] } else { self.0 };
        for (index, item) in shown.iter().enumerate() {
            let separator = match index {
                0 => "",
                last if last + 1 == shown.len() && more <= 1 => " and ",
                _ => ", ",
            };
            write!(f, "{separator}{item}")?;
        }
        if more > 1 {
            write!(f, " and {more} more")?;
        }
        Ok(())
    }
}

fn node(name: &str) -> String {
    format!("Node/{name}")
}

fn pod(pod: &invariants::PodKey) -> String {
    format!("Pod/{pod}")
}
