//! `cargo xtask bench ipam`: the measurements of the bench programs of `crates/ipam`, and their
//! targets. The reference is not available as a program: its figures were measured on two similar
//! cores.

use std::process::Stdio;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use serde::Deserialize;

use super::{
    BenchOptions, circumstances, name,
    report::{Goal, ReportLine, ReportUnit},
    stats::Pairs,
};
use crate::build;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum IpamRow {
    /// from empty to full, 65,536 blocks
    Fill,
    /// with one block in 65,536 free
    OneFree,
    /// 65,536 texts parsed and occupied
    StartIndex,
    /// the same into the ledger, with the node that holds each
    Start,
    /// a node's block from empty to full, ledger included
    Allocate,
    /// memory of the index of 16,777,216 blocks, full
    MemoryIndex,
    /// the same with every other block free
    MemoryFragmented,
    /// memory for each of 16,777,216 blocks in use, nodes included
    MemoryOwner,
    /// memory for each of 131,072 blocks of 65,536 dual-stack nodes
    MemoryOwnerDual,
}

#[derive(Deserialize)]
struct BenchOutput {
    #[serde(flatten)]
    pairs: Pairs,
}

/// Runs the benchmark.
pub(super) fn run(options: &BenchOptions<IpamRow>) -> Result<()> {
    let lines = options.measure(|row| Ok(vec![row.line(measure(row))]))?;
    let text = format!(
        "{} Times are medians of 30 rounds.",
        circumstances("nothing", &build::root())?
    );
    options.finish("ipam", &text, &lines)
}

/// Runs one row in a process of its own, so that rows do not affect each other.
fn measure(row: IpamRow) -> Result<Pairs> {
    let memory = name(row).starts_with("memory");
    let bench = if memory { "memory" } else { "time" };
    let mut cargo = build::cargo();
    cargo.args([
        "bench",
        "--quiet",
        "--package",
        "podplane-ipam",
        "--bench",
        bench,
    ]);
    let output = cargo
        .args(["--", &name(row)])
        .stderr(Stdio::inherit())
        .output();
    let output = output.context("failed to start cargo bench")?;
    if !output.status.success() {
        bail!("cargo bench: {}", output.status);
    }
    let measured: BenchOutput = serde_json::from_slice(&output.stdout)
        .context("failed to parse the output of the bench")?;
    Ok(measured.pairs)
}

impl IpamRow {
    fn line(self, measured: Result<Pairs>) -> ReportLine {
        use Goal::AtMost;
        let (what, unit, goal) = match self {
            Self::Fill => (
                "allocate a block, empty to full, 65,536 blocks (index; the reference: 510 ns)",
                ReportUnit::Nanoseconds,
                AtMost(50.0),
            ),
            Self::OneFree => (
                "free and allocate the one free block in 65,536 (index; the reference: 0.88 ms)",
                ReportUnit::Nanoseconds,
                AtMost(150.0),
            ),
            Self::StartIndex => (
                "parse and occupy 65,536 at start (index; the reference: 56 ms)",
                ReportUnit::Milliseconds,
                AtMost(10.0),
            ),
            Self::Start => (
                "the same with the ledger of who holds each",
                ReportUnit::Milliseconds,
                Goal::None,
            ),
            Self::Allocate => (
                "give a node a block, empty to full, 65,536 nodes, with the ledger",
                ReportUnit::Nanoseconds,
                Goal::None,
            ),
            Self::MemoryIndex => (
                "index of 10.0.0.0/8 in /32 (16,777,216 blocks), full",
                ReportUnit::Kibibytes,
                AtMost(4096.0),
            ),
            Self::MemoryFragmented => (
                "the same, every other block free",
                ReportUnit::Kibibytes,
                AtMost(4096.0),
            ),
            Self::MemoryOwner => (
                "index, ledger, UIDs and names for each of those blocks, all in use",
                ReportUnit::Bytes,
                AtMost(64.0),
            ),
            Self::MemoryOwnerDual => (
                "the same for each of 131,072 blocks of 65,536 dual-stack nodes",
                ReportUnit::Bytes,
                AtMost(64.0),
            ),
        };
        ReportLine {
            what: what.to_owned(),
            unit,
            goal,
            measured,
        }
    }
}
