//! ClusterCIDRs as objects of a CustomResourceDefinition: nodes get blocks by their labels, kubectl
//! manages the objects, and one that is deleted stays while nodes have blocks of it.

use anyhow::{Result, ensure};
use podplane_api::{core::Node, pod_ips};
use podplane_client::DeleteParams;
use podplane_test_cluster::within;
use podplane_tests::{eventually, peers};
use serde_json::{Value, json};

use super::other::{OtherCluster, PATIENCE};

/// Without this version the definition has its place.
const WITHOUT_OWN_KIND: &str = "networking.x-k8s.io/v1=false";

fn cluster_cidr(name: &str, zone: &str, ranges: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "networking.x-k8s.io/v1",
        "kind": "ClusterCIDR",
        "metadata": {"name": name},
        "spec": {"nodeSelector": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}]}},
    });
    for (field, value) in ranges.as_object().into_iter().flatten() {
        object["spec"][field] = value.clone();
    }
    object
}

async fn add_node(other: &OtherCluster, name: &str, zone: &str) -> Result<()> {
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"zone": zone}}}))?;
    other.cluster.client().all().create(&node).await?;
    Ok(())
}

/// Waits until a node has blocks, and returns them.
async fn given(other: &OtherCluster, name: &str) -> Result<Vec<String>> {
    let nodes = other.cluster.client().all::<Node>();
    let read = || async {
        let node = nodes.get(name).await.unwrap_or_default();
        pod_ips::pod_cidrs(&node).to_vec()
    };
    let what = format!("{name} has blocks");
    let has_blocks = |blocks: &Vec<String>| !blocks.is_empty();
    Ok(within(PATIENCE, &what, read, has_blocks).await?)
}

/// Waits for an event about an object.
async fn told(other: &OtherCluster, reason: &str, name: &str) {
    let events = format!(
        "get events --field-selector reason={reason},involvedObject.name={name} --no-headers"
    );
    let read = || async { other.kubectl(&events).stdout };
    let what = format!("{reason} of {name}");
    eventually(&what, read, |shown: &String| shown.contains(reason)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_cidrs_of_a_definition_give_nodes_their_blocks() -> Result<()> {
    if !peers::program("kubectl") {
        return Ok(());
    }
    let own = |up: podplane_test_cluster::ClusterBuilder| {
        up.extra_config("ipam-controller", "allocate-node-cidrs", "false")
            .extra_config("apiserver", "runtime-config", WITHOUT_OWN_KIND)
    };
    let Some(other) = OtherCluster::start_with(0, own).await? else {
        return Ok(());
    };
    let none = other.kubectl("get clustercidrs");
    ensure!(
        none.stderr.contains("doesn't have a resource type"),
        "{none:?}"
    );
    other.deploy("ipam-controller");
    let flags = ["--cidr-allocator-type=MultiCIDRRangeAllocator"];
    let _allocator = other.allocator("allocator", &flags).await?;

    let edge = cluster_cidr(
        "edge",
        "edge",
        &json!({"ipv4": "10.50.0.0/24", "perNodeHostBits": 5}),
    );
    other.send("apply", &edge)?.ok();
    let dual = json!({"ipv4": "10.51.0.0/16", "ipv6": "fd00::/112", "perNodeHostBits": 8});
    other
        .send("apply", &cluster_cidr("core", "core", &dual))?
        .ok();
    for (node, zone, blocks) in [
        ("edge-1", "edge", &["10.50.0.0/27"][..]),
        ("core-1", "core", &["10.51.0.0/24", "fd00::/120"]),
        ("core-2", "core", &["10.51.1.0/24", "fd00::100/120"]),
    ] {
        add_node(&other, node, zone).await?;
        ensure!(given(&other, node).await? == blocks, "{node}");
    }
    let columns = "NAME   PERNODEHOSTBITS   IPV4           IPV6         AGE";
    let shown = other.kubectl("get clustercidrs").ok();
    ensure!(shown.starts_with(columns), "{shown}");
    let records = other.kubectl("get nodeblocks -o name").ok();
    ensure!(records.lines().count() == 5, "{records}");

    for (patch, why) in [
        (
            r#"{"spec":{"perNodeHostBits":6}}"#,
            "perNodeHostBits is immutable",
        ),
        (r#"{"spec":{"ipv6":"fd00::/112"}}"#, "ipv6 is immutable"),
        (
            r#"{"spec":{"nodeSelector":null}}"#,
            "nodeSelector is immutable",
        ),
    ] {
        let patch = ["patch", "clustercidr", "edge", "--type=merge", "-p", patch];
        let refused = other.kubectl_with(patch);
        ensure!(refused.stderr.contains(why), "{refused:?}");
    }
    let none = cluster_cidr("none", "x", &json!({"perNodeHostBits": 8}));
    let refused = other.send("create", &none)?;
    let why = "one or both of ipv4 and ipv6 must be specified";
    ensure!(refused.stderr.contains(why), "{refused:?}");

    other.kubectl("delete clustercidr edge --wait=false").ok();
    told(&other, "ClusterCIDRInUse", "edge").await;
    add_node(&other, "edge-2", "edge").await?;
    told(&other, "CIDRNotAvailable", "edge-2").await;
    other.kubectl("get clustercidr edge").ok();
    let nodes = other.cluster.client().all::<Node>();
    nodes.delete("edge-1", &DeleteParams::default()).await?;
    other
        .kubectl("wait --for=delete clustercidr/edge --timeout=60s")
        .ok();
    // The block of the deleted node is free for a range that is added.
    let again = json!({"ipv4": "10.50.0.0/27", "perNodeHostBits": 5});
    other
        .send("apply", &cluster_cidr("again", "edge", &again))?
        .ok();
    ensure!(given(&other, "edge-2").await? == ["10.50.0.0/27"]);
    other.cluster.finish().await
}
