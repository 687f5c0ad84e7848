//! Story A with both pieces: as many pods run as there are addresses, the others say why they wait,
//! and a deletion lets exactly one more run.

use anyhow::{Context as _, Result, ensure};
use podplane_api::{
    Object as _,
    core::{Node, Pod},
};
use podplane_client::DeleteParams;
use podplane_test_cluster::within;
use podplane_tests::peers;

use super::other::{
    OtherCluster, PATIENCE, SCHEDULER, SYSTEM, block, is_running, pod, pods_are_gone,
};

/// A /29 has 5 addresses without network, gateway and broadcast address.
const SHORT: &str = "0/2 nodes are available: 2 Insufficient pod IPs.";

#[tokio::test(flavor = "multi_thread")]
async fn scheduler_and_ipam_controller_serve_another_cluster() -> Result<()> {
    if !peers::program("kubectl") {
        return Ok(());
    }
    let Some(other) = OtherCluster::start(2).await? else {
        return Ok(());
    };
    other.deploy("ipam-controller");
    other.deploy("scheduler");
    let ranges = ["--cluster-cidr=10.99.0.0/24", "--node-cidr-mask-size=29"];
    let allocator = other.allocator("allocator", &ranges).await?;
    let have_blocks = |nodes: &Vec<Node>| nodes.iter().all(|node| block(node).is_some());
    let what = "the nodes have blocks";
    let nodes = within(PATIENCE, what, || other.nodes(), have_blocks).await?;
    let mut blocks: Vec<_> = nodes.iter().filter_map(block).collect();
    blocks.sort_unstable();
    ensure!(blocks == ["10.99.0.0/29", "10.99.0.8/29"], "{blocks:?}");
    let records = other.kubectl("get nodeblocks --no-headers").ok();
    for record in ["10-99-0-0-29", "10-99-0-8-29"] {
        ensure!(records.contains(record), "{records}");
    }

    let scheduler = other.kubeconfig(SYSTEM, "podplane-scheduler");
    let scheduler = other
        .piece("scheduler", "scheduler", &scheduler, &SCHEDULER)
        .await?;
    let pods = other.cluster.client().namespaced::<Pod>("default");
    for n in 0..14 {
        pods.create(&pod(&format!("p-{n:02}"))?).await?;
    }
    let what = "10 pods run, the others wait";
    let found = within(PATIENCE, what, || other.pods(), |pods| is_full(pods, 14)).await?;
    let mut running = of_story(&found).filter(|pod| is_running(pod));
    let running = running.next().context("a running pod")?.name().to_owned();
    pods.delete(&running, &DeleteParams::default()).await?;
    let what = "one more runs";
    within(PATIENCE, what, || other.pods(), |pods| is_full(pods, 13)).await?;
    for (id, name) in [("scheduler", "scheduler"), ("allocator", "ipam-controller")] {
        let log = other.log(id, name);
        ensure!(log.contains("found the API server"), "{log}");
    }
    scheduler.kill()?;
    allocator.kill()?;
    pods_are_gone(&other).await?;
    other.cluster.finish().await
}

fn of_story(pods: &[Pod]) -> impl Iterator<Item = &Pod> {
    pods.iter().filter(|pod| pod.namespace() == "default")
}

/// Returns true if 10 of the pods run, and the others say why they wait.
fn is_full(pods: &[Pod], count: usize) -> bool {
    let explained = |pod: &&Pod| wait_reason(pod) == Some(SHORT);
    of_story(pods).count() == count
        && of_story(pods).filter(|pod| is_running(pod)).count() == 10
        && of_story(pods).filter(explained).count() == count - 10
}

fn wait_reason(pod: &Pod) -> Option<&str> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let mut conditions = conditions.iter();
    let scheduled = conditions.find(|found| found.type_ == "PodScheduled")?;
    scheduled.message.as_deref()
}
