//! Output for people: lines that stay, and on a terminal a changing line for each run.

use std::{
    io::{IsTerminal as _, Write as _},
    path::Path,
    time::{Duration, Instant},
};

use anstyle::{AnsiColor, Style};
use indicatif::{MultiProgress, ProgressBar};
use podplane_api::printable;
use podplane_progress::animate;

use crate::{
    format::plain,
    look::SeenObject,
    narration,
    plan::{Parameter, PlannedCase, PlannedStep},
    runner::{Job, RunFailure, RunOutcome, RunReport},
};

const GOOD: Style = AnsiColor::Green.on_default().bold();
const BAD: Style = AnsiColor::Red.on_default().bold();
const FAINT: Style = Style::new().dimmed();

/// The console on which runs are reported.
#[derive(Debug)]
pub(crate) struct Console {
    /// `None` where lines cannot change, because standard output or error is not a terminal.
    bars: Option<MultiProgress>,
    /// The bar of several runs, below their lines.
    total: Option<ProgressBar>,
    /// True to narrate runs.
    narrates: bool,
}

impl Console {
    /// The console for a number of runs.
    pub(crate) fn new(narrates: bool, runs: usize) -> Self {
        let is_terminal = std::io::stderr().is_terminal() && std::io::stdout().is_terminal();
        let bars = is_terminal.then(MultiProgress::new);
        let total = bars.as_ref().filter(|_| runs > 1).map(|bars| {
            let total = bars.add(ProgressBar::new(runs.try_into().unwrap_or(u64::MAX)));
            animate(
                &total,
                "{spinner} runs [{bar:24}] {pos} of {len} ({elapsed})",
            );
            total
        });
        Self {
            bars,
            total,
            narrates,
        }
    }

    /// Removes the bar of all runs. Called when all have ended.
    pub(crate) fn all_ended(&self) {
        if let Some(total) = &self.total {
            total.finish_and_clear();
        }
    }

    /// Prints a line of the result, which stays.
    pub(crate) fn line(&self, line: &str) {
        // The reader may have gone; the exit code tells the result all the same.
        self.print(|| _ = writeln!(anstream::stdout().lock(), "{line}"));
    }

    /// Prints a line about the progress, which stays, on standard error.
    fn progress(&self, line: &str) {
        self.print(|| _ = writeln!(anstream::stderr().lock(), "{line}"));
    }

    fn print(&self, print: impl FnOnce()) {
        match &self.bars {
            // `suspend` panics if it cannot write, as to a terminal that was closed.
            Some(bars) if std::io::stderr().is_terminal() => bars.suspend(print),
            _ => print(),
        }
    }

    /// Says on standard error that a report was written.
    pub(crate) fn wrote(&self, file: &Path) {
        let file = file.display().to_string();
        _ = writeln!(
            anstream::stderr().lock(),
            "wrote {}",
            printable::line(&file)
        );
    }

    /// Starts the changing line of a run.
    pub(crate) fn track(&self, job: &Job) -> ProgressLine<'_> {
        if self.narrates {
            let PlannedCase { description, .. } = &*job.case;
            let about = description.as_deref().unwrap_or_default();
            self.line(&format!("=== {} ===\n{about}\n", job.title));
        }
        let bar = self.bars.as_ref().map(|bars| {
            let bar = ProgressBar::new_spinner();
            let bar = match &self.total {
                Some(total) => bars.insert_before(total, bar),
                None => bars.add(bar),
            };
            // A narration is of one run, and has its title above.
            if !self.narrates {
                bar.set_prefix(format!("{}  ", job.title));
            }
            animate(&bar, "{spinner} {prefix}{wide_msg} ({elapsed})");
            bar
        });
        ProgressLine {
            console: self,
            title: job.title.clone(),
            bar,
            begun: Instant::now(),
        }
    }

    /// Prints the end of a run.
    pub(crate) fn ended(&self, report: &RunReport) {
        if let Some(total) = &self.total {
            total.inc(1);
        }
        let RunReport {
            job,
            outcome,
            timings,
            left,
            ..
        } = report;
        if self.narrates && matches!(outcome, RunOutcome::Passed) {
            self.line("");
            return;
        }
        // Runs that were not begun are only counted, in the summary.
        let Some(mut text) = headline(report) else {
            return;
        };
        for (name, took) in timings {
            let line = format!("\n  {name}: {}", seconds(*took));
            text.push_str(&line);
        }
        match outcome {
            RunOutcome::Failed(failure) => {
                text.push('\n');
                text.push_str(&indent(&described(report, failure)));
            }
            RunOutcome::Broken(why) => {
                text.push('\n');
                text.push_str(&indent(&format!(
                    "{}: it could not be run: {why}",
                    job.case.file.display()
                )));
            }
            RunOutcome::Passed | RunOutcome::Interrupted | RunOutcome::NotBegun => {}
        }
        for line in left {
            text.push('\n');
            text.push_str(&indent(line));
        }
        // The files of a narration are temporary.
        if matches!(outcome, RunOutcome::Failed(_) | RunOutcome::Broken(_)) && !self.narrates {
            text.push_str("\n  again: ");
            text.push_str(&again(job));
        }
        self.line(&text);
    }

    /// Repeats the runs that did not pass, with the reasons: the reports of other runs follow
    /// theirs.
    pub(crate) fn not_passed(&self, reports: &[RunReport]) {
        if reports.len() > 1 {
            for line in reports.iter().filter_map(repeated) {
                self.line(&line);
            }
        }
    }
}

/// Returns the headline of a run that did not pass, and the reason; `None` for one that passed or
/// was not begun.
fn repeated(report: &RunReport) -> Option<String> {
    let why = match &report.outcome {
        RunOutcome::Passed => return None,
        RunOutcome::Failed(failure) => reason(report, failure),
        RunOutcome::Broken(why) => format!("it could not be run: {why}"),
        RunOutcome::Interrupted | RunOutcome::NotBegun => String::new(),
    };
    let headline = headline(report)?;
    Some(match why.is_empty() {
        true => headline,
        false => format!("{headline}\n{}", indent(&why)),
    })
}

/// Returns the end of a run in a line; `None` for a run that was not begun.
fn headline(report: &RunReport) -> Option<String> {
    let took = seconds(report.took);
    let (style, word, detail) = match report.outcome {
        RunOutcome::Passed => (
            GOOD,
            "PASS",
            match report.steps.len() {
                1 => format!("1 step, {took}"),
                number => format!("{number} steps, {took}"),
            },
        ),
        RunOutcome::Failed(_) => (BAD, "FAIL", took),
        RunOutcome::Broken(_) => (BAD, "ERROR", took),
        RunOutcome::Interrupted => (BAD, "INTERRUPTED", took),
        RunOutcome::NotBegun => return None,
    };
    Some(format!(
        "{style}{word}{style:#} {} {FAINT}({detail}){FAINT:#}",
        report.job.title
    ))
}

/// Returns the command line that repeats this run alone.
pub(crate) fn again(job: &Job) -> String {
    let mut line = format!(
        "podplane test {} --seed {}",
        job.case.file.display(),
        job.seed
    );
    for (name, Parameter { value, is_set }) in &job.case.parameters {
        if *is_set {
            let set = format!("{name}={}", plain(value)).replace('\'', r"'\''");
            line = format!("{line} --set '{set}'");
        }
    }
    if !job.case.values.is_empty() {
        // Quoted for a shell, which would take brackets for a pattern.
        let title = job.case.title().replace('\'', r"'\''");
        line = format!("{line} --only '{title}'");
    }
    line
}

/// Returns the step that failed and the reason.
fn reason(report: &RunReport, failure: &RunFailure) -> String {
    let RunFailure {
        at,
        step,
        title,
        why,
        took: _,
        findings: _,
        events: _,
    } = failure;
    let file = report.job.case.file.display();
    format!("{file}:{at}: step {step}, {title}: {why}")
}

/// Describes a failure, for people.
pub(crate) fn described(report: &RunReport, failure: &RunFailure) -> String {
    let mut text = reason(report, failure);
    if failure.findings.objects().next().is_some() {
        text.push_str("\n  --html FILE has the whole objects");
    }
    format!("{text}\n{}", last_events(failure))
}

/// Describes a failure, with the objects that tell the reason.
pub(crate) fn described_with_objects(report: &RunReport, failure: &RunFailure) -> String {
    let mut text = reason(report, failure);
    for SeenObject { about, value } in failure.findings.objects() {
        let value = format!("{value:#}");
        let lines = value.lines().map(|line| format!("\n    {line}"));
        text = format!("{text}\n  {about}:{}", lines.collect::<String>());
    }
    format!("{text}\n{}", last_events(failure))
}

/// The events before a failure, a line each.
pub(crate) fn last_events(failure: &RunFailure) -> String {
    let RunFailure { events, .. } = failure;
    if events.is_empty() {
        return "there were no events".into();
    }
    let lines: Vec<_> = events.iter().map(|event| format!("\n  {event}")).collect();
    format!("the last events:{}", lines.concat())
}

/// The changing line of a run that is under way.
#[derive(Debug)]
pub(crate) struct ProgressLine<'a> {
    console: &'a Console,
    title: String,
    bar: Option<ProgressBar>,
    begun: Instant,
}

impl ProgressLine<'_> {
    /// Shows what is under way.
    pub(crate) fn doing(&self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(what.to_owned());
        }
    }

    /// Prints that the cluster has started.
    pub(crate) fn up(&self, case: &PlannedCase, took: Duration) {
        if self.console.narrates {
            self.console.line(&format!("$ {}", narration::up(case)));
        } else {
            self.said("the cluster is up", took);
        }
    }

    /// Shows the step that begins. A narration has its title, unless that is a claim, and the
    /// commands that do the same.
    pub(crate) fn step(&self, number: usize, of: usize, step: &PlannedStep) {
        self.doing(&format!("{number}/{of} {}", step.title));
        if !self.console.narrates {
            return;
        }
        if step.is_named && !narration::is_claim(step) {
            let at = self.begun.elapsed().as_secs();
            self.console.line(&format!("\n[{at} s] {}", step.title));
        }
        for command in narration::commands(&step.action) {
            self.console.line(&format!("$ {command}"));
        }
    }

    /// Prints a step that is done. A narration has what was `said` in it, and the claim.
    pub(crate) fn did(
        &self,
        number: usize,
        of: usize,
        step: &PlannedStep,
        title: &str,
        took: Duration,
        said: &[String],
    ) {
        if !self.console.narrates {
            self.said(&format!("{number}/{of} {title}"), took);
            return;
        }
        for text in said.iter().filter(|text| !text.is_empty()) {
            self.console.line(text);
        }
        if step.is_named && narration::is_claim(step) {
            self.console
                .line(&format!("{GOOD}✓{GOOD:#} {}", step.title));
        }
    }

    /// Prints that a step failed, in a narration.
    pub(crate) fn failed(&self, step: &PlannedStep) {
        if self.console.narrates {
            self.console
                .line(&format!("{BAD}✗ NOT:{BAD:#} {}", step.title));
        }
    }

    fn said(&self, what: &str, took: Duration) {
        let line = format!(
            "{FAINT}{}{FAINT:#}  {what} {FAINT}{}{FAINT:#}",
            self.title,
            seconds(took)
        );
        self.console.progress(&line);
    }
}

impl Drop for ProgressLine<'_> {
    fn drop(&mut self) {
        if let (Some(bars), Some(bar)) = (&self.console.bars, &self.bar) {
            bar.finish_and_clear();
            bars.remove(bar);
        }
    }
}

pub(crate) fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

fn indent(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(|line| format!("  {line}")).collect();
    lines.join("\n")
}
