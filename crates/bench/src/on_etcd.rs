//! The API server on etcd.

use std::time::{Duration, Instant};

use anyhow::Result;
use podplane_api::core::Pod;

use crate::{
    BenchParameters, TableLine, etcd, load::LoadTarget, pods, server::ServerProcess,
    start::first_answer,
};

const LASTING: Duration = Duration::from_millis(1500);
const PODS: u32 = 150_000;
const WRITERS: usize = 256;

/// Measures creates by this many writers, beside the transaction that a create is, sent straight to
/// an etcd of its own.
pub(crate) async fn create(bench: &BenchParameters, writers: usize) -> Result<Vec<TableLine>> {
    let dir = bench.row_dir(&format!("etcd-create-{writers}"))?;
    let (below, beside) = (dir.join("below"), dir.join("beside"));
    std::fs::create_dir_all(&below)?;
    std::fs::create_dir_all(&beside)?;
    let store = ServerProcess::etcd(&below).await?;
    let ours = ServerProcess::podplane_on(bench, &below, &store).await?;
    let theirs = ServerProcess::etcd(&beside).await?;
    pods::check_size(&ours).await?;
    let (pod, transaction) = (pods::create()?, pods::etcd_create()?);
    let targets = [
        LoadTarget::new(
            ours.connections(writers).await?,
            pods::create_path::<Pod>(),
            move |n| pod.with(n),
        ),
        LoadTarget::new(theirs.connections(writers).await?, etcd::TXN, move |n| {
            transaction.with(n)
        }),
    ];
    let [ours, theirs] = LoadTarget::rates(&targets, writers, LASTING, bench.rounds(7)).await?;
    Ok(vec![TableLine::new(
        format!("etcd-create-{writers}"),
        ours,
        theirs,
    )])
}

/// Measures the seconds from the start of an API server to its first answer, with many pods in
/// etcd.
pub(crate) async fn restart(bench: &BenchParameters) -> Result<Vec<TableLine>> {
    let dir = bench.row_dir("etcd-restart")?;
    let store = ServerProcess::etcd(&dir).await?;
    let server = ServerProcess::podplane_on(bench, &dir, &store).await?;
    let pod = pods::create()?;
    let open = server.connections(WRITERS);
    let create = LoadTarget::new(open.await?, pods::create_path::<Pod>(), move |n| {
        pod.with(n)
    });
    create.times(WRITERS, bench.many(PODS)).await?;
    drop(create);
    server.end()?;
    let mut starts = Vec::new();
    for _ in 0..bench.rounds(3) {
        let begun = Instant::now();
        let server = ServerProcess::podplane_on(bench, &dir, &store).await?;
        first_answer(&server).await?;
        starts.push(begun.elapsed().as_secs_f64());
        server.end()?;
    }
    Ok(vec![TableLine::new("etcd-restart", starts, Vec::new())])
}
