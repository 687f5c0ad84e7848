//! The metrics of admission, under the names of Kubernetes.

use std::{sync::atomic::AtomicU64, time::Duration};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};

/// Buckets in seconds, as in Kubernetes.
const WEBHOOK_SECONDS: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];
const POLICY_SECONDS: [f64; 6] = [0.000_000_5, 0.001, 0.01, 0.1, 1.0, 10.0];

/// The counters and histograms. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct AdmissionMetrics {
    seconds: Family<SecondsLabels, Histogram, fn() -> Histogram>,
    requests: Family<RequestLabels, Counter<u64, AtomicU64>>,
    rejections: Family<RejectionLabels, Counter<u64, AtomicU64>>,
    fail_open: Family<OpenLabels, Counter<u64, AtomicU64>>,
    checks: Family<CheckLabels, Counter<u64, AtomicU64>>,
    check_seconds: Family<CheckLabels, Histogram, fn() -> Histogram>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SecondsLabels {
    name: String,
    operation: &'static str,
    rejected: String,
    r#type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    code: u16,
    name: String,
    operation: &'static str,
    rejected: String,
    r#type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RejectionLabels {
    error_type: &'static str,
    name: String,
    operation: &'static str,
    rejection_code: u16,
    r#type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OpenLabels {
    name: String,
    r#type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CheckLabels {
    enforcement_action: &'static str,
    error_type: &'static str,
    policy: String,
    policy_binding: String,
}

/// A call of a webhook.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    pub(super) name: &'a str,
    /// `admit` or `validating`.
    pub(super) kind: &'static str,
    pub(super) operation: &'static str,
}

/// The outcome of a call.
#[derive(Clone, Copy, Debug)]
pub(super) enum CallOutcome {
    Allowed,
    /// The webhook refused, with this code.
    Refused(u16),
    /// There was no valid answer.
    Failed,
}

impl AdmissionMetrics {
    /// Creates the counters and registers them for `/metrics`.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            seconds: Family::new_with_constructor(|| Histogram::new(WEBHOOK_SECONDS)),
            requests: Family::default(),
            rejections: Family::default(),
            fail_open: Family::default(),
            checks: Family::default(),
            check_seconds: Family::new_with_constructor(|| Histogram::new(POLICY_SECONDS)),
        };
        registry.register(
            "apiserver_admission_webhook_admission_duration_seconds",
            "Seconds per call of an admission webhook",
            metrics.seconds.clone(),
        );
        // The encoder adds `_total`.
        registry.register(
            "apiserver_admission_webhook_request",
            "Calls of admission webhooks, by code",
            metrics.requests.clone(),
        );
        registry.register(
            "apiserver_admission_webhook_rejection_count",
            "Requests that admission webhooks refused, or that failed with their calls",
            metrics.rejections.clone(),
        );
        registry.register(
            "apiserver_admission_webhook_fail_open_count",
            "Calls of admission webhooks that failed and were ignored",
            metrics.fail_open.clone(),
        );
        registry.register(
            "apiserver_validating_admission_policy_check",
            "Checks of validating admission policies, by what came of them",
            metrics.checks.clone(),
        );
        registry.register(
            "apiserver_validating_admission_policy_check_duration_seconds",
            "Seconds per check of a validating admission policy",
            metrics.check_seconds.clone(),
        );
        metrics
    }

    /// Counts a call of a webhook.
    pub(super) fn called(&self, call: Call<'_>, outcome: CallOutcome, took: Duration) {
        let Call {
            name,
            kind,
            operation,
        } = call;
        let (code, rejected, error_type) = match outcome {
            CallOutcome::Allowed => (200, false, ""),
            // The reference counts codes above 600 as one.
            CallOutcome::Refused(code) => (code.min(600), true, "no_error"),
            CallOutcome::Failed => (0, true, "calling_webhook_error"),
        };
        let name = name.to_owned();
        self.seconds
            .get_or_create(&SecondsLabels {
                name: name.clone(),
                operation,
                rejected: rejected.to_string(),
                r#type: kind,
            })
            .observe(took.as_secs_f64());
        self.requests
            .get_or_create(&RequestLabels {
                code,
                name: name.clone(),
                operation,
                rejected: rejected.to_string(),
                r#type: kind,
            })
            .inc();
        if rejected {
            let labels = RejectionLabels {
                error_type,
                name,
                operation,
                rejection_code: code,
                r#type: kind,
            };
            self.rejections.get_or_create(&labels).inc();
        }
    }

    /// Counts a failed call that is ignored.
    pub(super) fn failed_open(&self, call: Call<'_>) {
        let labels = OpenLabels {
            name: call.name.to_owned(),
            r#type: call.kind,
        };
        self.fail_open.get_or_create(&labels).inc();
    }

    /// Counts a check of a policy under a binding.
    pub(super) fn checked(
        &self,
        [policy, binding]: [&str; 2],
        enforcement_action: &'static str,
        error_type: &'static str,
        took: Duration,
    ) {
        let labels = CheckLabels {
            enforcement_action,
            error_type,
            policy: policy.to_owned(),
            policy_binding: binding.to_owned(),
        };
        self.checks.get_or_create(&labels).inc();
        let seconds = self.check_seconds.get_or_create(&labels);
        seconds.observe(took.as_secs_f64());
    }
}
