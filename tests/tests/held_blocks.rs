//! The block of a deleted node is nobody else's while a sandbox of it has an address, whatever became of the pods.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use podplane_api::{
    core::{Node, Pod},
    jiff::Timestamp,
    meta::ObjectMeta,
    pod_ips,
};
use podplane_client::DeleteParams;
use podplane_proto::ipam::{Block, BlockState};
use podplane_tests::{
    Cluster, Network, builder, eventually,
    pods::{pod, running},
    programs::bin_dir,
};

/// Plugins of which the one that gives addresses can be replaced.
struct Plugins(tempfile::TempDir);

impl Plugins {
    fn new() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        for plugin in ["bridge", "loopback", "host-local"] {
            symlink(
                bin_dir().canonicalize()?.join(plugin),
                dir.path().join(plugin),
            )?;
        }
        Ok(Self(dir))
    }

    fn host_local(&self) -> PathBuf {
        self.0.path().join("host-local")
    }

    /// Puts a shell script in its place.
    fn replace(&self, script: &str) -> Result<()> {
        let new = self.0.path().join("new");
        fs::write(&new, format!("#!/bin/sh\n{script}\n"))?;
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
        Ok(fs::rename(new, self.host_local())?)
    }

    fn repair(&self) -> Result<()> {
        fs::remove_file(self.host_local())?;
        Ok(symlink(
            bin_dir().canonicalize()?.join("host-local"),
            self.host_local(),
        )?)
    }

    /// A node, and one block in all.
    async fn cluster(&self) -> Result<Cluster> {
        let flags = format!(
            "--nodes 1 --cluster-cidr 10.20.0.0/24 --node-cidr-mask-size 24 --cni-bin-dir {}",
            self.0.path().display()
        );
        let cluster = Cluster::up(builder(Network::Ledger).flags(&flags)).await?;
        cluster.context("ledger mode needs nothing of the machine")
    }
}

async fn create_pod(cluster: &Cluster, name: &str) -> Result<()> {
    cluster
        .client()
        .namespaced::<Pod>("default")
        .create(&pod(name))
        .await?;
    Ok(())
}

async fn record(cluster: &Cluster) -> Result<Option<Block>> {
    let listed = cluster.client().blocks().list().await?;
    let mut blocks = listed.blocks.into_iter();
    Ok(blocks.find(|block| block.cidr == "10.20.0.0/24"))
}

fn has_block(node: &Node) -> bool {
    !pod_ips::pod_cidrs(node).is_empty()
}

fn sandboxes(dir: &Path) -> usize {
    let dir = dir.join("nodes/node-0/sandboxes");
    fs::read_dir(dir).map_or(0, Iterator::count)
}

#[tokio::test]
async fn a_forced_pod_of_a_deleted_node_keeps_the_block_until_its_sandbox_is_gone() -> Result<()> {
    let plugins = Plugins::new()?;
    let cluster = plugins.cluster().await?;
    create_pod(&cluster, "a").await?;
    cluster
        .pods_until("it runs", |pods| running(pods) == 1)
        .await;
    let nodes = cluster.client().all::<Node>();
    let read = || async { nodes.get("node-0").await.ok() };
    let says = |node: &Option<Node>| node.as_ref().and_then(pod_ips::allocated) == Some(1);
    eventually("the node says that an address is in use", read, says).await;

    plugins
        .replace(r#"echo '{"cniVersion": "1.0.0", "code": 11, "msg": "out of order"}'; exit 1"#)?;
    nodes.delete("node-0", &DeleteParams::default()).await?;
    let at_once = DeleteParams {
        grace_period_seconds: Some(0),
        ..DeleteParams::default()
    };
    cluster
        .client()
        .namespaced::<Pod>("default")
        .delete("a", &at_once)
        .await?;
    assert!(cluster.pods().await?.is_empty());
    let other = Node {
        metadata: ObjectMeta {
            name: Some("other".into()),
            ..ObjectMeta::default()
        },
        ..Node::default()
    };
    nodes.create(&other).await?;

    let until = |block: &Block| block.until.parse::<Timestamp>().ok();
    let held = || async { record(&cluster).await.ok().flatten() };
    let drains = |block: &Option<Block>| {
        let block = block.as_ref();
        block.is_some_and(|block| block.state() == BlockState::Draining && until(block).is_some())
    };
    let first = eventually("the block drains for a while", held, drains).await;
    let first = first.as_ref().and_then(until).context("a time")?;
    // The kubelet goes on saying so, for as long as it takes.
    let renewed = |block: &Option<Block>| {
        let until = block.as_ref().and_then(until);
        until.is_some_and(|until| until.duration_since(first).as_secs() >= 8)
    };
    eventually("the block is held again", held, renewed).await;
    assert!(!has_block(&nodes.get("other").await?));
    assert_eq!(sandboxes(cluster.data_dir()), 1);

    plugins.repair()?;
    let given = || async { nodes.get("other").await.ok() };
    eventually("the other node has the block", given, |node| {
        node.as_ref().is_some_and(has_block)
    })
    .await;
    assert_eq!(
        sandboxes(cluster.data_dir()),
        0,
        "the block was given before its last sandbox was gone"
    );
    cluster.finish().await
}

#[tokio::test]
async fn a_node_says_that_addresses_are_in_use_before_one_is() -> Result<()> {
    let plugins = Plugins::new()?;
    let go = plugins.0.path().join("go");
    let real = bin_dir().canonicalize()?.join("host-local");
    plugins.replace(&format!(
        "while [ ! -e {} ]; do sleep 0.02; done; exec {}",
        go.display(),
        real.display()
    ))?;
    let cluster = plugins.cluster().await?;
    create_pod(&cluster, "a").await?;
    let nodes = cluster.client().all::<Node>();
    let read = || async { nodes.get("node-0").await.ok() };
    let says = |node: &Option<Node>| node.as_ref().and_then(pod_ips::allocated) == Some(1);
    eventually("the node says that an address is in use", read, says).await;
    let leases = || {
        fs::read_dir(cluster.data_dir().join("nodes/node-0/networks")).map_or(0, Iterator::count)
    };
    assert_eq!(leases(), 0, "no plugin has written anything yet");
    fs::write(&go, "")?;
    cluster
        .pods_until("it runs", |pods| running(pods) == 1)
        .await;
    let at_once = DeleteParams {
        grace_period_seconds: Some(0),
        ..DeleteParams::default()
    };
    cluster
        .client()
        .namespaced::<Pod>("default")
        .delete("a", &at_once)
        .await?;
    let none = |node: &Option<Node>| node.as_ref().and_then(pod_ips::allocated) == Some(0);
    eventually("the node takes it back", read, none).await;
    cluster.finish().await
}
