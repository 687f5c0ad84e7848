//! `cargo xtask bench cluster`: what the bench program `cluster` of `crates/test-cluster` measures,
//! and what was promised of it.

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, anyhow};
use clap::ValueEnum;
use serde::Deserialize;

use super::{
    BenchOptions, circumstances, name,
    report::{Goal, ReportLine, ReportUnit},
    stats::Pairs,
};
use crate::{
    build::{self, Profile},
    parts::Parts,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ClusterRow {
    /// 5,000 nodes of ledger mode, until all are Ready, and the memory of all processes
    Nodes,
    /// 10,000 pods on 1,000 nodes of ledger mode: created, deleted, and CPU time for each
    Pods,
    /// one pod after the other in kernel mode, from its creation to its address. Needs root
    Create,
    /// RunPodSandbox in kernel mode, one at a time and eight at once, beside containerd's and
    /// beside the kernel's part alone. Needs root; containerd, runc and containernetworking-plugins
    Sandbox,
    /// 1,000 pods on 20 nodes of kernel mode, until all run. Needs root
    KernelPods,
}

/// A line of the table, as the program says it.
#[derive(Debug, Deserialize)]
struct MeasuredLine {
    line: String,
    #[serde(flatten)]
    measured: Measurement,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Measurement {
    Failed { error: String },
    Pairs(Pairs),
}

impl From<Measurement> for Result<Pairs> {
    fn from(measured: Measurement) -> Self {
        match measured {
            Measurement::Failed { error } => Err(anyhow!(error)),
            Measurement::Pairs(pairs) => Ok(pairs),
        }
    }
}

/// Measures.
pub(super) fn run(options: &BenchOptions<ClusterRow>) -> Result<()> {
    build::programs(Profile::Release, &mut Parts::of("bench", build::PARTS))?;
    let lines = options.measure(|row| {
        Ok(match measure(row, options.quick) {
            Ok(said) => said
                .into_iter()
                .map(|said| promised(&said.line, said.measured.into()))
                .collect(),
            Err(error) => vec![promised(&name(row), Err(error))],
        })
    })?;
    let text = format!(
        "{}\nTimes of single pods and sandboxes are p50 (p95); the others are of one run.",
        circumstances("data directories", &std::env::temp_dir())?
    );
    options.finish("cluster", &text, &lines)
}

fn measure(row: ClusterRow, is_quick: bool) -> Result<Vec<MeasuredLine>> {
    let mut cargo: Command = build::cargo();
    cargo.args(["bench", "--quiet", "--package", "podplane-test-cluster"]);
    cargo.args(["--bench", "cluster", "--", &name(row)]);
    cargo.args(is_quick.then_some("--quick"));
    cargo.env("PODPLANE_BIN_DIR", build::release_dir());
    cargo.stdout(Stdio::piped());
    let mut child = cargo.spawn().context("start cargo bench")?;
    let output = child.stdout.take().context("its output")?;
    let lines = BufReader::new(output).lines().map(|line| {
        let line = line.context("read from the bench")?;
        serde_json::from_str(&line).context("what the bench says")
    });
    let said: Result<Vec<MeasuredLine>> = lines.collect();
    let status = child.wait().context("wait for cargo bench")?;
    if !status.success() {
        return Err(anyhow!("cargo bench: {status}"));
    }
    said
}

/// The targets.
fn promised(line: &str, measured: Result<Pairs>) -> ReportLine {
    let (what, unit, goal) = match line {
        "nodes" => (
            "5,000 nodes of ledger mode, until all are Ready",
            ReportUnit::Seconds,
            Goal::AtMost(8.0),
        ),
        "nodes-memory" => (
            "memory of all processes then",
            ReportUnit::Mebibytes,
            Goal::AtMost(1430.0),
        ),
        "pods-run" => (
            "10,000 pods on 1,000 nodes of ledger mode, until all run",
            ReportUnit::Seconds,
            Goal::AtMost(40.0),
        ),
        "pods-deleted" => (
            "the same, until all are gone",
            ReportUnit::Seconds,
            Goal::AtMost(20.0),
        ),
        "pods-cpu" => (
            "CPU time of all processes for each of these pods, until all run",
            ReportUnit::Milliseconds,
            Goal::None,
        ),
        "pods-cpu-growth" => (
            "that CPU time, over that of each of 1,000 pods",
            ReportUnit::Times,
            Goal::AtMost(1.2),
        ),
        "create" => (
            "a pod of kernel mode, from its creation to its address",
            ReportUnit::Milliseconds,
            Goal::AtMost(12.0),
        ),
        "sandbox" => (
            "RunPodSandbox in kernel mode, one at a time; peer: namespace, veth, address",
            ReportUnit::Milliseconds,
            Goal::AtMost(6.0),
        ),
        "sandbox-containerd" => (
            "the same; peer: containerd",
            ReportUnit::Milliseconds,
            Goal::Better(10.0),
        ),
        "sandbox-8" => (
            "RunPodSandbox, eight at once, for each; peer: namespace, veth, address",
            ReportUnit::Milliseconds,
            Goal::None,
        ),
        "sandbox-8-containerd" => (
            "the same; peer: containerd",
            ReportUnit::Milliseconds,
            Goal::Better(15.0),
        ),
        "kernel-pods" => (
            "1,000 pods on 20 nodes of kernel mode, until all run",
            ReportUnit::Seconds,
            Goal::AtMost(8.0),
        ),
        other => (other, ReportUnit::Seconds, Goal::None),
    };
    ReportLine {
        what: what.to_owned(),
        unit,
        goal,
        measured,
    }
}
