//! The tools that only read, by kubeconfig and in a pod, with the rights of `deploy/kubernetes` and
//! no more: `audit`, `plan`, `capacity` and `explain`. A podplane cluster plays the cluster of
//! others.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use podplane_api::core::Pod;
use podplane_tests::{
    Cluster, Network, builder, peers,
    programs::{ProgramOutput, bin_dir, finish, podplane},
    prometheus::Pushgateway,
};
use serde_json::{Value, json};
use tempfile::TempDir;

const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/kubernetes");
const SYSTEM: &str = "podplane-system";
/// The addresses of a node with a block of /29.
const ADDRESSES: usize = 5;

struct OtherCluster {
    cluster: Cluster,
    dir: TempDir,
}

impl OtherCluster {
    async fn start(flags: &str) -> Result<Option<Self>> {
        if !peers::program("kubectl") {
            return Ok(None);
        }
        let up = builder(Network::Ledger)
            .nodes(2)
            .node_cidr_mask_size(29)
            .flags(flags);
        let Some(cluster) = Cluster::up(up).await? else {
            return Ok(None);
        };
        let dir = tempfile::tempdir()?;
        let other = Self { cluster, dir };
        other.kubectl(&format!("apply -k {DEPLOY}/namespaces")).ok();
        Ok(Some(other))
    }

    fn kubectl(&self, args: &str) -> ProgramOutput {
        let mut kubectl = Command::new("kubectl");
        kubectl.arg("--kubeconfig").arg(self.cluster.kubeconfig());
        kubectl.env("HOME", self.dir.path());
        finish(kubectl.args(args.split_whitespace()))
    }

    fn write(&self, name: &str, text: &str) -> Result<String> {
        let file = self.dir.path().join(name);
        fs::write(&file, text)?;
        Ok(file.display().to_string())
    }

    fn token(&self, account: &str) -> String {
        let token = self.kubectl(&format!("create token {account} -n {SYSTEM}"));
        token.ok().trim().to_owned()
    }

    fn server(&self) -> String {
        let view = "config view -o jsonpath={.clusters[0].cluster.server}";
        self.kubectl(view).ok()
    }

    fn authority(&self) -> PathBuf {
        self.cluster.pki_dir().join("ca.crt")
    }

    /// A kubeconfig whose context `account` is a ServiceAccount, and whose present one is of no
    /// server.
    fn kubeconfig(&self, account: &str) -> Result<String> {
        let cluster =
            |server: &str| json!({"server": server, "certificate-authority": self.authority()});
        let context = |cluster: &str| json!({"cluster": cluster, "user": "account"});
        let document = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "other", "cluster": cluster(&self.server())},
                {"name": "nowhere", "cluster": cluster("https://127.0.0.1:1")},
            ],
            "users": [{"name": "account", "user": {"token": self.token(account)}}],
            "contexts": [
                {"name": account, "context": context("other")},
                {"name": "nowhere", "context": context("nowhere")},
            ],
            "current-context": "nowhere",
        });
        self.write(&format!("{account}.kubeconfig"), &document.to_string())
    }
}

/// Runs a tool as a ServiceAccount.
fn run(kubeconfig: &str, account: &str, args: &[&str]) -> ProgramOutput {
    let cluster = ["--kubeconfig", kubeconfig, "--context", account];
    finish(podplane(args).args(cluster))
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn has_address(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    status.is_some_and(|status| status.pod_ip.is_some())
}

fn is_bound(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    spec.is_some_and(|spec| spec.node_name.is_some())
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_read_a_cluster_with_the_rights_of_the_reader() -> Result<()> {
    let Some(other) = OtherCluster::start("").await? else {
        return Ok(());
    };
    other.kubectl(&format!("apply -k {DEPLOY}/reader")).ok();
    let account = "podplane-reader";
    let kubeconfig = other.kubeconfig(account)?;
    let spec = json!({"containers": [{"name": "c", "image": "i"}]});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec});
    let pod = other.write("pod.json", &pod.to_string())?;

    // One pod too many.
    let all = 2 * ADDRESSES + 1;
    other
        .cluster
        .podplane(&format!("run web --replicas {all}"))
        .ok();
    let full = |pods: &[Pod]| {
        pods.len() == all && pods.iter().filter(|pod| has_address(pod)).count() == all - 1
    };
    let pods = other.cluster.pods_until("the nodes are full", full).await;
    let name = |pod: &Pod| pod.metadata.name.clone().unwrap_or_default();
    let waiting = name(
        pods.iter()
            .find(|pod| !is_bound(pod))
            .context("one waits")?,
    );
    let bound = name(pods.iter().find(|pod| is_bound(pod)).context("one runs")?);

    let report = run(
        &kubeconfig,
        account,
        &["audit", "--fail-on=error", "-o=json"],
    );
    let report = parsed(&report.ok());
    assert_eq!(report["summary"]["nodes"], 2, "{report:#}");
    assert_eq!(report["summary"]["addresses"]["free"], 0, "{report:#}");
    let plan = parsed(
        &run(
            &kubeconfig,
            account,
            &["plan", "--cluster-cidr=10.244.0.0/16", "-o=json"],
        )
        .ok(),
    );
    assert_eq!(plan["nodes"], 2, "{plan:#}");
    let room = run(&kubeconfig, account, &["capacity", "-f", &pod, "-o=json"]);
    let room = parsed(&room.ok());
    assert_eq!(room["total"], 0, "{room:#}");
    assert_eq!(
        room["limits"],
        json!([{"reason": "Insufficient pod IPs", "nodes": 2}])
    );

    // The same rules as the scheduler's own answer, and the same words.
    let asked = |pod: &str| {
        let text = other
            .cluster
            .podplane(&format!("explain pod {pod} -o json"));
        parsed(&text.ok())
    };
    let computed = |args: &[&str]| {
        let args = [&["explain", "pod", "-o=json"], args].concat();
        parsed(&run(&kubeconfig, account, &args).ok())
    };
    let (here, there) = (computed(&[&waiting]), asked(&waiting));
    for field in ["pod", "nodes", "suggestions", "rejectedBy"] {
        assert_eq!(here[field], there[field], "{field}: {here:#} {there:#}");
    }
    assert_eq!(here["state"], "unschedulable", "{here:#}");
    let message = here["message"].as_str().unwrap_or_default();
    let refused = "0/2 nodes are available: 2 Insufficient pod IPs.";
    assert!(message.starts_with(refused), "{here:#}");
    let not_considered = here["notConsidered"][0].as_str().unwrap_or_default();
    assert!(not_considered.contains("default-scheduler"), "{here:#}");
    let (here, there) = (computed(&[&bound]), asked(&bound));
    assert_eq!(here["node"], there["node"], "{here:#}");
    assert_eq!(here["nodes"][0]["node"], there["node"], "{here:#}");
    let here = computed(&["-f", &pod]);
    let there = parsed(
        &other
            .cluster
            .run(["explain", "pod", "-f", &pod, "-o", "json"])
            .ok(),
    );
    assert_eq!(here["nodes"], there["nodes"], "{here:#}");
    let missing = run(&kubeconfig, account, &["explain", "pod", "nobody"]).failed(1);
    assert!(missing.contains(r#"pods "nobody" not found"#), "{missing}");

    // Without --context, the kubeconfig's own: a server that is not there.
    let nowhere = finish(&mut podplane(["audit", "--kubeconfig", &kubeconfig])).failed(2);
    assert!(nowhere.contains("127.0.0.1:1"), "{nowhere}");

    names_missing_rules(&other, &pod)?;
    other.kubectl("delete pods --all -n default --now").ok();
    other
        .cluster
        .pods_until("the pods are gone", <[_]>::is_empty)
        .await;
    other.cluster.finish().await
}

/// A user without rights learns all that are missing, and one that lacks a rule learns that one.
fn names_missing_rules(other: &OtherCluster, pod: &str) -> Result<()> {
    let create = |account: &str| {
        let create = format!("create serviceaccount {account} -n {SYSTEM}");
        other.kubectl(&create).ok();
        other.kubeconfig(account)
    };
    let nobody = create("nobody")?;
    let both = "list nodes; list pods";
    let many = "list nodes; list pods; list namespaces; list services; list replicasets of apps";
    let classes = "list priorityclasses of scheduling.k8s.io";
    for (args, code, rules) in [
        (&["audit"] as &[&str], 2, [both].as_slice()),
        (
            &["audit", "--history"],
            2,
            &["list, watch nodes; list, watch pods"],
        ),
        (&["plan"], 2, &[both]),
        (&["capacity", "-f", pod], 1, &[many, classes]),
        (
            &["explain", "pod", "p"],
            1,
            &[many, "list poddisruptionbudgets of policy", classes],
        ),
    ] {
        let error = run(&nobody, "nobody", args).failed(code);
        for rule in rules {
            assert!(error.contains(rule), "{args:?}: {rule}: {error}");
        }
    }
    let half = create("half")?;
    other
        .kubectl("create clusterrole half --verb=list --resource=nodes,namespaces,services,replicasets,poddisruptionbudgets")
        .ok();
    other
        .kubectl(&format!(
            "create clusterrolebinding half --clusterrole=half --serviceaccount={SYSTEM}:half"
        ))
        .ok();
    let error = run(&half, "half", &["explain", "pod", "p"]).failed(1);
    let want = format!("does not permit: list pods; {classes} (");
    assert!(error.contains(&want), "{error}");
    Ok(())
}

/// The audit as the CronJob runs it, in a mount namespace where the files of a pod's ServiceAccount
/// are: with its arguments, its rights, and a Pushgateway that the ConfigMap would name.
#[tokio::test(flavor = "multi_thread")]
async fn audit_in_a_pod_pushes_metrics() -> Result<()> {
    let Some(programs) = peers::pushgateway() else {
        return Ok(());
    };
    // An API server that takes duplicates.
    let Some(other) = OtherCluster::start("--compat upstream").await? else {
        return Ok(());
    };
    other.kubectl(&format!("apply -k {DEPLOY}/audit")).ok();
    let job = other.kubectl(&format!("get cronjob podplane-audit -n {SYSTEM} -o json"));
    let job = parsed(&job.ok());
    let pod = &job["spec"]["jobTemplate"]["spec"]["template"]["spec"];
    let account = pod["serviceAccountName"].as_str().context("account")?;
    let container = &pod["containers"][0];
    assert_eq!(container["env"][0]["name"], "PODPLANE_AUDIT_METRICS_PUSH");
    let args = container["args"].as_array().context("args")?;
    let args: Vec<_> = args.iter().filter_map(Value::as_str).collect();

    let gateway = Pushgateway::start(&programs, other.dir.path()).await?;
    let url = format!("http://{}", gateway.address());
    in_pod(&other, account, &args, &url)?.ok();
    let before = gateway.metrics().await?;
    let duplicates = r#"podplane_audit_findings{code="duplicate-pod-cidr",instance="",job="podplane-audit",severity="error"}"#;
    assert!(before.contains(&format!("{duplicates} 0")), "{before}");
    assert!(
        before.contains(r#"podplane_audit_nodes{instance="",job="podplane-audit"} 2"#),
        "{before}"
    );

    // A fault of the network fails the Job, and its count is pushed.
    let block = other
        .kubectl("get node node-0 -o jsonpath={.spec.podCIDR}")
        .ok();
    let twin = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "twin"},
        "spec": {"podCIDR": block, "podCIDRs": [block]}});
    let twin = other.write("twin.json", &twin.to_string())?;
    other.kubectl(&format!("create -f {twin}")).ok();
    let found = in_pod(&other, account, &args, &url)?;
    assert_eq!(found.code, Some(1), "{found:?}");
    let after = gateway.metrics().await?;
    assert!(after.contains(&format!("{duplicates} 1")), "{after}");
    other.kubectl("delete node twin").ok();

    // A gateway that is not there fails the Job, too, with the report.
    drop(gateway);
    let failed = in_pod(&other, account, &args, &url)?;
    assert!(failed.stdout.contains("findings:"), "{failed:?}");
    let error = failed.failed(1);
    assert!(error.contains("failed to push the metrics to"), "{error}");
    other.cluster.finish().await
}

fn in_pod(other: &OtherCluster, account: &str, args: &[&str], url: &str) -> Result<ProgramOutput> {
    let files = other.dir.path().join("serviceaccount");
    fs::create_dir_all(&files)?;
    fs::copy(other.authority(), files.join("ca.crt"))?;
    fs::write(files.join("token"), other.token(account))?;
    fs::write(files.join("namespace"), SYSTEM)?;
    let server = other.server();
    let server = server.strip_prefix("https://").context("TLS")?;
    let (host, port) = server.rsplit_once(':').context("a port")?;
    // /run is another one for this process alone; /var/run is /run.
    let script = r#"mount -t tmpfs none /run && place=/var/run/secrets/kubernetes.io/serviceaccount &&
        mkdir -p $place && cp "$0"/* $place && exec "$@""#;
    let program = bin_dir().join("podplane");
    let mut command = Command::new("unshare");
    command
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
        .arg(Path::new(&files))
        .arg(program)
        .args(args)
        // As in an image without authorities, and without a home.
        .env("SSL_CERT_FILE", "/dev/null")
        .env("KUBERNETES_SERVICE_HOST", host)
        .env("KUBERNETES_SERVICE_PORT", port)
        .env("PODPLANE_AUDIT_METRICS_PUSH", url);
    Ok(finish(&mut command))
}
