//! Time from objects to the documents of the page, for 5,000 nodes and 150,000 pods.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program for developers"
)]

use std::{hint::black_box, sync::Arc, time::Instant};

use podplane_api::{
    core::{Node, Pod},
    pod_ips::PodIpResource,
};
use podplane_map::AddressSpace;
use podplane_summary::{
    Cluster, MapChange, MapQuery, MapRequest, MapScene, PodFacts, StreamDocument,
};
use serde_json::json;

const NODES: usize = 5_000;
const PODS_OF_NODE: usize = 30;

fn measured<T>(name: &str, work: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let result = black_box(work());
    let time = started.elapsed().as_secs_f64() * 1e3;
    println!("{name:<36}{time:>9.1} ms");
    result
}

fn block(node: usize) -> String {
    format!("10.{}.{}.", node / 256, node % 256)
}

fn node(number: usize) -> Node {
    let cidr = format!("{}0/24", block(number));
    let json = json!({
        "metadata": {"name": format!("node-{number}"), "labels": {"zone": "a"}},
        "spec": {"podCIDR": cidr, "podCIDRs": [cidr]},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "capacity": {"pods": "110", "podplane.io/pod-ips": "253"},
            "allocatable": {"pods": "110", "podplane.io/pod-ips": "253"},
        },
    });
    serde_json::from_value(json).unwrap()
}

/// A pod as a cluster has it, in JSON.
fn pod(number: usize, last: usize) -> Vec<u8> {
    let node = number % NODES;
    let ip = format!("{}{last}", block(node));
    let json = json!({
        "metadata": {
            "name": format!("web-{number}"), "namespace": "default",
            "uid": format!("00000000-0000-4000-8000-{number:012}"),
            "labels": {"app": "web", "pod-template-hash": "5d78c9869d"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web",
                "uid": "u", "controller": true}],
        },
        "spec": {
            "nodeName": format!("node-{node}"),
            "containers": [{"name": "c", "image": "registry.example/web:1", "resources":
                {"requests": {"cpu": "100m", "memory": "128Mi"}}}],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists",
                "effect": "NoExecute", "tolerationSeconds": 300}],
        },
        "status": {
            "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "hostIP": "192.168.1.1",
            "conditions": [{"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": "True"}],
        },
    });
    serde_json::to_vec(&json).unwrap()
}

fn main() {
    let resource = PodIpResource::default();
    let encoded: Vec<_> = (0..NODES * PODS_OF_NODE)
        .map(|number| pod(number, 2 + number / NODES))
        .collect();
    let facts: Vec<_> = measured("JSON of pods to facts, one thread", || {
        let pods = encoded.iter().map(|pod| serde_json::from_slice(pod));
        pods.map(|pod: Result<Pod, _>| PodFacts::of(&pod.unwrap(), &resource))
            .collect()
    });
    let mut cluster = Cluster::new(resource);
    measured("facts of pods to cluster", || {
        facts.into_iter().for_each(|pod| cluster.insert_pod(pod));
    });
    measured("nodes to cluster", || {
        (0..NODES).for_each(|number| cluster.apply_node(&node(number)));
    });
    let query: MapQuery = serde_json::from_value(json!({})).unwrap();
    let request = MapRequest::try_from(&query).unwrap();
    let parts = measured("first: cluster to parts", || cluster.space_parts());
    let space = measured("first: parts to space", || AddressSpace::new(parts));
    let report = measured("first: audit", || Arc::new(cluster.findings(&space)));
    let first = measured("first: summary", || cluster.summary(&space, "1", None));
    let text = measured("first: summary to JSON", || {
        serde_json::to_vec(&StreamDocument::Cluster(&first)).unwrap()
    });
    println!("  {} KB", text.len() / 1000);
    let scene = measured("first: map", || {
        MapScene::new(&space, "1", &request).unwrap()
    });
    let text = measured("first: map to JSON", || {
        serde_json::to_vec(&StreamDocument::Scene(&scene)).unwrap()
    });
    println!("  {} KB", text.len() / 1000);

    measured("then: a pod less", || {
        cluster.delete_pod("default", "web-77");
    });
    let parts = measured("then: cluster to parts", || cluster.space_parts());
    let space = measured("then: parts to space", || AddressSpace::new(parts));
    let second = measured("then: summary", || {
        cluster.summary(&space, "2", Some(&report))
    });
    measured("then: changes", || {
        serde_json::to_vec(&StreamDocument::Changes(
            second.changes_since(&first).unwrap(),
        ))
        .unwrap()
    });
    let next = measured("then: map", || {
        MapScene::new(&space, "2", &request).unwrap()
    });
    let cells = measured("then: cells", || {
        match next.changes_since(&scene).unwrap() {
            MapChange::Cells(cells) => serde_json::to_vec(&StreamDocument::Cells(cells)).unwrap(),
            MapChange::Scene(_) => Vec::new(),
        }
    });
    println!("  {} bytes", cells.len());
}
