//! A client from elsewhere that knows only what reflection tells it: Python's grpcio.

use std::{collections::BTreeSet, path::PathBuf, process::Command};

use anyhow::Result;
use podplane_api::{
    kinds::{self, KindVisitor},
    strategy::Strategy,
};
use podplane_tests::{
    Cluster, Network, builder, peers,
    programs::{ProgramOutput, finish},
};
use serde_json::{Value, json};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/client.py");

struct Python {
    packages: String,
    /// The certificates of the cluster.
    pki: PathBuf,
}

impl Python {
    fn run(&self, args: &[&str]) -> ProgramOutput {
        finish(
            Command::new("python3")
                .arg(SCRIPT)
                .args(args)
                .env("PKI", &self.pki)
                .env("PYTHONPATH", &self.packages),
        )
    }

    fn call(&self, address: &str, service: &str, method: &str, request: &Value) -> ProgramOutput {
        self.run(&["call", address, service, method, &request.to_string()])
    }
}

/// The services of a server, without health and reflection, which it must have.
fn own_services(listed: &str) -> Vec<&str> {
    let shared = [
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    ];
    for service in shared {
        assert!(
            listed.lines().any(|line| line == service),
            "{service} is not among\n{listed}"
        );
    }
    listed
        .lines()
        .filter(|line| !shared.contains(line))
        .collect()
}

/// The names of services, those of kinds included.
struct ServiceNames(BTreeSet<&'static str>);

impl KindVisitor for ServiceNames {
    fn visit<K: Strategy>(&mut self) {
        self.0.insert(K::SERVICE);
    }
}

fn services_of(process: &str) -> Vec<&'static str> {
    match process.split('-').next() {
        Some("apiserver") => {
            let mut services = ServiceNames(BTreeSet::from([
                "opentelemetry.proto.collector.trace.v1.TraceService",
                "podplane.authentication.v1.AuthenticationService",
                "podplane.authorization.v1.AuthorizationService",
                "podplane.ipam.v1.BlockService",
                "podplane.store.v1.StoreService",
                "podplane.trace.v1.TraceService",
            ]));
            kinds::visit(&mut services);
            services.0.into_iter().collect()
        }
        Some("ipam") => vec!["podplane.ipam.v1.IpamService"],
        Some("scheduler") => vec!["podplane.scheduler.v1.SchedulerService"],
        Some("controller") => Vec::new(),
        Some("kubelet") => vec!["podplane.node.v1.NodeNetworkService"],
        _ => panic!("what does {process} serve?"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_server_answers_reflection_and_health_checks() -> Result<()> {
    let Some(packages) = peers::python() else {
        return Ok(());
    };
    let Some(cluster) = Cluster::up(builder(Network::Ledger)).await? else {
        return Ok(());
    };
    let python = Python {
        packages,
        pki: cluster.data_dir().join("pki"),
    };
    let status = cluster.status().await?;
    let mut seen = 0;
    for service in status
        .services
        .iter()
        .filter(|service| !service.name.starts_with("cri"))
    {
        let listed = python.run(&["services", &service.address]).ok();
        assert_eq!(
            own_services(&listed),
            services_of(&service.name),
            "{}",
            service.name
        );
        for own in own_services(&listed) {
            assert_eq!(
                python.run(&["health", &service.address, own]).ok().trim(),
                "SERVING",
                "{own}"
            );
        }
        seen += 1;
    }
    assert_eq!(
        seen, 5,
        "apiserver, ipam-controller, controller-manager, scheduler, kubelet: {status:?}"
    );
    let cri = format!(
        "unix:{}",
        cluster.data_dir().join("nodes/node-0/cri.sock").display()
    );
    let listed = python.run(&["services", &cri]).ok();
    assert_eq!(
        own_services(&listed),
        ["runtime.v1.ImageService", "runtime.v1.RuntimeService"]
    );
    let control = format!("unix:{}", cluster.data_dir().join("control.sock").display());
    let listed = python.run(&["services", &control]).ok();
    assert_eq!(
        own_services(&listed),
        ["podplane.cluster.v1.ClusterService"]
    );
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_created_from_python_runs() -> Result<()> {
    let Some(packages) = peers::python() else {
        return Ok(());
    };
    let Some(cluster) = Cluster::up(builder(Network::Ledger)).await? else {
        return Ok(());
    };
    let python = Python {
        packages,
        pki: cluster.data_dir().join("pki"),
    };
    let server = cluster.server().to_owned();
    let pods = "podplane.core.v1.PodService";
    let pod = json!({"pod": {
        "metadata": {"name": "from-python", "namespace": "default", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": "pause", "resources": {"requests": {"cpu": "100m"}},
                                 "livenessProbe": {"httpGet": {"path": "/", "port": 8080}}}]}
    }});
    let created: Value = serde_json::from_str(&python.call(&server, pods, "CreatePod", &pod).ok())?;
    assert_eq!(
        created["spec"]["containers"][0]["resources"]["requests"]["cpu"],
        "100m"
    );
    assert_eq!(created["spec"]["restartPolicy"], "Always", "defaulted");

    cluster
        .pods_until("the pod runs", |pods| {
            podplane_tests::pods::running(pods) == 1
        })
        .await;
    let key = json!({"namespace": "default", "name": "from-python"});
    let got: Value = serde_json::from_str(&python.call(&server, pods, "GetPod", &key).ok())?;
    let ip = got["status"]["podIP"].as_str().unwrap_or_default();
    assert!(ip.starts_with("10.244."), "{got:#}");

    // The command line shows the same object.
    let shown = cluster.get("pod from-python");
    assert_eq!(shown["status"]["podIP"], got["status"]["podIP"]);
    assert_eq!(
        shown["spec"]["containers"][0]["livenessProbe"]["httpGet"]["port"], 8080,
        "a number stays one"
    );

    let list: Value = serde_json::from_str(
        &python
            .call(
                &server,
                pods,
                "ListPods",
                &json!({"labelSelector": "app=web"}),
            )
            .ok(),
    )?;
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1));
    assert!(
        list["metadata"]["resourceVersion"]
            .as_str()
            .is_some_and(|version| !version.is_empty())
    );

    let refused = python.call(&server, pods, "CreatePod", &pod).failed(1);
    assert_eq!(
        refused.trim(),
        "ALREADY_EXISTS: pods \"from-python\" already exists"
    );
    let missing = json!({"pod": {"metadata": {"name": "a", "namespace": "nowhere"}, "spec": pod["pod"]["spec"]}});
    let refused = python.call(&server, pods, "CreatePod", &missing).failed(1);
    assert_eq!(
        refused.trim(),
        "NOT_FOUND: namespaces \"nowhere\" not found"
    );

    // The client changes the object that it read and writes it back whole: nothing is lost on the
    // way.
    let mut changed = got.clone();
    changed["metadata"]["labels"]["tier"] = json!("front");
    let updated: Value = serde_json::from_str(
        &python
            .call(&server, pods, "UpdatePod", &json!({"pod": changed}))
            .ok(),
    )?;
    assert_eq!(
        updated["metadata"]["labels"],
        json!({"app": "web", "tier": "front"})
    );
    assert_eq!(updated["spec"], got["spec"]);
    let stale = python
        .call(&server, pods, "UpdatePod", &json!({"pod": changed}))
        .failed(1);
    assert!(
        stale.starts_with("ABORTED: Operation cannot be fulfilled on pods \"from-python\""),
        "{stale}"
    );
    cluster.finish().await
}
