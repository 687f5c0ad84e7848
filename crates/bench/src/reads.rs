//! Gets and lists.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use podplane_api::core::Pod;

use crate::{BenchParameters, TableLine, etcd, load::LoadTarget, pods, server::ServerProcess};

const LASTING: Duration = Duration::from_secs(1);
const PODS: u32 = 10_000;
const WRITERS: usize = 64;

/// Starts our server and etcd, each with the same number of pods.
async fn filled(bench: &BenchParameters, row: &str, pods: u32) -> Result<[ServerProcess; 2]> {
    let dir = bench.row_dir(row)?;
    let servers = [
        ServerProcess::podplane(bench, &dir).await?,
        ServerProcess::etcd(&dir).await?,
    ];
    let [ours, theirs] = &servers;
    let (pod, put) = (pods::create()?, pods::etcd_put()?);
    let create = LoadTarget::new(
        ours.connections(WRITERS).await?,
        pods::create_path::<Pod>(),
        move |n| pod.with(n),
    );
    create.times(WRITERS, pods).await?;
    let put = LoadTarget::new(theirs.connections(WRITERS).await?, etcd::PUT, move |n| {
        put.with(n)
    });
    put.times(WRITERS, create.call_count()).await?;
    Ok(servers)
}

/// Measures gets of single objects.
pub(crate) async fn get(bench: &BenchParameters) -> Result<Vec<TableLine>> {
    const FEW: u32 = 1_000;
    let [ours, theirs] = filled(bench, "get", FEW).await?;
    let mut lines = Vec::new();
    for readers in [1, 16, 256] {
        let (get, range) = (pods::get()?, pods::etcd_get()?);
        let targets = [
            LoadTarget::new(
                ours.connections(readers).await?,
                pods::get_path(),
                move |n| get.with(n % FEW),
            ),
            LoadTarget::new(theirs.connections(readers).await?, etcd::RANGE, move |n| {
                range.with(n % FEW)
            }),
        ];
        let [ours, theirs] = LoadTarget::rates(&targets, readers, LASTING, bench.rounds(5)).await?;
        lines.push(TableLine::new(format!("get-{readers}"), ours, theirs));
    }
    Ok(lines)
}

/// Measures a list of all ten thousand pods, in milliseconds.
pub(crate) async fn list(bench: &BenchParameters) -> Result<Vec<TableLine>> {
    let [ours, theirs] = filled(bench, "list", PODS).await?;
    let mut connections = [ours.connect().await?, theirs.connect().await?];
    let requests = [pods::list()?, pods::etcd_list()?];
    let paths = [pods::list_path(), etcd::RANGE.to_owned()];
    let mut times = [const { Vec::new() }; 2];
    for round in 0..bench.rounds(30) {
        for turn in 0..2 {
            let who = (round + turn) % 2;
            let begun = Instant::now();
            let size = connections[who]
                .unary(&paths[who], requests[who].clone())
                .await?;
            times[who].push(begun.elapsed().as_secs_f64() * 1e3);
            ensure!(
                size > 4_000_000,
                "{size} bytes are too few for a list of {PODS} pods"
            );
        }
    }
    let [ours, theirs] = times;
    Ok(vec![
        TableLine::new("list-etcd", ours.clone(), theirs),
        TableLine::new("list", ours, Vec::new()),
    ])
}
