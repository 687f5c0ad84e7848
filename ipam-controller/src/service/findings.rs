//! Problems of blocks, as far as the controller sees them. Codes and severities are those of
//! `podplane audit`; blocks of deleted nodes are known only here.

use podplane_ipam::{Block, Claim, Misfit, Owner};
use podplane_proto::ipam::AuditFinding;

use crate::{
    overlaps::overlaps,
    plan::{Allocator, BlockProblem, ReleasePhase},
};

/// All findings, the worst first.
pub(super) fn of(known: &Allocator) -> Vec<AuditFinding> {
    let shared = overlaps(known.blocks()).into_iter();
    let mut findings: Vec<AuditFinding> =
        shared.map(|(one, other)| overlap(&one, &other)).collect();
    findings.extend(
        known
            .problems()
            .filter_map(|(node, found)| problem(node, found)),
    );
    findings.extend(known.without_blocks().map(|node| {
        let message = format!("node {node} has no block");
        finding("missing-pod-cidr", "error", [node], message)
    }));
    findings.extend(known.former_blocks().map(|(node, net, phase)| {
        let former = format!("{net} of the former node {node}");
        match phase {
            ReleasePhase::Draining => {
                let message = format!("{former} is kept while pods may have its addresses");
                finding("draining-block", "info", [node], message)
            }
            ReleasePhase::Held(until) => {
                let until = until.map_or_else(
                    || format!("the node ends that, or `podplane node forget {node}` does"),
                    |until| format!("{until} or longer"),
                );
                let message = format!("{former} is held for its sandboxes until {until}");
                finding("held-block", "warning", [node], message)
            }
            ReleasePhase::Quarantined(until) => {
                let message = format!("{former} is kept back until {until}");
                finding("quarantined-block", "info", [node], message)
            }
        }
    }));
    findings.sort_by_key(|finding| match finding.severity.as_str() {
        "error" => 0,
        "warning" => 1,
        _ => 2,
    });
    findings
}

fn overlap(one: &Block, other: &Block) -> AuditFinding {
    let code = match one.net == other.net {
        true => "duplicate-pod-cidr",
        false => "overlapping-pod-cidr",
    };
    let owners = [one, other].map(|block| block.claim.owner().map_or("", Owner::name));
    finding(code, "error", owners, format!("{one} overlaps {other}"))
}

/// The finding for a problem, unless it is an overlap with another node, which is reported by
/// [`overlap`].
fn problem(node: &str, problem: &BlockProblem) -> Option<AuditFinding> {
    let (code, severity) = match problem {
        BlockProblem::Unreadable(_) => ("foreign-pod-cidr", "warning"),
        BlockProblem::Misfit { misfit, .. } => match misfit {
            Misfit::WrongSize { .. } => ("wrong-size-pod-cidr", "warning"),
            Misfit::OutOfRange { .. } => ("foreign-pod-cidr", "warning"),
            Misfit::Overlaps(overlap) => match overlap.held.claim {
                Claim::Reserved => ("service-range-overlap", "error"),
                Claim::Draining(_) => ("foreign-pod-cidr", "warning"),
                Claim::Assigned(_) | Claim::Foreign(_) => return None,
            },
        },
    };
    Some(finding(code, severity, [node], problem.to_string()))
}

fn finding<const N: usize>(
    code: &str,
    severity: &str,
    nodes: [&str; N],
    message: String,
) -> AuditFinding {
    AuditFinding {
        code: code.to_owned(),
        severity: severity.to_owned(),
        objects: nodes.iter().map(|node| format!("Node/{node}")).collect(),
        message,
    }
}
