//! `cargo xtask bench scheduler`: decisions without an API server, and the scheduler with one. The
//! reference is not available as a program: its figures were measured on two similar cores.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use serde::Deserialize;

use super::{
    BenchOptions, apiserver, circumstances, name,
    report::{Goal, ReportLine, ReportUnit},
    sandbox,
    stats::Pairs,
};
use crate::build::{self, Profile};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SchedulerRow {
    /// 20,000 plain pods on 5,000 nodes, without an API server
    Plain,
    /// the same pods in 50 classes: with spread, (anti-)affinity, preferred nodes and tolerations
    Classes,
    /// the same pods in 50 ReplicaSets with Services: with the default spread
    Workloads,
    /// an attempt that fits on none of 5,000 nodes
    Nowhere,
    /// 20,000 pods on 5,000 nodes through the API server on sled
    Bind,
    /// the start of a scheduler among 5,000 nodes and 150,000 pods
    Warm,
}

impl SchedulerRow {
    fn has_apiserver(self) -> bool {
        match self {
            Self::Plain | Self::Classes | Self::Workloads | Self::Nowhere => false,
            Self::Bind | Self::Warm => true,
        }
    }
}

#[derive(Deserialize)]
struct BenchOutput {
    #[serde(flatten)]
    pairs: Pairs,
}

/// Runs the benchmark, in namespaces of its own.
pub(super) fn run(options: &BenchOptions<SchedulerRow>) -> Result<()> {
    match &options.inside {
        Some(dir) => measure(options, dir),
        None => {
            let rows = options.rows();
            if rows.iter().any(|row| row.has_apiserver()) {
                build::podplane(Profile::Release)?;
                build::bench()?;
            }
            if rows.iter().any(|row| !row.has_apiserver()) {
                build::run(&mut decisions(&["--no-run"]))?;
            }
            sandbox::enter()
        }
    }
}

fn measure(options: &BenchOptions<SchedulerRow>, dir: &Path) -> Result<()> {
    sandbox::prepare()?;
    build::run(Command::new("ip").args(["link", "set", "lo", "up"]))?;
    let lines = options.measure(|row| {
        let measured = match row.has_apiserver() {
            false => vec![(name(row), decide(row, options.quick))],
            true => apiserver::load(&name(row), options.quick, dir)?,
        };
        let measured = measured.into_iter();
        Ok(measured
            .map(|(line, pairs)| promised(&line, pairs))
            .collect())
    })?;
    let text = format!(
        "{} Figures are medians of the rounds.",
        circumstances("data", dir)?
    );
    options.finish("scheduler", &text, &lines)
}

/// The command that builds and runs the bench program of the scheduler.
fn decisions(args: &[&str]) -> Command {
    let mut cargo = build::cargo();
    cargo.args(["bench", "--quiet", "--package", "podplane-scheduler"]);
    cargo.args(["--bench", "decisions"]).args(args);
    cargo
}

fn decide(row: SchedulerRow, quick: bool) -> Result<Pairs> {
    let row = name(row);
    let mut args = vec!["--", &row];
    args.extend(quick.then_some("--quick"));
    let output = decisions(&args).stderr(Stdio::inherit()).output();
    let output = output.context("failed to start cargo bench")?;
    if !output.status.success() {
        bail!("cargo bench: {}", output.status);
    }
    let measured: BenchOutput = serde_json::from_slice(&output.stdout)
        .context("failed to parse the output of the bench")?;
    Ok(measured.pairs)
}

/// The target of a line.
fn promised(line: &str, measured: Result<Pairs>) -> ReportLine {
    use Goal::{AtLeast, AtMost};
    let pods = ReportUnit::PerSecond("pods");
    let (what, unit, goal) = match line {
        "plain" => (
            "5,000 nodes, 20,000 plain pods, no API server (the reference: 543 pods/s)",
            pods,
            AtLeast(20_000.0),
        ),
        "classes" => ("the same in 50 classes", pods, AtLeast(4_000.0)),
        "workloads" => (
            "the same in 50 ReplicaSets with Services",
            pods,
            AtLeast(4_000.0),
        ),
        "nowhere" => (
            "an attempt that fits nowhere, 5,000 nodes (the reference: 28,700 µs)",
            ReportUnit::Microseconds,
            AtMost(500.0),
        ),
        "bind" => (
            "5,000 nodes, 20,000 pods, through the API server on sled",
            pods,
            AtLeast(2_000.0),
        ),
        "bind-cpu" => (
            "processor time of the scheduler for each of these pods",
            ReportUnit::Microseconds,
            AtMost(150.0),
        ),
        "warm" => (
            "start with 5,000 nodes and 150,000 pods, to the first bind",
            ReportUnit::Seconds,
            AtMost(4.0),
        ),
        "warm-memory" => ("memory then", ReportUnit::Mebibytes, AtMost(300.0)),
        other => (other, ReportUnit::Milliseconds, Goal::None),
    };
    ReportLine {
        what: what.to_owned(),
        unit,
        goal,
        measured,
    }
}
