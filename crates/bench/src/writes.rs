//! Durable creates.

use std::time::Duration;

use anyhow::Result;
use podplane_api::core::Pod;

use crate::{
    BenchParameters, TableLine, etcd, load::LoadTarget, pods, server::ServerProcess,
    tls::Certificates,
};

const LASTING: Duration = Duration::from_millis(1500);

/// Measures creates by this many writers, beside etcd's put of the same size, both with TLS and
/// certificates of clients.
pub(crate) async fn create(bench: &BenchParameters, writers: usize) -> Result<Vec<TableLine>> {
    let dir = bench.row_dir(&format!("create-{writers}"))?;
    let certificates = Certificates::make(bench, &dir)?;
    let ours = ServerProcess::podplane_secured(bench, &dir, &certificates).await?;
    let theirs = ServerProcess::etcd_secured(&dir, &certificates).await?;
    pods::check_size(&ours).await?;
    let (pod, put) = (pods::create()?, pods::etcd_put()?);
    let open = ours.connections(writers).await?;
    let create = LoadTarget::new(open, pods::create_path::<Pod>(), move |n| pod.with(n));
    let open = theirs.connections(writers).await?;
    let put = LoadTarget::new(open, etcd::PUT, move |n| put.with(n));
    let targets = [create, put];
    let [ours, theirs] = LoadTarget::rates(&targets, writers, LASTING, bench.rounds(7)).await?;
    Ok(vec![TableLine::new(
        format!("create-{writers}-etcd"),
        ours,
        theirs,
    )])
}
