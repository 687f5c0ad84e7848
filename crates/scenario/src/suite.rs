//! Runs many scenarios, side by side.

use std::{
    collections::BTreeMap,
    fs,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, stream};
use podplane_test_cluster::Program;
use tokio_util::sync::CancellationToken;

use crate::{
    console::{Console, seconds},
    html::{self, HtmlOptions},
    junit,
    plan::PlannedCase,
    runner::{self, Job, KeptCluster, RunOutcome, RunReport, RunSettings},
};

/// The options of [`run`].
#[derive(Clone, Debug)]
pub struct SuiteOptions {
    /// The path of the program `podplane` for the clusters.
    pub program: PathBuf,
    /// The file for a JUnit report. The caller has checked that it can be written, before runs that
    /// take long.
    pub junit: Option<PathBuf>,
    /// The page for people.
    pub html: Option<HtmlOptions>,
    /// True to keep the clusters running until `cancel`.
    pub keep: bool,
    /// The seed of all random choices; `None` takes the scenario's, or a new one.
    pub seed: Option<u64>,
    /// The number of times that each scenario is run.
    pub repeat: NonZeroUsize,
    /// The number of runs at the same time.
    pub jobs: NonZeroUsize,
    /// The directory for the logs of every run; `None` keeps only the logs of runs that failed, in
    /// the directory of temporary files.
    pub output: Option<PathBuf>,
    /// True to narrate the runs, with commands and their output, in place of a report.
    pub narrate: bool,
}

/// The result of all runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuiteVerdict {
    /// All runs passed.
    Passed,
    /// At least one run failed.
    Failed,
    /// No run failed, and at least one could not be run.
    Broken,
    /// The user ended the runs.
    Interrupted,
}

/// Runs scenarios, each in a cluster of its own, and reports on standard output. `cancel` ends all
/// of them in order.
///
/// # Errors
///
/// If nothing could be run, or the report could not be written.
pub async fn run(
    cases: Vec<PlannedCase>,
    options: SuiteOptions,
    cancel: CancellationToken,
) -> Result<SuiteVerdict> {
    let SuiteOptions {
        program,
        junit,
        html,
        keep,
        seed,
        repeat,
        jobs,
        output,
        narrate,
    } = options;
    let begun = Instant::now();
    let reports = junit
        .iter()
        .chain(html.as_ref().map(|options| &options.file));
    for file in reports {
        refuse_scenario(file, &cases)?;
    }
    let seed_of_all = seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let setting = RunSettings {
        program: Program::at(program)?,
        keep,
        keep_output: output.is_some(),
        traces: html.is_some(),
        output: output.unwrap_or_else(|| std::env::temp_dir().join("podplane-test")),
        cancel: cancel.clone(),
    };
    let number = cases.len() * repeat.get();
    let console = Console::new(narrate, number);
    if !narrate {
        console.line(&format!(
            "{number} run{}, {} at once, seed {seed_of_all}",
            if number == 1 { "" } else { "s" },
            jobs.get().min(number)
        ));
    }
    let cases: Vec<_> = cases.into_iter().map(Arc::new).collect();
    let queue = (0..repeat.get()).flat_map(|round| {
        let job = move |case: &Arc<PlannedCase>| {
            // The seed of the options takes precedence over that of the scenario.
            let base = seed.or(case.cluster.seed).unwrap_or(seed_of_all);
            let title = match repeat.get() {
                1 => case.title(),
                _ => format!("{}#{}", case.title(), round + 1),
            };
            Job {
                case: case.clone(),
                title,
                seed: base.wrapping_add(u64::try_from(round).unwrap_or_default()),
            }
        };
        cases.iter().map(job).collect::<Vec<_>>()
    });
    let each = queue.enumerate().map(async |(index, job)| {
        if cancel.is_cancelled() {
            return (index, RunReport::new(job));
        }
        let track = console.track(&job);
        let report = runner::run(job, &setting, &track).await;
        drop(track);
        console.ended(&report);
        (index, report)
    });
    let ended = stream::iter(each).buffer_unordered(jobs.get());
    let mut reports: Vec<(usize, RunReport)> = ended.collect().await;
    console.all_ended();
    reports.sort_by_key(|(index, _)| *index);
    let mut reports: Vec<RunReport> = reports.into_iter().map(|(_, report)| report).collect();
    if !narrate {
        summarize(&console, &reports, begun.elapsed(), seed_of_all);
    }
    let write = |file: &Path, text: String| -> Result<()> {
        fs::write(file, text).with_context(|| format!("failed to write {}", file.display()))?;
        console.wrote(file);
        Ok(())
    };
    if let Some(file) = junit {
        write(&file, junit::xml(&reports, begun.elapsed())?)?;
    }
    if let Some(options) = html {
        let page = html::page(&reports, begun.elapsed(), &options);
        write(&options.file, page)?;
    }
    let verdict = verdict(&reports, &cancel);
    let kept: Vec<_> = reports
        .iter_mut()
        .filter_map(|report| report.kept.take())
        .collect();
    if !kept.is_empty() {
        if !cancel.is_cancelled() {
            console.line("the clusters go on; Ctrl-C ends them");
            cancel.cancelled().await;
        }
        for ended in futures::future::join_all(kept.into_iter().map(KeptCluster::end)).await {
            ended?;
        }
    }
    Ok(verdict)
}

/// Fails if the file of a report is one of the scenarios.
fn refuse_scenario(name: &Path, cases: &[PlannedCase]) -> Result<()> {
    let is_scenario = name.canonicalize().is_ok_and(|name| {
        let mut files = cases.iter().map(|case| case.file.canonicalize());
        files.any(|file| file.is_ok_and(|file| file == name))
    });
    ensure!(
        !is_scenario,
        "invalid report file {}: it is a scenario",
        name.display()
    );
    Ok(())
}

fn verdict(reports: &[RunReport], cancel: &CancellationToken) -> SuiteVerdict {
    let any = |is: fn(&RunOutcome) -> bool| reports.iter().any(|report| is(&report.outcome));
    if cancel.is_cancelled() {
        SuiteVerdict::Interrupted
    } else if any(|outcome| matches!(outcome, RunOutcome::Failed(_))) {
        SuiteVerdict::Failed
    } else if any(|outcome| !matches!(outcome, RunOutcome::Passed)) {
        SuiteVerdict::Broken
    } else {
        SuiteVerdict::Passed
    }
}

fn summarize(console: &Console, reports: &[RunReport], took: Duration, seed: u64) {
    let mut times: BTreeMap<(&str, &str), Vec<Duration>> = BTreeMap::new();
    for report in reports {
        for (name, took) in &report.timings {
            let scenario = report.job.case.name.as_str();
            times.entry((scenario, name)).or_default().push(*took);
        }
    }
    for ((scenario, name), mut times) in times {
        times.sort();
        if let [first, .., last] = times.as_slice() {
            let median = times[times.len() / 2];
            console.line(&format!(
                "{scenario}: {name}: {} to {}, median {}, of {}",
                seconds(*first),
                seconds(*last),
                seconds(median),
                times.len()
            ));
        }
    }
    console.not_passed(reports);
    let number =
        |is: fn(&RunOutcome) -> bool| reports.iter().filter(|report| is(&report.outcome)).count();
    let counts = [
        (
            number(|outcome| matches!(outcome, RunOutcome::Passed)),
            "passed",
        ),
        (
            number(|outcome| matches!(outcome, RunOutcome::Failed(_))),
            "failed",
        ),
        (
            number(|outcome| matches!(outcome, RunOutcome::Broken(_))),
            "could not be run",
        ),
        (
            number(|outcome| matches!(outcome, RunOutcome::Interrupted)),
            "interrupted",
        ),
        (
            number(|outcome| matches!(outcome, RunOutcome::NotBegun)),
            "not begun",
        ),
    ];
    let each: Vec<_> = counts
        .iter()
        .filter(|(number, word)| *number > 0 || *word == "passed")
        .map(|(number, word)| format!("{number} {word}"))
        .collect();
    console.line(&format!(
        "{}; seed {seed}; {}",
        each.join(", "),
        seconds(took)
    ));
}
