//! Single pieces in a cluster of others: scheduler and IPAM controller reach an API server by
//! kubeconfig, as ServiceAccounts with the rights of `deploy/kubernetes`. Another podplane plays the
//! other cluster: it has API server and kubelets, gives no blocks, and leaves pods with
//! `schedulerName: podplane` alone.

use std::{fs, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use podplane_api::{
    Object as _,
    core::{Node, Pod},
};
use podplane_client::DeleteParams;
use podplane_test_cluster::within;
use podplane_tests::{
    Cluster, Network, builder, peers,
    programs::{ProgramOutput, finish, podplane},
    service::Service,
};
use serde_json::json;
use tempfile::TempDir;

const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/kubernetes");
const SYSTEM: &str = "podplane-system";
const NODE: &str = "podplane-node";
/// Long enough for a Lease to be taken over.
const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster with kubelets, without blocks.
struct OtherCluster {
    cluster: Cluster,
    dir: TempDir,
}

impl OtherCluster {
    async fn start(nodes: u32) -> Result<Option<Self>> {
        let up = builder(Network::Ledger)
            .nodes(nodes)
            .extra_config("ipam-controller", "allocate-node-cidrs", "false")
            .without_waiting();
        let Some(cluster) = Cluster::up(up).await? else {
            return Ok(None);
        };
        let dir = tempfile::tempdir()?;
        Ok(Some(Self { cluster, dir }))
    }

    fn kubectl(&self, args: &str) -> ProgramOutput {
        let mut kubectl = Command::new("kubectl");
        kubectl.arg("--kubeconfig").arg(self.cluster.kubeconfig());
        kubectl.env("HOME", self.dir.path());
        finish(kubectl.args(args.split_whitespace()))
    }

    fn file(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// Applies a base, and stops its Deployments: their images are not here.
    fn deploy(&self, base: &str) {
        self.kubectl(&format!("apply -k {DEPLOY}/{base}")).ok();
        for namespace in [SYSTEM, NODE] {
            self.kubectl(&format!(
                "scale deployment --all --replicas=0 -n {namespace}"
            ));
        }
    }

    /// The kubeconfig of a ServiceAccount.
    fn kubeconfig(&self, namespace: &str, account: &str) -> String {
        let token = self
            .kubectl(&format!("create token {account} -n {namespace}"))
            .ok();
        let file = self.file(&format!("{account}.kubeconfig"));
        let authority = self.cluster.pki_dir().join("ca.crt");
        let config = |args: &str| {
            let mut kubectl = Command::new("kubectl");
            let kubectl = kubectl.args(["config", "--kubeconfig", &file]);
            finish(kubectl.args(args.split_whitespace())).ok();
        };
        let server = "config view -o jsonpath={.clusters[0].cluster.server}";
        let server = self.kubectl(server).ok();
        let authority = authority.display();
        config(&format!(
            "set-cluster other --server={server} --certificate-authority={authority} --embed-certs=true"
        ));
        config(&format!("set-credentials account --token={}", token.trim()));
        config("set-context other --cluster=other --user=account");
        config("use-context other");
        file
    }

    async fn piece(&self, name: &str, kubeconfig: &str, args: &[&str]) -> Result<Service> {
        let own = ["--kubeconfig", kubeconfig, "--authentication=none"];
        let args = [&own, args].concat();
        Service::start(name, "127.0.0.1:0", self.dir.path(), &args).await
    }

    async fn pods(&self) -> Vec<Pod> {
        self.cluster.pods().await.unwrap_or_default()
    }

    async fn nodes(&self) -> Vec<Node> {
        self.cluster.nodes().await.unwrap_or_default()
    }
}

fn pod(name: &str) -> Result<Pod> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "schedulerName": "podplane",
            "containers": [{"name": "main", "image": "registry.k8s.io/pause:3.10"}],
        },
    }))?)
}

fn block(node: &Node) -> Option<&str> {
    node.spec.as_ref()?.pod_cidr.as_deref()
}

fn is_running(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    status.is_some_and(|status| status.phase.as_deref() == Some("Running"))
}

fn wait_reason(pod: &Pod) -> Option<&str> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let scheduled = conditions
        .iter()
        .find(|found| found.type_ == "PodScheduled")?;
    scheduled.message.as_deref()
}

const SCHEDULER: [&str; 3] = [
    "--scheduler-name=podplane",
    "--leader-elect-resource-namespace=podplane-system",
    "--leader-elect-resource-name=podplane-second-scheduler",
];
const ALLOCATOR: [&str; 5] = [
    "--allocate-node-cidrs",
    "--cluster-cidr=10.99.0.0/24",
    "--node-cidr-mask-size=29",
    "--leader-elect-resource-namespace=podplane-node",
    "--leader-elect-resource-name=podplane-second-ipam-controller",
];

/// Story A with both pieces: as many pods run as there are addresses, the others say why they
/// wait, and a deletion lets exactly one more run.
#[tokio::test(flavor = "multi_thread")]
async fn scheduler_and_ipam_controller_serve_another_cluster() -> Result<()> {
    if !peers::program("kubectl") {
        return Ok(());
    }
    let Some(other) = OtherCluster::start(2).await? else {
        return Ok(());
    };
    other.kubectl(&format!("apply -k {DEPLOY}/namespaces")).ok();
    other
        .kubectl(&format!("create serviceaccount nobody -n {SYSTEM}"))
        .ok();
    let nobody = other.kubeconfig(SYSTEM, "nobody");
    names_the_missing_rules(&nobody);

    other.deploy("ipam-controller");
    other.deploy("scheduler");
    let allocator = other.kubeconfig(NODE, "podplane-ipam-controller");
    let allocator = other
        .piece("ipam-controller", &allocator, &ALLOCATOR)
        .await?;
    let have_blocks = |nodes: &Vec<Node>| nodes.iter().all(|node| block(node).is_some());
    let nodes = within(
        PATIENCE,
        "the nodes have blocks",
        || other.nodes(),
        have_blocks,
    )
    .await?;
    let mut blocks: Vec<_> = nodes.iter().filter_map(block).collect();
    blocks.sort_unstable();
    ensure!(blocks == ["10.99.0.0/29", "10.99.0.8/29"], "{blocks:?}");
    let records = other.kubectl("get nodeblocks --no-headers").ok();
    for record in ["10-99-0-0-29", "10-99-0-8-29"] {
        ensure!(records.contains(record), "{records}");
    }

    let scheduler = other.kubeconfig(SYSTEM, "podplane-scheduler");
    let scheduler = other.piece("scheduler", &scheduler, &SCHEDULER).await?;
    let pods = other.cluster.client().namespaced::<Pod>("default");
    for n in 0..14 {
        pods.create(&pod(&format!("p-{n:02}"))?).await?;
    }
    // A /29 has 5 addresses without network, gateway and broadcast address.
    let short = "0/2 nodes are available: 2 Insufficient pod IPs.";
    let explained = |pod: &&Pod| wait_reason(pod) == Some(short);
    let full = |found: &Vec<Pod>| {
        let found: Vec<_> = found
            .iter()
            .filter(|pod| pod.namespace() == "default")
            .cloned()
            .collect();
        found.iter().filter(|pod| is_running(pod)).count() == 10
            && found.iter().filter(explained).count() == found.len() - 10
    };
    let found = within(
        PATIENCE,
        "10 pods run, the others wait",
        || other.pods(),
        |found: &Vec<Pod>| {
            found
                .iter()
                .filter(|pod| pod.namespace() == "default")
                .count()
                == 14
                && full(found)
        },
    )
    .await?;
    let running = found
        .iter()
        .find(|pod| is_running(pod) && pod.namespace() == "default");
    let running = running.context("a running pod")?.name().to_owned();
    pods.delete(&running, &DeleteParams::default()).await?;
    within(
        PATIENCE,
        "one more runs",
        || other.pods(),
        |found: &Vec<Pod>| {
            found
                .iter()
                .filter(|pod| pod.namespace() == "default")
                .count()
                == 13
                && full(found)
        },
    )
    .await?;
    for log in ["scheduler.log", "ipam-controller.log"] {
        let log = fs::read_to_string(other.file(log))?;
        ensure!(log.contains("found the API server"), "{log}");
    }
    scheduler.kill()?;
    allocator.kill()?;
    pods_are_gone(&other).await?;
    other.cluster.finish().await
}

/// A process that lacks rights ends, and names them.
fn names_the_missing_rules(kubeconfig: &str) {
    let mut scheduler = podplane(["scheduler", "--kubeconfig", kubeconfig]);
    let scheduler = scheduler.args(["--listen=127.0.0.1:0", "--authentication=none"]);
    let ended = finish(scheduler.args(SCHEDULER));
    assert!(ended.code != Some(0), "{ended:?}");
    for rule in [
        "get, list, watch pods",
        "create pods/binding",
        "list, watch poddisruptionbudgets of policy",
    ] {
        assert!(ended.stderr.contains(rule), "{rule}: {}", ended.stderr);
    }
}

/// Deletes what runs, for the check that nothing is left on the machine.
async fn pods_are_gone(other: &OtherCluster) -> Result<()> {
    other.kubectl("delete pods --all -n default --now").ok();
    let none = |pods: &Vec<Pod>| pods.iter().all(|pod| pod.namespace() != "default");
    within(PATIENCE, "the pods are gone", || other.pods(), none).await?;
    Ok(())
}
