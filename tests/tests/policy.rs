//! The MutatingAdmissionPolicy of `deploy/kubernetes/policy`. Our API server does not serve this
//! kind, but policies that validate, with the same CEL: as one of these, the policy must refuse
//! what it would change. Its parameter is written by `podplane webhook` with the rights of the
//! base.

use std::{
    fs,
    io::Write as _,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result};
use podplane_tests::{
    Cluster, Network, builder, eventually, peers,
    programs::{ProgramOutput, finish},
    service::Service,
};
use serde_json::{Value, json};
use tempfile::TempDir;

const POLICY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/kubernetes/policy");
const SYSTEM: &str = "podplane-system";
const NAME: &str = "podplane-pod-ips";
const REFUSED: &str = "would get the request";

struct PolicyCluster {
    cluster: Cluster,
    dir: TempDir,
}

impl PolicyCluster {
    fn command(&self, args: &str) -> Command {
        let mut kubectl = Command::new("kubectl");
        kubectl.arg("--kubeconfig").arg(self.cluster.kubeconfig());
        kubectl.env("HOME", self.dir.path());
        kubectl.args(args.split_whitespace());
        kubectl
    }

    fn kubectl(&self, args: &str) -> ProgramOutput {
        finish(&mut self.command(args))
    }

    fn fed(&self, args: &str, input: &str) -> Result<ProgramOutput> {
        let mut kubectl = self.command(args);
        kubectl.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut kubectl = kubectl.stderr(Stdio::piped()).spawn()?;
        let mut pipe = kubectl.stdin.take().context("a pipe")?;
        pipe.write_all(input.as_bytes())?;
        drop(pipe);
        Ok(kubectl.wait_with_output()?.into())
    }

    /// Applies the base without the kinds that the server does not have.
    fn apply_base(&self) -> Result<()> {
        self.kubectl(&format!("apply -k {POLICY}/../namespaces"))
            .ok();
        let base = self.kubectl(&format!("kustomize {POLICY}")).ok();
        let served = base.split("\n---\n");
        let served: Vec<_> = served
            .filter(|object| !object.contains("kind: MutatingAdmission"))
            .collect();
        assert!(!base.contains("MutatingWebhookConfiguration"), "{base}");
        self.fed("apply -f -", &served.join("\n---\n"))?.ok();
        self.kubectl(&format!("scale deployment --all --replicas=0 -n {SYSTEM}"))
            .ok();
        // Its webhook is not reachable here.
        self.kubectl("delete validatingwebhookconfiguration podplane-webhook")
            .ok();
        Ok(())
    }

    /// The policy and its binding as ones that validate.
    fn apply_policy(&self) -> Result<()> {
        let local = "annotate --local -f - -o json a=b";
        let text = fs::read_to_string(format!("{POLICY}/policy.yaml"))?;
        for object in text.split("\n---\n") {
            let object = self.fed(local, object)?.ok();
            let mut object: Value = serde_json::from_str(&object)?;
            let kind = object["kind"].as_str().context("kind")?;
            object["kind"] = json!(kind.replace("Mutating", "Validating"));
            let spec = object["spec"].as_object_mut().context("spec")?;
            if spec.remove("mutations").is_some() {
                spec.remove("reinvocationPolicy");
                // An expression that fails must not look like one that does not match.
                spec.insert("failurePolicy".into(), json!("Fail"));
                let refuse = json!([{"expression": "false", "message": REFUSED}]);
                spec.insert("validations".into(), refuse);
            } else {
                spec.insert("validationActions".into(), json!(["Deny"]));
            }
            self.fed("apply -f -", &object.to_string())?.ok();
        }
        Ok(())
    }

    /// The kubeconfig of the webhook's ServiceAccount.
    fn kubeconfig(&self) -> Result<String> {
        let token = self.kubectl(&format!("create token podplane-webhook -n {SYSTEM}"));
        let server = self.kubectl("config view -o jsonpath={.clusters[0].cluster.server}");
        let authority = self.cluster.pki_dir().join("ca.crt");
        let document = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": server.ok(), "certificate-authority": authority}}],
            "users": [{"name": "u", "user": {"token": token.ok().trim()}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "c",
        });
        let file = self.dir.path().join("webhook.kubeconfig");
        fs::write(&file, document.to_string())?;
        Ok(file.display().to_string())
    }

    async fn request_is(&self, want: &str) {
        let get = format!("get configmap {NAME} -n {SYSTEM} -o jsonpath={{.data.request}}");
        let read = || async { self.kubectl(&get).stdout };
        eventually("the parameter", read, |found| found == want).await;
    }

    /// Returns true if the policy would change the pod.
    fn would_change(&self, pod: &Value) -> Result<bool> {
        let created = self.fed("create --dry-run=server -f -", &pod.to_string())?;
        if created.code == Some(0) {
            return Ok(false);
        }
        assert!(created.stderr.contains(REFUSED), "{pod}: {created:?}");
        Ok(true)
    }
}

fn pod(namespace: &str, spec: Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": namespace},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    });
    if let Some(changes) = spec.as_object() {
        for (field, value) in changes {
            pod["spec"][field] = value.clone();
        }
    }
    pod
}

#[tokio::test(flavor = "multi_thread")]
async fn the_policy_chooses_the_pods_that_the_webhook_would_change() -> Result<()> {
    if !peers::program("kubectl") {
        return Ok(());
    }
    let Some(cluster) = Cluster::up(builder(Network::Ledger).nodes(2)).await? else {
        return Ok(());
    };
    let dir = tempfile::tempdir()?;
    let policy = PolicyCluster { cluster, dir };
    policy.apply_base()?;
    policy.apply_policy()?;
    let plain = pod("default", json!({}));
    // Without a parameter nothing is changed.
    assert!(!policy.would_change(&plain)?);

    let kubeconfig = policy.kubeconfig()?;
    let params = format!("--policy-params={SYSTEM}/{NAME}");
    let flags = [
        "--kubeconfig",
        &kubeconfig,
        "--authentication=none",
        "--leader-elect-resource-namespace=podplane-system",
        &params,
    ];
    let webhook = Service::start("webhook", "127.0.0.1:0", policy.dir.path(), &flags).await?;
    policy.request_is("true").await;
    let container = |name: &str, resources: Value| json!([{"name": name, "image": "i", "resources": resources}]);
    let named = |part: &str| json!({part: {"podplane.io/pod-ips": "0"}});
    let cpu = json!({"requests": {"cpu": "1"}});
    let containers = |resources: &Value| json!({"containers": container("c", resources.clone())});
    let init = |resources: &Value| json!({"initContainers": container("i", resources.clone())});
    for (namespace, spec, want) in [
        ("default", json!({}), true),
        ("default", containers(&cpu), true),
        ("default", init(&cpu), true),
        ("default", json!({"hostNetwork": false}), true),
        ("default", json!({"hostNetwork": true}), false),
        ("default", containers(&named("limits")), false),
        ("default", init(&named("limits")), false),
        ("kube-system", json!({}), false),
        ("podplane-system", json!({}), false),
    ] {
        let pod = pod(namespace, spec);
        assert_eq!(policy.would_change(&pod)?, want, "{pod}");
    }

    // A node that is Ready and publishes nothing turns the policy off; once it is cordoned it does
    // not count.
    let silent = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "silent"}});
    policy.fed("create -f -", &silent.to_string())?.ok();
    let ready = json!({"status": {"conditions": [
        {"type": "Ready", "status": "True", "reason": "r", "message": "m",
            "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    let patch = "patch node silent --subresource=status --type=merge --patch-file=/dev/stdin";
    policy.fed(patch, &ready.to_string())?.ok();
    policy.request_is("false").await;
    assert!(!policy.would_change(&plain)?);
    policy.kubectl("cordon silent").ok();
    policy.request_is("true").await;
    assert!(policy.would_change(&plain)?);
    policy.kubectl("delete node silent").ok();

    // The process warns that this server has no such policies.
    let log = fs::read_to_string(policy.dir.path().join("webhook.log"))?;
    assert!(
        log.contains("does not serve MutatingAdmissionPolicy"),
        "{log}"
    );
    webhook.kill()?;
    policy.cluster.finish().await
}
