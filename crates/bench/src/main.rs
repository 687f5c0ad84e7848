//! The measurements behind `cargo xtask bench apiserver`: load on the API server and on etcd, by
//! turns; and those of the scheduler with an API server, behind
//! `cargo xtask bench scheduler`, and of the API server on etcd, behind `cargo xtask bench etcd`.
//!
//! The measurements are printed as one JSON object per line; xtask evaluates them and knows the
//! targets. The load generator must not be what is measured: requests are encoded once and patched,
//! answers are counted and never decoded.

mod call;
mod etcd;
mod flood;
mod load;
mod nodes;
mod on_etcd;
mod pods;
mod reads;
mod scheduling;
mod secured;
mod server;
mod start;
mod tls;
mod watches;
mod writes;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Result;
use clap::{Parser, ValueEnum};
use serde_json::json;

/// Measure the API server beside etcd. Started by
/// `cargo xtask bench apiserver`.
#[derive(Debug, Parser)]
struct LoadArgs {
    /// The rows to measure.
    #[arg(value_enum, required_unless_present = "flood")]
    rows: Vec<BenchRow>,
    /// Path of the program `podplane`.
    #[arg(long, required_unless_present = "flood")]
    podplane: Option<PathBuf>,
    /// Directory for the data of all servers.
    #[arg(long, required_unless_present = "flood")]
    dir: Option<PathBuf>,
    /// Run only a few rounds.
    #[arg(long)]
    quick: bool,
    /// List all pods of the API server at this address by many clients instead of measuring.
    #[arg(long, hide = true, requires = "authority")]
    flood: Option<SocketAddr>,
    /// The authority of that API server's certificate, in PEM.
    #[arg(long, hide = true)]
    authority: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum BenchRow {
    Create1,
    Create16,
    Create256,
    Get,
    List,
    Watch,
    Flood,
    Nodes,
    Secured,
    Memory,
    Start,
    Bind,
    Warm,
    EtcdCreate1,
    EtcdCreate16,
    EtcdCreate256,
    EtcdRestart,
}

/// The parameters of all rows.
#[derive(Debug)]
pub(crate) struct BenchParameters {
    podplane: PathBuf,
    dir: PathBuf,
    quick: bool,
}

impl BenchParameters {
    /// The given number of rounds, or a few if quick.
    fn rounds(&self, rounds: usize) -> usize {
        if self.quick { rounds.min(2) } else { rounds }
    }

    /// The given count, or a tenth of it if quick.
    fn many(&self, count: u32) -> u32 {
        if self.quick { count / 10 } else { count }
    }

    /// Creates a directory for one row.
    fn row_dir(&self, row: &str) -> Result<PathBuf> {
        let dir = self.dir.join(row);
        std::fs::create_dir_all(&dir)?;
        Ok(dir)
    }

    fn podplane(&self) -> &Path {
        &self.podplane
    }
}

/// A line of the table: our measurements and the peer's, taken at the same time if they have the
/// same index. An empty list means no peer.
#[derive(Debug)]
pub(crate) struct TableLine {
    name: String,
    ours: Vec<f64>,
    theirs: Vec<f64>,
}

impl TableLine {
    pub(crate) fn new(name: impl Into<String>, ours: Vec<f64>, theirs: Vec<f64>) -> Self {
        Self {
            name: name.into(),
            ours,
            theirs,
        }
    }
}

fn main() -> Result<ExitCode> {
    let args = LoadArgs::parse();
    // One thread for the load, so that the servers have the rest of the machine.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    if let (Some(address), Some(authority)) = (args.flood, &args.authority) {
        runtime.block_on(flood::list_again_and_again(address, authority))?;
        return Ok(ExitCode::SUCCESS);
    }
    let bench = BenchParameters {
        podplane: args.podplane.unwrap_or_default(),
        dir: args.dir.unwrap_or_default(),
        quick: args.quick,
    };
    for row in args.rows {
        let measured = runtime.block_on(measure(row, &bench));
        match measured {
            Ok(lines) => lines.iter().for_each(print),
            Err(error) => {
                print_line(&json!({"row": format!("{row:?}"), "error": format!("{error:#}")}))
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn measure(row: BenchRow, bench: &BenchParameters) -> Result<Vec<TableLine>> {
    match row {
        BenchRow::Create1 => writes::create(bench, 1).await,
        BenchRow::Create16 => writes::create(bench, 16).await,
        BenchRow::Create256 => writes::create(bench, 256).await,
        BenchRow::Get => reads::get(bench).await,
        BenchRow::List => reads::list(bench).await,
        BenchRow::Watch => watches::watch(bench).await,
        BenchRow::Flood => flood::flood(bench).await,
        BenchRow::Nodes => nodes::nodes(bench).await,
        BenchRow::Secured => secured::secured(bench).await,
        BenchRow::Memory => start::memory(bench).await,
        BenchRow::Start => start::cold(bench).await,
        BenchRow::Bind => scheduling::bind(bench).await,
        BenchRow::Warm => scheduling::warm(bench).await,
        BenchRow::EtcdCreate1 => on_etcd::create(bench, 1).await,
        BenchRow::EtcdCreate16 => on_etcd::create(bench, 16).await,
        BenchRow::EtcdCreate256 => on_etcd::create(bench, 256).await,
        BenchRow::EtcdRestart => on_etcd::restart(bench).await,
    }
}

fn print(line: &TableLine) {
    let TableLine { name, ours, theirs } = line;
    print_line(&json!({"line": name, "ours": ours, "theirs": theirs}));
}

#[expect(clippy::print_stdout, reason = "the measurements are its output")]
fn print_line(line: &serde_json::Value) {
    println!("{line}");
}
