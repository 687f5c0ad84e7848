//! The bases of the webhook and the node agent: what they make is enough for the processes, and a
//! webhook that is gone stops neither its own namespace nor kube-system.

use std::{
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use podplane_api::{
    Object as _,
    core::{Node, Pod},
    pod_ips::{self, PodIpResource},
};
use podplane_client::DeleteParams;
use podplane_test_cluster::{ClusterBuilder, within};
use podplane_tests::{eventually, peers, service::Service};
use serde_json::{Value, json};

use super::other::{NODE, OtherCluster, PATIENCE, SYSTEM, is_running, pod_for, pods_are_gone};

/// The reference's plugin, of the Debian package containernetworking-plugins.
const HOST_LOCAL: &str = "/usr/lib/cni/host-local";

/// Applies the webhook's base and starts one by kubeconfig, with a certificate of its own. The
/// configurations of the base name a Service; here they name the process.
pub(crate) async fn webhook(other: &OtherCluster, policy: &str) -> Result<Service> {
    other.deploy("webhook");
    let kubeconfig = other.kubeconfig(SYSTEM, "podplane-webhook");
    let files = other.file("webhook-certificate");
    fs::create_dir_all(&files)?;
    let files = format!("--certificate-dir={files}");
    let flags = [
        "--leader-elect-resource-namespace=podplane-system",
        "--certificate-secret=podplane-system/podplane-webhook-tls",
        "--certificate-hosts=127.0.0.1",
        "--webhook-configuration=podplane-webhook",
        &files,
    ];
    let webhook = other
        .piece("webhook", "webhook", &kubeconfig, &flags)
        .await?;
    for (kind, path) in [
        ("mutating", "mutate-pods"),
        ("validating", "validate-bindings"),
    ] {
        let url = format!("{}/{path}", webhook.address());
        let patch = json!([
            {"op": "remove", "path": "/webhooks/0/clientConfig/service"},
            {"op": "add", "path": "/webhooks/0/clientConfig/url", "value": url},
            {"op": "replace", "path": "/webhooks/0/failurePolicy", "value": policy},
        ]);
        let kind = format!("{kind}webhookconfiguration");
        let patch = patch.to_string();
        let args = [
            "patch",
            &kind,
            "podplane-webhook",
            "--type=json",
            "-p",
            &patch,
        ];
        other.kubectl_with(args).ok();
    }
    let trusted = || async {
        let shown = other.kubectl("get mutatingwebhookconfiguration,validatingwebhookconfiguration -o jsonpath={.items[*].webhooks[*].clientConfig.caBundle}");
        shown.stdout.split_whitespace().count()
    };
    eventually("the authority is published", trusted, |count| *count == 2).await;
    Ok(webhook)
}

/// The request of the first container for the resource.
fn request(pod: &Pod) -> Value {
    let pod = serde_json::to_value(pod).unwrap_or_default();
    pod["spec"]["containers"][0]["resources"]["requests"]["podplane.io/pod-ips"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_is_gone_stops_neither_kube_system_nor_itself() -> Result<()> {
    if !peers::program("kubectl") {
        return Ok(());
    }
    let ready = |up: ClusterBuilder| up.cluster_cidr("10.97.0.0/24");
    let Some(other) = OtherCluster::start_with(1, ready).await? else {
        return Ok(());
    };
    let webhook = webhook(&other, "Fail").await?;
    let all = other.cluster.client().clone();
    let pods = all.namespaced::<Pod>("default");
    let judged = || async {
        let pod = pod_for("default-scheduler", "judged").ok()?;
        let made = pods.create(&pod).await.ok()?;
        let requested = request(&made);
        if requested.is_null() {
            // The node is not Ready yet.
            _ = pods.delete("judged", &DeleteParams::default()).await;
        }
        Some(requested)
    };
    let requested = eventually("pods get a request", judged, |it| *it == Some(json!("1"))).await;
    ensure!(requested == Some(json!("1")), "{requested:?}");
    webhook.kill()?;

    let refused = pods.create(&pod_for("default-scheduler", "refused")?).await;
    let refused = refused.err().context("nobody judges the pod")?.message;
    ensure!(refused.contains("pods.podplane.io"), "{refused}");
    for namespace in ["kube-system", SYSTEM, NODE] {
        let mut pod = pod_for("default-scheduler", "essential")?;
        pod.metadata.namespace = Some(namespace.to_owned());
        let made = all.all().create(&pod).await?;
        ensure!(request(&made).is_null());
    }
    let running = || async {
        let pods = other.pods().await;
        let essential = pods.iter().filter(|pod| pod.name() == "essential");
        essential.filter(|pod| is_running(pod)).count()
    };
    let what = "pods of excluded namespaces run";
    within(PATIENCE, what, running, |count| *count == 3).await?;

    // The configurations go first, so that nothing waits for a webhook that is gone.
    for kind in ["mutating", "validating"] {
        let configuration = format!("delete {kind}webhookconfiguration podplane-webhook");
        other.kubectl(&configuration).ok();
    }
    let free = || async {
        let pod = pod_for("default-scheduler", "free").ok()?;
        pods.create(&pod).await.ok()
    };
    eventually("pods are created without it", free, Option::is_some).await;
    other.remove("webhook");
    for namespace in ["kube-system", SYSTEM, NODE] {
        let pod = format!("delete pod essential -n {namespace} --now --ignore-not-found");
        other.kubectl(&pod);
    }
    pods_are_gone(&other).await?;
    other.cluster.finish().await
}

/// Executes the reference's plugin for the network of `config`.
fn host_local(config: &Value, command: &str, container: &str) -> Result<()> {
    let mut plugin = Command::new(HOST_LOCAL)
        .env("CNI_COMMAND", command)
        .env("CNI_CONTAINERID", container)
        .env("CNI_NETNS", "/proc/self/ns/net")
        .env("CNI_IFNAME", "eth0")
        .env("CNI_PATH", "/usr/lib/cni")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut stdin = plugin.stdin.take().context("standard input")?;
    stdin.write_all(config.to_string().as_bytes())?;
    drop(stdin);
    let output = plugin.wait_with_output()?;
    let printed = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{command} {container}: {printed}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_is_held_while_the_agent_of_a_deleted_node_reports_addresses() -> Result<()> {
    let has_plugin = Path::new(HOST_LOCAL).exists();
    let package = "apt-get install containernetworking-plugins";
    if !peers::program("kubectl") || !peers::require("cni-plugins", has_plugin, package) {
        return Ok(());
    }
    let Some(other) = OtherCluster::start(0).await? else {
        return Ok(());
    };
    other.deploy("ipam-controller");
    other.deploy("node-agent");
    let flags = ["--cluster-cidr=10.96.0.0/28", "--node-cidr-mask-size=29"];
    let _allocator = other.allocator("allocator", &flags).await?;
    let client = other.cluster.client().clone();
    let nodes = client.all::<Node>();
    let node = json!({"metadata": {"name": "foreign"}, "status": {
        "capacity": {"pods": "110"}, "allocatable": {"pods": "110"}}});
    nodes.create(&serde_json::from_value::<Node>(node)?).await?;
    let read = || async { nodes.get("foreign").await.unwrap_or_default() };
    let has_block = |node: &Node| !pod_ips::pod_cidrs(node).is_empty();
    let node = within(PATIENCE, "the node has a block", read, has_block).await?;
    ensure!(pod_ips::pod_cidrs(&node) == ["10.96.0.0/29"]);

    let net_d = other.file("net.d");
    fs::create_dir_all(&net_d)?;
    let plugin = json!({"type": "bridge", "ipam": {"type": "host-local",
        "dataDir": other.file("networks"), "ranges": [[{"subnet": "10.96.0.0/29"}]]}});
    let list = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [plugin]});
    fs::write(Path::new(&net_d).join("10-net.conflist"), list.to_string())?;
    let mut network = plugin;
    network["cniVersion"] = json!("1.0.0");
    network["name"] = json!("net");
    host_local(&network, "ADD", "sandbox")?;

    let kubeconfig = other.kubeconfig(NODE, "podplane-node-agent");
    let net_d = format!("--cni-conf-dir={net_d}");
    let flags = [
        "--node-name=foreign",
        "--interval=500ms",
        "--authentication=none",
        &net_d,
    ];
    let _agent = other
        .piece("agent", "node-agent", &kubeconfig, &flags)
        .await?;
    let resource = PodIpResource::default();
    let published = |node: &Node| resource.published(node)[0].is_some();
    within(PATIENCE, "the agent publishes", read, published).await?;
    let record = |path: &'static str| {
        let other = &other;
        move || async move {
            let args = format!("get nodeblock 10-96-0-0-29 --ignore-not-found -o jsonpath={path}");
            other.kubectl(&args).stdout
        }
    };
    let reported = record("{.status.allocatedAddresses}");
    let what = "the agent reports the address";
    within(PATIENCE, what, reported, |count| count == "1").await?;

    nodes.delete("foreign", &DeleteParams::default()).await?;
    let first = record("{.status.reportedAt}")().await;
    // Only one block is free for two nodes.
    for name in ["next-0", "next-1"] {
        let node = json!({"metadata": {"name": name}});
        nodes.create(&serde_json::from_value::<Node>(node)?).await?;
    }
    let again = record("{.status.reportedAt}");
    let what = "the agent reports again";
    within(PATIENCE, what, again, |time| {
        !time.is_empty() && *time != first
    })
    .await?;
    let given = || async {
        let nodes = other.nodes().await;
        let blocks = nodes.iter().flat_map(pod_ips::pod_cidrs).cloned();
        blocks.collect::<Vec<_>>()
    };
    ensure!(given().await == ["10.96.0.8/29"], "the held block is given");
    let held = other.kubectl("get events --field-selector reason=PodCIDRHeld --no-headers");
    ensure!(held.stdout.contains("10.96.0.0/29"), "{held:?}");

    host_local(&network, "DEL", "sandbox")?;
    let what = "the block is given once its last address is freed";
    let both = |blocks: &Vec<String>| blocks.len() == 2;
    within(PATIENCE, what, given, both).await?;
    other.cluster.finish().await
}
