//! `cargo xtask bench page`: the page of an API server with 5,000 nodes and 150,000 pods in
//! Chromium, on the same cores. `tests/tests/page/large.rs` measures.

use std::fs;

use anyhow::{Context as _, Result, anyhow};
use clap::ValueEnum;
use serde::Deserialize;

use super::{
    BenchOptions, circumstances,
    report::{Goal, ReportLine, ReportUnit},
    stats::Pairs,
};
use crate::suite;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PageRow {
    /// from the address to the first picture
    First,
    /// from a change to its frame, with some changes a second
    Quiet,
    /// the same, with 50 changes a second
    Busy,
    /// the heap of the page's scripts
    Heap,
    /// the memory of the API server for the page
    Server,
}

/// The figures that the test writes.
#[derive(Default, Deserialize)]
struct PageFigures {
    first: Vec<f64>,
    quiet: Vec<f64>,
    busy: Vec<f64>,
    heap: Vec<f64>,
    server: Vec<f64>,
}

/// Runs the benchmark, in a temporary directory.
pub(super) fn run(options: &BenchOptions<PageRow>) -> Result<()> {
    let dir = tempfile::tempdir().context("failed to create a temporary directory")?;
    let file = dir.path().join("figures.json");
    suite::page_figures(&file.to_string_lossy(), options.quick)?;
    let figures = fs::read(&file).context("failed to read the figures")?;
    let mut figures: PageFigures =
        serde_json::from_slice(&figures).context("failed to parse the figures")?;
    let rows = options.rows();
    let lines: Vec<_> = rows.iter().map(|row| row.line(&mut figures)).collect();
    let text = format!(
        "{} updates are p50 (p95), all other figures medians.",
        circumstances("data", dir.path())?
    );
    options.finish("page", &text, &lines)
}

impl PageRow {
    fn line(self, figures: &mut PageFigures) -> ReportLine {
        use Goal::{AtMost, None};
        use ReportUnit::{Mebibytes, Milliseconds, Seconds};
        let (what, unit, goal, ours) = match self {
            Self::First => (
                "from the address to the first picture",
                Seconds,
                AtMost(3.0),
                &mut figures.first,
            ),
            Self::Quiet => (
                "from a request to create a pod to its frame, 2.5 pods a second",
                Milliseconds,
                AtMost(200.0),
                &mut figures.quiet,
            ),
            Self::Busy => (
                "the same, 50 pods a second",
                Milliseconds,
                AtMost(200.0),
                &mut figures.busy,
            ),
            Self::Heap => (
                "heap of the page",
                Mebibytes,
                AtMost(300.0),
                &mut figures.heap,
            ),
            Self::Server => (
                "memory of the API server that it needs more",
                Mebibytes,
                None,
                &mut figures.server,
            ),
        };
        let ours = std::mem::take(ours);
        ReportLine {
            what: what.to_owned(),
            unit,
            goal,
            measured: match ours.is_empty() {
                true => Err(anyhow!("no figure")),
                false => Ok(Pairs {
                    ours,
                    ..Pairs::default()
                }),
            },
        }
    }
}
