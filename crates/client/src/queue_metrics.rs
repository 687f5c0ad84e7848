//! The metrics of work queues, with the names and buckets of Kubernetes' controllers.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};

use crate::QueueStats;

type Stats = Box<dyn Fn() -> QueueStats + Send + Sync>;

/// The queues of a process, by their names in metrics; a collector for its registry.
#[derive(Default)]
pub struct QueueMetrics {
    queues: Vec<(&'static str, Stats)>,
}

impl fmt::Debug for QueueMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.queues.iter().map(|(name, _)| name);
        f.debug_list().entries(names).finish()
    }
}

impl QueueMetrics {
    /// Adds a queue whose figures `stats` returns.
    #[must_use]
    pub fn with(
        mut self,
        name: &'static str,
        stats: impl Fn() -> QueueStats + Send + Sync + 'static,
    ) -> Self {
        self.queues.push((name, Box::new(stats)));
        self
    }
}

/// A metric of a queue: its name, help text, type, and value.
type QueueMetric = (
    &'static str,
    &'static str,
    MetricType,
    fn(&QueueStats) -> Box<dyn EncodeMetric>,
);

#[expect(clippy::cast_precision_loss, reason = "a count for people")]
fn depth(stats: &QueueStats) -> f64 {
    stats.depth as f64
}

const SHOWN: [QueueMetric; 7] = [
    (
        "workqueue_depth",
        "Keys that are ready to be worked on",
        MetricType::Gauge,
        |stats| Box::new(ConstGauge::new(depth(stats))),
    ),
    (
        "workqueue_adds",
        "Looks that were asked for",
        MetricType::Counter,
        |stats| Box::new(ConstCounter::new(stats.adds)),
    ),
    (
        "workqueue_retries",
        "Looks that were asked for after a failure",
        MetricType::Counter,
        |stats| Box::new(ConstCounter::new(stats.retries)),
    ),
    (
        "workqueue_queue_duration_seconds",
        "How long keys waited to be worked on",
        MetricType::Histogram,
        |stats| Box::new(stats.waited.clone()),
    ),
    (
        "workqueue_work_duration_seconds",
        "How long keys were worked on",
        MetricType::Histogram,
        |stats| Box::new(stats.worked.clone()),
    ),
    (
        "workqueue_unfinished_work_seconds",
        "How long all keys together have been worked on that are not done",
        MetricType::Gauge,
        |stats| Box::new(ConstGauge::new(stats.unfinished.as_secs_f64())),
    ),
    (
        "workqueue_longest_running_processor_seconds",
        "How long the longest has been worked on",
        MetricType::Gauge,
        |stats| Box::new(ConstGauge::new(stats.longest.as_secs_f64())),
    ),
];

impl Collector for QueueMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let queues = self.queues.iter();
        let seen: Vec<_> = queues.map(|(name, stats)| (*name, stats())).collect();
        for (name, help, metric_type, value) in SHOWN {
            let mut family = encoder.encode_descriptor(name, help, None, metric_type)?;
            for (queue, stats) in &seen {
                let labels = [("name", *queue)];
                value(stats).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}
