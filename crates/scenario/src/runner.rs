//! One run of one scenario: its cluster, its steps, its end.

use std::{
    fs,
    panic::AssertUnwindSafe,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use futures::FutureExt as _;
use podplane_testkit::Program;
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
    pub(crate) case: Case,
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
    };
    let outcome = match directory() {
        Err(error) => Outcome::Broken(format!("{error:#}")),
        Ok(dir) => {
            let outcome = in_directory(&mut report, dir.path(), setting, track).await;
            report.left = leave(&report.job, &outcome, dir, setting);
            outcome
        }
    };
    report.outcome = outcome;
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
) -> Outcome {
    // A panic is a fault of this program, and no reason to leave a cluster behind.
    let played = AssertUnwindSafe(play(report, dir, setting, track)).catch_unwind();
    // What is dropped here is undone below.
    let played = tokio::select! {
        played = played => played,
        () = setting.cancel.cancelled() => Ok(Outcome::Interrupted),
    };
    let outcome = played.unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
        Outcome::Broken(format!(
            "podplane panicked: {}",
            message.unwrap_or("without a word")
        ))
    });
    // Whatever came of it, nothing may be left; an orderly end has seen to it already.
    if matches!(outcome, Outcome::Broken(_) | Outcome::Interrupted)
        && let Err(error) = take_down(&setting.program, &data_dir(dir)).await
    {
        return Outcome::Broken(format!("{error:#}"));
    }
    outcome
}

async fn play(report: &mut Report, dir: &Path, setting: &Setting, track: &Track<'_>) -> Outcome {
    track.doing("starting the cluster");
    let begun = Instant::now();
    let case = report.job.case.clone();
    let set = Stage::set(&case, &setting.program, dir, report.job.seed, setting.keep);
    let mut stage = match set.await {
        Ok(stage) => stage,
        Err(error) => return Outcome::Broken(format!("{error:#}")),
    };
    track.up(begun.elapsed());
    let outcome = steps(report, &mut stage, track).await;
    if !setting.keep {
        track.doing("taking the cluster down");
        if let Err(error) = stage.strike().await {
            return Outcome::Broken(format!("{error:#}"));
        }
    }
    outcome
}

async fn steps(report: &mut Report, stage: &mut Stage<'_>, track: &Track<'_>) -> Outcome {
    let case = stage.case;
    for (index, step) in case.steps.iter().enumerate() {
        let number = index + 1;
        track.step(number, case.steps.len(), &step.title);
        let begun = Instant::now();
        match one_step(stage, step, track).await {
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

async fn one_step(stage: &mut Stage<'_>, step: &Step, track: &Track<'_>) -> Result<Done, String> {
    let doing = |what: &str| track.doing(what);
    let done = act(stage, &step.action, &doing)
        .await
        .map_err(|fault| fault.to_string())?;
    let checked = invariants::check(stage, step).await;
    checked.map_err(|otherwise| otherwise.to_string())?;
    Ok(done)
}

async fn last_events(stage: &Stage<'_>) -> Vec<String> {
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

/// Removes what nobody needs any more; says what is left and what for.
fn leave(job: &Job, outcome: &Outcome, dir: TempDir, setting: &Setting) -> Vec<String> {
    let data = data_dir(dir.path());
    if setting.keep && !matches!(outcome, Outcome::Interrupted) && data.exists() {
        let dir = dir.keep();
        return vec![
            format!(
                "the cluster runs on: podplane status --data-dir {}",
                data.display()
            ),
            format!(
                "to end it: podplane down --data-dir {} && rm -r {}",
                data.display(),
                dir.display()
            ),
        ];
    }
    let wanted = match outcome {
        Outcome::Passed => setting.keep_output,
        Outcome::Failed(_) | Outcome::Broken(_) => true,
        Outcome::Interrupted => false,
    };
    if !wanted || !data.exists() {
        return Vec::new();
    }
    match save(job, &data, &setting.output) {
        Ok(kept) => vec![format!("logs: {}", kept.display())],
        Err(error) => vec![format!("the logs could not be kept: {error:#}")],
    }
}

/// Copies the logs to where they stay.
fn save(job: &Job, data: &Path, output: &Path) -> Result<PathBuf> {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || "-_.=".contains(c) {
            c
        } else {
            '-'
        }
    };
    let name: String = job.title.chars().map(plain).collect();
    let name = name.trim_end_matches('-');
    fs::create_dir_all(output).with_context(|| format!("make {}", output.display()))?;
    let kept = tempfile::Builder::new()
        .prefix(&format!("{name}-"))
        .tempdir_in(output);
    let kept = kept
        .with_context(|| format!("make a directory in {}", output.display()))?
        .keep();
    for entry in fs::read_dir(data.join("logs")).context("read the logs")? {
        let entry = entry.context("read the logs")?;
        let to = kept.join(entry.file_name());
        fs::copy(entry.path(), &to).with_context(|| format!("write {}", to.display()))?;
    }
    Ok(kept)
}
