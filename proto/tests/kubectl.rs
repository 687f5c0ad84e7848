//! Kubernetes' protobuf encoding against kubectl, which uses Kubernetes' own library: both what it
//! sends and what it reads.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
};
use http::{HeaderMap, Method, Response, Uri, header};
use podplane_api::schema::definitions;
use podplane_proto::kubernetes;
use proptest::{
    prelude::RngExt as _,
    test_runner::{RngAlgorithm, TestRng},
};
use serde_json::{Map, Value, json};
use tokio::{net::TcpListener, process::Command, task::JoinSet};

#[path = "../../crates/api/tests/peer/mod.rs"]
mod peer;

const DEPLOYMENT: &str = "io.k8s.api.apps.v1.Deployment";
const POD: &str = "io.k8s.api.core.v1.Pod";

/// A server that has one pod, records what is sent to it, and gives configured answers.
#[derive(Clone, Default)]
struct Stub(Arc<Mutex<StubState>>);

#[derive(Default)]
struct StubState {
    pod: Value,
    /// The type and the body of the answer to a create; `None` to return the object that was sent.
    answer: Option<(&'static str, Vec<u8>)>,
    sent: Option<Value>,
}

impl Stub {
    async fn serve(&self, tasks: &mut JoinSet<()>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(answer).with_state(self.clone());
        tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
        url
    }

    fn state(&self) -> std::sync::MutexGuard<'_, StubState> {
        self.0.lock().unwrap()
    }
}

async fn answer(
    State(stub): State<Stub>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let resource = |name: &str, kind: &str, namespaced: bool| json!({"name": name, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": ["create", "get", "list", "patch"]});
    let mut state = stub.state();
    let document = match (method, uri.path()) {
        (Method::POST, _) => {
            assert_eq!(headers[header::CONTENT_TYPE], kubernetes::MEDIA_TYPE);
            let sent = kubernetes::decode(&body).unwrap();
            state.sent = Some(sent.clone());
            if let Some((content_type, body)) = state.answer.clone() {
                let answer = Response::builder().header(header::CONTENT_TYPE, content_type);
                return answer.body(body.into()).unwrap();
            }
            sent
        }
        (_, "/api") => json!({"kind": "APIVersions", "versions": ["v1"]}),
        (_, "/apis") => {
            let version = json!({"groupVersion": "apps/v1", "version": "v1"});
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [{"name": "apps", "versions": [version], "preferredVersion": version}]})
        }
        (_, "/api/v1") => {
            let resources = [
                resource("events", "Event", true),
                resource("namespaces", "Namespace", false),
                resource("pods", "Pod", true),
                resource("services", "Service", true),
            ];
            json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": resources})
        }
        (_, "/apis/apps/v1") => {
            json!({"kind": "APIResourceList", "groupVersion": "apps/v1", "resources": [resource("deployments", "Deployment", true)]})
        }
        (_, "/api/v1/namespaces/default/pods/p") => state.pod.clone(),
        (_, "/api/v1/namespaces/default/events") => {
            let accept = headers[header::ACCEPT].to_str().unwrap();
            assert!(accept.starts_with(kubernetes::MEDIA_TYPE), "{accept}");
            let (content_type, body) = state.answer.clone().unwrap();
            let watch = uri.query().unwrap_or_default().contains("watch=true");
            let (content_type, body) = match watch {
                false => (content_type.to_owned(), body),
                true => {
                    let list = kubernetes::decode(&body).unwrap();
                    let mut event = list["items"][0].clone();
                    event["kind"] = "Event".into();
                    event["apiVersion"] = "v1".into();
                    event["message"] = "seen by the watch".into();
                    let event = kubernetes::encode_event("ADDED", &event).unwrap();
                    (format!("{content_type};stream=watch"), event)
                }
            };
            let answer = Response::builder().header(header::CONTENT_TYPE, content_type);
            return answer.body(body.into()).unwrap();
        }
        _ => return Response::builder().status(404).body(Body::empty()).unwrap(),
    };
    let answer = Response::builder().header(header::CONTENT_TYPE, "application/json");
    answer.body(document.to_string().into()).unwrap()
}

/// A kubectl that talks to the stub.
struct Kubectl<'a> {
    program: &'a Path,
    server: &'a str,
    home: &'a Path,
}

impl Kubectl<'_> {
    async fn run(&self, args: &str) -> String {
        let output = Command::new(self.program)
            .env_clear()
            .env("HOME", self.home)
            .args(["--server", self.server, "--namespace=default"])
            .args(args.split_whitespace())
            .output()
            .await
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let (out, err) = (text(output.stdout), text(output.stderr));
        assert!(output.status.success(), "{args}: {out}{err}");
        out
    }

    async fn json(&self, args: &str) -> Value {
        serde_json::from_str(&self.run(args).await).unwrap()
    }
}

/// Runs `test` with the stub and a kubectl for it.
async fn with_kubectl(test: impl AsyncFnOnce(&Stub, Kubectl<'_>)) {
    let Some(program): Option<PathBuf> = podplane_test_requirements::kubectl() else {
        return;
    };
    let stub = Stub::default();
    let mut tasks = JoinSet::new();
    let server = stub.serve(&mut tasks).await;
    let home = tempfile::tempdir().unwrap();
    let kubectl = Kubectl {
        program: &program,
        server: &server,
        home: home.path(),
    };
    test(&stub, kubectl).await;
}

/// The number of random objects to try.
fn cases() -> u64 {
    match std::env::var_os("PODPLANE_SOAK") {
        Some(_) => 1000,
        None => 12,
    }
}

/// kubectl sends the same object that it prints in a dry run.
#[tokio::test]
async fn kubectl_sends_the_object_that_it_prints() {
    with_kubectl(async |stub, kubectl| {
        for create in [
            "deployment web --image=nginx:1 --image=b --replicas=2 --port=80",
            "namespace n",
            "service clusterip s --tcp=80:8080 --clusterip=None",
            "service nodeport s --tcp=80:http --node-port=30000",
            "service externalname s --external-name=a.example",
        ] {
            // Printed by the type's own rules, which know nothing of protobuf.
            let dry = format!("create {create} --dry-run=client -o json");
            let printed = plain(kubectl.json(&dry).await);
            kubectl.run(&format!("create {create}")).await;
            let sent = stub.state().sent.take().unwrap();
            assert_eq!(plain(sent), printed, "{create}");
        }
    })
    .await;
}

/// Pods with all fields that this kubectl knows: kubectl reads them as JSON, and sends them as
/// protobuf.
#[tokio::test]
async fn random_pods_are_read_whole() {
    with_kubectl(async |stub, kubectl| {
        for seed in 0..cases() {
            let mut pod = Random::new(seed, Zeros::Never).object(POD);
            pod["metadata"] = json!({"name": "p", "namespace": "default", "labels": {"a": "b"}});
            pod["spec"]["shareProcessNamespace"] = true.into();
            let spec = pod["spec"].as_object_mut().unwrap();
            // A copy for a debugger does not have these.
            spec.remove("ephemeralContainers");
            spec.entry("containers").or_insert(json!([{"name": "c"}]));
            // kubectl relies on it, since every server sets it.
            spec.entry("securityContext").or_insert(json!({}));
            stub.state().pod = pod.clone();
            kubectl
                .run("debug p --copy-to=q --image=i --container=debugger --attach=false --profile=general --same-node --share-processes --keep-annotations --keep-init-containers --keep-labels --keep-liveness --keep-readiness --keep-startup")
                .await;
            let mut sent = stub.state().sent.take().unwrap();
            let debugger = sent["spec"]["containers"].as_array_mut().unwrap().pop();
            assert_eq!(debugger.unwrap()["name"], "debugger");
            let (sent, spec) = (plain(sent["spec"].take()), plain(pod["spec"].take()));
            assert_eq!(sent, spec, "seed {seed}");
        }
    })
    .await;
}

/// Go reads the same from our encoding as from JSON.
#[tokio::test]
async fn random_deployments_are_written_whole() {
    with_kubectl(async |stub, kubectl| {
        for seed in 0..cases() {
            let deployment = Random::new(seed, Zeros::Sometimes).object(DEPLOYMENT);
            let command = "create deployment d --image=i -o json --show-managed-fields";
            stub.state().answer = Some(("application/json", deployment.to_string().into_bytes()));
            let from_json = kubectl.json(command).await;
            let encoded = kubernetes::encode(&deployment).unwrap();
            stub.state().answer = Some((kubernetes::MEDIA_TYPE, encoded));
            let from_protobuf = kubectl.json(command).await;
            assert_eq!(from_protobuf, from_json, "seed {seed}");
        }
    })
    .await;
}

#[tokio::test]
async fn kubectl_reads_lists_and_watches() {
    with_kubectl(async |stub, kubectl| {
        let event = |name: &str| json!({"metadata": {"name": name, "namespace": "default"}, "involvedObject": {"kind": "Pod", "name": "p"}, "reason": "Why", "message": name, "lastTimestamp": "2026-11-21T02:25:48Z", "eventTime": null});
        let list = json!({"kind": "EventList", "apiVersion": "v1", "metadata": {"resourceVersion": "7", "remainingItemCount": 0}, "items": [event("a"), event("b")]});
        stub.state().answer = Some(("application/json", list.to_string().into_bytes()));
        let from_json = kubectl.json("events -o json").await;
        assert_eq!(from_json["items"].as_array().unwrap().len(), 2, "{from_json}");
        let encoded = kubernetes::encode(&list).unwrap();
        stub.state().answer = Some((kubernetes::MEDIA_TYPE, encoded));
        assert_eq!(kubectl.json("events -o json").await, from_json);
        // It ends when the server ends the stream.
        let watched = kubectl.run("events --watch").await;
        assert!(watched.contains("seen by the watch"), "{watched}");
    })
    .await;
}

/// Drops the values that Go writes for unset fields.
fn plain(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(name, value)| (name, plain(value)));
            let zeros = [Value::Null, json!({}), json!("0"), json!(0)];
            let says = |value: &Value| !zeros.contains(value);
            let fields: Map<_, _> = fields.filter(|(_, value)| says(value)).collect();
            fields.into()
        }
        Value::Array(items) => items.into_iter().map(plain).collect(),
        scalar => scalar,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Zeros {
    Never,
    Sometimes,
}

/// Random objects by the published definitions.
struct Random {
    rng: TestRng,
    zeros: Zeros,
    definitions: Map<String, Value>,
}

impl Random {
    fn new(seed: u64, zeros: Zeros) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let mut definitions = definitions();
        for (name, definition) in &mut definitions {
            let name = name.rsplit('.').next().unwrap();
            for (_, field) in peer::SINCE_1_34.iter().filter(|(of, _)| *of == name) {
                definition["properties"]
                    .as_object_mut()
                    .unwrap()
                    .remove(*field)
                    .unwrap();
            }
        }
        Self {
            rng: TestRng::from_seed(RngAlgorithm::ChaCha, &bytes),
            zeros,
            definitions,
        }
    }

    fn below(&mut self, n: usize) -> usize {
        self.rng.random_range(0..n)
    }

    fn pick(&mut self, from: &[Value]) -> Value {
        let first = match self.zeros {
            Zeros::Never => 1,
            Zeros::Sometimes => 0,
        };
        from[first + self.below(from.len() - first)].clone()
    }

    fn object(&mut self, definition: &str) -> Value {
        let schema = self.definitions[definition].clone();
        let mut object = self.value(&schema, 12);
        let kind = &schema["x-kubernetes-group-version-kind"][0];
        let part = |part: &str| kind[part].as_str().unwrap();
        object["apiVersion"] = match part("group") {
            "" => part("version").into(),
            group => format!("{group}/{}", part("version")).into(),
        };
        object["kind"] = part("kind").into();
        for part in ["metadata", "spec"] {
            if object[part].is_null() {
                object[part] = json!({});
            }
        }
        object
    }

    /// The first of the values to pick from is the zero of its type.
    fn value(&mut self, schema: &Value, depth: usize) -> Value {
        let target = schema["$ref"]
            .as_str()
            .or(schema["allOf"][0]["$ref"].as_str());
        if let Some(name) = target.and_then(|target| target.rsplit('/').next()) {
            return match name.rsplit('.').next().unwrap() {
                "Quantity" => self.pick(&[json!("0"), json!("100m"), json!("1Gi"), json!("2")]),
                "Time" => json!("2026-11-21T02:25:48Z"),
                "MicroTime" => json!("2026-11-21T02:25:48.000120Z"),
                "IntOrString" => self.pick(&[json!(0), json!(8080), json!("http"), json!("25%")]),
                "FieldsV1" => json!({"f:spec": {"f:replicas": {}}}),
                _ => {
                    let schema = self.definitions[name].clone();
                    self.value(&schema, depth)
                }
            };
        }
        match schema["type"].as_str().unwrap_or("object") {
            "string" => self.pick(&[json!(""), json!("a"), json!("b"), json!("ü/ \"x")]),
            "boolean" => self.pick(&[json!(false), json!(true)]),
            "integer" => self.pick(&[json!(0), json!(1), json!(7), json!(i32::MAX), json!(-3)]),
            "array" => {
                let items = 1 + self.below(2);
                (0..items)
                    .map(|_| self.value(&schema["items"], depth - 1))
                    .collect()
            }
            _ if schema["additionalProperties"].is_object() => {
                let value = self.value(&schema["additionalProperties"], depth - 1);
                json!({"some.key/a": value})
            }
            _ => {
                let properties = schema["properties"]
                    .as_object()
                    .cloned()
                    .unwrap_or_default();
                // Deep objects have fewer fields, or they would never end.
                let percent = if depth > 6 { 60 } else { 30 };
                let mut object = Map::new();
                for (name, property) in properties {
                    if depth > 1 && self.below(100) < percent {
                        object.insert(name, self.value(&property, depth - 1));
                    }
                }
                object.into()
            }
        }
    }
}
