//! Large clusters in ledger mode.

use std::time::{Duration, Instant};

use podplane_test_cluster::{Cluster, Network, Result};

use super::{load::Load, note, say, usage::Usage};

async fn cluster(nodes: u32) -> Result<Cluster> {
    Cluster::builder()
        .network(Network::Ledger)
        .nodes(nodes)
        .cluster_cidr("10.0.0.0/8")
        .service_cluster_ip_range("192.168.0.0/16")
        .timeout(Duration::from_secs(300))
        .start()
        .await
}

/// Measures the time until all nodes of a new cluster are Ready, and the memory of its processes
/// then.
pub(crate) async fn nodes(count: u32) -> Result<()> {
    let begun = Instant::now();
    let cluster = cluster(count).await?;
    let took = begun.elapsed();
    let usage = Usage::of(&cluster).await?;
    note(&format!("{count} nodes Ready after {took:.2?}\n{usage}"));
    say("nodes", took.as_secs_f64());
    say("nodes-memory", usage.memory());
    cluster.stop().await
}

/// Measures the time until pods run and until they are gone, and the growth of the cost of each
/// when there are ten times as many.
pub(crate) async fn pods(nodes: u32, count: u32) -> Result<()> {
    let cluster = cluster(nodes).await?;
    let load = Load::start(&cluster);
    let few = rounds(&cluster, &load, count / 10).await?;
    let many = rounds(&cluster, &load, count).await?;
    say("pods-run", many.run.as_secs_f64());
    say("pods-deleted", many.deleted.as_secs_f64());
    say("pods-cpu", many.cpu * 1e3);
    say("pods-cpu-growth", many.cpu / few.cpu);
    cluster.stop().await
}

/// The cost of a number of pods.
struct Round {
    run: Duration,
    deleted: Duration,
    /// CPU time of all processes for each pod, from its creation until all run, in seconds.
    cpu: f64,
}

async fn rounds(cluster: &Cluster, load: &Load, count: u32) -> Result<Round> {
    let before = Usage::of(cluster).await?;
    let begun = Instant::now();
    load.create(count).await?;
    let created = begun.elapsed();
    load.until_running(count).await?;
    let run = begun.elapsed();
    let used = Usage::of(cluster).await?.since(&before);
    let cpu = used.cpu() / f64::from(count);
    note(&format!(
        "{count} pods created after {created:.2?}, running after {run:.2?}, {:.2} ms of CPU time each\n{used}",
        cpu * 1e3
    ));
    let before = Usage::of(cluster).await?;
    let begun = Instant::now();
    load.delete().await?;
    load.until_none().await?;
    let deleted = begun.elapsed();
    let used = Usage::of(cluster).await?.since(&before);
    note(&format!("{count} pods gone after {deleted:.2?}\n{used}"));
    Ok(Round { run, deleted, cpu })
}
