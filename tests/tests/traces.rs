//! The journey of a pod as a trace: in a collector from elsewhere, in `podplane trace`, and in the
//! pod's log.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, Result};
use http::Method;
use podplane_http_client::HttpClient;
use podplane_tests::{Cluster, Network, builder, eventually, peers, programs::finish};
use serde_json::{Value, json};

const COLLECTOR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/otlp_collector.py");
const CLIENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/client.py");
/// The trace of a caller who asks for a pod.
const CALLER: &str = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// A span as a collector has it.
#[derive(Clone, Debug)]
struct Span(Value);

impl Span {
    fn text(&self, field: &str) -> &str {
        self.0[field].as_str().unwrap_or_default()
    }

    fn number(&self, field: &str) -> u64 {
        self.0[field].as_u64().unwrap_or_default()
    }

    fn attribute(&self, key: &str) -> &str {
        self.0["attributes"][key].as_str().unwrap_or_default()
    }

    /// The service and the name of the span.
    fn step(&self) -> String {
        format!("{}/{}", self.text("service"), self.text("name"))
    }

    fn is_root(&self) -> bool {
        self.text("parent").is_empty()
    }
}

/// A collector: OpenTelemetry's own messages in Python's gRPC server.
struct Collector {
    child: Child,
    port: u16,
    /// The collector ends when this is closed.
    lifeline: Option<ChildStdin>,
    spans: Arc<Mutex<Vec<Span>>>,
    reader: Option<JoinHandle<()>>,
}

impl Collector {
    fn start(python: &str) -> Result<Self> {
        let mut child = Command::new("python3")
            .args([COLLECTOR, "127.0.0.1:0"])
            .env("PYTHONPATH", python)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let lifeline = child.stdin.take();
        let mut lines = BufReader::new(child.stdout.take().context("a pipe")?).lines();
        let port = lines.next().context("the collector says its port")??;
        let spans = Arc::<Mutex<Vec<Span>>>::default();
        let reader = thread::spawn({
            let spans = spans.clone();
            move || {
                for line in lines.map_while(Result::ok) {
                    let span = serde_json::from_str(&line).expect("a span");
                    let mut spans = spans.lock().unwrap_or_else(PoisonError::into_inner);
                    spans.push(Span(span));
                }
            }
        });
        Ok(Self {
            child,
            port: port.parse()?,
            lifeline,
            spans,
            reader: Some(reader),
        })
    }

    fn of_trace(&self, trace: &str) -> Vec<Span> {
        let spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        let of_trace = spans.iter().filter(|span| span.text("trace") == trace);
        of_trace.cloned().collect()
    }

    /// Waits until every step of a pod's creation is there.
    async fn complete(&self, pod: &Value) -> Vec<Span> {
        let trace = trace_of(pod);
        let look = async || self.of_trace(&trace);
        let is_complete = |spans: &Vec<Span>| {
            let there: BTreeSet<_> = spans.iter().map(Span::step).collect();
            STEPS.iter().all(|(step, _)| there.contains(*step))
        };
        eventually("every step is in the collector", look, is_complete).await
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        _ = self.child.kill();
        _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            _ = reader.join();
        }
    }
}

/// The steps of a pod in ledger mode, as SERVICE/NAME, each with its parent.
const STEPS: [(&str, &str); 14] = [
    ("apiserver/create", ""),
    ("scheduler/queue", "apiserver/create"),
    ("scheduler/schedule", "apiserver/create"),
    ("scheduler/bind", "apiserver/create"),
    ("apiserver/bind", "scheduler/bind"),
    ("kubelet/sync", "apiserver/create"),
    ("kubelet/admit", "kubelet/sync"),
    ("kubelet/RunPodSandbox", "kubelet/sync"),
    ("cri/RunPodSandbox", "kubelet/RunPodSandbox"),
    ("cri/CNI ADD", "cri/RunPodSandbox"),
    ("cri/ADD host-local", "cri/CNI ADD"),
    ("cri/allocate", "cri/ADD host-local"),
    ("kubelet/status Running", "kubelet/sync"),
    ("apiserver/status Running", "kubelet/status Running"),
];

/// Each span with its parent, as SERVICE/NAME. Checks that every parent exists, and the times of
/// both.
fn steps_of(spans: &[Span]) -> BTreeSet<(String, String)> {
    let by_id: BTreeMap<_, _> = spans.iter().map(|span| (span.text("id"), span)).collect();
    let roots = spans.iter().filter(|span| span.is_root()).count();
    assert_eq!(roots, 1, "{spans:#?}");
    let pair = |span: &Span| {
        assert!(span.number("start") <= span.number("end"), "{span:?}");
        if span.is_root() {
            return (span.step(), String::new());
        }
        let parent = by_id.get(span.text("parent"));
        let parent = parent.unwrap_or_else(|| panic!("no parent of {span:?} in {spans:#?}"));
        assert!(
            parent.number("start") <= span.number("start"),
            "{span:?} begins before {parent:?}"
        );
        // Steps caused by the request for the pod go on after it was answered.
        assert!(
            parent.is_root() || span.number("end") <= parent.number("end"),
            "{span:?} ends after {parent:?}"
        );
        (span.step(), parent.step())
    };
    spans.iter().map(pair).collect()
}

fn root_of(spans: &[Span]) -> &Span {
    let root = spans.iter().find(|span| span.is_root());
    root.expect("a trace has a root")
}

fn uid_of(pod: &Value) -> &str {
    pod["metadata"]["uid"].as_str().expect("a UID")
}

fn trace_of(pod: &Value) -> String {
    uid_of(pod).replace('-', "")
}

fn spec() -> Value {
    json!({"containers": [{"name": "c", "image": "pause"}]})
}

#[tokio::test(flavor = "multi_thread")]
async fn the_journey_of_a_pod_is_one_trace_in_a_foreign_collector() -> Result<()> {
    let (Some(python), Some(of_client)) = (peers::python_collector(), peers::python()) else {
        return Ok(());
    };
    let collector = Collector::start(&python)?;
    let endpoint = format!("http://127.0.0.1:{}", collector.port);
    let flags = builder(Network::Ledger)
        .nodes(1)
        .flag("--otlp-endpoint", endpoint);
    let Some(cluster) = Cluster::up(flags).await? else {
        return Ok(());
    };
    cluster.podplane("run web --wait").ok();
    let pod = cluster.get("pod web");
    let spans = collector.complete(&pod).await;
    let steps = steps_of(&spans);
    for (step, parent) in STEPS {
        let pair = (step.to_owned(), parent.to_owned());
        assert!(steps.contains(&pair), "{pair:?} is not in {steps:#?}");
    }
    let allocated = spans.iter().find(|span| span.text("name") == "allocate");
    let allocated = allocated.context("host-local tells which address it gave")?;
    assert_eq!(
        allocated.attribute("podplane.pod.ips"),
        pod["status"]["podIP"]
    );
    assert_eq!(allocated.attribute("k8s.node.name"), "node-0");
    assert_eq!(root_of(&spans).attribute("k8s.pod.name"), "web");
    assert_eq!(root_of(&spans).attribute("k8s.pod.uid"), uid_of(&pod));
    assert_eq!(root_of(&spans).0["links"], json!([]));

    // A caller whose request is part of a trace of its own finds the pod's trace linked, through
    // either face.
    let traceparent = format!("00-{CALLER}-01");
    let document =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "by-rest"}, "spec": spec()});
    let headers = [
        ("content-type", "application/json"),
        ("traceparent", traceparent.as_str()),
    ];
    let rest = cluster.http(cluster.server())?;
    let by_rest = rest.exchange(Method::POST, PODS, &headers, document.to_string());
    let by_rest = by_rest.await?.body;
    let request = json!({"pod": {"metadata": {"name": "by-grpc"}, "spec": spec()}}).to_string();
    let by_grpc = finish(
        Command::new("python3")
            .args([CLIENT, "call", cluster.server()])
            .args(["podplane.core.v1.PodService", "CreatePod", &request])
            .env("TRACEPARENT", &traceparent)
            .env("PYTHONPATH", of_client)
            .env("PKI", cluster.pki_dir()),
    );
    let by_grpc = serde_json::from_str(&by_grpc.ok())?;
    for pod in [by_rest, by_grpc] {
        let spans = collector.complete(&pod).await;
        steps_of(&spans);
        assert_eq!(root_of(&spans).0["links"], json!([CALLER]));
    }

    // A removed pod is remembered by name and by UID, and its end is a trace of its own.
    cluster.podplane("delete pod web").ok();
    let shown = cluster.podplane("trace pod web").ok();
    assert!(
        shown.contains("Running on node-0 with") && shown.contains("\ndeletion\n"),
        "{shown}"
    );
    let told = cluster.podplane(&format!("trace pod {} -o json", uid_of(&pod)));
    let told: Value = serde_json::from_str(&told.ok())?;
    assert_eq!(told["name"], "web");
    let has = |part: &str, step: &str| {
        let spans = told[part]["spans"].as_array();
        let mut spans = spans.into_iter().flatten();
        spans.any(|span| span["name"] == step)
    };
    assert!(has("creation", "allocate"), "{told:#}");
    for step in [
        "delete",
        "StopPodSandbox",
        "DEL host-local",
        "release",
        "remove",
    ] {
        assert!(has("deletion", step), "{step}: {told:#}");
    }
    let refused = cluster.podplane("trace pod nobody").failed(1);
    let expected = "no trace of pod default/nobody is remembered";
    assert!(refused.contains(expected), "{refused}");
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_waterfall_and_the_log_show_the_journey_of_a_pod() -> Result<()> {
    let Some(cluster) = Cluster::up(builder(Network::Ledger).nodes(1)).await? else {
        return Ok(());
    };
    cluster.podplane("run web --wait").ok();
    let pod = cluster.get("pod web");
    let ip = pod["status"]["podIP"].as_str().unwrap_or_default();
    let shown = cluster.podplane("trace pod web").ok();
    let log = text(&cluster.http(cluster.server())?, &format!("{PODS}/web/log")).await?;
    let heading = format!("Running on node-0 with {ip} after ");
    assert!(shown.contains(&heading), "{shown}");
    let running = log.find("Running: on node node-0");
    assert!(running.is_some() && running < log.find("\ntrace "), "{log}");
    for (name, also) in [
        ("create", "apiserver"),
        ("schedule", "node-0"),
        ("bind", "scheduler"),
        ("RunPodSandbox", "cri node-0"),
        ("ADD host-local", "host-local node-0"),
        ("allocate", ip),
        ("status Running", "kubelet node-0"),
    ] {
        for text in [&shown, &log] {
            let is_it = |line: &&str| {
                let name = format!("{name}  ");
                line.contains(&name) && line.contains(also) && line.contains('▕')
            };
            assert!(
                text.lines().any(|line| is_it(&line)),
                "{name} {also}: {text}"
            );
        }
    }
    cluster.finish().await
}

/// True if a cluster with `--trace-sampling-ratio 0.5` records the pod: the last 56 bits of its UID
/// are in the upper half.
fn is_sampled(pod: &Value) -> bool {
    let trace = trace_of(pod);
    let random = u64::from_str_radix(&trace[trace.len() - 14..], 16).expect("a UID has hex digits");
    random >= 1 << 55
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sampled_trace_is_whole_and_others_have_no_span() -> Result<()> {
    let flags = builder(Network::Ledger)
        .nodes(1)
        .flag("--trace-sampling-ratio", "0.5");
    let Some(cluster) = Cluster::up(flags).await? else {
        return Ok(());
    };
    let (mut sampled, mut others) = (Vec::new(), Vec::new());
    // The UIDs are random: one of 2^40 runs finds only pods of one kind.
    for n in 0..40 {
        cluster.podplane(&format!("run web-{n} --wait")).ok();
        let pod = cluster.get(&format!("pod web-{n}"));
        match is_sampled(&pod) {
            true => sampled.push(format!("web-{n}")),
            false => others.push(format!("web-{n}")),
        }
        // A sampled one comes last: its spans come after all those of the others.
        if !others.is_empty() && is_sampled(&pod) {
            break;
        }
    }
    for name in &sampled {
        let look = async || cluster.podplane(&format!("trace pod {name} -o json")).ok();
        let is_whole = |told: &String| {
            let told: Value = serde_json::from_str(told).expect("JSON");
            let spans = told["creation"]["spans"].as_array().expect("spans").iter();
            let steps: BTreeSet<_> = spans
                .map(|span| {
                    let text = |field: &str| span[field].as_str().unwrap_or_default().to_owned();
                    format!("{}/{}", text("service"), text("name"))
                })
                .collect();
            STEPS.iter().all(|(step, _)| steps.contains(*step))
        };
        eventually("every step is in the trace", look, is_whole).await;
    }
    assert!(!sampled.is_empty());
    let other = others.first().context("a pod that is not sampled")?;
    let why = "is not traced: its UID is not among the share of pods that --trace-sampling-ratio 0.5 records";
    for (name, why) in [
        (other.as_str(), why),
        ("nobody", "it was not sampled (--trace-sampling-ratio 0.5)"),
    ] {
        let refused = cluster.podplane(&format!("trace pod {name}")).failed(1);
        assert!(refused.contains(why), "{refused}");
    }

    let refused = cluster.podplane("up --trace-sampling-ratio 1.5").failed(2);
    for part in ["'1.5'", "--trace-sampling-ratio", "from 0.0", "to 1.0"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_plugins_get_the_trace_and_a_missing_collector_does_no_harm() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let seen = dir.path().join("seen");
    let script = format!(
        r#"#!/bin/sh
config=$(cat)
case $CNI_COMMAND in
VERSION) echo '{{"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0"]}}';;
ADD) echo "$TRACEPARENT" >> {}
     echo '{{"cniVersion": "1.0.0", "ips": [{{"address": "10.244.0.7/24"}}]}}';;
# By its name it is host-local, so the file that the runtime finds missing is written for it.
DEL) find "$(echo "$config" | sed 's/.*"dataDir": *"\([^"]*\)".*/\1/')" -name 10.244.0.7 -delete;;
esac
"#,
        seen.display()
    );
    for plugin in ["bridge", "host-local", "loopback"] {
        executable(&dir.path().join(plugin), &script)?;
    }
    // No process listens on port 9, to which the cluster is to send its spans.
    let flags = builder(Network::Ledger)
        .nodes(1)
        .cni_bin_dir(dir.path())
        .flag("--otlp-endpoint", "http://127.0.0.1:9");
    let Some(cluster) = Cluster::up(flags).await? else {
        return Ok(());
    };
    cluster.podplane("run web --wait").ok();
    let pod = cluster.get("pod web");
    let told: Value = serde_json::from_str(&cluster.podplane("trace pod web -o json").ok())?;
    let spans = told["creation"]["spans"].as_array().context("spans")?;
    let executed = spans.iter().find(|span| span["name"] == "ADD host-local");
    let executed = &executed.context("the execution is a step")?["spanID"];
    let executed = executed.as_str().unwrap_or_default();
    let expected = format!("00-{}-{executed}-01", trace_of(&pod));
    assert_eq!(fs::read_to_string(&seen)?.trim(), expected);

    let rest = cluster.http(cluster.server())?;
    let metrics = async || text(&rest, "/metrics").await.unwrap_or_default();
    let dropped = r#"podplane_trace_spans_dropped_total{to="collector",reason="not_taken"}"#;
    let is_counted = |metrics: &String| metrics.contains(dropped);
    eventually("what nobody takes is counted", metrics, is_counted).await;
    cluster.podplane("delete pod web").ok();
    cluster.finish().await
}

async fn text(rest: &HttpClient, path: &str) -> Result<String> {
    let answer = rest.get(path).await?;
    Ok(answer.body.as_str().context("a text")?.to_owned())
}

fn executable(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}
