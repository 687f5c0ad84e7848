//! `cargo xtask bench test-cluster`: the time that a test waits for its clusters; the measurements
//! of the bench program of `crates/test-cluster`, and their targets.

use std::process::Stdio;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;

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
pub(crate) enum TestClusterRow {
    /// a cluster of three nodes, until all are Ready
    Start,
    /// the same, until nothing of it is left
    Stop,
    /// eight of them at once, until all nodes of all are Ready
    Many,
}

/// Runs the benchmark.
pub(super) fn run(options: &BenchOptions<TestClusterRow>) -> Result<()> {
    build::programs(Profile::Release, &mut Parts::of("bench", build::PARTS))?;
    let lines = options.measure(|row| Ok(vec![row.line(measure(row, options.quick))]))?;
    let text = format!(
        "{}\nTimes are p50 (p95) of 20 rounds.",
        circumstances("data directories", &std::env::temp_dir())?
    );
    options.finish("test-cluster", &text, &lines)
}

fn measure(row: TestClusterRow, is_quick: bool) -> Result<Pairs> {
    let mut cargo = build::cargo();
    cargo.args(["bench", "--quiet", "--package", "podplane-test-cluster"]);
    cargo.args(["--bench", "clusters", "--", &name(row)]);
    if is_quick {
        cargo.arg("--quick");
    }
    cargo.env("PODPLANE_BIN_DIR", build::release_dir());
    let output = cargo.stderr(Stdio::inherit()).output();
    let output = output.context("failed to start cargo bench")?;
    if !output.status.success() {
        bail!("cargo bench: {}", output.status);
    }
    serde_json::from_slice(&output.stdout).context("failed to parse the output of the bench")
}

impl TestClusterRow {
    fn line(self, measured: Result<Pairs>) -> ReportLine {
        let (what, goal) = match self {
            Self::Start => (
                "start a cluster of 3 ledger nodes, until all are Ready",
                Goal::AtMost(1000.0),
            ),
            Self::Stop => ("stop it, until nothing of it is left", Goal::None),
            Self::Many => (
                "start 8 of them at once, until all nodes of all are Ready",
                Goal::None,
            ),
        };
        ReportLine {
            what: what.to_owned(),
            unit: ReportUnit::Milliseconds,
            goal,
            measured,
        }
    }
}
