//! Metrics of the CRI server. Operations of the network have containerd's names, so that dashboards
//! and alerts made for containerd show them.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicU64},
};

use podplane_cni::runtime::{PluginExecution, observe};
use podplane_host::clock::Instant;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _},
    metrics::{
        MetricType,
        counter::Counter,
        family::Family,
        gauge::ConstGauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use super::sandboxes::NodeSandboxes;

type OperationLabels = [(&'static str, &'static str); 1];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PluginLabels {
    plugin: String,
    command: &'static str,
}

/// The counters of the network. Cloning shares them.
#[derive(Clone, Debug)]
pub struct NetworkMetrics {
    operations: Family<OperationLabels, Counter<u64, AtomicU64>>,
    errors: Family<OperationLabels, Counter<u64, AtomicU64>>,
    seconds: Family<OperationLabels, Histogram, fn() -> Histogram>,
    /// Allocation files of live sandboxes that were restored.
    pub(super) restored: Counter<u64, AtomicU64>,
    /// Addresses of live sandboxes that an ADD gave to another sandbox.
    pub(super) duplicates: Counter<u64, AtomicU64>,
}

/// A histogram in seconds, from a millisecond to half a minute.
fn histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 16))
}

impl Default for NetworkMetrics {
    fn default() -> Self {
        Self {
            operations: Family::default(),
            errors: Family::default(),
            seconds: Family::new_with_constructor(histogram),
            restored: Counter::default(),
            duplicates: Counter::default(),
        }
    }
}

impl NetworkMetrics {
    /// Creates the counters and registers them for `/metrics`.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        // The encoder adds `_total`.
        registry.register(
            "containerd_cri_network_plugin_operations",
            "Network operations of sandboxes, by type",
            metrics.operations.clone(),
        );
        registry.register(
            "containerd_cri_network_plugin_operations_errors",
            "Network operations that failed, by type",
            metrics.errors.clone(),
        );
        registry.register(
            "containerd_cri_network_plugin_operations_duration_seconds",
            "Seconds per network operation, by type",
            metrics.seconds.clone(),
        );
        registry.register(
            "podplane_cri_leases_restored",
            "Allocation files of live sandboxes that were missing or damaged and were written again",
            metrics.restored.clone(),
        );
        registry.register(
            "podplane_cri_duplicate_addresses",
            "Addresses of live sandboxes that an IPAM plugin gave a second time, and were given back",
            metrics.duplicates.clone(),
        );
        count_plugins(registry);
        metrics
    }

    /// Does `work` as an operation of the network; counts it, its time and its failure.
    pub(super) fn network<T, E>(
        &self,
        operation: &'static str,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let labels = [("operation_type", operation)];
        self.operations.get_or_create(&labels).inc();
        let began = Instant::now();
        let done = work();
        let seconds = self.seconds.get_or_create(&labels);
        seconds.observe(began.elapsed().as_secs_f64());
        if done.is_err() {
            self.errors.get_or_create(&labels).inc();
        }
        done
    }
}

/// Registers the metrics of executed plugins, and counts each plugin under its name in the
/// configuration.
fn count_plugins(registry: &mut Registry) {
    let seconds =
        Family::<PluginLabels, Histogram, _>::new_with_constructor(histogram as fn() -> _);
    let errors = Family::<PluginLabels, Counter<u64, AtomicU64>>::default();
    registry.register(
        "podplane_cni_plugin_duration_seconds",
        "Seconds per execution of a CNI plugin, by plugin and command",
        seconds.clone(),
    );
    registry.register(
        "podplane_cni_plugin_errors",
        "CNI plugins that failed, by plugin and command",
        errors.clone(),
    );
    observe(move |executed: &PluginExecution<'_>| {
        let labels = PluginLabels {
            plugin: executed.plugin.to_owned(),
            command: executed.command,
        };
        let took = executed.took.as_secs_f64();
        seconds.get_or_create(&labels).observe(took);
        if executed.failed {
            errors.get_or_create(&labels).inc();
        }
    });
}

/// The sandboxes of all nodes of the process, counted when they are asked for.
pub(super) struct SandboxCollector(pub(super) Vec<Arc<NodeSandboxes>>);

impl fmt::Debug for SandboxCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Counted").field(&self.0.len()).finish()
    }
}

impl Collector for SandboxCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let counts = self.0.iter().map(|node| node.count());
        let (ready, not_ready) = counts.fold((0, 0), |(a, b), (ready, not_ready)| {
            (a + ready, b + not_ready)
        });
        let help = "Sandboxes, by state";
        let gauge = MetricType::Gauge;
        let mut family = encoder.encode_descriptor("podplane_cri_sandboxes", help, None, gauge)?;
        for (state, count) in [("ready", ready), ("not_ready", not_ready)] {
            ConstGauge::new(count).encode(family.encode_family(&[("state", state)])?)?;
        }
        Ok(())
    }
}
