//! `cargo xtask bench audit`: `podplane audit` as a whole process, on the dump of a cluster with
//! three times as many nodes as Kubernetes supports.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;

use super::{
    BenchOptions, circumstances,
    fixture::compile,
    name,
    report::{Goal, ReportLine, ReportUnit},
    stats::Pairs,
};
use crate::build::{self, Profile};

/// The number of pods on each node.
const PODS: usize = 30;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AuditRow {
    /// 15,000 nodes and 450,000 pods as `kubectl get -o json` prints them, about 4 GB
    Json,
    /// a tenth of that, as `-o yaml`
    Yaml,
}

impl AuditRow {
    fn nodes(self, is_quick: bool) -> usize {
        match (self, is_quick) {
            (_, true) => 150,
            (Self::Json, false) => 15_000,
            (Self::Yaml, false) => 1_500,
        }
    }

    fn lines(self, measured: Result<(Pairs, Pairs)>, nodes: usize) -> [ReportLine; 2] {
        let what = format!(
            "audit, {}: {nodes} nodes, {} pods",
            name(self),
            nodes * PODS
        );
        let (times, peaks) = match measured {
            Ok((times, peaks)) => (Ok(times), Ok(peaks)),
            Err(error) => {
                let again = anyhow::anyhow!("{error:#}");
                (Err(error), Err(again))
            }
        };
        let is_target = self == Self::Json;
        let goal = |most| {
            if is_target {
                Goal::AtMost(most)
            } else {
                Goal::None
            }
        };
        [
            ReportLine {
                what: what.clone(),
                unit: ReportUnit::Seconds,
                goal: goal(5.0),
                measured: times,
            },
            ReportLine {
                what: format!("{what}: peak memory"),
                unit: ReportUnit::Kibibytes,
                goal: goal(500.0 * 1024.0),
                measured: peaks,
            },
        ]
    }
}

/// Runs the benchmark. It changes nothing on the machine but a temporary directory.
pub(super) fn run(options: &BenchOptions<AuditRow>) -> Result<()> {
    build::podplane(Profile::Release)?;
    let dir = tempfile::Builder::new()
        .prefix("podplane-bench-")
        .tempdir()
        .context("failed to create a temporary directory")?;
    let peak = compile(dir.path(), "peak")?;
    let rounds = if options.quick { 1 } else { 5 };
    let lines = options.measure(|row| {
        let nodes = row.nodes(options.quick);
        let measured =
            write_dump(row, dir.path(), nodes).and_then(|file| measure(&peak, &file, rounds));
        Ok(row.lines(measured, nodes).into())
    })?;
    let text = format!(
        "{}\nWall-clock time and largest resident set of the whole process, with the dump in the page cache: the median of {rounds} runs.",
        circumstances("dumps", dir.path())?
    );
    options.finish("audit", &text, &lines)
}

/// Seconds and KiB of each run, after one that fills the page cache.
fn measure(peak: &Path, file: &Path, rounds: usize) -> Result<(Pairs, Pairs)> {
    let (mut times, mut peaks) = (Pairs::default(), Pairs::default());
    for round in 0..=rounds {
        let mut command = Command::new(peak);
        command
            .arg(build::release_dir().join("podplane"))
            .arg("audit")
            .arg(file);
        command.args([
            "--cluster-cidr",
            "10.0.0.0/10",
            "--node-cidr-mask-size",
            "24",
            "--service-cidr",
            "10.96.0.0/12",
        ]);
        let started = Instant::now();
        let output = command.output().context("failed to start the audit")?;
        let seconds = started.elapsed().as_secs_f64();
        let stderr = String::from_utf8_lossy(&output.stderr);
        // The dump has no problem, so that only reading and comparing are measured.
        ensure!(output.status.success(), "{}: {stderr}", output.status);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let peak: f64 = text
            .parse()
            .with_context(|| format!("peak memory: {text:?} is not a number"))?;
        if round > 0 {
            times.ours.push(seconds);
            peaks.ours.push(peak);
        }
    }
    Ok((times, peaks))
}

/// Writes a dump with the generator, which knows the format.
fn write_dump(row: AuditRow, dir: &Path, nodes: usize) -> Result<PathBuf> {
    let file = dir.join(format!("dump.{}", name(row)));
    let mut dump = build::generator();
    dump.args(["dump", name(row).as_str()]).arg(&file);
    build::run(dump.args(["--nodes", &nodes.to_string(), "--pods", &PODS.to_string()]))?;
    Ok(file)
}
