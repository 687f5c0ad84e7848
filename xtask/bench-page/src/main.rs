//! Writes the page of a benchmark that `cargo xtask bench --html` passes on standard input.

use std::{env, fs, io, path::PathBuf};

use anyhow::{Context as _, Result};
use xtask_bench_page::Benchmark;

fn main() -> Result<()> {
    let file = env::args_os().nth(1).map(PathBuf::from);
    let file = file.context("missing argument: the file to write")?;
    let benchmark: Benchmark =
        serde_json::from_reader(io::stdin().lock()).context("invalid benchmark")?;
    let page = benchmark.report().html();
    fs::write(&file, page).with_context(|| format!("failed to write {}", file.display()))
}
