//! `cargo xtask bench etcd`: the API server on etcd, by the program `podplane-bench`.

use std::path::Path;

use anyhow::Result;
use clap::ValueEnum;

use super::{
    BenchOptions, apiserver, circumstances, name,
    report::{Goal, ReportLine, ReportUnit},
    stats::Pairs,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EtcdRow {
    /// durable creates of a 1 KiB pod by one writer through one API server on etcd, beside the same
    /// compare-and-set transaction sent straight to etcd
    EtcdCreate1,
    /// the same by 16 writers
    EtcdCreate16,
    /// the same by 256 writers
    EtcdCreate256,
    /// the start of an API server with 150,000 pods in etcd
    EtcdRestart,
}

/// Runs the benchmark, in namespaces of its own.
pub(super) fn run(options: &BenchOptions<EtcdRow>) -> Result<()> {
    match &options.inside {
        Some(dir) => measure(options, dir),
        None => apiserver::enter(),
    }
}

fn measure(options: &BenchOptions<EtcdRow>, dir: &Path) -> Result<()> {
    apiserver::prepare()?;
    let lines = options.measure(|row| {
        let measured = apiserver::load(&name(row), options.quick, dir)?.into_iter();
        Ok(measured
            .map(|(line, pairs)| promised(&line, pairs))
            .collect())
    })?;
    let text = format!(
        "{} {}. One member, without TLS. Rates are medians of the rounds, in which the sides took turns; a ratio is the median of the ratios round by \
         round (its quartiles), above 1 is better.",
        circumstances("data", dir)?,
        apiserver::etcd_version(),
    );
    options.finish("etcd", &text, &lines)
}

/// The target of a line.
fn promised(line: &str, measured: Result<Pairs>) -> ReportLine {
    let creates = ReportUnit::PerSecond("creates");
    let (what, unit, goal) = match line {
        "etcd-create-1" => (
            "create on etcd, 1 writer; peer: the transaction",
            creates,
            Goal::Better(0.65),
        ),
        "etcd-create-16" => (
            "create on etcd, 16 writers; peer: the transaction",
            creates,
            Goal::Better(0.55),
        ),
        "etcd-create-256" => (
            "create on etcd, 256 writers, 64 connections; peer: the transaction",
            creates,
            Goal::Better(0.5),
        ),
        "etcd-restart" => (
            "start of an API server with 150,000 pods in etcd",
            ReportUnit::Seconds,
            Goal::AtMost(10.0),
        ),
        other => (other, creates, Goal::None),
    };
    ReportLine {
        what: what.to_owned(),
        unit,
        goal,
        measured,
    }
}
