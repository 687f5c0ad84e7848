//! The counts of the log, by the names that kube-apiserver has for them.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use prometheus_client::{
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

use crate::level::Level;

/// The counts. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct AuditMetrics {
    events: Counter<u64, AtomicU64>,
    levels: Family<[(&'static str, &'static str); 1], Counter<u64, AtomicU64>>,
    errors: Family<[(&'static str, &'static str); 1], Counter<u64, AtomicU64>>,
    /// Lines that did not fit into the queue since it was last said that this is over.
    overflowed: Arc<AtomicU64>,
}

impl AuditMetrics {
    /// Creates the counts and registers them for `/metrics`.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        // The encoder adds `_total`.
        registry.register(
            "apiserver_audit_event",
            "Audit events, written or lost",
            metrics.events.clone(),
        );
        registry.register(
            "apiserver_audit_level",
            "Requests, by the level that the audit policy has for them",
            metrics.levels.clone(),
        );
        registry.register(
            "apiserver_audit_error",
            "Audit events that were lost since the disk was too slow or a write failed",
            metrics.errors.clone(),
        );
        drop(metrics.errors.get_or_create(&[("plugin", "log")]));
        metrics
    }

    /// Counts a decision of the policy.
    pub fn decided(&self, level: Level) {
        self.levels.get_or_create(&[("level", level.name())]).inc();
    }

    /// The number of lines that were lost.
    pub fn lost_lines(&self) -> u64 {
        self.errors.get_or_create(&[("plugin", "log")]).get()
    }

    pub(super) fn event(&self) {
        self.events.inc();
    }

    pub(super) fn lost(&self, lines: usize) {
        let lines = u64::try_from(lines).unwrap_or(u64::MAX);
        self.errors
            .get_or_create(&[("plugin", "log")])
            .inc_by(lines);
    }

    /// Counts a line that did not fit into the queue; true for the first.
    pub(super) fn overflow(&self) -> bool {
        self.lost(1);
        self.overflowed.fetch_add(1, Ordering::Relaxed) == 0
    }

    /// The number of lines that did not fit since the last call.
    pub(super) fn caught_up(&self) -> u64 {
        self.overflowed.swap(0, Ordering::Relaxed)
    }
}
