//! The metrics of flow control, with Kubernetes' names.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64},
    },
    time::Duration,
};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use super::schema::FlowSchema;

/// Buckets in seconds, as in Kubernetes.
const DURATIONS: [f64; 13] = [
    0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0,
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SchemaLabels {
    priority_level: &'static str,
    flow_schema: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RejectedLabels {
    priority_level: &'static str,
    flow_schema: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WaitLabels {
    priority_level: &'static str,
    flow_schema: &'static str,
    execute: &'static str,
}

type Nominal = Family<[(&'static str, &'static str); 1], Gauge<i64, AtomicI64>>;
type Rejected = Family<RejectedLabels, Counter<u64, AtomicU64>>;
type Waits = Family<WaitLabels, Histogram, fn() -> Histogram>;

/// The metrics of all flow schemas.
#[derive(Debug)]
pub(super) struct FlowMetrics {
    nominal: Nominal,
    /// In the order of [`FlowSchema::ALL`].
    schemas: [Arc<SchemaMetrics>; FlowSchema::ALL.len()],
}

/// The metrics of one flow schema.
#[derive(Debug)]
pub(super) struct SchemaMetrics {
    labels: SchemaLabels,
    dispatched: Counter<u64, AtomicU64>,
    pub(super) inqueue: Gauge<i64, AtomicI64>,
    pub(super) executing: Gauge<i64, AtomicI64>,
    pub(super) seats: Gauge<i64, AtomicI64>,
    pub(super) execution: Histogram,
    waits: Histogram,
    waits_in_vain: Histogram,
    rejected: Rejected,
}

fn durations() -> Histogram {
    Histogram::new(DURATIONS)
}

impl FlowMetrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let nominal = Nominal::default();
        let dispatched = Family::<SchemaLabels, Counter<u64, AtomicU64>>::default();
        let gauge = Family::<SchemaLabels, Gauge<i64, AtomicI64>>::default;
        let (inqueue, executing, seats) = (gauge(), gauge(), gauge());
        let execution =
            Family::<SchemaLabels, Histogram, fn() -> Histogram>::new_with_constructor(durations);
        let waits = Waits::new_with_constructor(durations);
        let rejected = Rejected::default();
        // The encoder adds `_total`.
        registry.register(
            "apiserver_flowcontrol_nominal_limit_seats",
            "Seats of a priority level",
            nominal.clone(),
        );
        registry.register(
            "apiserver_flowcontrol_dispatched_requests",
            "Requests that were executed",
            dispatched.clone(),
        );
        registry.register(
            "apiserver_flowcontrol_rejected_requests",
            "Requests that were refused, or that gave up waiting",
            rejected.clone(),
        );
        registry.register(
            "apiserver_flowcontrol_current_inqueue_requests",
            "Requests that wait",
            inqueue.clone(),
        );
        registry.register(
            "apiserver_flowcontrol_current_executing_requests",
            "Requests that are executed; watches only while they start",
            executing.clone(),
        );
        registry.register(
            "apiserver_flowcontrol_current_executing_seats",
            "Seats that requests occupy",
            seats.clone(),
        );
        registry.register(
            "apiserver_flowcontrol_request_wait_duration_seconds",
            "Seconds that requests waited, executed or not",
            waits.clone(),
        );
        registry.register(
            "apiserver_flowcontrol_request_execution_seconds",
            "Seconds that requests occupied their seats",
            execution.clone(),
        );
        let schemas = FlowSchema::ALL.map(|schema| {
            let labels = SchemaLabels {
                priority_level: schema.level().name(),
                flow_schema: schema.name(),
            };
            let SchemaLabels {
                priority_level,
                flow_schema,
            } = labels;
            let wait = |execute| WaitLabels {
                priority_level,
                flow_schema,
                execute,
            };
            // In statements of their own: each holds a lock of its family until its end.
            let waited = waits.get_or_create(&wait("true")).clone();
            let waits_in_vain = waits.get_or_create(&wait("false")).clone();
            Arc::new(SchemaMetrics {
                dispatched: dispatched.get_or_create(&labels).clone(),
                inqueue: inqueue.get_or_create(&labels).clone(),
                executing: executing.get_or_create(&labels).clone(),
                seats: seats.get_or_create(&labels).clone(),
                execution: execution.get_or_create(&labels).clone(),
                waits: waited,
                waits_in_vain,
                rejected: rejected.clone(),
                labels,
            })
        });
        Self { nominal, schemas }
    }

    /// Shows the seats of a level.
    pub(super) fn nominal(&self, level: &'static str, seats: u32) {
        let gauge = self.nominal.get_or_create(&[("priority_level", level)]);
        gauge.set(seats.into());
    }

    pub(super) fn of(&self, schema: FlowSchema) -> &Arc<SchemaMetrics> {
        &self.schemas[schema.index()]
    }
}

impl SchemaMetrics {
    /// Counts a request that is executed.
    pub(super) fn dispatched(&self, waited: Duration) {
        self.dispatched.inc();
        self.waits.observe(waited.as_secs_f64());
    }

    /// Counts a request that is refused at once.
    pub(super) fn rejected(&self, reason: &'static str) {
        let SchemaLabels {
            priority_level,
            flow_schema,
        } = self.labels;
        let labels = RejectedLabels {
            priority_level,
            flow_schema,
            reason,
        };
        self.rejected.get_or_create(&labels).inc();
    }

    /// Counts a request that has waited in vain.
    pub(super) fn gave_up(&self, waited: Duration, reason: &'static str) {
        self.rejected(reason);
        self.waits_in_vain.observe(waited.as_secs_f64());
    }
}
