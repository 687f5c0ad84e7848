//! Binding: the one write that gives a pod its node, and finding out whether it happened.

use std::{sync::Arc, time::Duration};

use backon::{ExponentialBuilder, Retryable as _};
use podplane_api::{Object as _, core::Pod};
use podplane_client::{Api, ApiError, Binding};

use crate::{names::NodeName, pod::PodInfo};

/// How long an answer is waited for. After it the binding may or may not have happened, as after a lost connection.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// What became of a binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The pod is on the node.
    Bound,
    /// The pod is on a node that somebody else chose.
    Elsewhere,
    /// The pod does not exist any more.
    Gone,
    /// The pod exists and has no node.
    Failed(ApiError),
}

/// How often a binding is made again because the pod was written meanwhile without a change to what the choice rests on.
const TRIES: usize = 4;

/// Binds the pod as it was when the node was chosen. If its spec has changed since, the choice may be wrong and nothing is bound; that its status has,
/// such as by our own note of the last try, does not matter.
///
/// Any failure is followed by a look at the pod, so that the answer is what is, and not what the connection made of it.
/// That look is repeated until it is answered: while the API server is away, nobody else can be given the address that
/// stays reserved meanwhile.
pub async fn bind(pods: &Api<Pod>, pod: &Arc<PodInfo>, node: &NodeName) -> Outcome {
    let mut binding = Binding {
        name: pod.key.name.clone(),
        uid: pod.uid.to_string(),
        resource_version: Some(pod.pod.resource_version().to_owned()),
        node_name: node.to_string(),
    };
    let mut tries = 0;
    loop {
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, pods.bind(&binding)).await;
        let error = match answer {
            Ok(Ok(_)) => return Outcome::Bound,
            Ok(Err(error)) => error,
            Err(_) => no_answer(),
        };
        tries += 1;
        match look(pods, pod).await {
            Ok(found) if error.is_conflict() && tries < TRIES && is_as_chosen(pod, &found) => {
                binding.resource_version = Some(found.resource_version().to_owned());
            }
            Ok(found) => return judge(pod, node, &found, error),
            Err(gone) if gone.is_not_found() => return Outcome::Gone,
            Err(_) => return Outcome::Failed(error),
        }
    }
}

/// Whether the choice of a node for `pod` is as good for what was found in its place.
fn is_as_chosen(pod: &PodInfo, found: &Pod) -> bool {
    found.uid() == pod.pod.uid() && found.spec == pod.pod.spec && !found.is_deleting()
}

/// What the state of the pod says about a binding that was answered with `error`.
fn judge(pod: &PodInfo, node: &NodeName, found: &Arc<Pod>, error: ApiError) -> Outcome {
    let found = PodInfo::new(Arc::clone(found));
    match found.node_name() {
        _ if found.uid != pod.uid => Outcome::Gone,
        Some(actual) if actual == *node => Outcome::Bound,
        Some(_) => Outcome::Elsewhere,
        None => Outcome::Failed(error),
    }
}

async fn look(pods: &Api<Pod>, pod: &PodInfo) -> Result<Arc<Pod>, ApiError> {
    let read = || async {
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, pods.get(&pod.key.name)).await;
        answer.unwrap_or_else(|_| Err(no_answer())).map(Arc::new)
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
    use crate::testing::PodBuilder;

    #[test]
    fn a_choice_stands_while_the_spec_does() {
        let pod = PodBuilder::new("p");
        let stands = |found: PodBuilder| is_as_chosen(&pod.info(), &found.pod());
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
    fn the_pod_itself_says_whether_it_was_bound() {
        let error = || ApiError::new(Reason::ServiceUnavailable, "connection lost");
        let pod = PodBuilder::new("p");
        let judge = |found: PodBuilder| judge(&pod.info(), &"n".into(), &found.pod(), error());
        assert_eq!(judge(pod.clone()), Outcome::Failed(error()));
        assert_eq!(judge(pod.clone().on("n")), Outcome::Bound);
        assert_eq!(judge(pod.clone().on("m")), Outcome::Elsewhere);
        let another = PodBuilder::new("p")
            .set("/metadata/uid", "q".into())
            .on("n");
        assert_eq!(judge(another), Outcome::Gone);
    }
}
