//! A node of another kubelet gets its pod addresses from an agent: the amount in its status is what
//! a scheduler may add up to that only knows requests, by what the reference's host-local gives.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use podplane_api::{
    Object as _,
    core::{Node, Pod},
    pod_ips::{self, PodIpResource},
};
use podplane_client::{Client, DeleteParams, ListParams, PatchParams, PatchType};
use podplane_http_client::HttpClient;
use podplane_tests::{
    apiserver::Apiserver, eventually, peers, pods::unscheduled, programs::podplane,
    service::Service,
};
use serde_json::{Value, json};

const NODE: &str = "of-another-kubelet";
/// Five addresses for pods.
const BLOCK: &str = "10.88.0.0/29";
const RESOURCE: &str = "podplane.io/pod-ips";
/// The reference's plugin, of the Debian package containernetworking-plugins.
const HOST_LOCAL: &str = "/usr/lib/cni/host-local";

/// An API server, a scheduler that only adds up requests, and a node whose pods the test runs.
struct NodeFixture {
    dir: tempfile::TempDir,
    apiserver: Apiserver,
    client: Client,
    _scheduler: Service,
}

impl NodeFixture {
    async fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let off = ["--ip-policy=off"];
        let apiserver = Apiserver::start_with(dir.path(), &off).await?;
        let client = apiserver.client()?;
        let amounts = json!({"pods": "110", "cpu": "8", "memory": "32Gi"});
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": NODE},
            "spec": {"podCIDR": BLOCK, "podCIDRs": [BLOCK]},
            "status": {"capacity": amounts, "allocatable": amounts,
                "conditions": [{"type": "Ready", "status": "True"}]},
        }))?;
        client.all().create(&node).await?;
        let args = ["--server", apiserver.address(), "--leader-elect=false"];
        let args = [&args[..], &off].concat();
        let scheduler = Service::start("scheduler", "127.0.0.1:0", dir.path(), &args).await?;
        let fixture = Self {
            dir,
            apiserver,
            client,
            _scheduler: scheduler,
        };
        fs::create_dir_all(fixture.net_d())?;
        let list = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [fixture.plugin()]});
        fs::write(fixture.net_d().join("10-net.conflist"), list.to_string())?;
        Ok(fixture)
    }

    fn net_d(&self) -> PathBuf {
        self.dir.path().join("net.d")
    }

    fn plugin(&self) -> Value {
        let files = self.dir.path().join("networks");
        json!({"type": "bridge", "ipam": {
            "type": "host-local", "dataDir": files, "ranges": [[{"subnet": BLOCK}]]}})
    }

    fn agent_flags(&self) -> Vec<String> {
        let server = self.apiserver.address();
        let net_d = self.net_d().display().to_string();
        let flags = [
            "--server",
            server,
            "--node-name",
            NODE,
            "--cni-conf-dir",
            &net_d,
        ];
        flags.map(str::to_owned).into()
    }

    async fn agent(&self) -> Result<Service> {
        let times = [
            "--interval=200ms",
            "--orphan-grace=1s",
            "--authentication=none",
        ];
        let flags = self.agent_flags();
        let args: Vec<_> = flags.iter().map(String::as_str).chain(times).collect();
        Service::start("node-agent", "127.0.0.1:0", self.dir.path(), &args).await
    }

    /// Executes the reference's plugin; returns the address of an ADD.
    fn host_local(&self, command: &str, container: &str) -> Result<String> {
        let mut config = self.plugin();
        config["cniVersion"] = json!("1.0.0");
        config["name"] = json!("net");
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
        let printed = String::from_utf8(output.stdout)?;
        ensure!(output.status.success(), "{command} {container}: {printed}");
        if command != "ADD" {
            return Ok(String::new());
        }
        let result: Value = serde_json::from_str(&printed)?;
        let address = result["ips"][0]["address"].as_str().context(printed)?;
        Ok(address.split('/').next().unwrap_or_default().to_owned())
    }

    /// Does what a kubelet does for a pod that was bound: a sandbox, and the pod's status.
    async fn run(&self, pod: &str) -> Result<()> {
        let address = self.host_local("ADD", pod)?;
        let status = json!({"status": {
            "phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}});
        let pods = self.client.namespaced::<Pod>("default");
        pods.patch_status(pod, &merge(&status)).await?;
        Ok(())
    }

    /// Creates a pod that requests an address.
    async fn create(&self, name: &str) -> Result<()> {
        let one = json!({RESOURCE: "1"});
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"containers": [{"name": "c", "image": "i",
                "resources": {"limits": one, "requests": one}}]}}))?;
        self.client
            .namespaced::<Pod>("default")
            .create(&pod)
            .await?;
        Ok(())
    }

    /// Creates the mirror of a static pod, which requests nothing.
    async fn mirror(&self, name: &str) -> Result<()> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "annotations": {pod_ips::CONFIG_MIRROR: "x"}},
            "spec": {"nodeName": NODE, "containers": [{"name": "c", "image": "i"}]}}))?;
        self.client
            .namespaced::<Pod>("default")
            .create(&pod)
            .await?;
        Ok(())
    }

    async fn delete_at_once(&self, name: &str) -> Result<()> {
        let at_once = DeleteParams {
            grace_period_seconds: Some(0),
            ..DeleteParams::default()
        };
        let pods = self.client.namespaced::<Pod>("default");
        pods.delete(name, &at_once).await?;
        Ok(())
    }

    async fn is_bound(&self, name: &str) {
        let what = format!("{name} is bound");
        let read = || async { self.pod(name).await.ok() };
        let is_bound = |pod: &Option<Pod>| pod.as_ref().is_some_and(|pod| node_of(pod) == NODE);
        eventually(&what, read, is_bound).await;
    }

    async fn waits_for_an_address(&self, name: &str) {
        let what = format!("{name} waits for an address");
        let read = || async {
            let pod = self.pod(name).await.ok();
            pod.map(|pod| unscheduled(&pod).to_owned())
                .unwrap_or_default()
        };
        let insufficient = format!("Insufficient {RESOURCE}");
        eventually(&what, read, |why: &String| why.contains(&insufficient)).await;
    }

    async fn pod(&self, name: &str) -> Result<Pod> {
        Ok(self.client.namespaced::<Pod>("default").get(name).await?)
    }

    /// Waits until the node has this amount of the resource, this total, and this many orphaned
    /// addresses, and a scheduler that knows of these finds as many free ones as are requested by
    /// nobody.
    async fn has(&self, amount: u64, total: u64, orphaned: u64) -> Result<()> {
        let what = format!("{amount} of {total} addresses are published, {orphaned} are orphaned");
        let read = || async {
            let node = self.client.all::<Node>().get(NODE).await.ok()?;
            let published = PodIpResource::default().published(&node);
            Some((published, pod_ips::total(&node), pod_ips::orphaned(&node)))
        };
        let wanted = Some(([Some(amount); 2], Some(total), Some(orphaned)));
        eventually(&what, read, |seen| *seen == wanted).await;
        let resource = PodIpResource::default();
        let node = self.client.all::<Node>().get(NODE).await?;
        let all = self
            .client
            .all::<Pod>()
            .list(&ListParams::default())
            .await?;
        let bound = all.items.iter().filter(|pod| node_of(pod) == NODE);
        let held = bound.clone().map(|pod| resource.addresses_held(pod)).sum();
        let requested: u64 = bound.map(|pod| resource.requested(pod)).sum();
        let free = resource.addresses(&node, held).free();
        ensure!(
            free == amount - requested,
            "{free} free, {requested} requested: {what}"
        );
        Ok(())
    }
}

fn node_of(pod: &Pod) -> &str {
    podplane_tests::pods::node(pod)
}

fn merge(patch: &Value) -> PatchParams {
    PatchParams {
        patch_type: PatchType::Merge,
        patch: patch.to_string(),
        field_manager: "test".into(),
        force: false,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_that_adds_up_requests_knows_the_addresses_of_a_foreign_node() -> Result<()> {
    let is_there = Path::new(HOST_LOCAL).exists();
    let package = "apt-get install containernetworking-plugins";
    if !peers::require("cni-plugins", is_there, package) {
        return Ok(());
    }
    let node = NodeFixture::start().await?;
    let agent = node.agent().await?;
    node.has(5, 5, 0).await?;

    // A static pod has an address and requests none.
    node.mirror("static-pod").await?;
    node.has(4, 5, 0).await?;
    node.run("static-pod").await?;

    for name in ["a", "b", "c", "d"] {
        node.create(name).await?;
        node.is_bound(name).await;
        node.run(name).await?;
    }
    node.create("late").await?;
    node.waits_for_an_address("late").await;
    node.has(4, 5, 0).await?;
    let full = node
        .host_local("ADD", "one-too-many")
        .unwrap_err()
        .to_string();
    ensure!(full.contains("no IP addresses available"), "{full}");
    node.delete_at_once("late").await?;

    // A pod goes, and its sandbox stays.
    node.delete_at_once("d").await?;
    node.has(3, 5, 1).await?;
    let metrics = HttpClient::new(agent.address()).get("/metrics").await?;
    let metrics = metrics.body.as_str().context("metrics as text")?;
    for line in [
        format!("podplane_node_pod_ips_orphaned{{node=\"{NODE}\"}} 1"),
        format!("podplane_node_pod_ips_capacity{{node=\"{NODE}\"}} 5"),
        "podplane_node_agent_allocated_addresses{family=\"ipv4\"} 5".to_owned(),
        "podplane_node_agent_source{ipam=\"host-local\"} 1".to_owned(),
    ] {
        ensure!(metrics.contains(&line), "no {line} in {metrics}");
    }
    node.create("next").await?;
    node.waits_for_an_address("next").await;
    node.host_local("DEL", "d")?;
    node.is_bound("next").await;
    node.has(4, 5, 0).await?;

    // A kubelet without the state of its device plugins resets extended resources.
    let reset = json!({"status": {"capacity": {RESOURCE: "0"}, "allocatable": {RESOURCE: "0"}}});
    let nodes = node.client.all::<Node>();
    nodes.patch_status(NODE, &merge(&reset)).await?;
    node.has(4, 5, 0).await?;

    agent.kill()?;
    let flags = node.agent_flags();
    let mut unpublish = podplane(["node-agent", "--unpublish"]);
    let ended = unpublish.args(&flags).stderr(Stdio::null()).status()?;
    ensure!(ended.success(), "--unpublish ended with {ended}");
    let node = nodes.get(NODE).await?;
    assert_eq!(PodIpResource::default().published(&node), [None; 2]);
    assert_eq!(
        (pod_ips::total(&node), pod_ips::orphaned(&node)),
        (None, None)
    );
    assert_eq!(node.name(), NODE);
    Ok(())
}
