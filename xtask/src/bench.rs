//! `cargo xtask bench`: our programs beside comparable ones, by turns, in one run.
//!
//! Absolute figures depend on the machine; the targets are ratios. Everything happens in separate
//! namespaces (network, mounts, processes) and in one temporary directory, so that nothing is left
//! behind, however the run ends.

mod apiserver;
mod attach;
mod audit;
mod cluster;
mod cni;
mod etcd;
mod fixture;
mod host_local;
mod html;
mod ipam;
mod page;
mod process;
mod report;
mod sandbox;
mod scheduler;
mod stats;
mod test_cluster;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use podplane_progress::{PlainLines, Progress};

use crate::build;
use report::ReportLine;

#[derive(Debug, Subcommand)]
pub(crate) enum Benchmark {
    /// Measure the API server with sled against Debian's etcd on the same disk, and against a gRPC
    /// call that does nothing.
    ///
    /// Needs root, or a kernel that allows user namespaces for everybody; etcd (package
    /// etcd-server).
    Apiserver(BenchOptions<apiserver::ApiserverRow>),
    /// Measure `podplane audit` on the dump of a large cluster. Needs a C compiler, and 5 GB of
    /// space in TMPDIR.
    Audit(BenchOptions<audit::AuditRow>),
    /// Measure whole clusters: the start of many nodes and pods, and of a single pod. Needs root
    /// for kernel mode.
    Cluster(BenchOptions<cluster::ClusterRow>),
    /// Measure the CNI plugins against those of Debian's containernetworking-plugins, as whole
    /// processes.
    ///
    /// Needs root, or a kernel that allows user namespaces for everybody; a C compiler; iptables
    /// for the row `masq`.
    Cni(BenchOptions<cni::CniRow>),
    /// Measure the allocator of node blocks: its index of free blocks, and the ledger of claims.
    /// Needs nothing.
    Ipam(BenchOptions<ipam::IpamRow>),
    /// Measure the API server on etcd, beside transactions sent straight to etcd. Needs Debian's
    /// package etcd-server.
    Etcd(BenchOptions<etcd::EtcdRow>),
    /// Measure the page with 5,000 nodes and 150,000 pods: the first picture, and how soon it shows
    /// changes. Needs Debian's package chromium.
    Page(BenchOptions<page::PageRow>),
    /// Measure the scheduler: its decisions without an API server, and with one on sled.
    ///
    /// Needs root, or a kernel that allows user namespaces for everybody.
    Scheduler(BenchOptions<scheduler::SchedulerRow>),
    /// Measure the start and stop of clusters for tests. Needs nothing.
    TestCluster(BenchOptions<test_cluster::TestClusterRow>),
}

#[derive(Debug, Args)]
pub(crate) struct BenchOptions<R: ValueEnum + Send + Sync + 'static> {
    /// Rows to measure; all by default
    #[arg(value_enum)]
    rows: Vec<R>,
    /// Run only a few rounds, to check that the benchmark works; the figures mean nothing
    #[arg(long)]
    quick: bool,
    /// Write the table into docs/BENCHMARKS.md
    #[arg(long, conflicts_with_all = ["rows", "quick"])]
    write: bool,
    /// Write a page with pictures to FILE: one HTML file, for light and dark screens
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Temporary directory; set when the command runs inside its own namespaces
    #[arg(long, hide = true)]
    inside: Option<PathBuf>,
}

impl<R: ValueEnum + Send + Sync + 'static> BenchOptions<R> {
    fn rows(&self) -> Vec<R> {
        if self.rows.is_empty() {
            R::value_variants().to_vec()
        } else {
            self.rows.clone()
        }
    }

    /// Prepares what the flags need, and runs the benchmark.
    fn run(&self, bench: impl FnOnce(&Self) -> Result<()>) -> Result<()> {
        if let (Some(file), None) = (&self.html, &self.inside) {
            html::prepare(file)?;
        }
        bench(self)
    }

    /// Measures each row, and prints which one it is.
    fn measure(
        &self,
        mut row: impl FnMut(R) -> Result<Vec<ReportLine>>,
    ) -> Result<Vec<ReportLine>> {
        let rows = self.rows();
        let count = rows.len();
        // Each row has a line of its own.
        let progress = Progress::with_lines("measure", PlainLines::Never);
        progress.count("measure", u64::try_from(count).unwrap_or(u64::MAX));
        let mut lines = Vec::new();
        for (index, each) in rows.into_iter().enumerate() {
            let line = format!("{} ({} of {count})", name(each.clone()), index + 1);
            progress.suspend(|| note(&line));
            lines.extend(row(each)?);
            progress.advance(1);
        }
        Ok(lines)
    }

    /// Prints the table, and writes it into the docs and onto a page if that is wanted.
    fn finish(&self, bench: &str, circumstances: &str, lines: &[ReportLine]) -> Result<()> {
        let text = format!("{circumstances}\n\n{}\n", report::table(lines));
        print(&text);
        if self.write {
            write(bench, &text)?;
        }
        if let Some(file) = &self.html {
            html::write(file, &html::document(bench, self, circumstances, lines))?;
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
}

/// Runs a benchmark.
pub(crate) fn run(what: &Benchmark) -> Result<()> {
    match what {
        Benchmark::Apiserver(options) => options.run(apiserver::run),
        Benchmark::Audit(options) => options.run(audit::run),
        Benchmark::Cluster(options) => options.run(cluster::run),
        Benchmark::Cni(options) => options.run(cni::run),
        Benchmark::Etcd(options) => options.run(etcd::run),
        Benchmark::Ipam(options) => options.run(ipam::run),
        Benchmark::Page(options) => options.run(page::run),
        Benchmark::Scheduler(options) => options.run(scheduler::run),
        Benchmark::TestCluster(options) => options.run(test_cluster::run),
    }
}

fn name(row: impl ValueEnum) -> String {
    row.to_possible_value()
        .map(|value| value.get_name().to_owned())
        .unwrap_or_default()
}

/// The last line of a program's output.
fn output_line(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let text = output.ok().filter(|output| output.status.success());
    let text = text.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let last = text.as_deref().and_then(|text| text.trim().lines().last());
    last.map_or_else(
        || format!("unknown {program}"),
        |line| line.trim().to_owned(),
    )
}

/// The machine and the versions of a measurement, without which figures mean nothing.
fn circumstances(what_is_on_disk: &str, dir: &Path) -> Result<String> {
    let cpus = fs::read_to_string("/proc/cpuinfo").context("failed to read /proc/cpuinfo")?;
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown processor", |(_, model)| model);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")
        .context("failed to read the kernel's version")?;
    let (dir, root) = (dir.to_string_lossy(), build::root());
    let root = root.to_string_lossy();
    Ok(format!(
        "{date}; {cores} cores of {model}, Linux {kernel}; {what_is_on_disk} on {filesystem}. podplane {commit}, {rustc};",
        date = output_line("date", &["+%F"]),
        kernel = kernel.trim(),
        filesystem = output_line("df", &["--output=fstype", &dir]),
        commit = output_line("git", &["-C", &root, "describe", "--always", "--dirty"]),
        rustc = output_line("rustc", &["--version"]),
    ))
}

/// Replaces the text between the markers.
fn write(bench: &str, text: &str) -> Result<()> {
    const END: &str = "<!-- end -->";
    let begin = format!("<!-- begin: cargo xtask bench {bench} --write -->\n");
    let path = build::root().join("docs/BENCHMARKS.md");
    let old =
        fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
    let parts = old.split_once(&begin).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(END)?;
        Some((before, after))
    });
    let (before, after) =
        parts.with_context(|| format!("{} has no {begin}… {END}", path.display()))?;
    let new = format!("{before}{begin}\n{text}\n{END}{after}");
    fs::write(&path, new).with_context(|| format!("failed to write {}", path.display()))
}

#[expect(clippy::print_stdout, reason = "the table is the program's output")]
fn print(text: &str) {
    println!("{text}");
}

#[expect(clippy::print_stderr, reason = "progress of a tool")]
fn note(text: &str) {
    eprintln!("bench: {text}");
}
