//! Decisions of the scheduler without an API server: pods are queued, decided, and confirmed as the
//! watch would do. Called by `cargo xtask bench scheduler`; prints one JSON object.

use std::{collections::HashMap, process::ExitCode, sync::Arc, time::Duration};

use podplane_api::{
    Object as _,
    apps::ReplicaSet,
    core::{Pod, Service},
    pod_ips::PodIpResource,
};
use podplane_host::clock::Instant;
use podplane_ipam::IpPolicy;
use podplane_scheduler::{
    pod::PodReader,
    scheduler::{Attempt, Scheduler},
};
use podplane_test_support::{NodeBuilder, PodBuilder};
use serde_json::{Value, from_value, json};

const NODES: u32 = 5_000;
const PODS: u32 = 20_000;
const CLASSES: u32 = 50;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let row = args.next().unwrap_or_default();
    // cargo adds `--bench`.
    let quick = args.any(|arg| arg == "--quick");
    let rounds = if quick { 1 } else { 5 };
    let measure: fn() -> f64 = match row.as_str() {
        "plain" => || pods_per_second(&|n| plain(n), 0),
        "classes" => || pods_per_second(&|n| of_class(n), 0),
        "workloads" => || pods_per_second(&|n| of_workload(n), CLASSES),
        "nowhere" => nowhere,
        _ => {
            print_line(&format!(
                "unknown row {row:?}: plain, classes, workloads or nowhere"
            ));
            return ExitCode::FAILURE;
        }
    };
    let ours: Vec<f64> = (0..rounds).map(|_| measure()).collect();
    print_line(&json!({"ours": ours, "theirs": []}).to_string());
    ExitCode::SUCCESS
}

#[expect(clippy::print_stdout, reason = "the output of a benchmark")]
fn print_line(line: &str) {
    println!("{line}");
}

/// A node with a /24, in one of three zones; a tenth of them have SSDs, and a tenth a taint.
fn node(n: u32) -> NodeBuilder {
    let (name, zone) = (format!("node-{n}"), format!("zone-{}", n % 3));
    let disk = if n.is_multiple_of(10) { "ssd" } else { "hdd" };
    let node = NodeBuilder::new(&name)
        .block(&format!("10.{}.{}.0/24", n / 256, n % 256), 253)
        .offer("cpu", "32")
        .offer("memory", "256Gi")
        .label("kubernetes.io/hostname", &name)
        .label("topology.kubernetes.io/zone", &zone)
        .label("disk", disk);
    match n % 10 {
        5 => node.taint("dedicated", "batch", "NoSchedule"),
        _ => node,
    }
}

/// The pod of the reference's benchmarks.
fn plain(n: u32) -> PodBuilder {
    PodBuilder::new(&format!("pod-{n}"))
        .ask("cpu", "100m")
        .ask("memory", "500Mi")
        .set(
            "/metadata/labels",
            json!({"app": format!("app-{}", n % CLASSES)}),
        )
}

/// A pod of one of the classes: 10 % are spread over zones and nodes, 5 % have affinity or
/// anti-affinity, 20 % prefer nodes, and the same tolerate the taint.
fn of_class(n: u32) -> PodBuilder {
    let class = n % CLASSES;
    let labels = json!({"matchLabels": {"app": format!("app-{class}")}});
    let spread = |key: &str, when: &str| json!({"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": when, "labelSelector": labels});
    let term = |key: &str| json!({"topologyKey": key, "labelSelector": labels});
    let affinity = |pod: PodBuilder, value: Value| pod.set("/spec/affinity", value);
    const ZONE: &str = "topology.kubernetes.io/zone";
    const HOST: &str = "kubernetes.io/hostname";
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    let pod = plain(n);
    match class {
        0..3 => pod.set(
            "/spec/topologySpreadConstraints",
            json!([spread(ZONE, "DoNotSchedule")]),
        ),
        3..5 => pod.set(
            "/spec/topologySpreadConstraints",
            json!([
                spread(ZONE, "DoNotSchedule"),
                spread(HOST, "ScheduleAnyway")
            ]),
        ),
        5 => affinity(pod, json!({"podAntiAffinity": {REQUIRED: [term(HOST)]}})),
        6 => affinity(pod, json!({"podAffinity": {REQUIRED: [term(ZONE)]}})),
        10..20 => {
            let ssd = json!({"key": "disk", "operator": "In", "values": ["ssd"]});
            let preferred = json!({"weight": 10, "preference": {"matchExpressions": [ssd]}});
            affinity(pod, json!({"nodeAffinity": {PREFERRED: [preferred]}})).tolerate("dedicated")
        }
        _ => pod,
    }
}

/// A pod of one of as many ReplicaSets, each behind a Service.
fn of_workload(n: u32) -> PodBuilder {
    let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "uid": "u",
        "name": format!("app-{}", n % CLASSES), "controller": true});
    plain(n).set("/metadata/ownerReferences", json!([owner]))
}

/// The Service and the ReplicaSet of a class.
fn workload(class: u32) -> (Service, ReplicaSet) {
    let name = format!("app-{class}");
    let (metadata, labels) = (
        json!({"name": name, "namespace": "default"}),
        json!({"app": name}),
    );
    let service = json!({"metadata": metadata, "spec": {"selector": labels}});
    let set = json!({"metadata": metadata, "spec": {"selector": {"matchLabels": labels}}});
    let typed = "the fields have their types";
    (
        from_value(service).expect(typed),
        from_value(set).expect(typed),
    )
}

fn scheduler(node: impl Fn(u32) -> NodeBuilder) -> Scheduler {
    let mut scheduler = Scheduler::new(IpPolicy::Resource);
    for n in 0..NODES {
        scheduler.apply_node(Arc::new(node(n).node()), Duration::ZERO);
    }
    scheduler
}

/// The pod as the watch delivers it after its binding.
fn bound(pod: &Pod, node: &str) -> Pod {
    let mut pod = pod.clone();
    pod.spec.get_or_insert_default().node_name = Some(node.to_owned());
    pod
}

/// Pods per second, from the queue to the confirmed binding.
fn pods_per_second(pod: &dyn Fn(u32) -> PodBuilder, workloads: u32) -> f64 {
    let mut scheduler = scheduler(node);
    let mut reader = PodReader::new(PodIpResource::default());
    let mut objects = HashMap::new();
    for class in 0..workloads {
        let (service, set) = workload(class);
        scheduler.apply_service(&service);
        scheduler.apply_replica_set(&set);
    }
    for n in 0..PODS {
        let object = pod(n).pod();
        scheduler.apply_pod(Arc::new(reader.read(&object)), Duration::ZERO);
        objects.insert(object.key(), object);
    }
    let mut placed = 0_u32;
    let started = Instant::now();
    while let Some(Attempt { pod, outcome, .. }) = scheduler.attempt(started.elapsed()) {
        let node = outcome.expect("every pod fits");
        let object = objects.get(&pod.key).expect("the pod was created");
        let bound = reader.read(&bound(object, node.as_str()));
        scheduler.apply_pod(Arc::new(bound), started.elapsed());
        placed += 1;
    }
    let rate = f64::from(placed) / started.elapsed().as_secs_f64();
    assert_eq!(placed, PODS);
    rate
}

/// Microseconds of an attempt when no node has an address.
fn nowhere() -> f64 {
    const ATTEMPTS: u32 = 500;
    let full = |n| {
        let node = node(n).offer(podplane_api::pod_ips::POD_IPS, "5");
        node.allocated("5")
    };
    let mut scheduler = scheduler(full);
    let mut reader = PodReader::new(PodIpResource::default());
    for n in 0..ATTEMPTS {
        let pod = reader.read(&plain(n).pod());
        scheduler.apply_pod(Arc::new(pod), Duration::ZERO);
    }
    let started = Instant::now();
    for _ in 0..ATTEMPTS {
        let attempt = scheduler.attempt(Duration::ZERO).expect("a pod is waiting");
        assert!(attempt.outcome.is_err());
    }
    started.elapsed().as_secs_f64() * 1e6 / f64::from(ATTEMPTS)
}
