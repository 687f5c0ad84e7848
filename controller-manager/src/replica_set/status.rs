//! The status of a ReplicaSet.

use podplane_api::{
    apps::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus},
    core::Pod,
    jiff::{SignedDuration, Timestamp},
    meta::Time,
};

use crate::pods::{available_from, ready_since};

const REPLICA_FAILURE: &str = "ReplicaFailure";

/// The reason why there are fewer or more pods than wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReplicaFailure {
    /// `FailedCreate` or `FailedDelete`.
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// The status for these active pods, and the time at which the next ready pod becomes available.
pub(super) fn status<P: AsRef<Pod>>(
    set: &ReplicaSet,
    pods: &[P],
    failure: Option<ReplicaFailure>,
    now: Timestamp,
) -> (ReplicaSetStatus, Option<Timestamp>) {
    let spec = set.spec.as_ref();
    let labels = spec
        .and_then(|spec| spec.template.as_ref()?.metadata.as_ref()?.labels.clone())
        .unwrap_or_default();
    let min_ready = spec
        .and_then(|spec| spec.min_ready_seconds)
        .unwrap_or_default();
    let min_ready = SignedDuration::from_secs(min_ready.max(0).into());
    let has_labels = |pod: &Pod| {
        let own = pod.metadata.labels.as_ref();
        labels
            .iter()
            .all(|(key, value)| own.and_then(|own| own.get(key)) == Some(value))
    };
    let pods = || pods.iter().map(AsRef::as_ref);
    let times: Vec<Timestamp> = pods()
        .filter_map(|pod| available_from(pod, min_ready))
        .collect();
    let counted = |count: usize| Some(number(count)).filter(|count| *count != 0);
    let mut status = set.status.clone().unwrap_or_default();
    status.replicas = number(pods().count());
    status.fully_labeled_replicas = counted(pods().filter(|pod| has_labels(pod)).count());
    status.ready_replicas = counted(pods().filter(|pod| ready_since(pod).is_some()).count());
    status.available_replicas = counted(times.iter().filter(|time| **time <= now).count());
    status.observed_generation = set.metadata.generation;
    set_failure(&mut status, failure, now);
    (status, times.into_iter().filter(|time| *time > now).min())
}

fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// Sets the condition of a failure. The first failure stays until there is none.
fn set_failure(status: &mut ReplicaSetStatus, failure: Option<ReplicaFailure>, now: Timestamp) {
    let conditions = status.conditions.get_or_insert_default();
    let said = conditions
        .iter()
        .any(|condition| condition.type_ == REPLICA_FAILURE);
    match failure {
        None => conditions.retain(|condition| condition.type_ != REPLICA_FAILURE),
        Some(_) if said => {}
        Some(ReplicaFailure { reason, message }) => conditions.push(ReplicaSetCondition {
            type_: REPLICA_FAILURE.to_owned(),
            status: "True".to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_transition_time: Some(Time(now)),
        }),
    }
    status
        .conditions
        .take_if(|conditions| conditions.is_empty());
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn at(second: &str) -> Timestamp {
        format!("2026-11-21T10:00:{second}Z").parse().unwrap()
    }

    fn set() -> ReplicaSet {
        let template = json!({"metadata": {"labels": {"app": "web", "v": "1"}}});
        let spec = json!({"minReadySeconds": 10, "selector": {}, "template": template});
        serde_json::from_value(json!({"metadata": {"generation": 3}, "spec": spec})).unwrap()
    }

    fn pod(labels: &[&str], ready: Option<&str>) -> Arc<Pod> {
        let mut pod = Pod::default();
        let labels = labels.iter().filter_map(|label| label.split_once('='));
        pod.metadata.labels = Some(
            labels
                .map(|(key, value)| (key.into(), value.into()))
                .collect(),
        );
        if let Some(second) = ready {
            let condition =
                json!({"type": "Ready", "status": "True", "lastTransitionTime": at(second)});
            pod.status = serde_json::from_value(json!({"conditions": [condition]})).unwrap();
        }
        Arc::new(pod)
    }

    #[test]
    fn counts_pods() {
        let pods = [
            pod(&["app=web", "v=1"], Some("00")),
            pod(&["app=web", "v=1", "more=x"], Some("07")),
            pod(&["app=web", "v=1"], Some("05")),
            pod(&["app=web"], None),
        ];
        let (status, next) = status(&set(), &pods, None, at("12"));
        let want = ReplicaSetStatus {
            replicas: 4,
            fully_labeled_replicas: Some(3),
            ready_replicas: Some(3),
            available_replicas: Some(1),
            observed_generation: Some(3),
            ..ReplicaSetStatus::default()
        };
        assert_eq!((status, next), (want, Some(at("15"))));
    }

    #[test]
    fn reports_a_failure_while_it_lasts() {
        let failure = |message: &str| ReplicaFailure {
            reason: "FailedCreate",
            message: message.into(),
        };
        let mut set = set();
        let none: [Arc<Pod>; 0] = [];
        set.status = Some(status(&set, &none, Some(failure("first")), at("00")).0);
        set.status = Some(status(&set, &none, Some(failure("second")), at("01")).0);
        let conditions = set.status.clone().unwrap().conditions.unwrap();
        assert_eq!(conditions.len(), 1);
        assert_eq!(conditions[0].message.as_deref(), Some("first"));
        assert_eq!(status(&set, &none, None, at("02")).0.conditions, None);
    }
}
