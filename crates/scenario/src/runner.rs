//! One run of one scenario: its cluster, its steps, its end.
//!
//! | state | function | next |
//! | --- | --- | --- |
//! | not begun | [`run`] | a directory, or Broken |
//! | has a directory | `run_in_directory` | a cluster; or Broken, and its rest is taken down |
//! | has a cluster | `run_on_cluster` | its nodes are Ready, or Broken |
//! | runs steps | `run_steps` | Passed, or Failed by the first step that fails |
//! | over | `save_output` | the cluster is taken down, or goes on with `keep` |
//!
//! A cancellation leads from each state with a cluster to Interrupted (`until_cancelled`).

use std::{
    collections::BTreeSet,
    fs,
    panic::AssertUnwindSafe,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use futures::FutureExt as _;
use podplane_ipam::invariants::Violation;
use podplane_proto::trace::GetPodTraceResponse;
use podplane_test_cluster::{
    Program,
    recording::{self, Recorder},
};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::{
    act::{ActionDetails, StepFindings, act},
    console::ProgressLine,
    invariants::{self, ExpectedViolations},
    look,
    plan::PlannedCase,
    problem::Position,
    stage::{ScenarioCluster, data_dir},
    traces,
};

/// The number of characters of a run's title in the name of its directory.
const NAME: usize = 120;

/// The number of events that a failure shows.
const EVENTS: usize = 12;

/// A run to carry out.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) case: Arc<PlannedCase>,
    /// Its title, with the number of the repetition if there are several.
    pub(crate) title: String,
    pub(crate) seed: u64,
}

/// The settings that all runs share.
#[derive(Debug)]
pub(crate) struct RunSettings {
    pub(crate) program: Program,
    /// True to keep the clusters running.
    pub(crate) keep: bool,
    /// The directory for logs and recordings: of every run with `keep_output`, else of those that
    /// failed.
    pub(crate) output: PathBuf,
    pub(crate) keep_output: bool,
    /// True to collect the traces of pods at the end of each run.
    pub(crate) traces: bool,
    pub(crate) cancel: CancellationToken,
}

/// The result of a run.
#[derive(Debug)]
pub(crate) struct RunReport {
    pub(crate) job: Job,
    pub(crate) outcome: RunOutcome,
    pub(crate) steps: Vec<StepReport>,
    pub(crate) timings: Vec<(String, Duration)>,
    pub(crate) took: Duration,
    /// Texts about what is left of the run, and how to use it.
    pub(crate) left: Vec<String>,
    /// The traces of its pods, if the settings want them.
    pub(crate) traces: Vec<GetPodTraceResponse>,
    /// The cluster, if it keeps running.
    pub(crate) kept: Option<KeptCluster>,
}

impl RunReport {
    /// Makes the report of a run that has not begun.
    pub(crate) fn new(job: Job) -> Self {
        Self {
            job,
            outcome: RunOutcome::NotBegun,
            steps: Vec::new(),
            timings: Vec::new(),
            took: Duration::ZERO,
            left: Vec::new(),
            traces: Vec::new(),
            kept: None,
        }
    }
}

/// A cluster that keeps running after its run.
#[derive(Debug)]
pub(crate) struct KeptCluster {
    stage: ScenarioCluster,
    /// The directory of the run, removed on drop.
    _dir: TempDir,
}

impl KeptCluster {
    /// Takes the cluster down.
    pub(crate) async fn end(self) -> Result<()> {
        self.stage.stop().await
    }
}

#[derive(Debug)]
pub(crate) struct StepReport {
    pub(crate) title: String,
    /// The process or node that was chosen for a pattern.
    pub(crate) note: Option<String>,
    pub(crate) took: Duration,
    pub(crate) findings: StepFindings,
}

#[derive(Debug)]
pub(crate) enum RunOutcome {
    Passed,
    /// A step failed.
    Failed(RunFailure),
    /// The scenario could not be run, with the reason.
    Broken(String),
    /// The user ended the run.
    Interrupted,
    /// The user ended all runs before this one began.
    NotBegun,
}

#[derive(Debug)]
pub(crate) struct RunFailure {
    /// The position of the step.
    pub(crate) at: Position,
    /// The number of the step, from 1.
    pub(crate) step: usize,
    pub(crate) title: String,
    pub(crate) why: String,
    pub(crate) took: Duration,
    pub(crate) findings: StepFindings,
    /// The last events, newest last.
    pub(crate) events: Vec<String>,
}

/// Carries out a run. Leaves nothing behind except what the report names.
pub(crate) async fn run(job: Job, settings: &RunSettings, track: &ProgressLine<'_>) -> RunReport {
    let begun = Instant::now();
    let mut report = RunReport::new(job);
    match directory() {
        Err(error) => report.outcome = RunOutcome::Broken(format!("{error:#}")),
        Ok(dir) => {
            let (outcome, stage) = run_in_directory(&mut report, dir.path(), settings, track).await;
            report.outcome = outcome;
            report.left = save_output(&report, dir.path(), settings);
            if let Some(stage) = stage {
                let data = data_dir(dir.path());
                report.left.push(format!(
                    "the cluster goes on: podplane status --data-dir {}",
                    data.display()
                ));
                report.kept = Some(KeptCluster { stage, _dir: dir });
            }
        }
    }
    report.took = begun.elapsed();
    report
}

/// Makes the directory of a run. Its path is short, because the paths of sockets in it are limited.
fn directory() -> Result<TempDir> {
    let made = tempfile::Builder::new().prefix("podplane-test-").tempdir();
    made.context("failed to make a temporary directory")
}

/// Runs the steps on a cluster in `dir`, and takes down what is left of a cluster that failed to
/// start.
async fn run_in_directory(
    report: &mut RunReport,
    dir: &Path,
    settings: &RunSettings,
    track: &ProgressLine<'_>,
) -> (RunOutcome, Option<ScenarioCluster>) {
    let (outcome, stage) = run_on_cluster(report, dir, settings, track).await;
    if stage.is_some() || !matches!(outcome, RunOutcome::Broken(_) | RunOutcome::Interrupted) {
        return (outcome, stage);
    }
    // Nothing may be left, however far the start or the end has come.
    match take_down(&settings.program, &data_dir(dir)).await {
        Ok(()) => (outcome, None),
        Err(error) => (RunOutcome::Broken(format!("{error:#}")), None),
    }
}

/// Starts the cluster, runs the steps, and takes the cluster down or returns it.
async fn run_on_cluster(
    report: &mut RunReport,
    dir: &Path,
    settings: &RunSettings,
    track: &ProgressLine<'_>,
) -> (RunOutcome, Option<ScenarioCluster>) {
    track.doing("starting the cluster");
    let begun = Instant::now();
    let Job { case, seed, .. } = &report.job;
    let start = ScenarioCluster::start(case.clone(), &settings.program, dir, *seed);
    let mut stage = match until_cancelled(start, &settings.cancel).await {
        Ok(Ok(stage)) => stage,
        Ok(Err(error)) => return (RunOutcome::Broken(format!("{error:#}")), None),
        Err(ended) => return (ended, None),
    };
    let played = async {
        if let Err(error) = stage.prepare_nodes().await {
            return RunOutcome::Broken(format!("{error:#}"));
        }
        track.up(&stage.case, begun.elapsed());
        run_steps(report, &mut stage, track).await
    };
    let outcome = until_cancelled(played, &settings.cancel).await;
    let outcome = outcome.unwrap_or_else(|ended| ended);
    if settings.traces && matches!(outcome, RunOutcome::Passed | RunOutcome::Failed(_)) {
        track.doing("collecting the traces of pods");
        report.traces = traces::of_pods(&stage.cluster).await;
    }
    if settings.keep && !matches!(outcome, RunOutcome::Broken(_) | RunOutcome::Interrupted) {
        return (outcome, Some(stage));
    }
    track.doing("taking the cluster down");
    // Other runs go on meanwhile.
    match stage.stop().await {
        Ok(()) => (outcome, None),
        Err(error) => (RunOutcome::Broken(format!("{error:#}")), None),
    }
}

/// Awaits `work`, or its cancellation. A panic in `work` is a bug of this program, and becomes an
/// outcome, so that the cluster is taken down nevertheless.
async fn until_cancelled<T>(
    work: impl Future<Output = T>,
    cancel: &CancellationToken,
) -> Result<T, RunOutcome> {
    // Dropping `work` half done is safe: its effects end with the cluster.
    let done = tokio::select! {
        done = AssertUnwindSafe(work).catch_unwind() => done,
        () = cancel.cancelled() => return Err(RunOutcome::Interrupted),
    };
    done.map_err(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
        RunOutcome::Broken(match message {
            Some(message) => format!("podplane panicked: {message}"),
            None => "podplane panicked without a message".into(),
        })
    })
}

/// Runs the steps in order, up to the first that fails.
async fn run_steps(
    report: &mut RunReport,
    stage: &mut ScenarioCluster,
    track: &ProgressLine<'_>,
) -> RunOutcome {
    let case = stage.case.clone();
    let mut before = &BTreeSet::new();
    for (index, step) in case.steps.iter().enumerate() {
        let number = index + 1;
        track.step(number, case.steps.len(), step);
        let begun = Instant::now();
        let expected = ExpectedViolations {
            step,
            before,
            is_last: number == case.steps.len(),
        };
        before = &step.violations;
        match record_step(stage, number, &expected, track).await {
            Ok(done) => {
                let took = begun.elapsed();
                let mut title = step.title.clone();
                if let Some(note) = &done.note {
                    title = format!("{title} ({note})");
                }
                track.did(number, case.steps.len(), step, &title, took, &done.said);
                report.timings.extend(done.timing);
                report.steps.push(StepReport {
                    title,
                    note: done.note,
                    took,
                    findings: done.findings,
                });
            }
            Err(FailedStep { why, findings }) => {
                let took = begun.elapsed();
                track.failed(step);
                return RunOutcome::Failed(RunFailure {
                    at: step.at,
                    step: number,
                    title: step.title.clone(),
                    why,
                    took,
                    findings,
                    events: last_events(stage).await,
                });
            }
        }
    }
    RunOutcome::Passed
}

/// The failure of a step.
struct FailedStep {
    why: String,
    findings: StepFindings,
}

/// Runs a step, between its begin and its end in the recording.
async fn record_step(
    stage: &mut ScenarioCluster,
    number: usize,
    expected: &ExpectedViolations<'_>,
    track: &ProgressLine<'_>,
) -> Result<ActionDetails, FailedStep> {
    let step = expected.step;
    let recorder = stage.cluster.recorder().clone();
    recorder.step(u64::try_from(number).unwrap_or_default(), &step.title);
    let place = format!("{number}/{} {}", stage.case.steps.len(), step.title);
    let doing = |what: &str| track.doing(&format!("{place} ({what})"));
    let done = run_step(stage, expected, &doing, &recorder).await;
    let ended = done.as_ref().map(drop).map_err(|failed| &*failed.why);
    recorder.step_ended(&step.title, ended);
    done
}

/// Marks the state before the step if a later step compares with it, acts, and checks the
/// invariants.
async fn run_step(
    stage: &mut ScenarioCluster,
    expected: &ExpectedViolations<'_>,
    doing: &(dyn Fn(&str) + Sync),
    recorder: &Recorder,
) -> Result<ActionDetails, FailedStep> {
    let step = expected.step;
    if stage.case.marks.contains(&step.title) {
        let mark = look::mark(stage).await;
        let mark = mark.map_err(|error| {
            let why = format!("failed to observe the state before the step: {error:#}");
            FailedStep {
                findings: StepFindings {
                    reason: Some(why.clone()),
                    ..StepFindings::default()
                },
                why,
            }
        })?;
        stage.marks.insert(step.title.clone(), mark);
    }
    let done = act(stage, &step.action, doing).await;
    let done = done.map_err(|error| FailedStep {
        why: error.to_string(),
        findings: error.findings(),
    })?;
    let tell = |violation: &Violation| recorder.violation(&violation.to_string());
    match invariants::check(stage, expected).await {
        Ok(found) => {
            found.iter().for_each(tell);
            Ok(done)
        }
        Err(otherwise) => {
            otherwise.found.violations().into_iter().for_each(tell);
            let why = otherwise.to_string();
            Err(FailedStep {
                findings: StepFindings {
                    reason: Some(why.clone()),
                    ..done.findings
                },
                why,
            })
        }
    }
}

async fn last_events(stage: &ScenarioCluster) -> Vec<String> {
    let mut events = match stage.objects.list("events", None, None).await {
        Ok(events) => events,
        Err(error) => return vec![format!("(failed to list events: {error:#})")],
    };
    let time = |event: &serde_json::Value| {
        let time = event["lastTimestamp"]
            .as_str()
            .or(event["eventTime"].as_str());
        time.unwrap_or_default().to_owned()
    };
    events.sort_by_key(time);
    let skipped = events.len().saturating_sub(EVENTS);
    let clock =
        |event: &serde_json::Value| time(event).chars().skip(11).take(8).collect::<String>();
    events
        .iter()
        .skip(skipped)
        .map(|event| format!("{} {}", clock(event), look::event_line(event)))
        .collect()
}

/// Ends all processes of a data directory, however far its start had come.
async fn take_down(program: &Program, data_dir: &Path) -> Result<()> {
    if !data_dir.exists() {
        return Ok(());
    }
    let down = program.command(["down".as_ref(), "--data-dir".as_ref(), data_dir.as_os_str()]);
    let ended = podplane_test_cluster::run(down).await?;
    anyhow::ensure!(
        ended.code == Some(0),
        "failed to stop the cluster:\n{}",
        ended.stderr
    );
    Ok(())
}

/// Saves the files that show why a run failed. Returns texts about their place and their use.
fn save_output(report: &RunReport, dir: &Path, settings: &RunSettings) -> Vec<String> {
    let is_wanted = match report.outcome {
        RunOutcome::Passed => settings.keep_output,
        RunOutcome::Failed(_) | RunOutcome::Broken(_) => true,
        RunOutcome::Interrupted | RunOutcome::NotBegun => false,
    };
    if !is_wanted || !data_dir(dir).exists() {
        return Vec::new();
    }
    match save(&report.job, dir, &settings.output) {
        Ok(kept) => {
            let kept = kept.display();
            vec![
                format!("logs: {kept}"),
                format!("what happened, step by step: podplane replay {kept}"),
            ]
        }
        Err(error) => vec![format!("failed to save the logs: {error:#}")],
    }
}

/// Copies the recording and the logs to a new directory in `output`, and returns its path.
fn save(job: &Job, dir: &Path, output: &Path) -> Result<PathBuf> {
    let plain = |c: char| match c {
        _ if c.is_ascii_alphanumeric() || "-_.=".contains(c) => c,
        _ => '-',
    };
    // The name of a file has room for 255 bytes, and this is the beginning of one.
    let name: String = job.title.chars().map(plain).take(NAME).collect();
    let name = name.trim_end_matches('-');
    fs::create_dir_all(output).with_context(|| format!("failed to make {}", output.display()))?;
    let kept = tempfile::Builder::new()
        .prefix(&format!("{name}-"))
        .tempdir_in(output);
    let kept =
        kept.with_context(|| format!("failed to make a directory in {}", output.display()))?;
    let copy = |from: &Path| -> Result<()> {
        let to = kept.path().join(from.file_name().unwrap_or_default());
        let copied = fs::copy(from, &to);
        copied.with_context(|| format!("failed to copy {} to {}", from.display(), to.display()))?;
        Ok(())
    };
    let recording = dir.join(recording::FILE);
    if recording.exists() {
        copy(&recording)?;
    }
    let logs = data_dir(dir).join("logs");
    for entry in
        fs::read_dir(&logs).with_context(|| format!("failed to read {}", logs.display()))?
    {
        copy(&entry.context("failed to read the logs")?.path())?;
    }
    Ok(kept.keep())
}
