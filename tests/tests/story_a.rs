//! Story A at size (kubernetes#21656): more pods than addresses, on many nodes with small blocks.
//! Exactly as many run as there are addresses, the others say why they wait, and each address that
//! is freed serves another pod.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use podplane_api::{Object as _, core::Pod};
use podplane_client::DeleteParams;
use podplane_test_cluster::within;
use podplane_tests::{
    Cluster, Network, builder,
    pods::{pod, running},
};

/// The addresses of a node with a /28: 16 without network, gateway and broadcast address.
const ADDRESSES: usize = 13;
/// The calls at once.
const CALLS: usize = 64;

/// Nodes, pods, and how many of these are deleted.
struct StorySize {
    nodes: u32,
    pods: usize,
    deleted: usize,
    patience: Duration,
}

/// A fiftieth in CI.
fn size() -> StorySize {
    match std::env::var_os("PODPLANE_SOAK") {
        Some(_) => StorySize {
            nodes: 1000,
            pods: 20_000,
            deleted: 500,
            patience: Duration::from_secs(600),
        },
        None => StorySize {
            nodes: 20,
            pods: 400,
            deleted: 50,
            patience: Duration::from_secs(60),
        },
    }
}

/// The message of the pod's condition PodScheduled if it is false.
fn reason(pod: &Pod) -> Option<&str> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let mut conditions = conditions.iter();
    let scheduled = conditions.find(|c| c.type_ == "PodScheduled" && c.status == "False")?;
    scheduled.message.as_deref()
}

/// The pods that run, if exactly `wanted` run and each other one says that addresses are short.
fn settled(pods: &[Pod], wanted: usize, nodes: u32) -> bool {
    let short = format!("0/{nodes} nodes are available: {nodes} Insufficient pod IPs.");
    let explained = |pod: &&Pod| reason(pod) == Some(short.as_str());
    running(pods) == wanted && pods.iter().filter(explained).count() == pods.len() - wanted
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_pods_run_as_there_are_addresses() -> Result<()> {
    let StorySize {
        nodes,
        pods: count,
        deleted,
        patience,
    } = size();
    let up = builder(Network::Ledger)
        .nodes(nodes)
        .cluster_cidr("10.0.0.0/16")
        .node_cidr_mask_size(28);
    let Some(cluster) = Cluster::up(up).await? else {
        return Ok(());
    };
    let api = cluster.client().namespaced::<Pod>("default");
    let create = |n: usize| {
        let api = api.clone();
        async move { api.create(&pod(&format!("pod-{n}"))).await }
    };
    stream::iter((0..count).map(create))
        .buffer_unordered(CALLS)
        .try_for_each(|_| async { Ok(()) })
        .await?;
    let wanted = usize::try_from(nodes)? * ADDRESSES;
    let read = || async { cluster.pods().await.unwrap_or_default() };
    let full = |pods: &Vec<Pod>| settled(pods, wanted, nodes);
    let what = format!("{wanted} pods run, and the others say why they wait");
    let pods = within(patience, &what, read, full).await?;
    let ran: Vec<_> = pods.iter().filter(|pod| reason(pod).is_none()).collect();
    ensure!(ran.len() == wanted, "{} of {wanted} have a node", ran.len());

    let delete = |name: String| {
        let api = api.clone();
        async move { api.delete(&name, &DeleteParams::default()).await }
    };
    let names = ran.iter().take(deleted).map(|pod| pod.name().to_owned());
    stream::iter(names.collect::<Vec<_>>().into_iter().map(delete))
        .buffer_unordered(CALLS)
        .try_for_each(|_| async { Ok(()) })
        .await?;
    let replaced = |pods: &Vec<Pod>| pods.len() == count - deleted && settled(pods, wanted, nodes);
    let what = format!("{deleted} others run in the place of as many that were deleted");
    within(patience, &what, read, replaced).await?;
    cluster.finish().await
}
