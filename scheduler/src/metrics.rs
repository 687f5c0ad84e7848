//! What is counted, under the reference's names and with its buckets.

use std::time::Duration;

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

use crate::{cache::CacheSize, pod::SCHEDULER_NAME, queue::Pending, scheduler::Attempt};

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The pod was bound.
    Scheduled,
    /// No node can take it.
    Unschedulable,
    /// Something went wrong.
    Error,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfAttempt {
    profile: &'static str,
    result: &'static str,
}

type One = [(&'static str, &'static str); 1];

/// The counters. Cloning shares them.
#[derive(Clone, Debug)]
pub struct Metrics {
    attempts: Family<OfAttempt, Counter>,
    seconds: Family<OfAttempt, Histogram, fn() -> Histogram>,
    tries: Histogram,
    waited: Family<One, Histogram, fn() -> Histogram>,
    pending: Family<One, Gauge>,
    cache: Family<One, Gauge>,
}

impl Metrics {
    /// Counters that `/metrics` shows.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            attempts: Family::default(),
            seconds: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.001, 2.0, 15))
            }),
            tries: Histogram::new(exponential_buckets(1.0, 2.0, 5)),
            waited: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(0.01, 2.0, 20))
            }),
            pending: Family::default(),
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
            "How long an attempt took, binding included",
            metrics.seconds.clone(),
        );
        registry.register(
            "scheduler_pod_scheduling_attempts",
            "Attempts until a pod was scheduled",
            metrics.tries.clone(),
        );
        registry.register(
            "scheduler_pod_scheduling_sli_duration_seconds",
            "From the moment that a pod was first heard of until it was scheduled",
            metrics.waited.clone(),
        );
        registry.register(
            "scheduler_pending_pods",
            "Pods that wait, by queue",
            metrics.pending.clone(),
        );
        registry.register(
            "scheduler_cache_size",
            "Nodes, pods and assumed pods that are known",
            metrics.cache.clone(),
        );
        metrics.sizes(Pending::default(), CacheSize::default());
        metrics
    }

    /// Notes how much there is now.
    pub fn sizes(&self, pending: Pending, cache: CacheSize) {
        let set = |family: &Family<One, Gauge>, label, value, size: usize| {
            let gauge = family.get_or_create(&[(label, value)]);
            gauge.set(i64::try_from(size).unwrap_or(i64::MAX));
        };
        let Pending {
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

    /// Counts an attempt that took so long; `now` is the scheduler's time.
    pub fn attempted(&self, attempt: &Attempt, ended: Ended, took: Duration, now: Duration) {
        let result = match ended {
            Ended::Scheduled => "scheduled",
            Ended::Unschedulable => "unschedulable",
            Ended::Error => "error",
        };
        let labels = OfAttempt {
            profile: SCHEDULER_NAME,
            result,
        };
        self.attempts.get_or_create(&labels).inc();
        let seconds = self.seconds.get_or_create(&labels);
        seconds.observe(took.as_secs_f64());
        if ended == Ended::Scheduled {
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
