//! The other cluster.

use std::{fs, process::Command, time::Duration};

use anyhow::{Context as _, Result};
use podplane_api::{
    Object as _,
    core::{Node, Pod},
};
use podplane_http_client::HttpClient;
use podplane_test_cluster::{ClusterBuilder, within};
use podplane_tests::{
    Cluster, Network, builder,
    programs::{ProgramOutput, finish},
    service::Service,
};
use serde_json::{Value, json};
use tempfile::TempDir;

const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/kubernetes");
pub(crate) const SYSTEM: &str = "podplane-system";
pub(crate) const NODE: &str = "podplane-node";
/// Long enough for a Lease to be taken over.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster with kubelets, without blocks. As Kubernetes', its API server does not compare the
/// blocks of nodes, and does not count addresses.
pub(crate) struct OtherCluster {
    pub(crate) cluster: Cluster,
    pub(crate) dir: TempDir,
}

impl OtherCluster {
    pub(crate) async fn start(nodes: u32) -> Result<Option<Self>> {
        let without_blocks =
            |up: ClusterBuilder| up.extra_config("ipam-controller", "allocate-node-cidrs", "false");
        Self::start_with(nodes, without_blocks).await
    }

    pub(crate) async fn start_with(
        nodes: u32,
        configure: impl FnOnce(ClusterBuilder) -> ClusterBuilder,
    ) -> Result<Option<Self>> {
        let up = builder(Network::Ledger)
            .nodes(nodes)
            .extra_config("apiserver", "compat", "upstream")
            .extra_config("apiserver", "ip-policy", "off");
        let Some(cluster) = Cluster::up(configure(up).without_waiting()).await? else {
            return Ok(None);
        };
        let dir = tempfile::tempdir()?;
        let other = Self { cluster, dir };
        other.kubectl(&format!("apply -k {DEPLOY}/namespaces")).ok();
        Ok(Some(other))
    }

    pub(crate) fn kubectl(&self, args: &str) -> ProgramOutput {
        self.kubectl_with(args.split_whitespace())
    }

    pub(crate) fn kubectl_with<'a>(
        &self,
        args: impl IntoIterator<Item = &'a str>,
    ) -> ProgramOutput {
        let mut kubectl = Command::new("kubectl");
        kubectl.arg("--kubeconfig").arg(self.cluster.kubeconfig());
        kubectl.env("HOME", self.dir.path());
        finish(kubectl.args(args))
    }

    /// Runs kubectl with a manifest: `apply`, `create`.
    pub(crate) fn send(&self, verb: &str, manifest: &Value) -> Result<ProgramOutput> {
        let file = self.file("manifest.json");
        fs::write(&file, manifest.to_string())?;
        Ok(self.kubectl(&format!("{verb} -f {file}")))
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// The log of a piece that was started as `id`.
    pub(crate) fn log(&self, id: &str, name: &str) -> String {
        let file = self.dir.path().join(id).join(format!("{name}.log"));
        fs::read_to_string(file).unwrap_or_default()
    }

    /// Applies a base, stops its Deployments, whose images are not here, and waits until its kinds
    /// are served.
    pub(crate) fn deploy(&self, base: &str) {
        self.kubectl(&format!("apply -k {DEPLOY}/{base}")).ok();
        for namespace in [SYSTEM, NODE] {
            self.kubectl(&format!(
                "scale deployment --all --replicas=0 -n {namespace}"
            ));
        }
        self.kubectl(
            "wait --for=condition=established --timeout=60s customresourcedefinition --all",
        );
    }

    /// Deletes what a base has made.
    pub(crate) fn remove(&self, base: &str) {
        self.kubectl(&format!(
            "delete -k {DEPLOY}/{base} --wait=false --ignore-not-found"
        ))
        .ok();
    }

    /// The kubeconfig of a ServiceAccount.
    pub(crate) fn kubeconfig(&self, namespace: &str, account: &str) -> String {
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

    /// Starts a process by kubeconfig. Its files are in the directory `id`.
    pub(crate) async fn piece(
        &self,
        id: &str,
        name: &str,
        kubeconfig: &str,
        args: &[&str],
    ) -> Result<Service> {
        let dir = self.dir.path().join(id);
        fs::create_dir_all(&dir)?;
        let own = ["--kubeconfig", kubeconfig];
        let args = [&own, args].concat();
        Service::start(name, "127.0.0.1:0", &dir, &args).await
    }

    /// Starts the IPAM controller of the base, which gives blocks of `range`.
    pub(crate) async fn allocator(&self, id: &str, flags: &[&str]) -> Result<Service> {
        let kubeconfig = self.kubeconfig(NODE, "podplane-ipam-controller");
        let args = [&ALLOCATOR, flags].concat();
        self.piece(id, "ipam-controller", &kubeconfig, &args).await
    }

    pub(crate) async fn pods(&self) -> Vec<Pod> {
        self.cluster.pods().await.unwrap_or_default()
    }

    pub(crate) async fn nodes(&self) -> Vec<Node> {
        self.cluster.nodes().await.unwrap_or_default()
    }
}

/// The values of a metric, with the labels.
pub(crate) async fn metric(service: &Service, name: &str) -> Result<Vec<String>> {
    let metrics = HttpClient::new(service.address()).get("/metrics").await?;
    let metrics = metrics.body.as_str().context("metrics as text")?.to_owned();
    let lines = metrics.lines().filter(|line| line.starts_with(name));
    Ok(lines.map(str::to_owned).collect())
}

pub(crate) fn pod_for(scheduler: &str, name: &str) -> Result<Pod> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "schedulerName": scheduler,
            "containers": [{"name": "main", "image": "registry.k8s.io/pause:3.10"}],
        },
    }))?)
}

pub(crate) fn pod(name: &str) -> Result<Pod> {
    pod_for("podplane", name)
}

pub(crate) fn block(node: &Node) -> Option<&str> {
    node.spec.as_ref()?.pod_cidr.as_deref()
}

pub(crate) fn is_running(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    status.is_some_and(|status| status.phase.as_deref() == Some("Running"))
}

pub(crate) const SCHEDULER: [&str; 4] = [
    "--scheduler-name=podplane",
    "--leader-elect-resource-namespace=podplane-system",
    "--leader-elect-resource-name=podplane-second-scheduler",
    "--authentication=none",
];
/// A process that is started again leads at once.
pub(crate) const ALLOCATOR: [&str; 5] = [
    "--allocate-node-cidrs",
    "--leader-elect-resource-namespace=podplane-node",
    "--leader-elect-resource-name=podplane-second-ipam-controller",
    "--leader-elect-identity=one",
    "--authentication=none",
];

/// Deletes what runs, for the check that nothing is left on the machine.
pub(crate) async fn pods_are_gone(other: &OtherCluster) -> Result<()> {
    other.kubectl("delete pods --all -n default --now").ok();
    let none = |pods: &Vec<Pod>| pods.iter().all(|pod| pod.namespace() != "default");
    within(PATIENCE, "the pods are gone", || other.pods(), none).await?;
    Ok(())
}
