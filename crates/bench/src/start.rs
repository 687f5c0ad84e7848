//! Start-up: with an empty store, and with many objects; and their memory.

use std::{fs, time::Instant};

use anyhow::Result;
use podplane_api::core::{Node, Pod};

use crate::{BenchParameters, TableLine, etcd, load::LoadTarget, pods, server::ServerProcess};

const PODS: u32 = 150_000;
const NODES: u32 = 5_000;
const WRITERS: usize = 256;

/// Measures KiB per pod, as written and as loaded by the next process, and the seconds that loading
/// takes.
pub(crate) async fn memory(bench: &BenchParameters) -> Result<Vec<TableLine>> {
    let dir = bench.row_dir("memory")?;
    let server = ServerProcess::podplane(bench, &dir).await?;
    first_answer(&server).await?;
    let empty = server.memory()?;
    let (pod, node) = (pods::create()?, pods::create_node()?);
    let open = || server.connections(WRITERS);
    let create = LoadTarget::new(open().await?, pods::create_path::<Pod>(), move |n| {
        pod.with(n)
    });
    create.times(WRITERS, bench.many(PODS)).await?;
    let pods = f64::from(create.call_count());
    let written = (server.memory()? - empty) / pods;
    let create = LoadTarget::new(open().await?, pods::create_path::<Node>(), move |n| {
        node.with(n)
    });
    create.times(WRITERS, bench.many(NODES)).await?;
    drop(create);
    server.end()?;

    let (mut loads, mut loaded) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds(3) {
        let begun = Instant::now();
        let server = ServerProcess::podplane(bench, &dir).await?;
        first_answer(&server).await?;
        loads.push(begun.elapsed().as_secs_f64());
        loaded.push((server.memory()? - empty) / pods);
        server.end()?;
    }
    Ok(vec![
        TableLine::new("memory-written", vec![written], Vec::new()),
        TableLine::new("memory-loaded", loaded, Vec::new()),
        TableLine::new("load", loads, Vec::new()),
    ])
}

/// Measures milliseconds from the start of the process to its first answer, with an empty
/// directory; beside etcd's.
pub(crate) async fn cold(bench: &BenchParameters) -> Result<Vec<TableLine>> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..bench.rounds(20) {
        let dir = bench.row_dir(&format!("start-{round}"))?;
        let begun = Instant::now();
        let server = ServerProcess::podplane(bench, &dir).await?;
        first_answer(&server).await?;
        ours.push(begun.elapsed().as_secs_f64() * 1e3);
        server.end()?;
        let begun = Instant::now();
        let server = ServerProcess::etcd(&dir).await?;
        let mut connection = server.connect().await?;
        connection
            .unary(etcd::RANGE, pods::etcd_get()?.with(0))
            .await?;
        theirs.push(begun.elapsed().as_secs_f64() * 1e3);
        server.end()?;
        fs::remove_dir_all(dir)?;
    }
    Ok(vec![TableLine::new("start", ours, theirs)])
}

/// Waits for an answer that needs the store.
pub(crate) async fn first_answer(server: &ServerProcess) -> Result<()> {
    let mut connection = server.connect().await?;
    let path = pods::get_namespace_path();
    connection.unary(&path, pods::get_namespace()?).await?;
    Ok(())
}
