//! The load of `cargo xtask bench cluster`: whole clusters, from the first write to the last pod.
//! Rows are arguments; each prints lines of JSON. `cargo xtask bench cluster` knows the targets.

mod containerd;
mod floor;
mod kernel;
mod ledger;
mod load;
mod sandbox;
mod usage;

use std::{collections::BTreeSet, env};

use anyhow::{Error, Result};
use serde_json::json;

#[tokio::main]
async fn main() -> Result<()> {
    // cargo adds `--bench`.
    let (flags, rows): (BTreeSet<_>, BTreeSet<_>) =
        env::args().skip(1).partition(|arg| arg.starts_with("--"));
    if flags.contains(floor::FLAG) {
        return floor::serve();
    }
    let is_quick = flags.contains("--quick");
    let is_wanted = |row| rows.is_empty() || rows.contains(row);
    if is_wanted("nodes") {
        ledger::nodes(if is_quick { 200 } else { 5000 }).await?;
    }
    if is_wanted("pods") {
        let (nodes, pods) = if is_quick { (20, 200) } else { (1000, 10_000) };
        ledger::pods(nodes, pods).await?;
    }
    if is_wanted("create") {
        kernel::create(if is_quick { 5 } else { 100 }).await?;
    }
    if is_wanted("sandbox") {
        sandbox::run(if is_quick { 2 } else { 25 }).await?;
    }
    if is_wanted("kernel-pods") {
        let (nodes, pods) = if is_quick { (3, 20) } else { (20, 1000) };
        kernel::pods(nodes, pods).await?;
    }
    Ok(())
}

/// Prints one figure of a row without a peer.
fn say(line: &str, value: f64) {
    say_all(line, &[value]);
}

/// Prints the figures of the rounds of a row without a peer.
fn say_all(line: &str, values: &[f64]) {
    say_pairs(line, values, &[]);
}

/// Prints the figures of the rounds of a row, and of its peer in the same rounds.
#[expect(clippy::print_stdout, reason = "what the program is for")]
fn say_pairs(line: &str, ours: &[f64], theirs: &[f64]) {
    println!("{}", json!({"line": line, "ours": ours, "theirs": theirs}));
}

/// Prints the error of a row that could not be measured.
#[expect(clippy::print_stdout, reason = "what the program is for")]
fn say_error(line: &str, error: &Error) {
    println!("{}", json!({"line": line, "error": format!("{error:#}")}));
}

/// Prints details of a row beside its figures.
#[expect(clippy::print_stderr, reason = "progress of a tool")]
fn note(text: &str) {
    eprintln!("bench: {text}");
}
