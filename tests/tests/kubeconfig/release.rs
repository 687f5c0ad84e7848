//! The release of blocks: of many nodes at once, and of one whose pods are left.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use podplane_api::core::{Node, Pod};
use podplane_client::DeleteParams;
use podplane_test_cluster::within;
use podplane_tests::{peers, service::Service};
use serde_json::json;

use super::other::{OtherCluster, block, metric};

const NODES: usize = 500;
/// The calls at once.
const CALLS: usize = 32;
const PATIENCE: Duration = Duration::from_secs(180);

struct Scaled {
    other: OtherCluster,
    allocator: Service,
}

impl Scaled {
    async fn up(&self) -> Result<()> {
        let nodes = self.other.cluster.client().all::<Node>();
        let calls = (0..NODES).map(|n| {
            let nodes = nodes.clone();
            async move {
                let node = json!({"metadata": {"name": format!("node-{n}")}});
                let node: Node = serde_json::from_value(node)?;
                nodes.create(&node).await?;
                anyhow::Ok(())
            }
        });
        let calls = stream::iter(calls).buffer_unordered(CALLS);
        calls.try_collect::<Vec<_>>().await?;
        Ok(())
    }

    async fn down(&self) -> Result<()> {
        let nodes = self.other.cluster.client().all::<Node>();
        let calls = (0..NODES).map(|n| {
            let (nodes, name) = (nodes.clone(), format!("node-{n}"));
            async move { nodes.delete(&name, &DeleteParams::default()).await }
        });
        let calls = stream::iter(calls).buffer_unordered(CALLS);
        calls.try_collect::<Vec<_>>().await?;
        Ok(())
    }

    /// Waits until every node has a block; returns the blocks.
    async fn blocks(&self) -> Result<BTreeSet<String>> {
        let read = || self.other.nodes();
        let served = |nodes: &Vec<Node>| {
            nodes.len() == NODES && nodes.iter().all(|node| block(node).is_some())
        };
        let nodes = within(PATIENCE, "every node has a block", read, served).await?;
        let blocks: BTreeSet<_> = nodes.iter().filter_map(block).map(str::to_owned).collect();
        ensure!(blocks.len() == NODES, "a block is given twice");
        Ok(blocks)
    }

    /// Waits until so many blocks are free, and so many have a NodeBlock.
    async fn free(&self, free: usize, records: usize) -> Result<()> {
        let read = || async {
            let name = "podplane_pool_blocks_free";
            let lines = metric(&self.allocator, name).await.unwrap_or_default();
            let free = lines.first().and_then(|line| line.rsplit(' ').next());
            let free = free.and_then(|value| value.parse::<usize>().ok());
            let shown = self.other.kubectl("get nodeblocks -o name").stdout;
            (free, shown.lines().count())
        };
        let what = format!("{free} blocks are free, {records} have a record");
        within(PATIENCE, &what, read, |seen| *seen == (Some(free), records)).await?;
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_block_of_500_nodes_is_lost() -> Result<()> {
    if !peers::program("kubectl") {
        return Ok(());
    }
    let Some(other) = OtherCluster::start(0).await? else {
        return Ok(());
    };
    other.deploy("ipam-controller");
    let flags = [
        "--cluster-cidr=10.64.0.0/16",
        "--node-cidr-mask-size=25",
        "--release-delay=5s",
    ];
    let allocator = other.allocator("allocator", &flags).await?;
    let scaled = Scaled { other, allocator };
    scaled.free(512, 0).await?;
    scaled.up().await?;
    scaled.blocks().await?;
    scaled.free(12, NODES).await?;

    // A pod of a deleted node, which the collector cannot delete.
    let client = scaled.other.cluster.client().clone();
    let node = client.all::<Node>().get("node-0").await?;
    let kept = block(&node).unwrap_or_default().to_owned();
    let address = kept.replace(".0/25", ".7").replace(".128/25", ".135");
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "left", "finalizers": ["example.com/keep"]},
        "spec": {"nodeName": "node-0", "containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}}))?;
    client.namespaced("default").create(&pod).await?;
    let running = [
        "patch",
        "pod",
        "left",
        "--subresource=status",
        "--type=merge",
        "-p",
    ];
    let status =
        json!({"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}});
    let status = status.to_string();
    scaled
        .other
        .kubectl_with(running.into_iter().chain([&*status]))
        .ok();

    scaled.down().await?;
    scaled.free(511, 1).await?;
    let left = scaled.other.kubectl("get nodeblocks --no-headers").ok();
    ensure!(left.contains(&kept), "{kept}: {left}");
    let released = r#"{"metadata":{"finalizers":null}}"#;
    let patch = ["patch", "pod", "left", "--type=merge", "-p", released];
    scaled.other.kubectl_with(patch);
    scaled.free(512, 0).await?;

    scaled.up().await?;
    scaled.blocks().await?;
    scaled.free(12, NODES).await?;
    scaled.down().await?;
    scaled.free(512, 0).await?;
    scaled.other.cluster.finish().await
}
