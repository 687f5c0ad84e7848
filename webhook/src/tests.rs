//! The webhooks over HTTPS, in front of an API server in memory.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{
    body::Bytes,
    http::{Method, header::CONTENT_TYPE},
};
use clap::Parser as _;
use podplane_api::{Object as _, pod_ips::POD_IPS};
use podplane_client::{ApiError, Reason};
use podplane_host::{clock, fs, task};
use podplane_http_client::{ClientTls, HttpAnswer, HttpClient};
use podplane_pki::{Authority, CertificateTerms, Subject, Usage};
use podplane_proto::wire::{self, WatchEventType};
use podplane_test_support::{
    ChangeLog, FakeApiserver, FakeState, NodeBuilder, PodBuilder, decode, encode,
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, Default)]
struct Objects {
    nodes: BTreeMap<String, Node>,
    pods: BTreeMap<String, Pod>,
    log: ChangeLog,
}

impl Objects {
    fn put_node(&mut self, mut node: Node) {
        self.log.push(WatchEventType::Modified, &mut node);
        self.nodes.insert(node.name().to_owned(), node);
    }

    fn put_pod(&mut self, pod: &PodBuilder) {
        let mut pod = Arc::unwrap_or_clone(pod.pod());
        self.log.push(WatchEventType::Modified, &mut pod);
        self.pods.insert(pod.name().to_owned(), pod);
    }
}

impl FakeState for Objects {
    fn log(&self) -> &ChangeLog {
        &self.log
    }

    async fn answer(
        fake: FakeApiserver<Self>,
        method: String,
        request: Bytes,
    ) -> Result<Bytes, ApiError> {
        match method.as_str() {
            "ListNodes" => Ok(fake.read(|state| state.log.list(state.nodes.values()))),
            "ListPods" => Ok(fake.read(|state| state.log.list(state.pods.values()))),
            "GetPod" => {
                let wire::GetRequest { name, .. } = decode(&request);
                let pod = fake.read(|state| state.pods.get(&name).map(encode));
                pod.ok_or_else(|| ApiError::not_found("pods", &name))
            }
            // The Lease cannot be taken.
            _ => Err(ApiError::new(Reason::Forbidden, "not allowed")),
        }
    }
}

#[derive(Debug, clap::Parser)]
struct Line {
    #[command(flatten)]
    config: WebhookConfig,
}

/// Running webhooks with a certificate.
struct WebhookFixture {
    fake: FakeApiserver<Objects>,
    client: HttpClient,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    _dir: tempfile::TempDir,
}

impl WebhookFixture {
    /// One node, `n`, with one address; the pods `a` and `b`, which wait for a node.
    async fn start(flags: &str) -> Self {
        let fake = FakeApiserver::<Objects>::default();
        fake.change(|state| {
            let node = NodeBuilder::new("n").block("10.0.0.0/30", 1);
            state.put_node(node.condition("Ready", "True").node());
            state.put_pod(&PodBuilder::new("a"));
            state.put_pod(&PodBuilder::new("b"));
        });
        let mut tasks = JoinSet::new();
        let server = fake.serve(Default::default(), &mut tasks).await;
        let dir = tempfile::tempdir().unwrap();
        let now = clock::timestamp();
        let authority = Authority::create("webhook", now).unwrap();
        let terms = CertificateTerms {
            subject: Subject::new("webhook", ""),
            usage: Usage::Server,
            names: vec!["127.0.0.1".parse().unwrap()],
            lifetime: Duration::from_secs(3600),
        };
        let issued = authority.issue(&terms, now).unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("ca.crt"), authority.certificate()).unwrap();
        fs::write(path("pair.pem"), issued.key + &issued.certificate).unwrap();
        let (pair, address) = (path("pair.pem"), path("address"));
        let line = format!(
            "webhook --server {server} --tls-cert-file {0} --tls-private-key-file {0} --address-file {1} {flags}",
            pair.display(),
            address.display()
        );
        let config = Line::try_parse_from(line.split_whitespace())
            .unwrap()
            .config;
        let stop = CancellationToken::new();
        let running = run(config, stop.clone());
        task::spawn(&mut tasks, async move { running.await.unwrap() });
        let address = until("the address", async || fs::read_to_string(&address).ok());
        let tls = ClientTls {
            authority: path("ca.crt"),
            ..ClientTls::default()
        };
        Self {
            client: HttpClient::with_tls(address.await.trim(), &tls).unwrap(),
            fake,
            stop,
            tasks,
            _dir: dir,
        }
    }

    async fn ready(&self) {
        let ready = async || {
            let answer = self.client.get("/readyz").await.unwrap();
            (answer.code == 200).then_some(())
        };
        until("ready", ready).await;
    }

    async fn post(&self, path: &str, review: &Value) -> HttpAnswer {
        let answer = self.client.send_json(Method::POST, path, review).await;
        answer.unwrap()
    }

    /// The response to the review of a request.
    async fn review(&self, path: &str, request: &Value) -> Value {
        let answer = self.post(path, &review(request)).await;
        assert_eq!(answer.code, 200, "{answer:?}");
        assert_eq!(answer.headers[CONTENT_TYPE], "application/json");
        assert_eq!(answer.body["kind"], "AdmissionReview");
        assert_eq!(answer.body["response"]["uid"], request["uid"]);
        answer.body["response"].clone()
    }

    async fn bind(&self, pod: &str, change: impl FnOnce(&mut Value)) -> Value {
        let mut request = binding(pod);
        change(&mut request);
        self.review(VALIDATE_BINDINGS, &request).await
    }

    async fn metrics(&self) -> String {
        // Nobody may read metrics without a certificate.
        let answer = self.client.get("/metrics").await.unwrap();
        assert_eq!(answer.code, 403);
        answer.body.to_string()
    }

    async fn stop(mut self) {
        self.stop.cancel();
        // The fake never ends.
        self.tasks.join_next().await.unwrap().unwrap();
    }
}

/// Asks until there is an answer.
async fn until<T>(what: &str, ask: impl AsyncFn() -> Option<T>) -> T {
    let asked = async {
        loop {
            if let Some(found) = ask().await {
                return found;
            }
            clock::sleep(Duration::from_millis(10)).await;
        }
    };
    let found = clock::timeout(PATIENCE, asked).await;
    found.unwrap_or_else(|_| panic!("{what}: not within {PATIENCE:?}"))
}

fn review(request: &Value) -> Value {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
}

/// A request as the API server of Kubernetes sends it.
fn creation(kind: &str, sub_resource: &str, name: &str, object: &Value) -> Value {
    let kind = json!({"group": "", "version": "v1", "kind": kind});
    let resource = json!({"group": "", "version": "v1", "resource": "pods"});
    json!({
        "uid": format!("review-of-{name}"),
        "kind": kind, "resource": resource, "subResource": sub_resource,
        "requestKind": kind, "requestResource": resource, "requestSubResource": sub_resource,
        "name": name, "namespace": "default", "operation": "CREATE",
        "userInfo": {"username": "system:kube-scheduler", "groups": ["system:authenticated"]},
        "object": object, "oldObject": null, "dryRun": false,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    })
}

fn binding(pod: &str) -> Value {
    let object = json!({
        "kind": "Binding", "apiVersion": "v1",
        "metadata": {"name": pod, "namespace": "default", "uid": pod, "creationTimestamp": null},
        "target": {"kind": "Node", "name": "n"},
    });
    creation("Binding", "binding", pod, &object)
}

fn new_pod() -> Value {
    let spec = json!({"containers": [{"name": "c", "image": "i"}]});
    let metadata = json!({"generateName": "web-", "namespace": "default"});
    let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": spec});
    creation("Pod", "", "", &pod)
}

#[tokio::test]
async fn the_leader_judges_bindings() {
    let webhook = WebhookFixture::start("--leader-elect=false").await;
    webhook.ready().await;
    let allowed = |response: &Value| response["allowed"].as_bool().unwrap();
    let dry_run = |request: &mut Value| request["dryRun"] = json!(true);
    assert!(allowed(&webhook.bind("b", dry_run).await));
    assert!(allowed(&webhook.bind("a", |_| {}).await));
    assert!(allowed(&webhook.bind("a", |_| {}).await), "repeated");
    let refused = webhook.bind("b", |_| {}).await;
    let why =
        "node n has no address for the pod: 0 of 1 IP free: 1 pod, 0 orphaned (held by default/a)";
    let status = json!({"code": 409, "reason": "InsufficientPodIPs", "message": why});
    assert_eq!(refused["status"], status);
    assert!(!allowed(&webhook.bind("b", dry_run).await));
    // Not what it judges.
    for (field, value) in [
        ("operation", "UPDATE"),
        ("subResource", "eviction"),
        ("subResource", "status"),
    ] {
        let response = webhook.bind("b", |request| request[field] = json!(value));
        assert!(allowed(&response.await), "{field} {value}");
    }

    // The older path, where the object alone names the pod.
    let older = |request: &mut Value| {
        request["resource"]["resource"] = json!("bindings");
        request["subResource"] = json!("");
        request["name"] = json!("");
    };
    assert!(!allowed(&webhook.bind("b", older).await));

    // A pod that no watch has shown.
    let host = PodBuilder::new("host").host_network().pod();
    webhook.fake.change(|state| {
        let late = PodBuilder::new("late").pod();
        for pod in [host, late] {
            state
                .pods
                .insert(pod.name().to_owned(), Arc::unwrap_or_clone(pod));
        }
    });
    assert!(allowed(&webhook.bind("host", |_| {}).await));
    assert!(!allowed(&webhook.bind("late", |_| {}).await));
    assert!(allowed(&webhook.bind("nobody", |_| {}).await));
    let unnamed = |request: &mut Value| request["object"]["metadata"]["uid"] = json!(null);
    assert!(!allowed(&webhook.bind("b", unnamed).await));

    // Its address is free again.
    webhook.fake.change(|state| {
        let pod = PodBuilder::new("a").on("n").ended("Failed", "");
        state.put_pod(&pod.without_sandbox());
    });
    until("an address", async || {
        allowed(&webhook.bind("b", |_| {}).await).then_some(())
    })
    .await;
    webhook.stop().await;
}

#[tokio::test]
async fn new_pods_get_a_request_while_all_nodes_publish_the_resource() {
    let webhook = WebhookFixture::start("--leader-elect=false").await;
    webhook.ready().await;
    let response = webhook.review(MUTATE_PODS, &new_pod()).await;
    assert_eq!(response["patchType"], "JSONPatch");
    assert_eq!(response["auditAnnotations"], json!({"pod-ips": "added"}));
    let amounts = json!({POD_IPS: "1"});
    let want = json!([{
        "op": "add", "path": "/spec/containers/0/resources",
        "value": {"limits": amounts, "requests": amounts},
    }]);
    use base64::Engine as _;
    let patch =
        base64::engine::general_purpose::STANDARD.decode(response["patch"].as_str().unwrap());
    let patch: Value = serde_json::from_slice(&patch.unwrap()).unwrap();
    assert_eq!(patch, want);
    webhook.fake.change(|state| {
        let silent = NodeBuilder::new("silent").condition("Ready", "True");
        state.put_node(silent.node());
    });
    let kept = until("the node", async || {
        let response = webhook.review(MUTATE_PODS, &new_pod()).await;
        response["patch"].is_null().then_some(response)
    });
    let kept = kept.await;
    assert_eq!(kept["allowed"], true);
    let why = "not added: node silent does not publish the resource";
    assert_eq!(kept["auditAnnotations"], json!({"pod-ips": why}));
    webhook.stop().await;
}

#[tokio::test]
async fn everything_but_reviews_is_refused() {
    let webhook = WebhookFixture::start("--leader-elect=false").await;
    webhook.ready().await;
    for (path, body, code) in [
        (MUTATE_PODS, json!({}), 400),
        (MUTATE_PODS, json!("x"), 400),
        (VALIDATE_BINDINGS, review(&json!({"uid": "u"})), 400),
        (
            VALIDATE_BINDINGS,
            json!({"apiVersion": "v1", "kind": "Pod"}),
            400,
        ),
        ("/mutate", json!({}), 403),
        ("/metrics", json!({}), 403),
        ("/debug/log-level", json!("debug"), 403),
    ] {
        let answer = webhook.post(path, &body).await;
        assert_eq!(answer.code, code, "{path} {body}");
    }
    let get = webhook.client.get(MUTATE_PODS).await.unwrap();
    assert_eq!(get.code, 403);
    let text = Some(("text/plain", &json!({})));
    let answer = webhook.client.send(Method::POST, MUTATE_PODS, text).await;
    assert_eq!(answer.unwrap().code, 415);
    let large = json!({"x": "x".repeat(5 << 20)});
    assert_eq!(webhook.post(MUTATE_PODS, &large).await.code, 413);
    assert!(webhook.metrics().await.contains("forbidden"));
    webhook.stop().await;
}

#[tokio::test]
async fn a_standby_is_not_ready_and_judges_no_binding() {
    let webhook = WebhookFixture::start("").await;
    let mutated = until("the nodes", async || {
        let answer = webhook.post(MUTATE_PODS, &review(&new_pod())).await;
        (answer.code == 200).then_some(answer)
    });
    assert_eq!(mutated.await.body["response"]["patchType"], "JSONPatch");
    let ready = webhook.client.get("/readyz").await.unwrap();
    assert_eq!(ready.code, 500);
    let text = ready.body.as_str().unwrap();
    assert!(text.contains("[-]leader failed"), "{text}");
    let answer = webhook
        .post(VALIDATE_BINDINGS, &review(&binding("a")))
        .await;
    assert_eq!(answer.code, 503);
    let text = answer.body.as_str().unwrap();
    assert!(text.contains("does not lead: ask again"), "{text}");
    webhook.stop().await;
}
