//! 5,000 nodes and 150,000 pods, as an API server has stored them.

use std::{net::Ipv4Addr, path::Path, sync::Arc};

use anyhow::Result;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use podplane_store::{Key, MAX_WRITES, SledStore, Store as _, Txn};
use serde_json::{Value, json};

const NODES: u32 = 5_000;
const PODS_OF_NODE: u32 = 30;
const PODS: u32 = NODES * PODS_OF_NODE;
/// The pods without a node.
const WAITING: u32 = 20;
/// The commits that are under way at once.
const COMMITS: usize = 8;

/// The name of a node, and the beginning of the addresses of its block, a /24 of 10.0.0.0/8.
fn node_name(node: u32) -> String {
    format!("node-{node:04}")
}

fn address(node: u32, host: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits((10 << 24) | (node << 8) | host)
}

fn node(number: u32) -> Value {
    let name = node_name(number);
    let block = format!("{}/24", address(number, 0));
    let amounts =
        json!({"cpu": "32", "memory": "256Gi", "pods": "110", "podplane.io/pod-ips": "253"});
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": format!("00000000-0000-4000-9000-{number:012}"),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"kubernetes.io/hostname": name},
        },
        "spec": {"podCIDR": block, "podCIDRs": [block]},
        "status": {
            "allocatable": amounts,
            "capacity": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

/// A pod. Those of a node have its addresses from .2 on, as host-local gives them; the last ones
/// have no node.
pub(super) fn pod(number: u32) -> Value {
    let place = (number < PODS).then_some((number % NODES, number / NODES));
    let labels = json!({"app": "web", "pod-template-hash": "5d78c9869d"});
    let requests = json!({"cpu": "100m", "memory": "500Mi"});
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": format!("web-{number:06}"),
            "namespace": "default",
            "uid": format!("00000000-0000-4000-8000-{number:012}"),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": labels,
        },
        "spec": {"containers": [{
            "name": "web",
            "image": "registry.k8s.io/pause:3.10",
            "resources": {"requests": requests},
        }]},
    });
    pod["status"] = match place {
        Some((node, rank)) => {
            pod["spec"]["nodeName"] = node_name(node).into();
            let ip = address(node, rank + 2);
            json!({"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]})
        }
        None => {
            let condition = json!({
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/5000 nodes are available: 5000 Insufficient pod IPs.",
            });
            json!({"phase": "Pending", "conditions": [condition]})
        }
    };
    pod
}

/// Writes the objects where a new API server finds them. Creating them at one, with their status in
/// a second request, would take minutes.
pub(super) async fn fill(dir: &Path) -> Result<()> {
    let nodes = (0..NODES).map(|number| {
        let key = format!("/registry/nodes/{}", node_name(number));
        (key, node(number))
    });
    let pods = (0..PODS + WAITING).map(|number| {
        let key = format!("/registry/pods/default/web-{number:06}");
        (key, pod(number))
    });
    let mut objects = nodes.chain(pods).peekable();
    let txns = std::iter::from_fn(move || {
        objects.peek()?;
        let mut objects = objects.by_ref().take(MAX_WRITES);
        Some(objects.try_fold(Txn::new(), |txn, (key, object)| {
            anyhow::Ok(txn.put(Key::try_from(key)?, serde_json::to_vec(&object)?))
        }))
    });
    let store = Arc::new(SledStore::open(dir.join("store"))?);
    let commits = stream::iter(txns).map(|txn| {
        let store = Arc::clone(&store);
        async move { anyhow::Ok(store.commit(txn?).await?) }
    });
    let commits = commits.buffer_unordered(COMMITS);
    commits.try_for_each(async |_| Ok(())).await
}
