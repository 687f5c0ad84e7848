//! The bridge that an earlier block of a node left: it keeps new pods from their network until it
//! is removed.

use std::fs;

use anyhow::Result;
use podplane_api::core::{Event, Node, Pod};
use podplane_client::{DeleteParams, ListParams};
use podplane_tests::{Cluster, Network, builder, eventually, pods::pod};

async fn create_pod(cluster: &Cluster, name: &str) -> Result<()> {
    let pods = cluster.client().namespaced::<Pod>("default");
    pods.create(&pod(name)).await?;
    Ok(())
}

async fn ip_of(cluster: &Cluster, name: &str) -> String {
    let pods = cluster.client().namespaced::<Pod>("default");
    let read = || async { pods.get(name).await.ok()?.status?.pod_ip };
    let ip = eventually(&format!("{name} has an address"), read, Option::is_some).await;
    ip.unwrap_or_default()
}

/// Gives the node another block as people do: dump, delete, edit, apply.
async fn renumber(cluster: &Cluster, block: &str) -> Result<()> {
    let nodes = cluster.client().all::<Node>();
    let mut node = nodes.get("node-0").await?;
    nodes.delete("node-0", &DeleteParams::default()).await?;
    node.metadata.uid = None;
    node.metadata.resource_version = None;
    let spec = node.spec.get_or_insert_default();
    spec.pod_cidr = Some(block.into());
    spec.pod_cidrs = Some(vec![block.into()]);
    nodes.create(&node).await?;
    // Until the kubelet has seen it, pods get addresses of the earlier block.
    let configured = || async {
        let files = fs::read_dir(cluster.data_dir().join("nodes/node-0/net.d")).ok()?;
        let mut texts = files.filter_map(|file| fs::read_to_string(file.ok()?.path()).ok());
        texts.find(|text| text.contains(block))
    };
    eventually("the runtime has the block", configured, Option::is_some).await;
    Ok(())
}

#[tokio::test]
async fn a_stale_bridge_is_removed_when_idle_or_by_command() -> Result<()> {
    let up = builder(Network::Kernel).flags("--nodes 1");
    let Some(cluster) = Cluster::up(up).await? else {
        return Ok(());
    };
    let none = cluster.podplane("node reset-bridge node-0").ok();
    assert!(none.contains("has no bridge: nothing to reset"), "{none}");
    create_pod(&cluster, "a").await?;
    assert_eq!(ip_of(&cluster, "a").await, "10.244.0.2");
    let fresh = cluster.podplane("node reset-bridge node-0").ok();
    assert!(
        fresh.contains("cni0 (10.244.0.1/24) has the address of the node's block, and stays"),
        "{fresh}"
    );

    renumber(&cluster, "10.244.77.0/24").await?;
    create_pod(&cluster, "b").await?;
    let events = cluster.client().namespaced::<Event>("default");
    let list = || async {
        events
            .list(&ListParams::default())
            .await
            .map(|list| list.items)
    };
    let text = r#""cni0" already has an IP address different from 10.244.77.1/24"#;
    let failed = |event: &Event| {
        let message = event.message.as_deref();
        message.is_some_and(|message| message.contains(text))
    };
    eventually("b has no network", list, |events| {
        events
            .as_ref()
            .is_ok_and(|events| events.iter().any(failed))
    })
    .await?;
    let refused = cluster.podplane("node reset-bridge node-0").failed(1);
    // An attempt of the other pod may be under way.
    assert!(
        refused.contains("has pods attached to it: ") && refused.contains("default/a"),
        "{refused}"
    );
    let removed = cluster.podplane("node reset-bridge node-0 --force").ok();
    assert!(
        removed.contains("cni0 (10.244.0.1/24) of an earlier block removed"),
        "{removed}"
    );
    // Each failed attempt took an address and gave it back.
    let ip = ip_of(&cluster, "b").await;
    assert!(ip.starts_with("10.244.77."), "{ip}");

    // Without pods, no repair is needed.
    let pods = cluster.client().namespaced::<Pod>("default");
    for name in ["a", "b"] {
        pods.delete(name, &DeleteParams::default()).await?;
    }
    cluster
        .pods_until("both are gone", |pods| pods.is_empty())
        .await;
    renumber(&cluster, "10.244.78.0/24").await?;
    create_pod(&cluster, "c").await?;
    let ip = ip_of(&cluster, "c").await;
    assert!(ip.starts_with("10.244.78."), "{ip}");
    let unknown = cluster.podplane("node reset-bridge node-9").failed(1);
    assert!(unknown.contains("node `node-9` not found: "), "{unknown}");
    cluster.finish().await
}
