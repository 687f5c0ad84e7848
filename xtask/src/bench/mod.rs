//! `cargo xtask bench`: our programs beside others that do the same, by turns, in one run.
//!
//! Absolute figures are the machine's; what is promised are ratios. Everything happens in namespaces of its own (network, mounts,
//! processes) and in one temporary directory, so that nothing is left when it ends, however it ends.

mod attach;
mod fixture;
mod host_local;
mod process;
mod report;
mod sandbox;
mod stats;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand, ValueEnum};

use crate::build;
use fixture::Fixture;
use report::Line;

/// Debian's plugins, package containernetworking-plugins.
const DEBIAN: &str = "/usr/lib/cni";

#[derive(Debug, Subcommand)]
pub(crate) enum What {
    /// The CNI plugins against those of Debian's containernetworking-plugins, as whole processes.
    ///
    /// Needs root, or a kernel that allows user namespaces to everybody; a C compiler; iptables for the row `masq`.
    Cni(Options),
}

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// What to measure; without any, everything.
    #[arg(value_enum)]
    rows: Vec<Row>,
    /// A few rounds only: shows that it runs, and says nothing about speed.
    #[arg(long)]
    quick: bool,
    /// Write the table into docs/BENCHMARKS.md.
    #[arg(long, conflicts_with_all = ["rows", "quick"])]
    write: bool,
    /// Set when it runs in its own namespaces already: the temporary directory.
    #[arg(long, hide = true)]
    inside: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Row {
    /// host-local ADD and DEL with 100 leases in a /16, also against a C program that makes the same system calls
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

impl Row {
    fn measure(self, fixture: &Fixture) -> Vec<Line> {
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

/// Measures.
pub(crate) fn run(what: &What) -> Result<()> {
    let What::Cni(options) = what;
    match &options.inside {
        Some(dir) => measure(options, dir),
        None => {
            if !Path::new(DEBIAN).join("host-local").exists() {
                bail!(
                    "{DEBIAN}/host-local is missing: apt-get install containernetworking-plugins"
                );
            }
            build::plugins()?;
            sandbox::enter()
        }
    }
}

fn measure(options: &Options, dir: &Path) -> Result<()> {
    sandbox::prepare()?;
    let fixture = Fixture::new(dir, options.quick)?;
    let all = Row::value_variants();
    let rows = if options.rows.is_empty() {
        all
    } else {
        &options.rows
    };
    let mut lines = Vec::new();
    for row in rows {
        note(&format!("{} …", name(*row)));
        lines.extend(row.measure(&fixture));
    }
    let text = format!("{}\n\n{}\n", circumstances(dir)?, report::table(&lines));
    print(&text);
    if options.write {
        write(&text)?;
    }
    let missing = lines.iter().filter(|line| line.measured.is_err()).count();
    if missing > 0 {
        bail!("{missing} of {} lines could not be measured", lines.len());
    }
    let missed = lines.iter().filter(|line| !line.is_reached()).count();
    if missed > 0 {
        note(&format!("{missed} of {} targets were missed", lines.len()));
    }
    Ok(())
}

fn name(row: Row) -> String {
    row.to_possible_value()
        .map(|value| value.get_name().to_owned())
        .unwrap_or_default()
}

/// Where and with what it was measured: figures without this mean nothing.
fn circumstances(dir: &Path) -> Result<String> {
    let said = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).output();
        let text = output.ok().filter(|output| output.status.success());
        let text = text.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let last = text.as_deref().and_then(|text| text.trim().lines().last());
        last.map_or_else(
            || format!("unknown {program}"),
            |line| line.trim().to_owned(),
        )
    };
    let cpus = fs::read_to_string("/proc/cpuinfo").context("read /proc/cpuinfo")?;
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown processor", |(_, model)| model);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel =
        fs::read_to_string("/proc/sys/kernel/osrelease").context("read the kernel's version")?;
    let (dir, root) = (dir.to_string_lossy(), build::root());
    let root = root.to_string_lossy();
    Ok(format!(
        "{date}; {cores} cores of {model}, Linux {kernel}; leases on {filesystem}. podplane {commit}, {rustc}; containernetworking-plugins \
         {debian}; {iptables}.\n\
         Times are p50 (p95) of whole processes, pipes and exit included. A ratio is the median of the ratios pair by pair (its quartiles), \
         where the two took turns; above 1 is better, except where the target is a share of the peer's time.",
        date = said("date", &["+%F"]),
        kernel = kernel.trim(),
        filesystem = said("df", &["--output=fstype", &dir]),
        commit = said("git", &["-C", &root, "describe", "--always", "--dirty"]),
        rustc = said("rustc", &["--version"]),
        debian = said(
            "dpkg-query",
            &["-W", "-f", "${Version}", "containernetworking-plugins"]
        ),
        iptables = said("iptables", &["--version"]),
    ))
}

/// Replaces what stands between the markers.
fn write(text: &str) -> Result<()> {
    const BEGIN: &str = "<!-- begin: cargo xtask bench cni --write -->\n";
    const END: &str = "<!-- end -->";
    let path = build::root().join("docs/BENCHMARKS.md");
    let old = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let parts = old.split_once(BEGIN).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(END)?;
        Some((before, after))
    });
    let (before, after) =
        parts.with_context(|| format!("{} has no {BEGIN}… {END}", path.display()))?;
    let new = format!("{before}{BEGIN}\n{text}\n{END}{after}");
    fs::write(&path, new).with_context(|| format!("write {}", path.display()))
}

#[expect(clippy::print_stdout, reason = "the table is the program's output")]
fn print(text: &str) {
    println!("{text}");
}

#[expect(clippy::print_stderr, reason = "progress of a tool")]
fn note(text: &str) {
    eprintln!("bench: {text}");
}
