//! `cargo xtask bench cni`: the plugins as whole processes, beside Debian's.

use std::path::Path;

use anyhow::{Result, bail};
use clap::ValueEnum;

use super::{
    BenchOptions, attach, circumstances, fixture::BenchFixture, host_local, output_line,
    report::ReportLine, sandbox,
};
use crate::build::{self, Profile};

/// The directory of Debian's plugins, package containernetworking-plugins.
pub(super) const DEBIAN: &str = "/usr/lib/cni";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CniRow {
    /// host-local ADD and DEL with 100 leases in a /16, also against a C program that makes the
    /// same system calls
    Leases100,
    /// the same with 1,000 leases
    Leases1000,
    /// the same with 10,000 leases
    Leases10000,
    /// host-local in a /16 with one address free, and with none
    Full,
    /// host-local, 64 at a time on the same directory
    Crowd,
    /// bridge with host-local, into fresh network namespaces
    Bridge,
    /// the same with ipMasq
    Masq,
    /// ptp with host-local
    Ptp,
    /// peak memory of one plugin process
    Memory,
}

impl CniRow {
    fn measure(self, fixture: &BenchFixture) -> Vec<ReportLine> {
        match self {
            Self::Leases100 => host_local::few_leases(fixture),
            Self::Leases1000 => host_local::many_leases(fixture, 1_000, 100),
            Self::Leases10000 => host_local::many_leases(fixture, 10_000, 30),
            Self::Full => host_local::full(fixture),
            Self::Crowd => host_local::crowd(fixture),
            Self::Bridge => attach::bridge(fixture),
            Self::Masq => attach::masquerade(fixture),
            Self::Ptp => attach::ptp(fixture),
            Self::Memory => attach::memory(fixture),
        }
    }
}

/// Runs the benchmark, in namespaces of its own.
pub(super) fn run(options: &BenchOptions<CniRow>) -> Result<()> {
    match &options.inside {
        Some(dir) => measure(options, dir),
        None => {
            if !Path::new(DEBIAN).join("host-local").exists() {
                bail!(
                    "{DEBIAN}/host-local is missing: apt-get install containernetworking-plugins"
                );
            }
            build::plugins(Profile::Release)?;
            sandbox::enter()
        }
    }
}

fn measure(options: &BenchOptions<CniRow>, dir: &Path) -> Result<()> {
    sandbox::prepare()?;
    let fixture = BenchFixture::new(dir, options.quick)?;
    let lines = options.measure(|row| Ok(row.measure(&fixture)))?;
    let debian = output_line(
        "dpkg-query",
        &["-W", "-f", "${Version}", "containernetworking-plugins"],
    );
    let text = format!(
        "{} containernetworking-plugins {debian}; {}.\n\
         Times are p50 (p95) of whole processes, pipes and exit included. A ratio is the median of the ratios pair by pair (its quartiles), \
         where the two took turns; above 1 is better, except where the target is a share of the peer's time.",
        circumstances("leases", dir)?,
        output_line("iptables", &["--version"]),
    );
    options.finish("cni", &text, &lines)
}
