//! Output for people: lines that stay, and on a terminal a changing line for each run.

use std::{
    io::{IsTerminal as _, Write as _},
    time::Duration,
};

use anstyle::{AnsiColor, Style};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::runner::{Job, RunFailure, RunOutcome, RunReport};

const GOOD: Style = AnsiColor::Green.on_default().bold();
const BAD: Style = AnsiColor::Red.on_default().bold();
const FAINT: Style = Style::new().dimmed();

/// The interval of the spinner.
const TICK: Duration = Duration::from_millis(100);

/// The console on which runs are reported.
#[derive(Debug)]
pub(crate) struct Console {
    /// `None` where lines cannot change, because standard output or error is not a terminal.
    bars: Option<MultiProgress>,
}

impl Console {
    pub(crate) fn new() -> Self {
        let is_terminal = std::io::stderr().is_terminal() && std::io::stdout().is_terminal();
        Self {
            bars: is_terminal.then(MultiProgress::new),
        }
    }

    /// Prints a line that stays.
    pub(crate) fn line(&self, line: &str) {
        // The reader may have gone; the exit code tells the result all the same.
        let print = || _ = writeln!(anstream::stdout().lock(), "{line}");
        match &self.bars {
            // `suspend` panics if it cannot write, as to a terminal that was closed.
            Some(bars) if std::io::stderr().is_terminal() => bars.suspend(print),
            _ => print(),
        }
    }

    /// Starts the changing line of a run.
    pub(crate) fn track(&self, title: &str) -> ProgressLine<'_> {
        let bar = self.bars.as_ref().map(|bars| {
            let bar = bars.add(ProgressBar::new_spinner());
            if let Ok(style) =
                ProgressStyle::with_template("{spinner} {prefix}  {wide_msg} {elapsed}")
            {
                bar.set_style(style);
            }
            bar.set_prefix(title.to_owned());
            bar.enable_steady_tick(TICK);
            bar
        });
        ProgressLine {
            console: self,
            title: title.to_owned(),
            bar,
        }
    }

    /// Prints the end of a run.
    pub(crate) fn ended(&self, report: &RunReport) {
        let RunReport {
            job,
            outcome,
            timings,
            left,
            ..
        } = report;
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
        if matches!(outcome, RunOutcome::Failed(_) | RunOutcome::Broken(_)) {
            text.push_str("\n  again: ");
            text.push_str(&again(job));
        }
        self.line(&text);
    }

    /// Repeats the headlines of runs that did not pass, which have scrolled away if there were
    /// many.
    pub(crate) fn not_passed(&self, reports: &[RunReport]) {
        if reports.len() > 1 {
            let not_passed = reports
                .iter()
                .filter(|r| !matches!(r.outcome, RunOutcome::Passed));
            for line in not_passed.filter_map(headline) {
                self.line(&line);
            }
        }
    }
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
fn again(job: &Job) -> String {
    let mut line = format!(
        "podplane test {} --seed {}",
        job.case.file.display(),
        job.seed
    );
    if !job.case.values.is_empty() {
        // Quoted for a shell, which would take brackets for a pattern.
        let title = job.case.title().replace('\'', r"'\''");
        line = format!("{line} --only '{title}'");
    }
    line
}

/// Describes a failure, for people and for JUnit.
pub(crate) fn described(report: &RunReport, failure: &RunFailure) -> String {
    let RunFailure {
        at,
        step,
        title,
        why,
        events,
    } = failure;
    let file = report.job.case.file.display();
    let mut text = format!("{file}:{at}: step {step}, {title}: {why}");
    if events.is_empty() {
        text.push_str("\nthere were no events");
    } else {
        text.push_str("\nthe last events:");
        for event in events {
            text.push_str("\n  ");
            text.push_str(event);
        }
    }
    text
}

/// The changing line of a run that is under way.
#[derive(Debug)]
pub(crate) struct ProgressLine<'a> {
    console: &'a Console,
    title: String,
    bar: Option<ProgressBar>,
}

impl ProgressLine<'_> {
    /// Shows what is under way.
    pub(crate) fn doing(&self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(what.to_owned());
        }
    }

    /// Prints that the cluster has started.
    pub(crate) fn up(&self, took: Duration) {
        self.said("the cluster is up", took);
    }

    /// Shows the step that begins.
    pub(crate) fn step(&self, number: usize, of: usize, title: &str) {
        self.doing(&format!("{number}/{of} {title}"));
    }

    /// Prints a step that is done.
    pub(crate) fn did(&self, number: usize, of: usize, title: &str, took: Duration) {
        self.said(&format!("{number}/{of} {title}"), took);
    }

    fn said(&self, what: &str, took: Duration) {
        let line = format!(
            "{FAINT}{}{FAINT:#}  {what} {FAINT}{}{FAINT:#}",
            self.title,
            seconds(took)
        );
        self.console.line(&line);
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
