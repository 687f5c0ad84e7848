//! Findings about single nodes, merged into one line if every node has the same.
//!
//! A wrong flag, or another kind of network, is more likely than the same fault on each node.

use std::collections::{BTreeMap, BTreeSet};

use super::of_node;
use crate::{
    dump::Dump,
    expected::ExpectedBlocks,
    finding::{Code, Finding, Severity},
};

/// The codes that every one of two or more nodes has.
fn codes(dump: &Dump, expected: &ExpectedBlocks) -> BTreeSet<Code> {
    let machines = dump
        .nodes
        .iter()
        .filter(|node| !node.is_virtual && node.ipam == dump.network.ipam);
    let mut common: Option<BTreeSet<Code>> = None;
    let mut count = 0;
    for node in machines {
        let own = of_node(node, dump, expected).into_iter();
        let own: BTreeSet<Code> = own.map(|finding| finding.code).collect();
        common = Some(match common {
            Some(common) => common.intersection(&own).copied().collect(),
            None => own,
        });
        count += 1;
    }
    common.filter(|_| count > 1).unwrap_or_default()
}

/// The severity of a finding that every node has: information for a contradiction to flags, since
/// the flags may be wrong; unchanged for a contradiction within each node.
fn common_severity(code: Code, severity: Severity) -> Severity {
    match code {
        Code::PodCidrMismatch => severity,
        _ => Severity::Info,
    }
}

/// Advice on a contradiction to flags that all blocks have.
pub(super) const CHECK_THE_FLAG: &str = "check whether the flag is right; if it is, write the steps to change every node with: podplane audit --fail-on info --repair DIR";

/// The severity of a node's finding, in view of those of all nodes.
pub(crate) fn severity(dump: &Dump, expected: &ExpectedBlocks) -> impl Fn(&Finding) -> Severity {
    let common = codes(dump, expected);
    move |finding| match common.contains(&finding.code) {
        true => common_severity(finding.code, finding.severity),
        false => finding.severity,
    }
}

pub(super) fn findings(dump: &Dump, expected: &ExpectedBlocks) -> Vec<Finding> {
    let common = codes(dump, expected);
    let mut merged = BTreeMap::<Code, Finding>::new();
    let mut findings = Vec::new();
    let each = dump
        .nodes
        .iter()
        .flat_map(|node| of_node(node, dump, expected));
    for finding in each {
        if !common.contains(&finding.code) {
            findings.push(finding);
            continue;
        }
        match merged.get_mut(&finding.code) {
            Some(first) => {
                first.objects.extend(finding.objects);
                first.prefixes.extend(finding.prefixes);
            }
            None => {
                merged.insert(finding.code, finding);
            }
        }
    }
    let several = merged.into_values().map(|mut finding| {
        finding.objects.sort_unstable();
        finding.objects.dedup();
        let count = finding.objects.len();
        finding.severity = common_severity(finding.code, finding.severity);
        finding.message = match finding.code {
            Code::MissingPodCidr => {
                format!("none of the {count} nodes has a block in {}", dump.network.name)
            }
            _ => format!("all {count} nodes: {}", finding.message),
        };
        if finding.severity == Severity::Info {
            finding.repair = match finding.code {
                Code::MissingPodCidr => {
                    "if the network is to use podCIDRs, start the controller that assigns them (--allocate-node-cidrs)".into()
                }
                _ => CHECK_THE_FLAG.into(),
            };
        }
        finding
    });
    findings.extend(several);
    findings
}
