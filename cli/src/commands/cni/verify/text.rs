//! The report for people: each check on a line as it ends, then the findings.

use std::{fmt, time::Duration};

use podplane_api::printable;
use podplane_cni_verify::{About, CheckOutcome, CheckReport, Finding, Severity, VerifyReport};

use crate::output::sheet::Sheet;

/// The number of bytes shown of an answer. calls.log has all of it.
const SHOWN: usize = 1500;
/// The number of lines shown of the plugin's standard error.
const STDERR_LINES: usize = 8;
/// The number of lines shown of the commands that repeat a finding. The JUnit report and the
/// directory with calls.log have all of them.
const COMMAND_LINES: usize = 60;
const COMMAND_BYTES: usize = 12_000;

/// The head of the report: the subject and the expected duration.
pub(super) struct ReportHead<'a> {
    pub(super) about: &'a About,
    pub(super) checks: usize,
    pub(super) left: Option<Duration>,
    pub(super) is_quick: bool,
}

impl fmt::Display for ReportHead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let about = self.about;
        let mut sheet = Sheet::default();
        sheet.field("Plugin", about.program.to_string_lossy());
        let supported = about.supported.join(", ");
        sheet.field("CNI", format!("{}, of {supported}", about.cni_version));
        sheet.field("Seed", format!("{} (the same choices again: --seed {0}; when a SIGKILL strikes and how concurrent calls interleave is the machine's)", about.seed));
        if let Some(left) = self.left {
            let most = if self.is_quick { "at most" } else { "about" };
            let time = rounded(if self.is_quick { QUICK } else { left });
            sheet.field("Checks", format!("{}, in {most} {time}", self.checks));
        }
        for hint in &about.hints {
            sheet.field("Hint", hint);
        }
        write!(f, "{sheet}")
    }
}

/// The longest duration of --quick.
const QUICK: Duration = Duration::from_secs(10);

/// A rounded estimate of a duration.
pub(super) fn rounded(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        ..1.0 => "a second".to_owned(),
        ..20.0 => format!("{seconds:.0} s"),
        ..90.0 => format!("{:.0} s", (seconds / 5.0).round() * 5.0),
        ..5400.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

/// The line of a check that has ended.
pub(super) struct CheckLine<'a> {
    pub(super) check: &'a CheckReport,
    /// The width of the ids, in columns.
    pub(super) width: usize,
}

impl fmt::Display for CheckLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { check, width } = self;
        let (result, why) = match &check.outcome {
            CheckOutcome::Passed => ("ok", None),
            CheckOutcome::Failed => ("FAILED", None),
            CheckOutcome::Skipped(why) => ("skipped", Some(why.as_str())),
            CheckOutcome::Stopped => ("stopped", Some("nothing was found until then")),
            CheckOutcome::NotRun(why) => ("not run", Some(why.as_str())),
        };
        let took = match check.took {
            Duration::ZERO => String::new(),
            took => format!("{:.2}s", took.as_secs_f64()),
        };
        write!(
            f,
            "{result:7}   {:width$}   {took:>7}   {}",
            check.id, check.title
        )?;
        why.map_or(Ok(()), |why| write!(f, ": {}", printable::line(why)))
    }
}

/// The findings and the verdict.
pub(super) struct Findings<'a>(pub(super) &'a VerifyReport);

impl fmt::Display for Findings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.0;
        let counting = counting(report);
        for (number, (check, finding)) in (1..).zip(&counting) {
            let title = format!("{number}. {} ({})", check.id, finding.severity);
            writeln!(f, "\n{}", sheet(&title, check, finding))?;
            commands(f, number, finding)?;
        }
        let notes = with_findings(report, |severity| severity == Severity::Note);
        if !notes.is_empty() {
            writeln!(f, "\n{}", notes_sheet(&notes))?;
        }
        if !report.left.is_empty() {
            writeln!(f, "\nLeft in the plugin's store; to delete it:")?;
            for line in &report.left {
                writeln!(f, "  {}", printable::line(line))?;
            }
        }
        write!(f, "\n{}", verdict(report, counting.len()))
    }
}

/// The findings that count, in order.
pub(super) fn counting(report: &VerifyReport) -> Vec<(&CheckReport, &Finding)> {
    with_findings(report, |severity| severity > Severity::Note)
}

fn with_findings(
    report: &VerifyReport,
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
        let calls = finding.steps.iter().map(|step| {
            let said = [step.title(), step.interruption(), step.answer()];
            let said: Vec<_> = said.into_iter().filter(|part| !part.is_empty()).collect();
            shortened(&said.join(": "))
        });
        let calls: Vec<_> = calls.collect();
        if !calls.is_empty() {
            sheet.fields("Calls", calls);
        }
        let last = finding.steps.last();
        let stderr = last.map_or_else(Vec::new, |step| step.last_stderr(STDERR_LINES));
        if !stderr.is_empty() {
            let lines = stderr
                .iter()
                .map(|line| shortened(&line.replace('\t', "    ")));
            sheet.fields("Stderr", lines.collect::<Vec<_>>());
        }
    });
    sheet
}

/// Prints the commands that repeat the finding, for a shell.
fn commands(f: &mut fmt::Formatter<'_>, number: usize, finding: &Finding) -> fmt::Result {
    let text = &finding.commands;
    let lines = text.lines().count();
    if lines == 0 {
        return Ok(());
    }
    if lines > COMMAND_LINES || text.len() > COMMAND_BYTES {
        return writeln!(
            f,
            "  To repeat it: {lines} lines, which --keep writes to finding-{number}.sh, and --junit to its report"
        );
    }
    writeln!(f, "  To repeat it, in a shell:\n")?;
    // Without an indent, so that they can be copied.
    writeln!(f, "{}", printable::lines(text).trim_end())
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

fn verdict(report: &VerifyReport, findings: usize) -> String {
    let count = |wanted: fn(&CheckOutcome) -> bool| {
        let outcomes = report.checks.iter().map(|check| &check.outcome);
        outcomes.filter(|outcome| wanted(outcome)).count()
    };
    let counts = [
        (
            count(|outcome| *outcome == CheckOutcome::Passed),
            "checks ok",
        ),
        (count(|outcome| *outcome == CheckOutcome::Failed), "failed"),
        (
            count(|outcome| matches!(outcome, CheckOutcome::Skipped(_))),
            "skipped",
        ),
        (
            count(|outcome| *outcome == CheckOutcome::Stopped),
            "stopped",
        ),
        (
            count(|outcome| matches!(outcome, CheckOutcome::NotRun(_))),
            "not run",
        ),
    ];
    let counts = counts
        .iter()
        .filter(|(count, word)| *count > 0 || *word == "checks ok" || *word == "failed");
    let counts: Vec<_> = counts
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    let VerifyReport {
        calls, kills, took, ..
    } = report;
    let partial = if report.is_partial {
        "Interrupted. "
    } else {
        ""
    };
    format!(
        "{partial}{}; {findings} findings; {calls} calls, {kills} of them killed, in {took:.1?}",
        counts.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_estimates_to_few_digits() {
        let texts =
            [0.2, 7.4, 33.0, 61.0, 300.0, 9000.0].map(|s| rounded(Duration::from_secs_f64(s)));
        assert_eq!(texts, ["a second", "7 s", "35 s", "60 s", "5 min", "2.5 h"]);
    }
}
