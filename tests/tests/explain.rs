//! `podplane explain pod` and `podplane capacity` on a cluster whose addresses run out.

use std::fs;

use anyhow::Result;
use podplane_api::core::Pod;
use podplane_tests::{Cluster, Network, builder};
use serde_json::{Value, json};

/// The addresses of a node with a block of /29.
const ADDRESSES: usize = 5;

fn is_bound(pod: &Pod) -> bool {
    pod.spec
        .as_ref()
        .is_some_and(|spec| spec.node_name.is_some())
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn explains_pods_and_counts_the_room_until_addresses_run_out() -> Result<()> {
    let up = builder(Network::Ledger).nodes(2).node_cidr_mask_size(29);
    let Some(cluster) = Cluster::up(up).await? else {
        return Ok(());
    };
    let dir = tempfile::tempdir()?;
    let write = |name: &str, document: Value| {
        let file = dir.path().join(name);
        fs::write(&file, document.to_string()).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let spec = json!({"containers": [{"name": "c", "image": "i"}]});
    let pod = write(
        "pod.json",
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}),
    );
    let labels = json!({"app": "web"});
    let deployment = write(
        "deployment.json",
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
            "spec": {"selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": spec}}}),
    );

    // Empty: the room is the addresses, and a hypothetical pod fits.
    let room = parsed(
        &cluster
            .run(["capacity", "-f", &deployment, "-o", "json"])
            .ok(),
    );
    assert_eq!(room["total"], 2 * ADDRESSES, "{room:#}");
    assert_eq!(
        room["limits"],
        json!([{"reason": "Insufficient pod IPs", "nodes": 2}])
    );
    let placed = parsed(
        &cluster
            .run(["explain", "pod", "-f", &pod, "-o", "json"])
            .ok(),
    );
    assert_eq!(placed["state"], "hypothetical");
    assert_eq!(placed["nodes"].as_array().unwrap().len(), 2, "{placed:#}");
    assert_eq!(placed["nodes"][0]["node"], placed["node"]);

    // Full: as many pods as counted are bound, and one waits.
    let all = 2 * ADDRESSES + 1;
    cluster.podplane(&format!("run web --replicas {all}")).ok();
    let pods = cluster
        .pods_until("the nodes are full", |pods| {
            pods.iter().filter(|pod| is_bound(pod)).count() == all - 1 && pods.len() == all
        })
        .await;
    let name = |pod: &Pod| pod.metadata.name.clone().unwrap();
    let bound = name(pods.iter().find(|pod| is_bound(pod)).unwrap());
    let waiting = name(pods.iter().find(|pod| !is_bound(pod)).unwrap());
    let bound = parsed(
        &cluster
            .podplane(&format!("explain pod {bound} -o json"))
            .ok(),
    );
    assert_eq!(bound["decision"]["node"], bound["node"], "{bound:#}");
    let scores = bound["decision"]["scores"].as_array().unwrap();
    assert_eq!(scores[0]["node"], bound["node"]);
    let text = cluster.podplane(&format!("explain pod {waiting}")).ok();
    for want in [
        "Insufficient pod IPs: 0 of 5 IPs free: 5 pods, 0 orphaned",
        "2 nodes: free an address (delete a pod on node-0 or node-1)",
    ] {
        assert!(text.contains(want), "{want:?} in {text}");
    }
    let refused = parsed(
        &cluster
            .run(["explain", "pod", "-f", &pod, "-o", "json"])
            .ok(),
    );
    assert_eq!(refused["node"], "");
    assert_eq!(refused["nodes"][0]["refusal"]["plugin"], "PodIPs");
    let text = cluster.run(["capacity", "-f", &pod]).ok();
    assert!(text.contains("2 nodes: Insufficient pod IPs"), "{text}");
    assert!(text.ends_with("0 more pods fit\n"), "{text}");
    let off = ["capacity", "-f", &pod, "--ip-policy", "off", "-o", "json"];
    assert!(parsed(&cluster.run(off).ok())["total"].as_u64() > Some(0));

    // A dump gives the same numbers without the cluster.
    let (nodes, pods) = (cluster.get("nodes"), cluster.get("pods -A"));
    let dump = write("dump.json", json!({"kind": "List", "items": [nodes, pods]}));
    let room = cluster.run(["capacity", "-f", &pod, "--from", &dump, "-o", "json"]);
    assert_eq!(parsed(&room.ok())["total"], 0);

    // Bad input.
    let missing = cluster.podplane("explain pod nobody").failed(1);
    assert!(missing.contains(r#"pods "nobody" not found"#), "{missing}");
    let empty = write("empty.json", json!({"kind": "NodeList", "items": []}));
    let none = cluster
        .run(["capacity", "-f", &pod, "--from", &empty])
        .failed(2);
    assert!(none.contains("there are no nodes in"), "{none}");
    let invalid = json!({"containers": [{"name": "C", "image": "i"}]});
    let invalid = write(
        "invalid.json",
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": invalid}),
    );
    for command in [
        ["capacity", "-f", &*invalid].as_slice(),
        &["explain", "pod", "-f", &invalid],
    ] {
        let error = cluster.run(command.iter().copied()).failed(1);
        assert!(
            error.contains("spec.containers[0].name: Invalid value"),
            "{error}"
        );
    }
    let server = cluster.server().to_owned();
    let unknown = cluster
        .run(["explain", "pod", "p", "--server", &server])
        .failed(2);
    assert!(unknown.contains("--scheduler"), "{unknown}");
    cluster.finish().await
}
