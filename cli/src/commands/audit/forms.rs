//! The forms of an audit report.

use std::{collections::BTreeMap, fmt};

use podplane_api::printable;
use podplane_audit::{AuditReport, Severity};
use podplane_ipam::figures::readable;

use crate::output::{self, table::TextTable};

/// Prints a row for each finding with its remedy, then the summary.
pub(super) fn table(report: &AuditReport) -> anyhow::Result<()> {
    let summary = &report.summary;
    if !report.findings.is_empty() {
        let mut table = TextTable::new(vec!["SEVERITY", "CODE", "MESSAGE"]);
        let rows = report.findings.iter().map(|finding| {
            vec![
                finding.severity.to_string(),
                finding.code.to_string(),
                finding.message.clone(),
            ]
        });
        output::line(table.rows(rows))?;
        output::line("")?;
    }
    let mut repairs: Vec<_> = report
        .findings
        .iter()
        .map(|f| (f.code, f.repair.as_str()))
        .collect();
    repairs.sort_unstable();
    repairs.dedup();
    for (code, repair) in &repairs {
        line(format!("{code}: {repair}"))?;
    }
    if !repairs.is_empty() {
        output::line("")?;
    }
    let network = &summary.network;
    line(format!("network: {}: {}", network.name, network.reason))?;
    for unread in &summary.unread {
        line(format!("incomplete: {unread}"))?;
    }
    let pods = &summary.pods;
    let plural = |count| if count == 1 { "" } else { "s" };
    line(format!(
        "{} node{}, {} pod{}: {} with an address, {} waiting for one, {} on their node's network, {} unscheduled, {} finished",
        summary.nodes,
        plural(summary.nodes),
        pods.total,
        plural(pods.total),
        pods.with_address,
        pods.waiting_for_address,
        pods.host_network,
        pods.unscheduled,
        pods.finished
    ))?;
    let addresses = &summary.addresses;
    // Without any block, the free addresses are not known either.
    let knows_capacity = addresses.capacity > 0
        && summary
            .checks
            .get("ip-capacity")
            .is_none_or(|check| check == "on");
    line(match knows_capacity {
        true => format!(
            "addresses: {} of {} used, {} free",
            readable(addresses.used),
            readable(addresses.capacity),
            readable(addresses.free)
        ),
        false => format!("addresses: {} used", readable(addresses.used)),
    })?;
    for blocks in &summary.blocks {
        line(format!(
            "blocks of {} in /{}: {} of {} used, {} reserved, {} free",
            blocks.range, blocks.node_mask, blocks.used, blocks.total, blocks.reserved, blocks.free
        ))?;
    }
    // One line for all rules with the same reason.
    let mut checks = BTreeMap::<&str, Vec<&str>>::new();
    for (code, check) in summary.checks.iter().filter(|(_, check)| *check != "on") {
        checks.entry(check).or_default().push(code);
    }
    for (check, codes) in checks {
        line(format!("{}: {check}", codes.join(", ")))?;
    }
    let counts = Severity::ALL.iter().rev().map(|severity| {
        let count = summary
            .findings
            .get(severity.as_str())
            .copied()
            .unwrap_or_default();
        format!("{severity} {count}")
    });
    line(format!(
        "findings: {}",
        counts.collect::<Vec<_>>().join(", ")
    ))
}

/// Prints one line that may contain untrusted text.
fn line(text: impl fmt::Display) -> anyhow::Result<()> {
    output::line(printable::line(&text.to_string()))
}
