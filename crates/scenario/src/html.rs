//! Runs as a page to hand out: failures first, each with its steps and the traces of its pods.

use std::{path::PathBuf, time::Duration};

use anyhow::Result;
use podplane_proto::trace::GetPodTraceResponse;
use podplane_report::{Block, Cell, Column, Count, Fact, Report, Row, Section, Table, Tone};

use crate::{
    act::StepFindings,
    console::{again, last_events, seconds},
    look::{CheckedExpectation, ExpectationOutcome, SeenObject, StateDifference},
    narration,
    plan::PlannedStep,
    runner::{RunFailure, RunOutcome, RunReport},
};

/// The page, and the form of the traces in it, which the program has for its other reports.
#[derive(Clone, Debug)]
pub struct HtmlOptions {
    /// The file. The caller has checked that it can be written.
    pub file: PathBuf,
    /// The circumstances of the runs, for the head of the page.
    pub facts: Vec<Fact>,
    /// Returns the traces of one pod as sections.
    pub traces: fn(GetPodTraceResponse) -> Result<Vec<Section>>,
}

/// Returns the page of all runs.
pub(crate) fn page(reports: &[RunReport], took: Duration, options: &HtmlOptions) -> String {
    let mut order: Vec<&RunReport> = reports.iter().collect();
    order.sort_by_key(|report| rank(&report.outcome));
    let counts = ALL.map(|word| {
        let outcomes = reports.iter().map(|report| &report.outcome);
        let number = outcomes.filter(|outcome| mark(outcome).1 == word).count();
        (word, number)
    });
    let counts = counts.into_iter();
    let counts = counts.filter(|(word, number)| *number > 0 || *word == PASSED);
    let count = |(word, number): (&str, usize)| Count {
        tone: match word {
            PASSED => Tone::Good,
            _ => Tone::Bad,
        },
        number: number.to_string(),
        of: word.to_owned(),
    };
    let mut facts = options.facts.clone();
    facts.push(Fact::new("Took", seconds(took)));
    let report = Report {
        title: "Test of scenarios".into(),
        counts: counts.map(count).collect(),
        facts,
        sections: order.into_iter().map(|run| section(run, options)).collect(),
    };
    report.html()
}

const PASSED: &str = "passed";
/// The words of all outcomes, as [`mark`] returns them.
const ALL: [&str; 5] = [
    PASSED,
    "failed",
    "could not be run",
    "interrupted",
    "not begun",
];

const fn mark(outcome: &RunOutcome) -> (Tone, &'static str) {
    match outcome {
        RunOutcome::Passed => (Tone::Good, PASSED),
        RunOutcome::Failed(_) => (Tone::Bad, "failed"),
        RunOutcome::Broken(_) => (Tone::Bad, "could not be run"),
        RunOutcome::Interrupted => (Tone::Caution, "interrupted"),
        RunOutcome::NotBegun => (Tone::Caution, "not begun"),
    }
}

/// The place in the page: what needs a look comes first.
const fn rank(outcome: &RunOutcome) -> u8 {
    match outcome {
        RunOutcome::Failed(_) => 0,
        RunOutcome::Broken(_) => 1,
        RunOutcome::Interrupted | RunOutcome::NotBegun => 2,
        RunOutcome::Passed => 3,
    }
}

fn section(report: &RunReport, options: &HtmlOptions) -> Section {
    let RunReport {
        job,
        outcome,
        steps: _,
        timings,
        took,
        left,
        traces,
        kept: _,
    } = report;
    let mut facts = vec![
        Fact::new("File", job.case.file.display().to_string()),
        Fact::new("Seed", job.seed.to_string()),
        Fact::new("Took", seconds(*took)),
    ];
    let timings = timings.iter();
    facts.extend(timings.map(|(name, took)| Fact::new(name, seconds(*took))));
    let about = job.case.description.iter().cloned();
    let mut blocks: Vec<Block> = about.map(Block::Paragraph).collect();
    match outcome {
        RunOutcome::Failed(failure) => {
            blocks.extend(failed(failure));
            facts.push(Fact::new("Again", again(job)));
        }
        RunOutcome::Broken(why) => {
            blocks.push(Block::Notice(Tone::Bad, "It could not be run.".into()));
            blocks.push(Block::Preformatted(why.clone()));
            facts.push(Fact::new("Again", again(job)));
        }
        RunOutcome::Passed | RunOutcome::Interrupted | RunOutcome::NotBegun => {}
    }
    blocks.push(Block::Facts(facts));
    blocks.push(Block::Table(steps(report)));
    if !left.is_empty() {
        blocks.push(Block::List(left.clone()));
    }
    blocks.extend(traces.iter().map(|trace| trace_block(trace, options)));
    let (tone, word) = mark(outcome);
    Section {
        mark: Some((tone, word.to_owned())),
        ..Section::new(&*job.title, &*job.title, blocks)
    }
}

/// The most lines of an object that is not folded.
const OPEN_LINES: usize = 12;

/// The reason of a failure, and what tells it.
fn failed(failure: &RunFailure) -> Vec<Block> {
    let RunFailure {
        at,
        step,
        title,
        why: _,
        took: _,
        findings,
        events: _,
    } = failure;
    let mut said = format!("Step {step}, {title}, failed (line {at})");
    if let Some(within) = findings.within {
        said = format!("{said}: not within {within:?}");
    }
    let mut blocks = vec![Block::Notice(Tone::Bad, format!("{said}."))];
    for (CheckedExpectation { at, text, .. }, difference) in findings.unmet() {
        let StateDifference {
            expected,
            was,
            objects,
        } = difference;
        let values = |text: &str| text.trim_end().lines().map(str::to_owned).collect();
        let facts = [
            ("Expectation", format!("line {at}: {text}")),
            ("Expected", expected.clone()),
            ("Seen", was.clone()),
        ];
        let facts = facts.map(|(name, text)| Fact {
            name: name.into(),
            values: values(&text),
        });
        blocks.push(Block::Facts(facts.into()));
        blocks.extend(objects.iter().map(object));
    }
    // The output of a command is in the table of the steps.
    blocks.extend(findings.reason.clone().map(Block::Preformatted));
    blocks.push(Block::Preformatted(last_events(failure)));
    blocks
}

/// An object as JSON, folded.
fn object(seen: &SeenObject) -> Block {
    let SeenObject { about, value } = seen;
    let text = format!("{value:#}");
    let lines = text.lines().count();
    Block::Folded {
        summary: format!("{about} ({lines} lines)"),
        is_open: lines <= OPEN_LINES,
        blocks: vec![Block::Preformatted(text)],
    }
}

/// All steps of the scenario, those that were not reached included.
fn steps(report: &RunReport) -> Table {
    let steps = report.job.case.steps.iter().zip(1..);
    let row = |(step, number): (&PlannedStep, usize)| {
        let state = StepState::of(report, number);
        let (tone, word) = state.mark();
        let title = match &state {
            StepState::Done {
                note: Some(note), ..
            } => format!("{} ({note})", step.full_title),
            _ => step.full_title.clone(),
        };
        Row {
            id: Some(format!("{}-step-{number}", report.job.title)),
            cells: vec![
                Cell::Text(format!("{number}. {title}")),
                Cell::Mark(tone, word.into()),
                Cell::Text(state.took().map_or_else(String::new, seconds)),
            ],
            below: findings(step, &state),
        }
    };
    Table {
        caption: "Steps, with their commands and findings".into(),
        columns: vec![
            Column::text("Step"),
            Column::text("Result"),
            Column::number("Took"),
        ],
        rows: steps.map(row).collect(),
    }
}

/// The state of a step at the end of its run.
enum StepState<'a> {
    Done {
        took: Duration,
        note: Option<&'a str>,
        findings: &'a StepFindings,
    },
    Failed {
        took: Duration,
        findings: &'a StepFindings,
    },
    NotReached,
}

impl<'a> StepState<'a> {
    fn of(report: &'a RunReport, number: usize) -> Self {
        if let Some(done) = report.steps.get(number - 1) {
            return Self::Done {
                took: done.took,
                note: done.note.as_deref(),
                findings: &done.findings,
            };
        }
        match &report.outcome {
            RunOutcome::Failed(failure) if failure.step == number => Self::Failed {
                took: failure.took,
                findings: &failure.findings,
            },
            _ => Self::NotReached,
        }
    }

    const fn mark(&self) -> (Tone, &'static str) {
        match self {
            Self::Done { .. } => (Tone::Good, "done"),
            Self::Failed { .. } => (Tone::Bad, "failed"),
            Self::NotReached => (Tone::Neutral, "not reached"),
        }
    }

    const fn took(&self) -> Option<Duration> {
        match self {
            Self::Done { took, .. } | Self::Failed { took, .. } => Some(*took),
            Self::NotReached => None,
        }
    }

    const fn findings(&self) -> Option<&'a StepFindings> {
        match self {
            Self::Done { findings, .. } | Self::Failed { findings, .. } => Some(findings),
            Self::NotReached => None,
        }
    }
}

/// The commands of a step with their output, and each expectation with what was seen. What was not
/// met, and why, is at the begin of the run.
fn findings(step: &PlannedStep, state: &StepState<'_>) -> Vec<Cell> {
    let commands = narration::commands(&step.action).into_iter();
    let mut lines: Vec<String> = commands.map(|command| format!("$ {command}")).collect();
    let nothing = StepFindings::default();
    let StepFindings { ended, checked, .. } = state.findings().unwrap_or(&nothing);
    lines.extend(ended.clone());
    let mut cells = Vec::new();
    if !lines.is_empty() {
        cells.push(Cell::Preformatted(lines.join("\n")));
    }
    for CheckedExpectation { at, text, outcome } in checked {
        let (tone, word) = match outcome {
            ExpectationOutcome::Met { .. } => (Tone::Good, "met"),
            ExpectationOutcome::Unmet(_) => (Tone::Bad, "not met"),
        };
        cells.push(Cell::Mark(tone, word.into()));
        cells.push(Cell::Text(format!(" line {at}: {text}")));
        match outcome {
            ExpectationOutcome::Met { seen } => {
                cells.push(Cell::Preformatted(format!("seen: {seen}")));
            }
            ExpectationOutcome::Unmet(_) => cells.push(Cell::Lines(vec!["See above.".into()])),
        }
    }
    cells
}

fn trace_block(trace: &GetPodTraceResponse, options: &HtmlOptions) -> Block {
    let blocks = match (options.traces)(trace.clone()) {
        Ok(sections) => sections.into_iter().map(Block::Section).collect(),
        Err(error) => vec![Block::Paragraph(format!(
            "The trace cannot be read: {error:#}"
        ))],
    };
    Block::Folded {
        summary: format!("Trace of pod {}/{}", trace.namespace, trace.name),
        is_open: false,
        blocks,
    }
}
