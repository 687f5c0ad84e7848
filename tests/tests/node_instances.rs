//! Two kubelets with one node name: only one of them works.

use std::{fs, path::Path, process::Stdio};

use anyhow::{Context as _, Result};
use podplane_api::{
    coordination::Lease,
    core::{Node, Pod},
    jiff::{SignedDuration, Timestamp},
    meta::MicroTime,
    pod_ips,
};
use podplane_client::Client;
use podplane_tests::{
    Cluster, Network, builder, eventually,
    pods::{pod, running},
    programs::{ProgramOutput, bin_dir, finish, podplane},
    service::Service,
};

const INSTANCE: &str = "podplane.io/instance";

async fn cluster() -> Result<Cluster> {
    let cluster = Cluster::up(builder(Network::Ledger).nodes(1)).await?;
    cluster.context("ledger mode needs nothing of the machine")
}

/// Runs a kubelet of node-0 with this directory of nodes to its end.
fn kubelet(cluster: &Cluster, nodes_dir: &Path) -> Result<ProgramOutput> {
    let runtime = cluster.data_dir().join("nodes/node-0/cri.sock");
    let mut command = podplane(["kubelet", "--node", "node-0", "--nodes-dir"]);
    command.arg(nodes_dir).arg("--server").arg(cluster.server());
    command
        .arg("--cri-endpoint")
        .arg(format!("unix:{}", runtime.display()));
    Ok(finish(command.stdin(Stdio::null())))
}

async fn lease(client: &Client) -> Result<Lease> {
    let leases = client.namespaced::<Lease>("kube-node-lease");
    Ok(leases.get("node-0").await?)
}

fn instance(lease: &Lease) -> Option<&str> {
    let annotations = lease.metadata.annotations.as_ref()?;
    Some(annotations.get(INSTANCE)?.as_str())
}

fn identity(nodes_dir: &Path) -> Result<String> {
    let text = fs::read_to_string(nodes_dir.join("node-0/instance.json"))?;
    let identity: serde_json::Value = serde_json::from_str(&text)?;
    Ok(identity["id"].as_str().context("an id")?.to_owned())
}

#[tokio::test]
async fn a_second_kubelet_is_refused_whatever_its_directory() -> Result<()> {
    let cluster = cluster().await?;
    let nodes_dir = cluster.data_dir().join("nodes");
    let own = identity(&nodes_dir)?;
    let found = lease(cluster.client()).await?;
    assert_eq!(instance(&found), Some(own.as_str()));
    let holder = found.spec.and_then(|spec| spec.holder_identity);
    assert_eq!(holder.as_deref(), Some("node-0"), "as Kubernetes has it");

    let twice = kubelet(&cluster, &nodes_dir)?;
    assert!(twice.code != Some(0), "{twice:?}");
    let said = format!("{}{}", twice.stdout, twice.stderr);
    assert!(said.contains("runs node node-0 from"), "{said}");

    let elsewhere = tempfile::tempdir()?;
    let other = kubelet(&cluster, elsewhere.path())?;
    assert!(other.code != Some(0), "{other:?}");
    let said = format!("{}{}", other.stdout, other.stderr);
    for part in ["another kubelet runs node node-0", &own, "last heard of"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(
        instance(&lease(cluster.client()).await?),
        Some(own.as_str())
    );
    cluster.finish().await
}

#[tokio::test]
async fn a_killed_kubelet_resumes_at_once_from_its_directory() -> Result<()> {
    let cluster = cluster().await?;
    let before = lease(cluster.client()).await?;
    let renewed = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
    let nodes = cluster.client().all::<Node>();
    cluster.process("kubelet-node-0").await?.kill().await?;
    let read = || async { lease(cluster.client()).await.ok() };
    let after = eventually("the lease is renewed", read, |after| {
        after
            .as_ref()
            .is_some_and(|after| renewed(after) != renewed(&before))
    })
    .await;
    assert_eq!(after.as_ref().and_then(instance), instance(&before));
    let pods = cluster.client().namespaced::<Pod>("default");
    pods.create(&pod("a")).await?;
    cluster
        .pods_until("a pod runs", |pods| running(pods) == 1)
        .await;
    assert!(!pod_ips::pod_cidrs(&nodes.get("node-0").await?).is_empty());
    cluster.finish().await
}

/// Makes the lease stale, as if nobody had renewed it for longer than it lasts.
async fn make_stale(client: &Client) -> Result<()> {
    let leases = client.namespaced::<Lease>("kube-node-lease");
    let mut stale = lease(client).await?;
    let spec = stale.spec.get_or_insert_default();
    spec.renew_time = Some(MicroTime(Timestamp::now() - SignedDuration::from_secs(60)));
    leases.update(&stale).await?;
    Ok(())
}

#[tokio::test]
async fn another_instance_takes_a_stale_lease_over_and_the_first_one_ends() -> Result<()> {
    let cluster = cluster().await?;
    let client = cluster.client();
    let pods = client.namespaced::<Pod>("default");
    pods.create(&pod("a")).await?;
    cluster
        .pods_until("a pod runs", |pods| running(pods) == 1)
        .await;
    let first = cluster.process("kubelet-node-0").await?;
    first.pause().await?;
    make_stale(client).await?;

    let elsewhere = tempfile::tempdir()?;
    let (dir, nodes_dir) = (elsewhere.path(), elsewhere.path().join("nodes"));
    let [dir_text, nodes_text] = [dir, &nodes_dir].map(|path| path.display().to_string());
    let plugins = bin_dir().canonicalize()?.display().to_string();
    fs::create_dir_all(nodes_dir.join("node-0"))?;
    let mut cri = podplane(["cri", "--node", "node-0", "--network", "ledger"]);
    cri.args(["--nodes-dir", &nodes_text, "--cni-bin-dir", &plugins]);
    cri.args(["--netns-dir", &format!("{dir_text}/netns")]);
    let log = fs::File::create(dir.join("cri.log"))?;
    let mut cri = cri.stdout(Stdio::null()).stderr(log).spawn()?;
    let server = cluster.server().to_owned();
    let args = [
        "--node",
        "node-0",
        "--nodes-dir",
        &nodes_text,
        "--server",
        &server,
    ];
    let second = Service::start("kubelet", "127.0.0.1:0", dir, &args).await?;
    let read = || async { lease(client).await.ok() };
    let other = || identity(&nodes_dir).ok();
    eventually("the other instance has the lease", read, |lease| {
        let instance = lease.as_ref().and_then(instance);
        instance.is_some() && instance == other().as_deref()
    })
    .await;
    // The first one's sandbox may live, so the first one still holds the block.
    let nodes = client.all::<Node>();
    let node = || async { nodes.get("node-0").await.ok() };
    let says = |node: &Option<Node>| {
        let conditions = node
            .as_ref()
            .and_then(|node| node.status.as_ref()?.conditions.as_ref());
        let mut messages = conditions
            .into_iter()
            .flatten()
            .filter_map(|it| it.message.as_ref());
        messages.any(|message| message.contains("podplane node forget node-0"))
    };
    eventually("the node says who holds its block", node, says).await;
    assert!(
        !nodes_dir.join("node-0/networks").exists(),
        "no address was given"
    );

    // The first one wakes up, and ends.
    first.resume()?;
    let said = || std::future::ready(cluster.log("kubelet-node-0"));
    eventually("the first kubelet says why it ends", said, |log| {
        log.contains("another kubelet runs node node-0")
    })
    .await;
    first.ended().await?;
    second.kill()?;
    cri.kill()?;
    cri.wait()?;
    make_stale(client).await?;
    let own = identity(&cluster.data_dir().join("nodes"))?;
    eventually("the first instance has its node back", read, |lease| {
        lease.as_ref().and_then(instance) == Some(own.as_str())
    })
    .await;
    cluster
        .pods_until("its pod runs on", |pods| running(pods) == 1)
        .await;
    cluster.finish().await
}
