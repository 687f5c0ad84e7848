//! The block of a deleted node goes to nobody else while a sandbox of the node has an address,
//! whatever became of the pods and of the kubelet.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use podplane_api::{
    core::{Event, Node, Pod},
    jiff::Timestamp,
    meta::ObjectMeta,
    pod_ips,
};
use podplane_client::{DeleteParams, ListParams};
use podplane_proto::ipam::{Block, BlockState, BlockUpdate, block_update};
use podplane_test_cluster::Process;
use podplane_tests::{
    Cluster, Network, builder, eventually,
    plugins::Plugins,
    pods::{pod, running},
    programs::bin_dir,
};

/// A cluster with these plugins, one node, and one block in all.
async fn cluster(plugins: &Plugins) -> Result<Cluster> {
    let flags = format!(
        "--nodes 1 --cluster-cidr 10.20.0.0/24 --node-cidr-mask-size 24 --cni-bin-dir {}",
        plugins.dir().display()
    );
    let cluster = Cluster::up(builder(Network::Ledger).flags(&flags)).await?;
    cluster.context("ledger mode needs nothing of the machine")
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

fn is_held(block: Option<&Block>) -> bool {
    block.is_some_and(|block| block.hold.is_some())
}

/// Returns true if the block is held and its node is gone.
fn drains(block: Option<&Block>) -> bool {
    let state = block.map(Block::state);
    is_held(block) && state == Some(BlockState::Draining)
}

/// A node without a kubelet.
fn other() -> Node {
    Node {
        metadata: ObjectMeta {
            name: Some("other".into()),
            ..ObjectMeta::default()
        },
        ..Node::default()
    }
}

async fn force_delete(cluster: &Cluster, pod: &str) -> Result<()> {
    let at_once = DeleteParams {
        grace_period_seconds: Some(0),
        ..DeleteParams::default()
    };
    let pods = cluster.client().namespaced::<Pod>("default");
    pods.delete(pod, &at_once).await?;
    Ok(())
}

fn has_block(node: &Node) -> bool {
    !pod_ips::pod_cidrs(node).is_empty()
}

fn sandboxes(dir: &Path) -> usize {
    let dir = dir.join("nodes/node-0/sandboxes");
    fs::read_dir(dir).map_or(0, Iterator::count)
}

#[tokio::test]
async fn a_force_deleted_pod_holds_the_block_until_its_sandbox_is_removed() -> Result<()> {
    let plugins = Plugins::new()?;
    let cluster = cluster(&plugins).await?;
    create_pod(&cluster, "a").await?;
    cluster
        .pods_until("it runs", |pods| running(pods) == 1)
        .await;
    let nodes = cluster.client().all::<Node>();
    let held = || async { record(&cluster).await.ok().flatten() };
    eventually("the block is held", held, |block| is_held(block.as_ref())).await;

    plugins
        .replace(r#"echo '{"cniVersion": "1.0.0", "code": 11, "msg": "out of order"}'; exit 1"#)?;
    nodes.delete("node-0", &DeleteParams::default()).await?;
    force_delete(&cluster, "a").await?;
    assert!(cluster.pods().await?.is_empty());
    nodes.create(&other()).await?;

    let first = eventually("the block drains, and is held", held, |block| {
        drains(block.as_ref())
    })
    .await;
    assert_eq!(first.as_ref().map(|block| block.until.as_str()), Some(""));
    let heard = |block: &Option<Block>| {
        let hold = block.as_ref().and_then(|block| block.hold.as_ref());
        hold.and_then(|hold| hold.heard.parse::<Timestamp>().ok())
    };
    let first = heard(&first).context("a time")?;
    // The kubelet renews the hold for as long as it takes.
    let renewed = |block: &Option<Block>| {
        heard(block).is_some_and(|heard| heard.duration_since(first).as_secs() >= 8)
    };
    let told = eventually("the block is held again", held, renewed).await;
    let hold = told.and_then(|block| block.hold).context("a hold")?;
    let known: Vec<_> = hold
        .addresses
        .iter()
        .map(|held| held.name.as_str())
        .collect();
    assert_eq!(known, ["a"], "the pod is gone, and its sandbox is known");
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
async fn a_block_is_held_before_its_first_sandbox_is_made() -> Result<()> {
    let plugins = Plugins::new()?;
    let go = plugins.dir().join("go");
    let real = bin_dir().canonicalize()?.join("host-local");
    plugins.replace(&format!(
        "while [ ! -e {} ]; do sleep 0.02; done; exec {}",
        go.display(),
        real.display()
    ))?;
    let cluster = cluster(&plugins).await?;
    let held = || async { record(&cluster).await.ok().flatten() };
    let assigned = eventually("the node has its block", held, Option::is_some).await;
    assert!(!is_held(assigned.as_ref()), "it never had a sandbox");
    create_pod(&cluster, "a").await?;
    eventually("the block is held", held, |block| is_held(block.as_ref())).await;
    let leases = || {
        fs::read_dir(cluster.data_dir().join("nodes/node-0/networks")).map_or(0, Iterator::count)
    };
    assert_eq!(leases(), 0, "no plugin has written anything yet");
    fs::write(&go, "")?;
    cluster
        .pods_until("it runs", |pods| running(pods) == 1)
        .await;
    force_delete(&cluster, "a").await?;
    eventually("the node ends the hold", held, |block| {
        !is_held(block.as_ref())
    })
    .await;
    cluster.finish().await
}

/// Pauses the kubelet, deletes the Node, and waits until the controller reports that its block is
/// held. Another node waits for the block.
async fn leave_held(cluster: &Cluster) -> Result<Process> {
    let kubelet = cluster.process("kubelet-node-0").await?;
    kubelet.pause().await?;
    let nodes = cluster.client().all::<Node>();
    nodes.create(&other()).await?;
    nodes.delete("node-0", &DeleteParams::default()).await?;
    cluster
        .pods_until("its pods are collected", <[Pod]>::is_empty)
        .await;
    let events = || async {
        let events = cluster.client().all::<Event>();
        let listed = events.list(&ListParams::default()).await;
        listed.map(|list| list.items).unwrap_or_default()
    };
    let says = |events: &Vec<Event>| {
        let mut reasons = events.iter().map(|event| event.reason.as_deref());
        reasons.any(|reason| reason == Some("PodCIDRHeld"))
    };
    eventually("an event says that the block is held", events, says).await;
    Ok(kubelet)
}

#[tokio::test]
async fn the_block_of_a_dead_node_is_held_until_an_operator_forgets_it() -> Result<()> {
    let plugins = Plugins::new()?;
    let cluster = cluster(&plugins).await?;
    create_pod(&cluster, "a").await?;
    cluster
        .pods_until("it runs", |pods| running(pods) == 1)
        .await;
    let first = cluster.podplane("node forget node-0 --yes");
    assert!(first.stderr.contains("node node-0 is alive"), "{first:?}");
    let nodes = cluster.client().all::<Node>();
    let kubelet = leave_held(&cluster).await?;
    let held = record(&cluster).await?;
    assert!(drains(held.as_ref()), "{held:?}");
    let blocks = cluster.podplane("get blocks").ok();
    let line = blocks.lines().find(|line| line.starts_with("10.20.0.0/24"));
    assert!(line.is_some_and(|line| line.contains("Held")), "{blocks}");
    assert!(blocks.contains("0 (1 addresses last known)"), "{blocks}");
    let nodes_table = cluster.podplane("get nodes").ok();
    assert!(
        !nodes_table.contains("10.20.0.0/24"),
        "a footer without a terminal: {nodes_table}"
    );
    let unasked = cluster.podplane("node forget node-0");
    assert!(
        unasked.code != Some(0) && unasked.stdout.contains("default/a"),
        "{unasked:?}"
    );
    assert!(drains(record(&cluster).await?.as_ref()));
    assert!(!has_block(&nodes.get("other").await?));

    let forgotten = cluster.podplane("node forget node-0 --yes").ok();
    assert!(
        forgotten.contains("hold of 10.20.0.0/24 ended"),
        "{forgotten}"
    );
    let given = || async { nodes.get("other").await.ok() };
    eventually("the other node has the block", given, |node| {
        node.as_ref().is_some_and(has_block)
    })
    .await;
    // The paused kubelet goes on, and finds that its block is another's: its sandboxes are removed.
    kubelet.resume()?;
    let left = || std::future::ready(sandboxes(cluster.data_dir()));
    eventually("its sandboxes are gone", left, |left| *left == 0).await;
    cluster.finish().await
}

#[tokio::test]
async fn a_paused_node_ends_its_hold_when_it_returns() -> Result<()> {
    let plugins = Plugins::new()?;
    let cluster = cluster(&plugins).await?;
    create_pod(&cluster, "a").await?;
    cluster
        .pods_until("it runs", |pods| running(pods) == 1)
        .await;
    let nodes = cluster.client().all::<Node>();
    let kubelet = cluster.process("kubelet-node-0").await?;
    kubelet.pause().await?;
    let mut node = nodes.get("node-0").await?;
    let annotations = node.metadata.annotations.get_or_insert_default();
    annotations.insert(pod_ips::POD_IPS_ALLOCATED.into(), "0".into());
    // Written at any revision, since a write of the kubelet may still be under way.
    node.metadata.resource_version = None;
    nodes.update(&node).await?;
    // Still paused: it would remove the sandbox, and end the hold.
    force_delete(&cluster, "a").await?;
    let kubelet = leave_held(&cluster).await?;
    assert!(!has_block(&nodes.get("other").await?));
    let block = record(&cluster).await?.context("a record")?;
    let unfenced = BlockUpdate {
        cidr: block.cidr.clone(),
        node_name: block.node_name.clone(),
        node_uid: block.node_uid.clone(),
        change: Some(block_update::Change::Release(true)),
        ..BlockUpdate::default()
    };
    let refused = cluster.client().blocks().update(vec![unfenced]).await?;
    assert!(refused[0].is_err(), "{refused:?}");
    // A new process with the same directory is the same instance.
    kubelet.kill().await?;
    let given = || async { nodes.get("other").await.ok() };
    eventually("the other node has the block", given, |node| {
        node.as_ref().is_some_and(has_block)
    })
    .await;
    assert_eq!(
        sandboxes(cluster.data_dir()),
        0,
        "given before its last sandbox was gone"
    );
    cluster.finish().await
}

#[tokio::test]
async fn a_removed_node_leaves_nothing_held() -> Result<()> {
    let plugins = Plugins::new()?;
    let cluster = cluster(&plugins).await?;
    create_pod(&cluster, "a").await?;
    cluster
        .pods_until("it runs", |pods| running(pods) == 1)
        .await;
    let nodes = cluster.client().all::<Node>();
    nodes.create(&other()).await?;
    cluster.podplane("node remove node-0").ok();
    let given = || async { nodes.get("other").await.ok() };
    eventually("the other node has the block", given, |node| {
        node.as_ref().is_some_and(has_block)
    })
    .await;
    // Nobody waits for the lease of a removed node.
    nodes.delete("other", &DeleteParams::default()).await?;
    cluster.podplane("node add node-0").ok();
    let again = || async { nodes.get("node-0").await.ok() };
    eventually("the node is there again, with the block", again, |node| {
        node.as_ref().is_some_and(has_block)
    })
    .await;
    cluster.finish().await
}
