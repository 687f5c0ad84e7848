//! Metrics, under the reference's names and with its buckets.

use std::{sync::Arc, time::Duration};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use crate::{
    cache::CacheSize,
    queue::{QueueLengths, RefusalCounts},
    scheduler::Attempt,
};

/// The result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptResult {
    /// The pod was bound.
    Scheduled,
    /// No node fits it.
    Unschedulable,
    /// The attempt failed with an error.
    Error,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AttemptLabels {
    profile: Arc<str>,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabels {
    plugin: &'static str,
    profile: Arc<str>,
}

type SingleLabel = [(&'static str, &'static str); 1];

/// The metrics. Clones share them.
#[derive(Clone, Debug)]
pub struct SchedulerMetrics {
    /// The name of the scheduler.
    profile: Arc<str>,
    attempts: Family<AttemptLabels, Counter>,
    seconds: Family<AttemptLabels, Histogram, fn() -> Histogram>,
    tries: Histogram,
    waited: Family<SingleLabel, Histogram, fn() -> Histogram>,
    pending: Family<SingleLabel, Gauge>,
    unschedulable: Family<RefusalLabels, Gauge>,
    cache: Family<SingleLabel, Gauge>,
}

impl SchedulerMetrics {
    /// Creates the metrics of the scheduler of that name, and registers them for `/metrics`.
    pub fn new(profile: &str, registry: &mut Registry) -> Self {
        let metrics = Self {
            profile: profile.into(),
            attempts: Family::default(),
            seconds: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.001, 2.0, 15))
            }),
            tries: Histogram::new(exponential_buckets(1.0, 2.0, 5)),
            waited: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.01, 2.0, 20))
            }),
            pending: Family::default(),
            unschedulable: Family::default(),
            cache: Family::default(),
        };
        // The encoder adds `_total`.
        registry.register(
            "scheduler_schedule_attempts",
            "Attempts to schedule pods, by result",
            metrics.attempts.clone(),
        );
        registry.register(
            "scheduler_scheduling_attempt_duration_seconds",
            "Duration of an attempt, binding included",
            metrics.seconds.clone(),
        );
        registry.register(
            "scheduler_pod_scheduling_attempts",
            "Attempts until a pod was scheduled",
            metrics.tries.clone(),
        );
        registry.register(
            "scheduler_pod_scheduling_sli_duration_seconds",
            "Time from the first observation of a pod until it was scheduled",
            metrics.waited.clone(),
        );
        registry.register(
            "scheduler_pending_pods",
            "Pods that wait, by queue",
            metrics.pending.clone(),
        );
        registry.register(
            "scheduler_unschedulable_pods",
            "Waiting pods that the plugin refused a node at their last attempt; a pod counts for each such plugin",
            metrics.unschedulable.clone(),
        );
        registry.register(
            "scheduler_cache_size",
            "Nodes, pods and assumed pods in the cache",
            metrics.cache.clone(),
        );
        metrics.sizes(QueueLengths::default(), CacheSize::default());
        metrics
    }

    /// Sets the gauges of pending pods and cached objects.
    pub fn sizes(&self, pending: QueueLengths, cache: CacheSize) {
        let set = |family: &Family<SingleLabel, Gauge>, label, value, size: usize| {
            let gauge = family.get_or_create(&[(label, value)]);
            gauge.set(i64::try_from(size).unwrap_or(i64::MAX));
        };
        let QueueLengths {
            active,
            backoff,
            unschedulable,
        } = pending;
        set(&self.pending, "queue", "active", active);
        set(&self.pending, "queue", "backoff", backoff);
        set(&self.pending, "queue", "unschedulable", unschedulable);
        let CacheSize {
            nodes,
            pods,
            assumed,
        } = cache;
        set(&self.cache, "type", "nodes", nodes);
        set(&self.cache, "type", "pods", pods);
        set(&self.cache, "type", "assumed_pods", assumed);
    }

    /// Sets the gauges of refused pods.
    pub fn refused(&self, refusals: &RefusalCounts) {
        for (plugin, pods) in refusals.iter() {
            let profile = self.profile.clone();
            let labels = RefusalLabels { plugin, profile };
            let gauge = self.unschedulable.get_or_create(&labels);
            gauge.set(i64::try_from(pods).unwrap_or(i64::MAX));
        }
    }

    /// Counts an attempt with its duration; `now` is the scheduler's time.
    pub fn attempted(
        &self,
        attempt: &Attempt,
        ended: AttemptResult,
        took: Duration,
        now: Duration,
    ) {
        let result = match ended {
            AttemptResult::Scheduled => "scheduled",
            AttemptResult::Unschedulable => "unschedulable",
            AttemptResult::Error => "error",
        };
        let labels = AttemptLabels {
            profile: self.profile.clone(),
            result,
        };
        self.attempts.get_or_create(&labels).inc();
        let seconds = self.seconds.get_or_create(&labels);
        seconds.observe(took.as_secs_f64());
        if ended == AttemptResult::Scheduled {
            self.tries.observe(attempt.attempts.into());
            let waited = now.saturating_sub(attempt.arrived);
            let attempts = match attempt.attempts {
                0 | 1 => "1",
                2 => "2",
                3..=5 => "3-5",
                6..=15 => "6-15",
                _ => "16+",
            };
            let waits = self.waited.get_or_create(&[("attempts", attempts)]);
            waits.observe(waited.as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prometheus_client::encoding::text;

    use super::*;
    use crate::{
        queue::Queue,
        testing::{AsInfo as _, PodBuilder},
    };

    #[test]
    fn refused_pods_have_the_name_and_labels_of_the_reference() {
        let mut registry = Registry::default();
        let metrics = SchedulerMetrics::new("default-scheduler", &mut registry);
        let mut queue = Queue::default();
        let shown = |queue: &Queue| {
            metrics.refused(queue.refusals());
            let mut shown = String::new();
            text::encode(&mut shown, &registry).unwrap();
            let lines = shown.lines();
            let lines = lines.filter(|line| line.starts_with("scheduler_unschedulable_pods{"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        queue.upsert(PodBuilder::new("a").info(), Duration::ZERO);
        queue.pop(Duration::ZERO);
        assert!(shown(&queue).is_empty());
        let by = BTreeSet::from(["PodIPs"]);
        queue.reject(&"a".into(), by, "full".to_owned(), Duration::ZERO);
        let line = |pods| {
            let labels = r#"plugin="PodIPs",profile="default-scheduler""#;
            [format!("scheduler_unschedulable_pods{{{labels}}} {pods}")]
        };
        assert_eq!(shown(&queue), line(1));
        queue.remove(&"a".into());
        assert_eq!(shown(&queue), line(0));
    }
}
