//! The forms of an audit report.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use podplane_api::printable;
use podplane_audit::{AuditReport, Code, Finding, Severity, Summary};
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
    let remedies = remedies(&report.findings);
    for (code, remedy) in &remedies {
        line(format!("{code}: {remedy}"))?;
    }
    if !remedies.is_empty() {
        output::line("")?;
    }
    summary_lines(summary).into_iter().try_for_each(line)
}

/// The remedies of findings, by code, each once.
pub(super) fn remedies<'a>(
    findings: impl IntoIterator<Item = &'a Finding>,
) -> BTreeSet<(Code, &'a str)> {
    let findings = findings.into_iter();
    findings.map(|f| (f.code, f.repair.as_str())).collect()
}

/// The whole cluster in a few lines.
pub(super) fn summary_lines(summary: &Summary) -> Vec<String> {
    let network = &summary.network;
    let mut lines = vec![format!("network: {}: {}", network.name, network.reason)];
    let unread = summary.unread.iter();
    lines.extend(unread.map(|unread| format!("incomplete: {unread}")));
    let pods = &summary.pods;
    let plural = |count| if count == 1 { "" } else { "s" };
    lines.push(format!(
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
    ));
    let addresses = &summary.addresses;
    // Without any block, the free addresses are not known either.
    let knows_capacity = addresses.capacity > 0
        && summary
            .checks
            .get("ip-capacity")
            .is_none_or(|check| check == "on");
    lines.push(match knows_capacity {
        true => format!(
            "addresses: {} of {} used, {} free",
            readable(addresses.used),
            readable(addresses.capacity),
            readable(addresses.free)
        ),
        false => format!("addresses: {} used", readable(addresses.used)),
    });
    let blocks = summary.blocks.iter();
    lines.extend(blocks.map(|blocks| {
        format!(
            "blocks of {} in /{}: {} of {} used, {} reserved, {} free",
            blocks.range, blocks.node_mask, blocks.used, blocks.total, blocks.reserved, blocks.free
        )
    }));
    // One line for all rules with the same reason.
    let mut checks = BTreeMap::<&str, Vec<&str>>::new();
    for (code, check) in summary.checks.iter().filter(|(_, check)| *check != "on") {
        checks.entry(check).or_default().push(code);
    }
    let checks = checks.into_iter();
    lines.extend(checks.map(|(check, codes)| format!("{}: {check}", codes.join(", "))));
    let counts = Severity::ALL.iter().rev().map(|severity| {
        let count = number(summary, *severity);
        format!("{severity} {count}")
    });
    lines.push(format!(
        "findings: {}",
        counts.collect::<Vec<_>>().join(", ")
    ));
    lines
}

/// The number of findings of a severity.
pub(super) fn number(summary: &Summary, severity: Severity) -> usize {
    let counted = summary.findings.get(severity.as_str());
    counted.copied().unwrap_or_default()
}

/// Prints one line that may contain untrusted text.
fn line(text: impl fmt::Display) -> anyhow::Result<()> {
    output::line(printable::line(&text.to_string()))
}
