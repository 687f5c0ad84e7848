//! The metrics that every process serves over HTTP, read by the parser of Prometheus' own client.

use std::{collections::BTreeMap, path::Path, process::Command};

use anyhow::{Context as _, Result};
use podplane_tests::{Cluster, Network, builder, eventually, peers, programs::finish};
use serde::Deserialize;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/metrics.py");

/// The allowed labels. None has names of objects; `node` is one of a process's own nodes.
const LABELS: [&str; 27] = [
    "attempts",
    "code",
    "command",
    "execute",
    "flow_schema",
    "group",
    "kind",
    "le",
    "name",
    "node",
    "operation_type",
    "plugin",
    "priority_level",
    "profile",
    "queue",
    "reason",
    "request_kind",
    "resource",
    "result",
    "state",
    "subresource",
    "type",
    "verb",
    "version",
    "clusterCIDR",
    "clusterCIDRName",
    "to",
];

#[derive(Debug, Deserialize)]
struct Family {
    #[serde(rename = "type")]
    kind: String,
    help: String,
    labels: Vec<String>,
    samples: usize,
    sum: f64,
}

type Families = BTreeMap<String, Family>;

fn read(python: &str, pki: &Path, address: &str) -> Families {
    let url = match address.starts_with("https://") {
        true => format!("{address}/metrics"),
        false => format!("http://{address}/metrics"),
    };
    let mut parse = Command::new("python3");
    let parse = parse.args([SCRIPT, &url]).arg(pki);
    let text = finish(parse.env("PYTHONPATH", python)).ok();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The metrics that each process must have, with their types, besides those of all processes.
fn wanted(process: &str) -> &'static [(&'static str, &'static str)] {
    match process.split('-').next() {
        Some("apiserver") => &[
            ("apiserver_request", "counter"),
            ("apiserver_request_duration_seconds", "histogram"),
            ("apiserver_current_inflight_requests", "gauge"),
            ("apiserver_longrunning_requests", "gauge"),
            ("apiserver_watch_events", "counter"),
            ("apiserver_storage_objects", "gauge"),
            ("apiserver_flowcontrol_nominal_limit_seats", "gauge"),
            ("apiserver_flowcontrol_dispatched_requests", "counter"),
        ],
        Some("ipam") => &[
            ("node_ipam_controller_cidrset_cidrs_allocations", "counter"),
            ("node_ipam_controller_cidrset_usage_cidrs", "gauge"),
            ("workqueue_depth", "gauge"),
            ("workqueue_adds", "counter"),
            ("workqueue_queue_duration_seconds", "histogram"),
            ("podplane_node_blocks", "gauge"),
            ("podplane_node_blocks_held_longest_seconds", "gauge"),
            ("podplane_pod_ip_duplicates", "gauge"),
            ("leader_election_master_status", "gauge"),
        ],
        Some("controller") => &[
            ("workqueue_depth", "gauge"),
            ("workqueue_retries", "counter"),
            ("workqueue_work_duration_seconds", "histogram"),
            ("workqueue_unfinished_work_seconds", "gauge"),
            ("workqueue_longest_running_processor_seconds", "gauge"),
            ("leader_election_master_status", "gauge"),
        ],
        Some("scheduler") => &[
            ("scheduler_pending_pods", "gauge"),
            ("scheduler_schedule_attempts", "counter"),
            ("scheduler_scheduling_attempt_duration_seconds", "histogram"),
            ("scheduler_pod_scheduling_attempts", "histogram"),
            ("scheduler_pod_scheduling_sli_duration_seconds", "histogram"),
            ("scheduler_cache_size", "gauge"),
            ("leader_election_master_status", "gauge"),
            ("podplane_node_pod_ips_capacity", "gauge"),
            ("podplane_node_pod_ips_used", "gauge"),
            ("podplane_node_pod_ips_orphaned", "gauge"),
        ],
        Some("kubelet") => &[
            ("kubelet_running_pods", "gauge"),
            ("kubelet_runtime_operations", "counter"),
            ("kubelet_runtime_operations_duration_seconds", "histogram"),
            ("kubelet_pod_start_duration_seconds", "histogram"),
            ("podplane_node_pod_ips_capacity", "gauge"),
            ("podplane_node_pod_ips_used", "gauge"),
            ("podplane_node_pod_ips_orphaned", "gauge"),
            ("podplane_node_pod_ips", "gauge"),
        ],
        Some("cri") => &[
            ("containerd_cri_network_plugin_operations", "counter"),
            (
                "containerd_cri_network_plugin_operations_duration_seconds",
                "histogram",
            ),
            ("podplane_cni_plugin_duration_seconds", "histogram"),
            ("podplane_cri_sandboxes", "gauge"),
        ],
        _ => &[],
    }
}

/// The metrics that every process has of itself.
const OF_ALL: [(&str, &str); 5] = [
    ("podplane_build", "info"),
    ("process_cpu_seconds", "counter"),
    ("process_resident_memory_bytes", "gauge"),
    ("process_open_fds", "gauge"),
    ("process_start_time_seconds", "gauge"),
];

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_parses_the_metrics_of_every_process() -> Result<()> {
    let Some(python) = peers::python_prometheus() else {
        return Ok(());
    };
    // One node with one address, so that one of two pods waits.
    let builder = builder(Network::Ledger).nodes(1).node_cidr_mask_size(30);
    let Some(cluster) = Cluster::up(builder).await? else {
        return Ok(());
    };
    cluster.podplane("run web --replicas 2").ok();
    let one_runs = |pods: &[podplane_api::core::Pod]| {
        let ips = pods
            .iter()
            .filter_map(|pod| pod.status.as_ref()?.pod_ip.as_ref());
        ips.count() == 1
    };
    cluster.pods_until("one pod runs", one_runs).await;

    let (status, pki) = (cluster.status().await?, cluster.pki_dir());
    let services = status.services.iter();
    let mut addresses: BTreeMap<_, _> = services
        .map(|service| (service.name.clone(), service.http_address.clone()))
        .collect();
    addresses.insert("supervisor".into(), status.http_address.clone());
    assert_eq!(addresses.len(), 7, "{addresses:?}");
    for (process, address) in &addresses {
        let families = read(&python, &pki, address);
        for (name, kind) in wanted(process).iter().chain(&OF_ALL) {
            let family = families.get(*name);
            let family = family.with_context(|| format!("{process} has {name}: {families:#?}"))?;
            assert_eq!(family.kind, *kind, "{process}: {name}");
            assert!(family.samples > 0, "{process}: {name} has samples");
        }
        for (name, family) in &families {
            assert_ne!(family.help, "", "{process}: {name}");
            let labels = family.labels.iter().map(String::as_str);
            let strange: Vec<_> = labels.filter(|label| !LABELS.contains(label)).collect();
            assert_eq!(strange, [""; 0], "{process}: {name}");
        }
        let rest = cluster.http(address)?;
        for probe in ["/livez", "/readyz", "/healthz"] {
            let answer = rest.get(probe).await?;
            assert_eq!(
                (answer.code, answer.body),
                (200, "ok".into()),
                "{process}{probe}"
            );
        }
    }

    let of = |process: &str| {
        let mut named = addresses.iter();
        let (_, address) = named
            .find(|(name, _)| name.starts_with(process))
            .expect("it runs");
        let (python, pki, address) = (python.clone(), pki.clone(), address.clone());
        move || {
            let families = read(&python, &pki, &address);
            std::future::ready(families)
        }
    };
    let sum = |families: &Families, name: &str| families.get(name).map_or(0.0, |family| family.sum);
    let pending = |families: &Families| {
        sum(families, "scheduler_pending_pods") >= 1.0
            && sum(families, "scheduler_unschedulable_pods") >= 1.0
    };
    let scheduler = eventually("one pod waits", of("scheduler"), pending).await;
    assert!(sum(&scheduler, "scheduler_schedule_attempts") >= 2.0);
    let running = |families: &Families| sum(families, "kubelet_running_pods") == 1.0;
    let kubelet = eventually("one pod runs", of("kubelet"), running).await;
    assert_eq!(sum(&kubelet, "podplane_node_pod_ips_capacity"), 1.0);
    assert_eq!(sum(&kubelet, "kubelet_pod_start_duration_seconds"), 1.0);
    let ready = |families: &Families| sum(families, "podplane_cri_sandboxes") == 1.0;
    eventually("one sandbox is there", of("cri"), ready).await;
    cluster.finish().await
}
