//! What the kubelet counts, under the reference's names and with its buckets; the addresses of nodes, for which it has none, under our own.

use std::{
    sync::atomic::{AtomicI64, AtomicU64},
    time::Duration,
};

use futures::future::BoxFuture;
use podplane_api::jiff::Timestamp;
use prometheus_client::{
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};
use tokio::time::Instant;
use tonic::{Response, Status};

use crate::ipam::Usage;

/// In seconds, as the reference has them.
const POD_START: [f64; 25] = [
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0,
    300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];

type Operation = [(&'static str, &'static str); 1];
type OfNode = [(&'static str, String); 1];
type State = [(&'static str, String); 2];

/// The counters. Cloning shares them.
#[derive(Clone, Debug)]
pub struct Metrics {
    operations: Family<Operation, Counter<u64, AtomicU64>>,
    errors: Family<Operation, Counter<u64, AtomicU64>>,
    seconds: Family<Operation, Histogram, fn() -> Histogram>,
    running: Gauge<i64, AtomicI64>,
    start: Histogram,
    rejections: Family<Operation, Counter<u64, AtomicU64>>,
    capacity: Family<OfNode, Gauge<i64, AtomicI64>>,
    ips: Family<State, Gauge<i64, AtomicI64>>,
}

/// A pod that runs.
#[derive(Debug)]
pub struct Running(Gauge<i64, AtomicI64>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Default for Metrics {
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
            ips: Family::default(),
        }
    }
}

impl Metrics {
    /// Counters that `/metrics` shows.
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
            "How long calls of the container runtime took, by type",
            metrics.seconds.clone(),
        );
        registry.register(
            "kubelet_running_pods",
            "Pods with a sandbox that is ready",
            metrics.running.clone(),
        );
        registry.register(
            "kubelet_pod_start_duration_seconds",
            "From the moment that a pod was created until it ran",
            metrics.start.clone(),
        );
        registry.register(
            "kubelet_admission_rejections",
            "Pods that were not admitted, by reason",
            metrics.rejections.clone(),
        );
        registry.register(
            "podplane_node_pod_ips_capacity",
            "Pods that the node's network has addresses for, if its IPAM plugin says so",
            metrics.capacity.clone(),
        );
        registry.register(
            "podplane_node_pod_ips",
            "Addresses of the node's network that are taken: allocated to a sandbox, or leaked",
            metrics.ips.clone(),
        );
        metrics
    }

    /// Counts a call of the runtime.
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

    /// A pod that was created then runs now.
    pub fn started(&self, created: Timestamp) {
        let waited = Timestamp::now().duration_since(created);
        let waited = Duration::try_from(waited).unwrap_or_default();
        self.start.observe(waited.as_secs_f64());
    }

    /// A pod was not admitted.
    pub fn rejected(&self, reason: &'static str) {
        self.rejections.get_or_create(&[("reason", reason)]).inc();
    }

    /// A pod runs for as long as this is kept.
    pub fn running(&self) -> Running {
        self.running.inc();
        Running(self.running.clone())
    }

    /// Notes the addresses of a node. The capacity is missing where the IPAM plugin does not say it.
    pub fn addresses(&self, node: &str, usage: Option<&Usage>) {
        let of_node = [("node", node.to_owned())];
        let in_state = |state: &str| [("node", node.to_owned()), ("state", state.to_owned())];
        let Some(usage) = usage else {
            self.capacity.remove(&of_node);
            for state in ["allocated", "leaked"] {
                self.ips.remove(&in_state(state));
            }
            return;
        };
        match usage.capacity {
            Some(capacity) => _ = self.capacity.get_or_create(&of_node).set(capacity),
            None => _ = self.capacity.remove(&of_node),
        }
        for (state, count) in [("allocated", usage.allocated), ("leaked", usage.leaked)] {
            self.ips.get_or_create(&in_state(state)).set(count);
        }
    }
}
