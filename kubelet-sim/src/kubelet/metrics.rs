//! Metrics of the kubelet, with the reference's names and buckets. Metrics of nodes' addresses have
//! names of our own, since the reference has none.

use std::{
    hash::Hash,
    sync::atomic::{AtomicI64, AtomicU64},
    time::Duration,
};

use futures::future::BoxFuture;
use podplane_api::jiff::Timestamp;
use podplane_host::clock::{self, Instant};
use podplane_ipam::{NodeAddresses, capacity::NodeCapacity};
use prometheus_client::{
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};
use tonic::{Response, Status};

use crate::ipam::AddressUsage;

/// Buckets of the start of pods in seconds, as in the reference.
const POD_START: [f64; 25] = [
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0,
    300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];

type OperationLabels = [(&'static str, &'static str); 1];
type NodeLabels = [(&'static str, String); 1];
type IpStateLabels = [(&'static str, String); 2];

/// The counters. Cloning shares them.
#[derive(Clone, Debug)]
pub struct KubeletMetrics {
    operations: Family<OperationLabels, Counter<u64, AtomicU64>>,
    errors: Family<OperationLabels, Counter<u64, AtomicU64>>,
    seconds: Family<OperationLabels, Histogram, fn() -> Histogram>,
    running: Gauge<i64, AtomicI64>,
    start: Histogram,
    rejections: Family<OperationLabels, Counter<u64, AtomicU64>>,
    capacity: Family<NodeLabels, Gauge<i64, AtomicI64>>,
    used: Family<NodeLabels, Gauge<i64, AtomicI64>>,
    orphaned: Family<NodeLabels, Gauge<i64, AtomicI64>>,
    ips: Family<IpStateLabels, Gauge<i64, AtomicI64>>,
}

/// A running pod, counted until this is dropped.
#[derive(Debug)]
pub struct RunningPodGuard(Gauge<i64, AtomicI64>);

impl Drop for RunningPodGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Default for KubeletMetrics {
    fn default() -> Self {
        Self {
            operations: Family::default(),
            errors: Family::default(),
            seconds: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.005, 2.5, 14))
            }),
            running: Gauge::default(),
            start: Histogram::new(POD_START),
            rejections: Family::default(),
            capacity: Family::default(),
            used: Family::default(),
            orphaned: Family::default(),
            ips: Family::default(),
        }
    }
}

impl KubeletMetrics {
    /// Creates the counters and registers them for `/metrics`.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        // The encoder adds `_total`.
        registry.register(
            "kubelet_runtime_operations",
            "Calls of the container runtime, by type",
            metrics.operations.clone(),
        );
        registry.register(
            "kubelet_runtime_operations_errors",
            "Calls of the container runtime that failed, by type",
            metrics.errors.clone(),
        );
        registry.register(
            "kubelet_runtime_operations_duration_seconds",
            "Seconds per call of the container runtime, by type",
            metrics.seconds.clone(),
        );
        registry.register(
            "kubelet_running_pods",
            "Pods with a sandbox that is ready",
            metrics.running.clone(),
        );
        registry.register(
            "kubelet_pod_start_duration_seconds",
            "Seconds from the creation of a pod until it ran",
            metrics.start.clone(),
        );
        registry.register(
            "kubelet_admission_rejections",
            "Pods that were not admitted, by reason",
            metrics.rejections.clone(),
        );
        registry.register(
            "podplane_node_pod_ips_capacity",
            "Pods that the node has addresses for, orphaned addresses included",
            metrics.capacity.clone(),
        );
        registry.register(
            "podplane_node_pod_ips_used",
            "Addresses that the pods bound to the node hold",
            metrics.used.clone(),
        );
        registry.register(
            "podplane_node_pod_ips_orphaned",
            "Addresses that are not free and that no pod bound to the node owns",
            metrics.orphaned.clone(),
        );
        registry.register(
            "podplane_node_pod_ips",
            "Addresses of the node's network that are taken: allocated to a sandbox, or leaked",
            metrics.ips.clone(),
        );
        metrics
    }

    /// Makes a call of the runtime; counts it, its time and its failure.
    ///
    /// # Errors
    ///
    /// The call's.
    pub fn call<'a, T>(
        &'a self,
        operation: &'static str,
        call: impl Future<Output = Result<Response<T>, Status>> + Send + 'a,
    ) -> BoxFuture<'a, Result<T, Status>> {
        let labels = [("operation_type", operation)];
        // Boxed, since a call is large, and workers have one at every step.
        Box::pin(async move {
            self.operations.get_or_create(&labels).inc();
            let began = Instant::now();
            let answer = call.await;
            let took = began.elapsed().as_secs_f64();
            self.seconds.get_or_create(&labels).observe(took);
            if answer.is_err() {
                self.errors.get_or_create(&labels).inc();
            }
            answer.map(Response::into_inner)
        })
    }

    /// Records that a pod created at `created` runs now.
    pub fn observe_start(&self, created: Timestamp) {
        let waited = clock::timestamp().duration_since(created);
        let waited = Duration::try_from(waited).unwrap_or_default();
        self.start.observe(waited.as_secs_f64());
    }

    /// Counts a pod that was not admitted.
    pub fn count_rejection(&self, reason: &'static str) {
        self.rejections.get_or_create(&[("reason", reason)]).inc();
    }

    /// Counts a running pod until the returned value is dropped.
    pub fn running(&self) -> RunningPodGuard {
        self.running.inc();
        RunningPodGuard(self.running.clone())
    }

    /// Sets the gauges of a node's addresses, or removes them if the node has no network. The
    /// capacity is removed while the node waits for its block.
    pub fn addresses(&self, node: &str, observed: Option<(&AddressUsage, &NodeAddresses)>) {
        let of_node = [("node", node.to_owned())];
        let amount = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let addresses = observed.map(|(_, addresses)| addresses);
        let capacity = addresses.and_then(|addresses| match addresses.capacity {
            NodeCapacity::AwaitsBlock => None,
            NodeCapacity::Pods { count, .. } => Some(amount(count)),
        });
        let held = addresses.map(|addresses| amount(addresses.held));
        let orphaned = addresses.map(|addresses| amount(addresses.orphaned));
        set(&self.capacity, &of_node, capacity);
        set(&self.used, &of_node, held);
        set(&self.orphaned, &of_node, orphaned);
        let usage = observed.map(|(usage, _)| usage);
        for (state, count) in [
            ("allocated", usage.map(|usage| usage.allocated)),
            ("leaked", usage.map(|usage| usage.leaked)),
        ] {
            let labels = [("node", node.to_owned()), ("state", state.to_owned())];
            set(&self.ips, &labels, count);
        }
    }
}

/// Sets a gauge, or removes it without a value.
fn set<L: Clone + Hash + Eq>(
    family: &Family<L, Gauge<i64, AtomicI64>>,
    labels: &L,
    value: Option<i64>,
) {
    match value {
        Some(value) => _ = family.get_or_create(labels).set(value),
        None => _ = family.remove(labels),
    }
}
