//! The report of an audit of the history: findings as they come, and the summary.

use std::process::ExitCode;

use podplane_api::{jiff::Timestamp, printable};
use podplane_audit::{HistoryCounts, HistoryFinding, Severity};
use serde::Serialize;
use serde_json::json;

use super::super::INCOMPLETE;
use crate::output::{self, table::TextTable};

/// The number of findings in a JSON report. In a broken cluster each binding may be one.
const MOST_FINDINGS: usize = 10_000;

/// The form of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReportForm {
    Table,
    Json,
}

/// The revisions that were read, and the findings.
#[derive(Debug)]
pub(super) struct HistoryReport {
    form: ReportForm,
    table: TextTable,
    findings: Vec<TimedFinding>,
    left_out: usize,
    /// The first revision whose state was read, and the last one that was judged.
    revisions: (u64, u64),
    /// The times of the first and the last change, as far as objects record them.
    changed: Option<(Timestamp, Timestamp)>,
    not_covered: Vec<UncoveredRange>,
    worst: Option<Severity>,
}

#[derive(Debug, Serialize)]
struct TimedFinding {
    #[serde(flatten)]
    finding: HistoryFinding,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<Timestamp>,
}

/// Revisions that were not judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UncoveredRange {
    /// The first one; `None` for all before `to`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) from: Option<u64>,
    /// The last one; `None` for all after `from`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) to: Option<u64>,
    pub(super) reason: String,
    /// True if they were written while the audit ran.
    pub(super) is_gap: bool,
}

impl UncoveredRange {
    fn text(&self) -> String {
        let range = match (self.from, self.to) {
            (Some(from), Some(to)) => format!("revisions {from} to {to}"),
            (Some(from), None) => format!("revisions from {from} on"),
            (None, Some(to)) => format!("revisions up to {to}"),
            (None, None) => "revisions".into(),
        };
        format!("{range}: {}", self.reason)
    }
}

impl HistoryReport {
    pub(super) fn new(form: ReportForm, from: u64) -> Self {
        Self {
            form,
            table: TextTable::new(vec!["SEVERITY", "CODE", "REVISION", "TIME", "MESSAGE"]),
            findings: Vec::new(),
            left_out: 0,
            revisions: (from, from),
            changed: None,
            not_covered: Vec::new(),
            worst: None,
        }
    }

    /// Adds the findings of a revision that was written at `time`; prints them in a table.
    pub(super) fn judged(
        &mut self,
        revision: u64,
        time: Option<Timestamp>,
        found: Vec<HistoryFinding>,
    ) -> anyhow::Result<()> {
        self.reached(revision);
        if let Some(time) = time {
            let (first, last) = self.changed.unwrap_or((time, time));
            self.changed = Some((first.min(time), last.max(time)));
        }
        self.worst = self
            .worst
            .max(found.iter().map(|found| found.severity).max());
        if self.form == ReportForm::Json {
            let room = MOST_FINDINGS.saturating_sub(self.findings.len());
            self.left_out += found.len().saturating_sub(room);
            let found = found.into_iter().take(room);
            self.findings
                .extend(found.map(|finding| TimedFinding { finding, time }));
            return Ok(());
        }
        if found.is_empty() {
            return Ok(());
        }
        let rows = found.into_iter().map(|finding| {
            vec![
                finding.severity.to_string(),
                finding.code.to_string(),
                finding.revision.to_string(),
                time.map_or_else(|| "<unknown>".into(), |time| time.to_string()),
                finding.message,
            ]
        });
        output::line(self.table.rows(rows))
    }

    /// Notes that everything up to a revision was judged.
    pub(super) fn reached(&mut self, revision: u64) {
        self.revisions.1 = self.revisions.1.max(revision);
    }

    /// Notes revisions that were not judged, and says so at once if they were written while the
    /// audit ran.
    pub(super) fn miss(&mut self, missed: UncoveredRange) {
        if missed.is_gap {
            anstream::eprintln!("warning: not covered: {}", printable::line(&missed.text()));
        }
        self.not_covered.push(missed);
    }

    /// Prints the summary, and all findings in JSON.
    pub(super) fn finish(self, counts: &HistoryCounts) -> anyhow::Result<()> {
        match self.form {
            ReportForm::Table => self.summary(counts),
            ReportForm::Json => output::json(&self.document(counts)?),
        }
    }

    /// The exit code: findings first, then revisions that were missed while the audit ran.
    pub(super) fn exit_code(&self, fail_on: Severity) -> ExitCode {
        if self.worst >= Some(fail_on) {
            ExitCode::FAILURE
        } else if self.not_covered.iter().any(|missed| missed.is_gap) {
            ExitCode::from(INCOMPLETE)
        } else {
            ExitCode::SUCCESS
        }
    }

    fn summary(&self, counts: &HistoryCounts) -> anyhow::Result<()> {
        if self.worst.is_some() {
            output::line("")?;
        }
        let (from, to) = self.revisions;
        let changes = match self.changed {
            Some((first, last)) => {
                let took = last.duration_since(first);
                format!("changes of pods and nodes, from {first} to {last} ({took:#})")
            }
            None => "changes of pods and nodes".into(),
        };
        output::line(format_args!(
            "revisions {from} to {to}: {} with {} {changes}",
            counts.revisions, counts.changes
        ))?;
        let binds = &counts.binds;
        output::line(format_args!(
            "binds: {} of pods that need an address, {} of them took the last one of their node; {} without, {} of mirror pods",
            binds.with_address, binds.of_last_address, binds.without_address, binds.mirror
        ))?;
        for missed in &self.not_covered {
            let text = missed.text();
            output::line(format_args!("not covered: {}", printable::line(&text)))?;
        }
        let severities = severities(counts);
        let severities = severities.map(|(severity, count)| format!("{severity} {count}"));
        output::line(format_args!("findings: {}", severities.join(", ")))
    }

    fn document(&self, counts: &HistoryCounts) -> anyhow::Result<serde_json::Value> {
        let mut summary = serde_json::to_value(counts)?;
        let by_rule = summary["findings"].take();
        let (from, to) = self.revisions;
        summary["from"] = from.into();
        summary["to"] = to.into();
        if let Some((first, last)) = self.changed {
            summary["firstChange"] = first.to_string().into();
            summary["lastChange"] = last.to_string().into();
        }
        summary["notCovered"] = serde_json::to_value(&self.not_covered)?;
        summary["leftOut"] = self.left_out.into();
        summary["rules"] = by_rule;
        let severities = severities(counts).map(|(severity, count)| (severity.as_str(), count));
        summary["findings"] = json!(std::collections::BTreeMap::from(severities));
        Ok(json!({"findings": self.findings, "summary": summary}))
    }
}

/// The number of findings of each severity, the worst first.
fn severities(counts: &HistoryCounts) -> [(Severity, u64); 3] {
    [Severity::Error, Severity::Warning, Severity::Info].map(|severity| {
        let of = counts.findings.iter();
        let of = of.filter(|(rule, _)| rule.severity() == severity);
        (severity, of.map(|(_, count)| count).sum())
    })
}
