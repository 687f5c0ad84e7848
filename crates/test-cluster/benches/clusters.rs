//! Measures the start and the end of clusters, in ledger mode with three nodes. Rows are arguments;
//! each prints one line of JSON. `cargo xtask bench test-cluster` knows the targets.

use std::{collections::BTreeSet, env, time::Instant};

use podplane_test_cluster::{Cluster, Result};
use serde_json::json;
use tokio::task::JoinSet;

/// The number of clusters side by side.
const MANY: u32 = 8;

#[tokio::main]
#[expect(clippy::print_stdout, reason = "what the program is for")]
async fn main() -> Result<()> {
    // cargo adds `--bench`.
    let (flags, wanted): (BTreeSet<_>, BTreeSet<_>) =
        env::args().skip(1).partition(|arg| arg.starts_with("--"));
    let rounds = if flags.contains("--quick") { 2 } else { 20 };
    for row in ["start", "stop", "many"] {
        if !wanted.is_empty() && !wanted.contains(row) {
            continue;
        }
        let mut milliseconds = Vec::new();
        for _ in 0..rounds {
            milliseconds.push(match row {
                "start" => one().await?.0,
                "stop" => one().await?.1,
                _ => many().await?,
            });
        }
        println!(
            "{}",
            json!({"line": row, "ours": milliseconds, "theirs": []})
        );
    }
    Ok(())
}

/// Measures the time until all nodes of a cluster are Ready, and the time until nothing of it is
/// left.
async fn one() -> Result<(f64, f64)> {
    let begun = Instant::now();
    let cluster = Cluster::builder().start().await?;
    let started = since(begun);
    let begun = Instant::now();
    cluster.stop().await?;
    Ok((started, since(begun)))
}

/// Measures the time until all nodes of all clusters are Ready.
async fn many() -> Result<f64> {
    let begun = Instant::now();
    let mut starting = JoinSet::new();
    for _ in 0..MANY {
        starting.spawn(Cluster::builder().start());
    }
    let clusters: Result<Vec<_>> = starting.join_all().await.into_iter().collect();
    let took = since(begun);
    for cluster in clusters? {
        cluster.stop().await?;
    }
    Ok(took)
}

fn since(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e3
}
