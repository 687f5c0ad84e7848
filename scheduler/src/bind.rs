//! Binding: the write that assigns a pod to its node, and the check of its result.

use std::time::Duration;

use backon::{ExponentialBuilder, Retryable as _};
use podplane_api::{core::Pod, pod_ips::PodIpResource};
use podplane_client::{Api, ApiError, Binding};
use podplane_host::clock;

use crate::{names::NodeName, pod::PodInfo};

/// The timeout of a call. After it the binding may or may not have happened, as after a lost
/// connection.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The result of a binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindOutcome {
    /// The pod is on the node.
    Bound,
    /// The pod is on a node that another client chose.
    Elsewhere,
    /// The pod does not exist any more.
    Gone,
    /// The pod has no node, and the API server refused this one: it has no address for the pod.
    NoAddress(ApiError),
    /// The pod has no node, for another reason.
    Failed(ApiError),
    /// Another scheduler leads, so the API server refuses this one's bindings.
    NotLeading(ApiError),
}

/// The most attempts of a binding whose pod is written meanwhile without a change that matters to
/// the choice.
const TRIES: usize = 4;

/// Binds the pod in the version for which the node was chosen. If its spec has changed since, the
/// choice may be wrong and nothing is bound; a changed status, for instance by our own condition of
/// the last attempt, does not matter.
///
/// After a failure the pod is read, so that the result is the actual state and not the
/// connection's. The read is repeated until it is answered: while the API server is away, no other
/// pod can get the address that stays reserved meanwhile.
pub async fn bind(
    pods: &Api<Pod>,
    pod_ips: &PodIpResource,
    pod: &PodInfo,
    node: &NodeName,
) -> BindOutcome {
    let mut binding = Binding {
        name: pod.key.name.clone(),
        uid: pod.uid.to_string(),
        resource_version: Some(pod.resource_version.to_string()),
        node_name: node.to_string(),
    };
    let mut tries = 0;
    loop {
        let answer = clock::timeout(ANSWER_TIMEOUT, pods.bind(&binding)).await;
        let error = match answer {
            Ok(Ok(_)) => return BindOutcome::Bound,
            Ok(Err(error)) if error.is_fence_lost() => return BindOutcome::NotLeading(error),
            Ok(Err(error)) => error,
            Err(_) => no_answer(),
        };
        // The refusal is in the order of commits: the pod had no node then, and only another
        // client can have bound it since, which the API server will tell at the next attempt.
        if error.is_insufficient_pod_ips() {
            return BindOutcome::NoAddress(error);
        }
        tries += 1;
        let found = read_pod(pods, pod).await;
        match found.map(|found| PodInfo::new(&found, pod_ips)) {
            Ok(found) if error.is_conflict() && tries < TRIES && is_as_chosen(pod, &found) => {
                binding.resource_version = Some(found.resource_version.to_string());
            }
            Ok(found) => return judge(pod, node, &found, error),
            Err(gone) if gone.is_not_found() => return BindOutcome::Gone,
            Err(_) => return BindOutcome::Failed(error),
        }
    }
}

/// Returns whether the choice of a node for `pod` is still valid for the pod that was found in its
/// place.
fn is_as_chosen(pod: &PodInfo, found: &PodInfo) -> bool {
    found.uid == pod.uid && !found.has_other_needs_than(pod) && !found.is_deleting
}

/// The result of a binding that was answered with `error`, according to the pod's state.
fn judge(pod: &PodInfo, node: &NodeName, found: &PodInfo, error: ApiError) -> BindOutcome {
    match &found.node_name {
        _ if found.uid != pod.uid => BindOutcome::Gone,
        Some(actual) if actual == node => BindOutcome::Bound,
        Some(_) => BindOutcome::Elsewhere,
        None => BindOutcome::Failed(error),
    }
}

async fn read_pod(pods: &Api<Pod>, pod: &PodInfo) -> Result<Pod, ApiError> {
    let read = || async {
        let answer = clock::timeout(ANSWER_TIMEOUT, pods.get(&pod.key.name)).await;
        answer.unwrap_or_else(|_| Err(no_answer()))
    };
    let waits = ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(50))
        .with_max_delay(Duration::from_secs(1))
        .with_jitter()
        .without_max_times();
    read.retry(waits).when(ApiError::is_unavailable).await
}

fn no_answer() -> ApiError {
    let message = format!("the API server did not answer within {ANSWER_TIMEOUT:?}");
    ApiError::new(podplane_client::Reason::ServiceUnavailable, message)
}

#[cfg(test)]
mod tests {
    use podplane_client::Reason;

    use super::*;
    use crate::testing::{AsInfo as _, PodBuilder};

    #[test]
    fn choice_is_valid_while_the_spec_is_unchanged() {
        let pod = PodBuilder::new("p");
        let stands = |found: PodBuilder| is_as_chosen(&pod.info(), &found.info());
        assert!(stands(
            pod.clone().set("/metadata/resourceVersion", "9".into())
        ));
        assert!(!stands(pod.clone().on("m")), "bound meanwhile");
        assert!(
            !stands(pod.clone().set("/metadata/uid", "q".into())),
            "another pod"
        );
        let deleted = "2026-11-21T00:00:00Z";
        assert!(!stands(
            pod.clone()
                .set("/metadata/deletionTimestamp", deleted.into())
        ));
    }

    #[test]
    fn reads_the_result_from_the_pod() {
        let error = || ApiError::new(Reason::ServiceUnavailable, "connection lost");
        let pod = PodBuilder::new("p");
        let judge = |found: PodBuilder| judge(&pod.info(), &"n".into(), &found.info(), error());
        assert_eq!(judge(pod.clone()), BindOutcome::Failed(error()));
        assert_eq!(judge(pod.clone().on("n")), BindOutcome::Bound);
        assert_eq!(judge(pod.clone().on("m")), BindOutcome::Elsewhere);
        let another = PodBuilder::new("p")
            .set("/metadata/uid", "q".into())
            .on("n");
        assert_eq!(judge(another), BindOutcome::Gone);
    }
}
