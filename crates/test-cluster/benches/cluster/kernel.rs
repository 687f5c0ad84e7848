//! Pods with network interfaces.

use std::time::{Duration, Instant};

use podplane_test_cluster::{Cluster, Network, Result};

use super::{load::Load, note, say, say_all, usage::Usage};

pub(super) async fn cluster(nodes: u32) -> Result<Cluster> {
    Cluster::builder()
        .network(Network::Kernel)
        .nodes(nodes)
        .timeout(Duration::from_secs(120))
        .start()
        .await
}

/// Measures the time from the creation of a pod to its address, one pod after the other.
pub(crate) async fn create(count: u32) -> Result<()> {
    let cluster = cluster(1).await?;
    let load = Load::start(&cluster);
    let mut milliseconds = Vec::new();
    for number in 0..=count {
        let name = format!("single-{number}");
        let begun = Instant::now();
        load.create_one(&name).await?;
        load.until_has_address(&name).await?;
        milliseconds.push(begun.elapsed().as_secs_f64() * 1e3);
        load.delete().await?;
        load.until_none().await?;
    }
    // The first pod of a node makes its bridge.
    say_all("create", &milliseconds[1..]);
    cluster.stop().await
}

/// Measures the time until many pods that are created together all run.
pub(crate) async fn pods(nodes: u32, count: u32) -> Result<()> {
    let cluster = cluster(nodes).await?;
    let load = Load::start(&cluster);
    let begun = Instant::now();
    load.create(count).await?;
    load.until_running(count).await?;
    let took = begun.elapsed();
    let usage = Usage::of(&cluster).await?;
    note(&format!(
        "{count} pods on {nodes} nodes running after {took:.2?}\n{usage}"
    ));
    say("kernel-pods", took.as_secs_f64());
    cluster.stop().await
}
