//! Durable creates.

use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use podplane_api::core::Pod;

use crate::{
    BenchParameters, TableLine,
    call::Connection,
    empty, etcd,
    load::{LoadTarget, connections},
    pods,
    server::ServerProcess,
};

const LASTING: Duration = Duration::from_millis(1500);

/// Measures creates by this many writers, beside etcd's put of the same size, and beside the empty
/// call.
pub(crate) async fn create(bench: &BenchParameters, writers: usize) -> Result<Vec<TableLine>> {
    let dir = bench.row_dir(&format!("create-{writers}"))?;
    let servers = [
        ServerProcess::podplane(bench, &dir).await?,
        ServerProcess::etcd(&dir).await?,
        ServerProcess::empty(&dir).await?,
    ];
    let [ours, theirs, nothing] = &servers;
    pods::check_size(ours).await?;
    let open = |server: &ServerProcess| Connection::several(server.address, connections(writers));
    let (pod, put) = (pods::create()?, pods::etcd_put()?);
    let targets = [
        LoadTarget::new(open(ours).await?, pods::create_path::<Pod>(), move |n| {
            pod.with(n)
        }),
        LoadTarget::new(open(theirs).await?, etcd::PUT, move |n| put.with(n)),
        LoadTarget::new(open(nothing).await?, empty::PATH, |_| {
            Bytes::from_static(&[0; 5])
        }),
    ];
    let [ours, theirs, nothing] =
        LoadTarget::rates(&targets, writers, LASTING, bench.rounds(7)).await?;
    Ok(vec![
        TableLine::new(format!("create-{writers}-etcd"), ours.clone(), theirs),
        TableLine::new(format!("create-{writers}-empty"), ours, nothing),
    ])
}
