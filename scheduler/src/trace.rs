//! The scheduler's spans in the journey of a pod.

use podplane_api::{core::Pod, pod_ips::PodIpResource};
use podplane_client::Api;
use podplane_host::clock::Instant;
use podplane_service_runtime::trace::{InContext as _, Journey, Span, attribute};

use crate::{
    bind::{self, BindOutcome},
    names::NodeName,
    scheduler::Attempt,
};

/// The times at which a pod entered the queue, and left it for an attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueStay {
    pub(crate) arrived: Instant,
    pub(crate) begun: Instant,
}

/// Records the spans of the wait and the finished attempt.
pub(crate) fn attempt(attempt: &Attempt, turn: QueueStay) {
    let journey = Journey::creation(attempt.pod.uid.as_str());
    let QueueStay { arrived, begun } = turn;
    Span::of(journey, "queue").since(arrived).end_at(begun);
    let mut span = Span::of(journey, "schedule").since(begun);
    span.set(attribute::ATTEMPT, || i64::from(attempt.attempts));
    match &attempt.outcome {
        Ok(node) => span.set(attribute::CHOSEN, || node.to_string()),
        Err(refusal) => span.fail(|| refusal.clone()),
    }
    span.end();
}

/// Binds within a span that is the parent of the API server's own.
pub(crate) async fn bind(
    pods: &Api<Pod>,
    pod_ips: &PodIpResource,
    attempt: &Attempt,
    node: &NodeName,
) -> BindOutcome {
    let journey = Journey::creation(attempt.pod.uid.as_str());
    let mut span = Span::of(journey, "bind").client();
    span.set(attribute::CHOSEN, || node.to_string());
    let binding = bind::bind(pods, pod_ips, &attempt.pod, node);
    let outcome = binding.with_context(span.context()).await;
    match &outcome {
        BindOutcome::Bound => {}
        BindOutcome::Elsewhere => span.fail(|| "bound by another client"),
        BindOutcome::Gone => span.fail(|| "the pod is deleted"),
        BindOutcome::NoAddress(error)
        | BindOutcome::Failed(error)
        | BindOutcome::NotLeading(error) => {
            span.fail(|| error.to_string());
        }
    }
    span.end();
    outcome
}
