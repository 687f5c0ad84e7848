//! Measures durable commits per second of the sled engine, 1 KiB each:
//! `cargo run --release --example throughput -- DIR`.
//!
//! DIR should be empty and on the disk to measure; the temporary directory may be in memory.

#![expect(clippy::disallowed_methods, reason = "a measurement")]

use std::{sync::Arc, time::Instant};

use podplane_store::{Guard, Key, SledStore, Store, Txn};
use tokio::task::JoinSet;

const COMMITS: usize = 20_000;

#[tokio::main]
#[expect(clippy::print_stdout, reason = "output of the program")]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let dir = std::env::args_os().nth(1).ok_or("usage: throughput DIR")?;
    let store = Arc::new(SledStore::open(dir)?);
    for writers in [1, 16, 256] {
        let begun = Instant::now();
        let mut tasks = JoinSet::new();
        for writer in 0..writers {
            let store = Arc::clone(&store);
            tasks.spawn(async move {
                for n in 0..COMMITS / writers {
                    let key = Key::try_from(format!("{writers}/{writer}/{n}"))?;
                    store
                        .commit(
                            Txn::new()
                                .guard(Guard::Absent(key.clone()))
                                .put(key, vec![7; 1024]),
                        )
                        .await?;
                }
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
            });
        }
        while let Some(written) = tasks.join_next().await {
            written??;
        }
        let per_second = f64::from(u32::try_from(COMMITS)?) / begun.elapsed().as_secs_f64();
        println!("{writers:>3} writers: {per_second:>8.0} commits/s");
    }
    Ok(())
}
