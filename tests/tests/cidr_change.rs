//! A live cluster whose ranges change: nodes of both network modes, services that are started
//! again, a network that needs no podCIDR.

use std::fs;

use anyhow::Result;
use podplane_api::{Object as _, core::Node, pod_ips};
use podplane_tests::{
    Cluster, Network, builder, eventually, peers,
    pods::running,
    programs::{finish, podplane},
};
use serde_json::json;

/// The first block of a node, or nothing.
fn block(nodes: &[Node], name: &str) -> String {
    let node = nodes.iter().find(|node| node.name() == name);
    let block = node.and_then(|node| pod_ips::pod_cidrs(node).first());
    block.cloned().unwrap_or_default()
}

fn is_ready(nodes: &[Node], name: &str) -> bool {
    let node = nodes.iter().find(|node| node.name() == name);
    let status = node.and_then(|node| node.status.as_ref());
    let mut conditions = status
        .into_iter()
        .flat_map(|s| s.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

async fn nodes_until(
    cluster: &Cluster,
    what: &str,
    enough: impl Fn(&[Node]) -> bool,
) -> Result<Vec<Node>> {
    let seen = eventually(
        what,
        || cluster.nodes(),
        |nodes| nodes.as_ref().is_ok_and(|nodes| enough(nodes)),
    );
    Ok(seen.await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn ledger_nodes_run_beside_kernel_nodes() -> Result<()> {
    let Some(mut cluster) = Cluster::up(builder(Network::Kernel).flags("--nodes 2")).await? else {
        return Ok(());
    };
    cluster
        .podplane("node add --network ledger bulk-1 bulk-2")
        .ok();
    let again = cluster.podplane("node add bulk-2 bulk-3");
    assert_eq!(again.code, Some(1), "{again:?}");
    assert!(again.stderr.contains("node `bulk-2` already exists"));
    let all = ["node-0", "node-1", "bulk-1", "bulk-2"];
    let ready = |nodes: &[Node]| all.iter().all(|name| is_ready(nodes, name));
    nodes_until(&cluster, "four nodes are Ready", ready).await?;
    let services = cluster.status().await?.services;
    let kubelets = services
        .iter()
        .filter(|service| service.name.starts_with("kubelet-"));
    assert_eq!(kubelets.count(), 3, "those of ledger mode share one");

    cluster.podplane("run web --replicas 8").ok();
    let pods = cluster
        .pods_until("eight pods run", |pods| running(pods) == 8)
        .await;
    let on = |name: &str| {
        let mut pods = pods.iter();
        let pod = pods.find(|pod| {
            let spec = pod.spec.as_ref();
            spec.is_some_and(|spec| spec.node_name.as_deref() == Some(name))
        });
        pod.map(|pod| pod.name().to_owned()).unwrap_or_default()
    };
    let ping = format!("ping {} {} --count 1 --verify", on("node-0"), on("node-1"));
    cluster.podplane(&ping).ok();

    // They stay as they are after a restart.
    cluster.podplane("down").ok();
    cluster
        .start_again(&builder(Network::Kernel).flags("--nodes 2"))
        .await?;
    nodes_until(&cluster, "four nodes are Ready again", ready).await?;
    cluster
        .pods_until("eight pods run again", |pods| running(pods) == 8)
        .await;
    cluster.podplane("node remove bulk-1").ok();
    nodes_until(&cluster, "one is gone, and its sister is Ready", |nodes| {
        nodes.len() == 3 && is_ready(nodes, "bulk-2")
    })
    .await?;
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn services_restart_with_another_range_while_nodes_keep_running() -> Result<()> {
    let up = builder(Network::Ledger).flags("--nodes 3 --cluster-cidr 10.244.0.0/23");
    let Some(cluster) = Cluster::up(up.without_waiting()).await? else {
        return Ok(());
    };
    let blocks = |nodes: &[Node]| {
        nodes
            .iter()
            .filter(|node| !pod_ips::pod_cidrs(node).is_empty())
            .count()
    };
    let before = nodes_until(&cluster, "two nodes have a block", |nodes| {
        nodes.len() == 3 && blocks(nodes) == 2
    })
    .await?;
    for (flags, code, want) in [
        ("--cluster-cidr nonsense", 2, "not a CIDR"),
        (
            "--cluster-cidr 100.64.0.0/10",
            1,
            "the nodes' own addresses",
        ),
    ] {
        let refused = cluster.podplane(&format!("restart {flags}"));
        assert_eq!(refused.code, Some(code), "{flags}");
        assert!(refused.stderr.contains(want), "{}", refused.stderr);
    }
    let restarted = cluster
        .podplane("restart --cluster-cidr 10.244.0.0/22")
        .ok();
    assert_eq!(
        restarted,
        "apiserver restarted\nipam-controller restarted\n"
    );
    let after = nodes_until(&cluster, "the third has one too", |nodes| {
        blocks(nodes) == 3 && is_ready(nodes, "node-2") && is_ready(nodes, "node-0")
    })
    .await?;
    for node in &before {
        let own = block(&before, node.name());
        assert!(own.is_empty() || own == block(&after, node.name()));
    }
    let named = cluster.podplane("restart scheduler").ok();
    assert_eq!(named, "scheduler restarted\n");
    let nothing = cluster
        .podplane("restart --cluster-cidr 10.244.0.0/22")
        .ok();
    assert!(nothing.starts_with("nothing to restart"), "{nothing}");
    cluster.podplane("run web --replicas 3").ok();
    cluster
        .pods_until("the scheduler works", |pods| running(pods) == 3)
        .await;
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_cni_configuration_needs_no_pod_cidr() -> Result<()> {
    let Some(cluster) = Cluster::up(builder(Network::Kernel).flags("--nodes 2")).await? else {
        return Ok(());
    };
    for (node, subnet) in [("node-0", "192.168.0.0/26"), ("node-1", "192.168.0.64/26")] {
        let config = json!({"cniVersion": "1.0.0", "name": "pool", "plugins": [{
            "type": "bridge", "bridge": "pool0", "isGateway": true,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": subnet}]], "routes": [{"dst": "0.0.0.0/0"}]},
        }]});
        let net_d = cluster.data_dir().join("nodes").join(node).join("net.d");
        fs::write(net_d.join("05-pool.conflist"), config.to_string())?;
    }
    let ranges = |nodes: &[Node]| {
        let annotations = nodes
            .iter()
            .filter_map(|node| node.metadata.annotations.as_ref());
        annotations
            .filter_map(|annotations| annotations.get(pod_ips::POD_RANGES))
            .count()
    };
    nodes_until(&cluster, "both say where their pods are", |nodes| {
        ranges(nodes) == 2
    })
    .await?;
    cluster.podplane("run web --replicas 2").ok();
    let pods = cluster
        .pods_until("both pods run", |pods| running(pods) == 2)
        .await;
    for pod in &pods {
        let address = pod.status.as_ref().and_then(|status| status.pod_ip.clone());
        let address = address.unwrap_or_default();
        assert!(address.starts_with("192.168.0."), "{address}");
    }
    // Routes follow what the nodes publish.
    let answers = async || cluster.podplane("ping web-0 web-1 --count 1 --verify").code;
    eventually("the pods reach each other", answers, |code| {
        *code == Some(0)
    })
    .await;
    cluster.podplane("delete pods --all").ok();
    cluster.podplane("down --purge").ok();
    Ok(())
}

/// Runs a part of the demo, all of whose claims must hold; returns its output. This is the only run
/// of story B in CI: `podplane test` is not told of the directory of its scenario.
fn demo(part: &str, ranges: &[&str]) -> String {
    let flags = ["demo", "cidr-change", "--part", part, "--timeout", "180s"];
    let told = finish(podplane(flags).args(ranges)).ok();
    assert!(told.contains("all claims hold"), "{told}");
    told
}

#[test]
fn the_demo_plays_story_b_with_its_fault() {
    if peers::root() {
        let told = demo("fault", &[]);
        // The commands, their output and the claims.
        for part in [
            "$ podplane node add --network ledger node-{46..298}",
            "NOT verified: packets to 10.244.",
            "✓ no two nodes share an address of their blocks",
        ] {
            assert!(told.contains(part), "{part} in {told}");
        }
    }
}

#[test]
fn the_demo_plays_the_remedy_in_other_ranges() {
    let told = demo(
        "remedy",
        &[
            "--cluster-cidr",
            "10.60.0.0/16",
            "--pool-cidr",
            "172.20.0.0/16",
        ],
    );
    assert!(told.contains("--cluster-cidr 10.60.0.0/12"), "{told}");
    assert!(
        !told.contains("10.244.") && !told.contains("192.168."),
        "{told}"
    );
}

#[test]
fn refuses_ranges_that_the_demo_cannot_play_with() {
    let said = finish(&mut podplane([
        "demo",
        "cidr-change",
        "--cluster-cidr",
        "10.60.0.0/20",
    ]))
    .failed(2);
    assert!(said.contains("must be a /16"), "{said}");
}
