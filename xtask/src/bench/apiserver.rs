//! `cargo xtask bench apiserver`: the measurements of the program `podplane-bench`, and their
//! targets.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::ValueEnum;
use serde::Deserialize;

use super::{
    BenchOptions, circumstances, name, output_line,
    report::{Goal, ReportLine, ReportUnit},
    sandbox,
    stats::Pairs,
};
use crate::build::{self, Profile, release_dir};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ApiserverRow {
    /// durable creates of a pod of 1,200 bytes by one writer, beside etcd's put, both with TLS
    Create1,
    /// the same by 16 writers
    Create16,
    /// the same by 256 writers
    Create256,
    /// gets by 1, 16 and 256 readers, beside etcd's range of one key
    Get,
    /// a list of 10,000 pods, beside etcd's range of as many keys
    List,
    /// 16 writers and 1,000 watchers, and the same beside watchers that never read
    Watch,
    /// gets and creates of one user, beside 50 clients of another user that list 20,000 pods
    Flood,
    /// 20,000 nodes, created and given their blocks, with a call for each and in batches
    Nodes,
    /// gets, creates and new connections with TLS and client certificates, and with authorization
    /// too, beside the same server without
    Secured,
    /// memory of 150,000 pods and 5,000 nodes, and how long they take to load
    Memory,
    /// the first start, to the first answer
    Start,
}

/// An output line of `podplane-bench`: a line of the table, or the error of a row.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum BenchOutput {
    Line {
        line: String,
        #[serde(flatten)]
        pairs: Pairs,
    },
    Failed {
        row: String,
        error: String,
    },
}

/// Runs the benchmark, in namespaces of its own.
pub(super) fn run(options: &BenchOptions<ApiserverRow>) -> Result<()> {
    match &options.inside {
        Some(dir) => measure(options, dir),
        None => enter(),
    }
}

/// Builds what measures and what is measured, and begins again in namespaces of its own.
pub(super) fn enter() -> Result<()> {
    if !Path::new("/usr/bin/etcd").exists() {
        bail!("/usr/bin/etcd is missing: apt-get install etcd-server");
    }
    build::podplane(Profile::Release)?;
    build::bench()?;
    sandbox::enter()
}

/// Prepares these namespaces.
pub(super) fn prepare() -> Result<()> {
    sandbox::prepare()?;
    build::run(Command::new("ip").args(["link", "set", "lo", "up"]))
}

fn measure(options: &BenchOptions<ApiserverRow>, dir: &Path) -> Result<()> {
    prepare()?;
    let before = Processors::now()?;
    let lines = options.measure(|row| measure_row(row, options.quick, dir))?;
    let others = Processors::now()?.others_since(&before);
    let text = format!(
        "{} {}.\n\
         Other programs had {others:.0} % of the processors meanwhile. Rates and times are medians of the rounds, in which the sides took turns; a ratio is the \
         median of the ratios round by round (its quartiles), above 1 is better.",
        circumstances("data", dir)?,
        etcd_version(),
    );
    options.finish("apiserver", &text, &lines)
}

fn measure_row(row: ApiserverRow, quick: bool, dir: &Path) -> Result<Vec<ReportLine>> {
    let measured = load(&name(row), quick, dir)?.into_iter();
    Ok(measured
        .map(|(line, pairs)| promised(&line, pairs))
        .collect())
}

/// Measures a row of `podplane-bench`; returns its lines by name.
pub(super) fn load(row: &str, quick: bool, dir: &Path) -> Result<Vec<(String, Result<Pairs>)>> {
    let mut program = Command::new(release_dir().join("podplane-bench"));
    program
        .arg(row)
        .arg("--podplane")
        .arg(release_dir().join("podplane"))
        .arg("--dir")
        .arg(dir)
        .args(quick.then_some("--quick"))
        .stdout(Stdio::piped());
    let mut child = program.spawn().context("failed to start podplane-bench")?;
    let output = child.stdout.take().context("missing output")?;
    let mut lines = Vec::new();
    for line in BufReader::new(output).lines() {
        let line = line.context("failed to read from podplane-bench")?;
        lines.push(
            match serde_json::from_str(&line)
                .context("failed to parse the output of podplane-bench")?
            {
                BenchOutput::Line { line, pairs } => (line, Ok(pairs)),
                BenchOutput::Failed { row, error } => (row, Err(anyhow!(error))),
            },
        );
    }
    let status = child.wait().context("failed to wait for podplane-bench")?;
    if lines.is_empty() || !status.success() {
        lines.push((row.to_owned(), Err(anyhow!("podplane-bench: {status}"))));
    }
    Ok(lines)
}

/// The target of a line. Creates and gets count calls; the number of connections is the number of
/// callers, at most 64.
fn promised(line: &str, measured: Result<Pairs>) -> ReportLine {
    use Goal::{AtLeast, AtMost, Better, Within};
    let (creates, gets) = (
        ReportUnit::PerSecond("creates"),
        ReportUnit::PerSecond("gets"),
    );
    let nodes = ReportUnit::PerSecond("nodes");
    let (what, unit, goal) = match line {
        "create-1-etcd" => (
            "create, 1 writer; peer: etcd put; both with TLS",
            creates,
            Better(1.0),
        ),
        "create-16-etcd" => (
            "create, 16 writers; peer: etcd put; both with TLS",
            creates,
            Better(1.2),
        ),
        "create-256-etcd" => (
            "create, 256 writers, 64 connections; peer: etcd put; both with TLS",
            creates,
            Better(0.9),
        ),
        "get-1" => ("get, 1 reader; peer: etcd range", gets, Better(1.5)),
        "get-16" => ("get, 16 readers; peer: etcd range", gets, Better(1.5)),
        "get-256" => (
            "get, 256 readers, 64 connections; peer: etcd range",
            gets,
            Better(1.5),
        ),
        "list-etcd" => (
            "list of 10,000 pods; peer: etcd range",
            ReportUnit::Milliseconds,
            Better(1.5),
        ),
        "list" => (
            "list of 10,000 pods",
            ReportUnit::Milliseconds,
            AtMost(40.0),
        ),
        "watch" => (
            "16 writers, 1,000 watchers on 50 connections",
            ReportUnit::PerSecond("deliveries"),
            AtLeast(400_000.0),
        ),
        "watch-stalled" => (
            "the same beside 100 watchers that never read; peer: without them",
            ReportUnit::PerSecond("deliveries"),
            Goal::None,
        ),
        "flood-get-p50" => (
            "get beside a flood of lists, median; peer: without it",
            ReportUnit::Milliseconds,
            Within(2.0),
        ),
        "flood-get-p99" => (
            "the same, 99th percentile",
            ReportUnit::Milliseconds,
            Within(2.0),
        ),
        "flood-create-p50" => (
            "create beside a flood of lists, median; peer: without it",
            ReportUnit::Milliseconds,
            Within(2.0),
        ),
        "flood-create-p99" => (
            "the same, 99th percentile",
            ReportUnit::Milliseconds,
            Within(2.0),
        ),
        "nodes-create" => ("20,000 nodes: create, 256 writers", nodes, Goal::None),
        "nodes-assign" => (
            "20,000 nodes: AssignPodCIDRs, 256 callers",
            nodes,
            AtLeast(3000.0),
        ),
        "nodes-both" => ("20,000 nodes: both", nodes, AtLeast(3000.0)),
        "nodes-assign-batched" => (
            "20,000 nodes: AssignBlocks, 1,000 in each of 2 calls at once",
            nodes,
            AtLeast(8000.0),
        ),
        "nodes-both-batched" => (
            "20,000 nodes: create as above, then AssignBlocks",
            nodes,
            AtLeast(8000.0),
        ),
        "memory-written" => (
            "memory for each of 150,000 pods, written",
            ReportUnit::Kibibytes,
            AtMost(2.5),
        ),
        "memory-loaded" => (
            "memory for each of 150,000 pods, loaded",
            ReportUnit::Kibibytes,
            AtMost(2.5),
        ),
        "load" => (
            "restart with 150,000 pods and 5,000 nodes",
            ReportUnit::Seconds,
            AtMost(10.0),
        ),
        "start" => (
            "first start; peer: etcd",
            ReportUnit::Milliseconds,
            AtMost(50.0),
        ),
        other => return secured(other, measured),
    };
    ReportLine {
        what: what.to_owned(),
        unit,
        goal,
        measured,
    }
}

/// A line of the row [`ApiserverRow::Secured`]: `CALLS-CALLERS[-processor]-GUARD`.
fn secured(line: &str, measured: Result<Pairs>) -> ReportLine {
    let (calls, guard) = line.rsplit_once('-').unwrap_or((line, ""));
    let (guard, is_guarded) = match guard {
        "tls" => ("TLS, client certificates", false),
        "rbac" => ("TLS, client certificates, Node and RBAC", true),
        other => (other, false),
    };
    let (what, unit) = match calls {
        "connect" => ("new connection and a get", ReportUnit::Milliseconds),
        "get-1" => ("get, 1 reader", ReportUnit::PerSecond("gets")),
        "get-256" => ("get, 256 readers", ReportUnit::PerSecond("gets")),
        "create-16" => ("create, 16 writers", ReportUnit::PerSecond("creates")),
        "create-256" => ("create, 256 writers", ReportUnit::PerSecond("creates")),
        "get-1-processor" => (
            "processor time of a get, 1 reader",
            ReportUnit::Microseconds,
        ),
        "get-256-processor" => ("the same, 256 readers", ReportUnit::Microseconds),
        "create-16-processor" => (
            "processor time of a create, 16 writers",
            ReportUnit::Microseconds,
        ),
        "create-256-processor" => ("the same, 256 writers", ReportUnit::Microseconds),
        other => (other, ReportUnit::Milliseconds),
    };
    let is_create = calls.starts_with("create") && calls.ends_with("processor");
    ReportLine {
        what: format!("{what}: {guard}; peer: without"),
        unit,
        goal: match is_create && is_guarded {
            true => Goal::AtMost(60.0),
            false => Goal::None,
        },
        measured,
    }
}

/// The version of the peer.
pub(super) fn etcd_version() -> String {
    format!(
        "etcd {}",
        output_line("dpkg-query", &["-W", "-f", "${Version}", "etcd-server"])
    )
}

/// CPU time so far, in ticks.
struct Processors {
    all: u64,
    busy: u64,
    /// The time of this program and its children.
    own: u64,
}

impl Processors {
    fn now() -> Result<Self> {
        let numbers = |text: &str| -> Vec<u64> {
            text.split_whitespace()
                .filter_map(|word| word.parse().ok())
                .collect()
        };
        let stat = fs::read_to_string("/proc/stat").context("failed to read /proc/stat")?;
        let ticks = numbers(stat.lines().next().unwrap_or_default());
        let own =
            fs::read_to_string("/proc/self/stat").context("failed to read /proc/self/stat")?;
        // The fields after the name, which may contain spaces: proc_pid_stat(5), fields 14 to 17.
        let own = own.rsplit_once(')').map_or("", |(_, rest)| rest);
        let own: Vec<&str> = own.split_whitespace().skip(11).take(4).collect();
        Ok(Self {
            all: ticks.iter().take(8).sum(),
            // All time except idle and waiting for the disk.
            busy: ticks.iter().take(8).sum::<u64>() - ticks.iter().skip(3).take(2).sum::<u64>(),
            own: numbers(&own.join(" ")).iter().sum(),
        })
    }

    #[expect(clippy::cast_precision_loss, reason = "a share")]
    fn others_since(&self, before: &Self) -> f64 {
        let others = (self.busy - before.busy).saturating_sub(self.own - before.own);
        100.0 * others as f64 / (self.all - before.all).max(1) as f64
    }
}
