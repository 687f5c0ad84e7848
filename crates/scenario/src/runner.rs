//! One run of one scenario: its cluster, its steps, its end.

use std::{
    fs,
    panic::AssertUnwindSafe,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use futures::FutureExt as _;
use podplane_testkit::{Program, recording};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::{
    act::{Done, act},
    console::Track,
    invariants, look,
    plan::{Case, Step},
    problem::Position,
    stage::{Stage, data_dir},
};

/// How many events a failure shows.
const EVENTS: usize = 12;

/// What is run.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) case: Arc<Case>,
    /// Its title, with the number of the repetition if there are several.
    pub(crate) title: String,
    pub(crate) seed: u64,
}

/// What runs have in common.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) program: Program,
    /// Whether the clusters go on.
    pub(crate) keep: bool,
    /// Where logs and recordings stay: those of every run if it was asked for, else those of runs that failed.
    pub(crate) output: PathBuf,
    pub(crate) keep_output: bool,
    pub(crate) cancel: CancellationToken,
}

/// How a run went.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) job: Job,
    pub(crate) outcome: Outcome,
    pub(crate) steps: Vec<StepReport>,
    pub(crate) timings: Vec<(String, Duration)>,
    pub(crate) took: Duration,
    /// What of it is left, and what one does with it.
    pub(crate) left: Vec<String>,
    /// The cluster, if it goes on.
    pub(crate) kept: Option<Kept>,
}

/// A cluster that goes on after its run.
#[derive(Debug)]
pub(crate) struct Kept {
    stage: Stage,
    /// Removed when it is dropped.
    _dir: TempDir,
}

impl Kept {
    /// Takes it down.
    pub(crate) async fn end(self) -> Result<()> {
        self.stage.strike().await
    }
}

#[derive(Debug)]
pub(crate) struct StepReport {
    pub(crate) title: String,
    pub(crate) took: Duration,
}

#[derive(Debug)]
pub(crate) enum Outcome {
    Passed,
    /// What was expected, what was there, and what happened before.
    Failed(Failure),
    /// It could not be run.
    Broken(String),
    /// Somebody ended it.
    Interrupted,
}

#[derive(Debug)]
pub(crate) struct Failure {
    /// The step's.
    pub(crate) at: Position,
    /// From 1.
    pub(crate) step: usize,
    pub(crate) title: String,
    pub(crate) why: String,
    /// The last events, newest last.
    pub(crate) events: Vec<String>,
}

/// Plays a scenario. It leaves nothing behind but what the report names.
pub(crate) async fn run(job: Job, setting: &Setting, track: &Track<'_>) -> Report {
    let begun = Instant::now();
    let mut report = Report {
        job,
        outcome: Outcome::Passed,
        steps: Vec::new(),
        timings: Vec::new(),
        took: Duration::ZERO,
        left: Vec::new(),
        kept: None,
    };
    match directory() {
        Err(error) => report.outcome = Outcome::Broken(format!("{error:#}")),
        Ok(dir) => {
            let (outcome, stage) = in_directory(&mut report, dir.path(), setting, track).await;
            report.outcome = outcome;
            report.left = saved(&report, dir.path(), setting);
            if let Some(stage) = stage {
                let data = data_dir(dir.path());
                report.left.push(format!(
                    "the cluster goes on: podplane status --data-dir {}",
                    data.display()
                ));
                report.kept = Some(Kept { stage, _dir: dir });
            }
        }
    }
    report.took = begun.elapsed();
    report
}

/// A run's own directory. Its path is short, because there are sockets in it.
fn directory() -> Result<TempDir> {
    let made = tempfile::Builder::new().prefix("podplane-test-").tempdir();
    made.context("make a temporary directory")
}

async fn in_directory(
    report: &mut Report,
    dir: &Path,
    setting: &Setting,
    track: &Track<'_>,
) -> (Outcome, Option<Stage>) {
    // A panic is a fault of this program, and no reason to leave a cluster behind.
    let played = AssertUnwindSafe(play(report, dir, setting, track)).catch_unwind();
    // What is dropped here is undone below.
    let played = tokio::select! {
        played = played => played,
        () = setting.cancel.cancelled() => Ok((Outcome::Interrupted, None)),
    };
    let (outcome, stage) = played.unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
        let why = format!("podplane panicked: {}", message.unwrap_or("without a word"));
        (Outcome::Broken(why), None)
    });
    // Whatever came of it, nothing may be left; an orderly end has seen to it already.
    if matches!(outcome, Outcome::Broken(_) | Outcome::Interrupted)
        && let Err(error) = take_down(&setting.program, &data_dir(dir)).await
    {
        return (Outcome::Broken(format!("{error:#}")), None);
    }
    (outcome, stage)
}

async fn play(
    report: &mut Report,
    dir: &Path,
    setting: &Setting,
    track: &Track<'_>,
) -> (Outcome, Option<Stage>) {
    track.doing("starting the cluster");
    let begun = Instant::now();
    let Job { case, seed, .. } = &report.job;
    let mut stage = match Stage::set(case.clone(), &setting.program, dir, *seed).await {
        Ok(stage) => stage,
        Err(error) => return (Outcome::Broken(format!("{error:#}")), None),
    };
    track.up(begun.elapsed());
    let outcome = steps(report, &mut stage, track).await;
    if setting.keep {
        return (outcome, Some(stage));
    }
    track.doing("taking the cluster down");
    match stage.strike().await {
        Ok(()) => (outcome, None),
        Err(error) => (Outcome::Broken(format!("{error:#}")), None),
    }
}

async fn steps(report: &mut Report, stage: &mut Stage, track: &Track<'_>) -> Outcome {
    let case = stage.case.clone();
    for (index, step) in case.steps.iter().enumerate() {
        let number = index + 1;
        track.step(number, case.steps.len(), &step.title);
        let begun = Instant::now();
        match one_step(stage, number, step, track).await {
            Ok(done) => {
                let took = begun.elapsed();
                let mut title = step.title.clone();
                if let Some(note) = &done.note {
                    title = format!("{title} ({note})");
                }
                track.did(number, case.steps.len(), &title, took);
                report.steps.push(StepReport { title, took });
                report.timings.extend(done.timing);
            }
            Err(why) => {
                return Outcome::Failed(Failure {
                    at: step.at,
                    step: number,
                    title: step.title.clone(),
                    why,
                    events: last_events(stage).await,
                });
            }
        }
    }
    Outcome::Passed
}

async fn one_step(
    stage: &mut Stage,
    number: usize,
    step: &Step,
    track: &Track<'_>,
) -> Result<Done, String> {
    let recorder = stage.cluster.recorder().clone();
    recorder.step(u64::try_from(number).unwrap_or_default(), &step.title);
    let doing = |what: &str| track.doing(what);
    let done = match act(stage, &step.action, &doing).await {
        Err(fault) => Err(fault.to_string()),
        Ok(done) => match invariants::check(stage, step).await {
            Ok(found) => {
                found
                    .iter()
                    .for_each(|violation| recorder.violation(&violation.to_string()));
                Ok(done)
            }
            Err(otherwise) => {
                let found = otherwise.found.iter().flatten();
                found.for_each(|violation| recorder.violation(&violation.to_string()));
                Err(otherwise.to_string())
            }
        },
    };
    recorder.step_ended(&step.title, done.as_ref().map(drop).map_err(String::as_str));
    done
}

async fn last_events(stage: &Stage) -> Vec<String> {
    let mut events = match stage.objects.list("events", None, None).await {
        Ok(events) => events,
        Err(error) => return vec![format!("(not to be had: {error:#})")],
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

/// Ends whatever runs in a data directory, however far its start had come.
async fn take_down(program: &Program, data_dir: &Path) -> Result<()> {
    if !data_dir.exists() {
        return Ok(());
    }
    let down = program.command(["down".as_ref(), "--data-dir".as_ref(), data_dir.as_os_str()]);
    let ended = podplane_testkit::run(down).await?;
    anyhow::ensure!(
        ended.code == Some(0),
        "the cluster does not end:\n{}",
        ended.stderr
    );
    Ok(())
}

/// Saves what one needs to see why a run failed; says where it is and what one does with it.
fn saved(report: &Report, dir: &Path, setting: &Setting) -> Vec<String> {
    let is_wanted = match report.outcome {
        Outcome::Passed => setting.keep_output,
        Outcome::Failed(_) | Outcome::Broken(_) => true,
        Outcome::Interrupted => false,
    };
    if !is_wanted || !data_dir(dir).exists() {
        return Vec::new();
    }
    match save(&report.job, dir, &setting.output) {
        Ok(kept) => {
            let kept = kept.display();
            vec![
                format!("logs: {kept}"),
                format!("what happened, step by step: podplane replay {kept}"),
            ]
        }
        Err(error) => vec![format!("the logs could not be kept: {error:#}")],
    }
}

/// Copies the recording and the logs to where they stay.
fn save(job: &Job, dir: &Path, output: &Path) -> Result<PathBuf> {
    let plain = |c: char| match c {
        _ if c.is_ascii_alphanumeric() || "-_.=".contains(c) => c,
        _ => '-',
    };
    let name: String = job.title.chars().map(plain).collect();
    let name = name.trim_end_matches('-');
    fs::create_dir_all(output).with_context(|| format!("make {}", output.display()))?;
    let kept = tempfile::Builder::new()
        .prefix(&format!("{name}-"))
        .tempdir_in(output);
    let kept = kept.with_context(|| format!("make a directory in {}", output.display()))?;
    let copy = |from: &Path| -> Result<()> {
        let to = kept.path().join(from.file_name().unwrap_or_default());
        let copied = fs::copy(from, &to);
        copied.with_context(|| format!("copy {} to {}", from.display(), to.display()))?;
        Ok(())
    };
    let recording = dir.join(recording::FILE);
    if recording.exists() {
        copy(&recording)?;
    }
    let logs = data_dir(dir).join("logs");
    for entry in fs::read_dir(&logs).with_context(|| format!("read {}", logs.display()))? {
        copy(&entry.context("read the logs")?.path())?;
    }
    Ok(kept.keep())
}
