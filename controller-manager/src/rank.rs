//! The order in which pods are deleted of which there are too many.

use std::{cmp::Ordering, collections::BTreeMap};

use podplane_api::{Object as _, core::Pod, jiff::Timestamp};

use crate::pods::{is_active, node, phase, ready_since};

/// The annotation with the cost of deleting the pod, relative to others of its ReplicaSet.
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// Sorts `pods` by the order of deletion: unbound, pending, not ready, cheap, on a node with others
/// of the same controller, ready for a short time, restarted, new. The order is that of Kubernetes'
/// `ActivePodsWithRanks`. `related` are the pods that count as others: those of all ReplicaSets
/// with the same controller.
pub(crate) fn ranked<'a, P: AsRef<Pod> + 'a>(
    pods: impl IntoIterator<Item = P>,
    related: impl IntoIterator<Item = &'a P>,
    now: Timestamp,
) -> Vec<P> {
    let mut on_node = BTreeMap::<String, usize>::new();
    for pod in related.into_iter().map(AsRef::as_ref) {
        if let Some(node) = node(pod).filter(|_| is_active(pod)) {
            *on_node.entry(node.to_owned()).or_default() += 1;
        }
    }
    let keyed = pods
        .into_iter()
        .map(|pod| (Rank::of(pod.as_ref(), &on_node, now), pod));
    let mut keyed: Vec<(Rank, P)> = keyed.collect();
    keyed.sort_by(|(one, _), (other, _)| one.cmp(other));
    keyed.into_iter().map(|(_, pod)| pod).collect()
}

/// The sort key of a pod; the smallest is deleted first. It is compared field by field, so the
/// order of fields is the order of rules.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    is_bound: bool,
    phase: u8,
    is_ready: bool,
    cost: i32,
    alone: std::cmp::Reverse<usize>,
    ready: Age,
    restarts: std::cmp::Reverse<i32>,
    created: Age,
    /// Ages are compared roughly; among equals the order is arbitrary, but stable.
    uid: String,
}

impl Rank {
    fn of(pod: &Pod, on_node: &BTreeMap<String, usize>, now: Timestamp) -> Self {
        let node = node(pod);
        let ready = ready_since(pod);
        let annotations = pod.metadata.annotations.as_ref();
        let cost = annotations.and_then(|annotations| annotations.get(DELETION_COST));
        let statuses = pod
            .status
            .iter()
            .flat_map(|status| status.container_statuses.iter().flatten());
        let created = pod.metadata.creation_timestamp.as_ref();
        Self {
            is_bound: node.is_some(),
            phase: match phase(pod) {
                "" | "Pending" => 0,
                "Unknown" => 1,
                _ => 2,
            },
            is_ready: ready.is_some(),
            // Validation rejects all other values.
            cost: cost.and_then(|cost| cost.parse().ok()).unwrap_or_default(),
            alone: std::cmp::Reverse(
                node.and_then(|node| on_node.get(node))
                    .copied()
                    .unwrap_or_default(),
            ),
            ready: Age::of(ready.flatten(), now),
            restarts: std::cmp::Reverse(
                statuses
                    .map(|status| status.restart_count)
                    .max()
                    .unwrap_or_default(),
            ),
            created: Age::of(created.map(|time| time.0), now),
            uid: pod.uid().to_owned(),
        }
    }
}

/// An age as the binary logarithm of its nanoseconds, so that of pods of about the same age it is
/// not always the newest that is deleted. A pod without a time is the youngest.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Age(Option<u32>);

impl Age {
    fn of(time: Option<Timestamp>, now: Timestamp) -> Self {
        Self(time.map(|time| {
            let age = now.as_nanosecond().saturating_sub(time.as_nanosecond());
            match age.cmp(&0) {
                Ordering::Greater => age.ilog2() + 1,
                Ordering::Equal | Ordering::Less => 0,
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;

    const NOW: &str = "2026-11-21T10:00:00Z";

    fn pod(name: &str, json: Value) -> Arc<Pod> {
        let mut pod: Pod = serde_json::from_value(json).unwrap();
        pod.metadata.name = Some(name.into());
        pod.metadata.uid = Some(name.into());
        Arc::new(pod)
    }

    fn ready(since: &str) -> Value {
        json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": since}]})
    }

    fn order(pods: Vec<Arc<Pod>>) -> Vec<String> {
        let related = pods.clone();
        let ranked = ranked(pods, &related, NOW.parse().unwrap());
        ranked.iter().map(|pod| pod.name().to_owned()).collect()
    }

    #[test]
    fn applies_the_rules_in_order() {
        let old = "2026-11-20T10:00:00Z";
        let ready_at = |node: &str, since: &str| json!({"spec": {"nodeName": node, "containers": []}, "status": ready(since)});
        let restarted = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": old}],
            "containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 3}]});
        let cheap = json!({"metadata": {"annotations": {DELETION_COST: "-1"}}, "spec": {"nodeName": "e", "containers": []}, "status": ready(old)});
        let pods = vec![
            pod(
                "9-old",
                json!({"metadata": {"creationTimestamp": old}, "spec": {"nodeName": "i", "containers": []}, "status": ready(old)}),
            ),
            pod(
                "8-new",
                json!({"metadata": {"creationTimestamp": NOW}, "spec": {"nodeName": "h", "containers": []}, "status": ready(old)}),
            ),
            pod(
                "7-restarted",
                json!({"spec": {"nodeName": "g", "containers": []}, "status": restarted}),
            ),
            pod("6-just-ready", ready_at("f", NOW)),
            pod("5-doubled", ready_at("x", old)),
            pod("5-doubled-too", ready_at("x", old)),
            pod("4-cheap", cheap),
            pod(
                "3-not-ready",
                json!({"spec": {"nodeName": "d", "containers": []}, "status": {"phase": "Running"}}),
            ),
            pod(
                "2-unknown",
                json!({"spec": {"nodeName": "c", "containers": []}, "status": {"phase": "Unknown"}}),
            ),
            pod(
                "1-pending",
                json!({"spec": {"nodeName": "b", "containers": []}, "status": {"phase": "Pending"}}),
            ),
            pod("0-unbound", json!({"status": {"phase": "Pending"}})),
        ];
        let mut want: Vec<String> = pods.iter().map(|pod| pod.name().to_owned()).collect();
        want.sort();
        assert_eq!(order(pods), want);
    }
}
