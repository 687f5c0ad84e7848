//! Metrics of the webhooks.

use std::time::Duration;

use podplane_api::{core::Node, pod_ips::PodIpResource};
use podplane_client::Cache;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::{ConstGauge, Gauge},
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use crate::mutation::{is_open, publishes};

type SingleLabel = [(&'static str, &'static str); 1];

/// The metrics. Clones share them.
#[derive(Clone, Debug)]
pub struct WebhookMetrics {
    pods: Family<SingleLabel, Counter>,
    bindings: Family<SingleLabel, Counter>,
    reservations: Gauge,
    seconds: Family<SingleLabel, Histogram, fn() -> Histogram>,
}

impl WebhookMetrics {
    /// Creates the metrics, and registers them for `/metrics`.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            pods: Family::default(),
            bindings: Family::default(),
            reservations: Gauge::default(),
            seconds: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.0005, 2.0, 12))
            }),
        };
        // The encoder adds `_total` to counters.
        registry.register(
            "podplane_webhook_pods",
            "New pods by result: added, or the reason why the request for an address was not added",
            metrics.pods.clone(),
        );
        registry.register(
            "podplane_webhook_bindings",
            "Bindings by result: the reason why they were allowed, refused, or undecided",
            metrics.bindings.clone(),
        );
        registry.register(
            "podplane_webhook_reservations",
            "Bindings that were allowed and that the watch has not shown yet",
            metrics.reservations.clone(),
        );
        registry.register(
            "podplane_webhook_review_duration_seconds",
            "Duration of reviews, by webhook",
            metrics.seconds.clone(),
        );
        metrics
    }

    /// Counts a new pod.
    pub(crate) fn pod(&self, result: &'static str) {
        self.pods.get_or_create(&[("result", result)]).inc();
    }

    /// Counts a binding.
    pub(crate) fn binding(&self, result: &'static str) {
        self.bindings.get_or_create(&[("result", result)]).inc();
    }

    /// Records the duration of a review.
    pub(crate) fn review(&self, webhook: &'static str, took: Duration) {
        let seconds = self.seconds.get_or_create(&[("webhook", webhook)]);
        seconds.observe(took.as_secs_f64());
    }

    /// Sets the number of reservations.
    pub(crate) fn reservations(&self, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.reservations.set(count);
    }
}

/// The gauge of nodes that keep pods from getting the request, computed whenever it is read.
#[derive(Debug)]
pub struct UnpublishedNodes {
    nodes: Cache<Node>,
    resource: PodIpResource,
}

impl UnpublishedNodes {
    /// A gauge of these nodes.
    pub fn new(nodes: Cache<Node>, resource: PodIpResource) -> Self {
        Self { nodes, resource }
    }
}

impl Collector for UnpublishedNodes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let nodes = self.nodes.list();
        let silent = nodes
            .iter()
            .filter(|node| is_open(node) && !publishes(node, &self.resource));
        let gauge = ConstGauge::new(i64::try_from(silent.count()).unwrap_or(i64::MAX));
        let metric = encoder.encode_descriptor(
            "podplane_webhook_nodes_unpublished",
            "Nodes that are Ready, not cordoned, and do not publish the resource of pod addresses",
            None,
            gauge.metric_type(),
        )?;
        gauge.encode(metric)
    }
}
