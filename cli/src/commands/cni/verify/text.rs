//! The report for people.

use std::fmt;

use podplane_cni::verify::{CheckReport, Finding, Outcome, Report, Severity};

use crate::output::{sheet::Sheet, table::Table};

/// As much as is shown of one call. The whole is in calls.log, and in the JUnit report.
const SHOWN: usize = 1500;

/// The report as text: each check on a line, then what was found.
pub(super) struct Text<'a>(pub(super) &'a Report);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.0;
        writeln!(f, "{}\n", head(report))?;
        writeln!(f, "{}", checks(report))?;
        let counting = with_findings(report, |severity| severity > Severity::Note);
        for (number, (check, finding)) in (1..).zip(&counting) {
            let title = format!("{number}. {} ({})", check.id, finding.severity);
            writeln!(f, "\n{}", sheet(&title, check, finding))?;
        }
        let notes = with_findings(report, |severity| severity == Severity::Note);
        if !notes.is_empty() {
            writeln!(f, "\n{}", notes_sheet(&notes))?;
        }
        write!(f, "\n{}", verdict(report, counting.len()))
    }
}

fn head(report: &Report) -> Sheet {
    let mut sheet = Sheet::default();
    let supported = report.supported.join(", ");
    sheet.field("Plugin", report.program.to_string_lossy());
    sheet.field("CNI", format!("{}, of {supported}", report.cni_version));
    sheet.field("Seed", format!("{} (the same choices again: --seed {0}; when a SIGKILL strikes and how concurrent calls interleave is the machine's)", report.seed));
    let Report {
        calls, kills, took, ..
    } = report;
    sheet.field(
        "Calls",
        format!("{calls}, {kills} of them killed, in {took:.1?}"),
    );
    sheet
}

fn checks(report: &Report) -> String {
    let rows = report.checks.iter().map(|check| {
        let result = match &check.outcome {
            Outcome::Passed => "ok".to_owned(),
            Outcome::Failed => "FAILED".to_owned(),
            Outcome::Skipped(_) => "skipped".to_owned(),
        };
        let about = match &check.outcome {
            Outcome::Skipped(why) => format!("{}: {why}", check.title),
            _ => check.title.to_owned(),
        };
        vec![check.id.to_owned(), result, about]
    });
    Table::new(vec!["CHECK", "RESULT", "WHAT HOLDS"]).rows(rows)
}

fn with_findings(
    report: &Report,
    wanted: impl Fn(Severity) -> bool,
) -> Vec<(&CheckReport, &Finding)> {
    let pairs = report.checks.iter().flat_map(|check| {
        let findings = check.findings.iter();
        findings.map(move |finding| (check, finding))
    });
    pairs
        .filter(|(_, finding)| wanted(finding.severity))
        .collect()
}

fn sheet(title: &str, check: &CheckReport, finding: &Finding) -> Sheet {
    let mut sheet = Sheet::default();
    sheet.section(title, |sheet| {
        sheet.field("Seen", &finding.seen);
        if finding.times > 1 {
            sheet.field("Times", finding.times.to_string());
        }
        sheet.field("Expected", &finding.expected);
        sheet.field("Basis", check.basis);
        let lines = finding.steps.iter().flat_map(|step| {
            let answer = [step.interruption(), step.answer()];
            let answer: Vec<_> = answer.iter().filter(|text| !text.is_empty()).collect();
            let answer: Vec<_> = answer.into_iter().map(String::as_str).collect();
            [
                shortened(&step.to_string()),
                shortened(&format!("# {}", answer.join(": "))),
            ]
        });
        let lines: Vec<_> = lines.collect();
        if !lines.is_empty() {
            sheet.fields("By hand", lines);
        }
    });
    sheet
}

fn notes_sheet(notes: &[(&CheckReport, &Finding)]) -> Sheet {
    let mut sheet = Sheet::default();
    let title = "Notes, which do not count (plugins made with the reference's library share them, and no runtime minds)";
    sheet.section(title, |sheet| {
        for (check, finding) in notes {
            let Finding { seen, expected, .. } = finding;
            sheet.field(check.id, format!("{seen}; expected: {expected}"));
        }
    });
    sheet
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{}... ({} bytes)", &text[..at], text.len()),
        None => text.to_owned(),
    }
}

fn verdict(report: &Report, findings: usize) -> String {
    let count = |wanted: fn(&Outcome) -> bool| {
        let outcomes = report.checks.iter().map(|check| &check.outcome);
        outcomes.filter(|outcome| wanted(outcome)).count()
    };
    let passed = count(|outcome| *outcome == Outcome::Passed);
    let failed = count(|outcome| *outcome == Outcome::Failed);
    let skipped = count(|outcome| matches!(outcome, Outcome::Skipped(_)));
    format!("{passed} checks ok, {failed} failed, {skipped} skipped; {findings} findings")
}
