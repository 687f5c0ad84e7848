use podplane_api::{
    jiff::{SignedDuration, Timestamp},
    kinds::pod_disruption_budget::{disruption_allowed, sync_failure},
    meta::Time,
    policy::PodDisruptionBudgetStatus,
};
use serde_json::{Value, json};

use super::*;

fn now() -> Timestamp {
    Timestamp::from_second(1_000_000).unwrap()
}

fn budget(spec: Value) -> PodDisruptionBudget {
    let metadata = json!({"name": "web", "namespace": "default", "generation": 4});
    PodDisruptionBudget::from_json(json!({"metadata": metadata, "spec": spec})).unwrap()
}

/// A pod of a ReplicaSet; of none if `owner` is empty.
fn pod(name: &str, owner: &str, ready: bool) -> Arc<Pod> {
    let ready = if ready { "True" } else { "False" };
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "default"},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
    });
    if !owner.is_empty() {
        pod["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": owner, "controller": true,
        }]);
    }
    Arc::new(Pod::from_json(pod).unwrap())
}

fn deleting(pod: &Arc<Pod>) -> Arc<Pod> {
    let mut pod = (**pod).clone();
    pod.metadata.deletion_timestamp = Some(Time(now()));
    Arc::new(pod)
}

/// Two ReplicaSets of one Deployment of 4 replicas, and one of 3 without a Deployment.
fn scale(owner: &OwnerReference) -> Option<ControllerScale> {
    let (uid, replicas) = match owner.uid.as_str() {
        "old" | "new" => ("deployment", 4),
        "single" => ("single", 3),
        _ => return None,
    };
    Some(ControllerScale {
        uid: uid.into(),
        replicas,
    })
}

fn planned(budget: &PodDisruptionBudget, pods: &[Arc<Pod>]) -> DisruptionPlan {
    plan(DisruptionInput {
        budget,
        pods,
        scale: &scale,
        now: now(),
    })
}

/// Current, desired, expected and allowed.
fn numbers(status: &PodDisruptionBudgetStatus) -> [i32; 4] {
    [
        status.current_healthy,
        status.desired_healthy,
        status.expected_pods,
        status.disruptions_allowed,
    ]
    .map(Option::unwrap_or_default)
}

#[test]
fn counts_replicas_of_workloads_except_for_a_minimum_that_is_a_number() {
    let pods = [
        pod("a", "old", true),
        pod("b", "new", true),
        pod("c", "new", true),
        pod("d", "single", true),
        pod("e", "single", false),
    ];
    let cases = [
        (json!({"minAvailable": 2}), [4, 2, 5, 2]),
        (json!({"minAvailable": 9}), [4, 9, 5, 0]),
        (json!({"minAvailable": "30%"}), [4, 3, 7, 1]),
        (json!({"maxUnavailable": 3}), [4, 4, 7, 0]),
        (json!({"maxUnavailable": 4}), [4, 3, 7, 1]),
        (json!({"maxUnavailable": 9}), [4, 0, 7, 4]),
        (json!({"maxUnavailable": "50%"}), [4, 3, 7, 1]),
        (json!({}), [4, 0, 0, 0]),
    ];
    for (spec, expected) in cases {
        let DisruptionPlan {
            status, notices, ..
        } = planned(&budget(spec.clone()), &pods);
        assert_eq!(numbers(&status), expected, "{spec}");
        assert_eq!(status.observed_generation, Some(4));
        let condition = disruption_allowed(&status).unwrap();
        let state = match expected[3] {
            0 => ("False", "InsufficientPods"),
            _ => ("True", "SufficientPods"),
        };
        assert_eq!((&*condition.status, &*condition.reason), state, "{spec}");
        assert_eq!(notices, []);
    }
}

#[test]
fn a_budget_without_pods_allows_nothing() {
    let planned = planned(&budget(json!({"maxUnavailable": 1})), &[]);
    assert_eq!(numbers(&planned.status), [0; 4]);
    assert_eq!(planned.notices, [Notice::NoPods]);
}

#[test]
fn pods_without_a_controller_are_not_counted_and_reported() {
    let pods = [pod("a", "single", true), pod("b", "", true)];
    let planned = planned(&budget(json!({"maxUnavailable": 1})), &pods);
    assert_eq!(numbers(&planned.status), [2, 2, 3, 0]);
    assert_eq!(planned.notices, [Notice::Unmanaged(vec!["b".into()])]);
}

#[test]
fn an_unknown_workload_forbids_evictions_and_keeps_the_numbers() {
    let mut budget = budget(json!({"minAvailable": "50%"}));
    budget.status = Some(PodDisruptionBudgetStatus {
        current_healthy: Some(5),
        desired_healthy: Some(3),
        expected_pods: Some(6),
        disruptions_allowed: Some(2),
        observed_generation: Some(3),
        ..PodDisruptionBudgetStatus::default()
    });
    let planned = planned(&budget, &[pod("a", "unknown", true)]);
    assert_eq!(numbers(&planned.status), [5, 3, 6, 0]);
    assert_eq!(planned.status.observed_generation, Some(3));
    let why = "found no controllers for pod \"a\"";
    assert_eq!(sync_failure(&planned.status), Some(why));
    assert_eq!(planned.notices, [Notice::NotCounted(why.into())]);
}

#[test]
fn evicted_pods_do_not_count_until_their_deletion_is_overdue() {
    let pods = ["a", "b", "c", "d"].map(|name| pod(name, "single", true));
    let pods = [
        pods[0].clone(),
        pods[1].clone(),
        deleting(&pods[2]),
        pods[3].clone(),
    ];
    let ago = |seconds| {
        let time = now().checked_sub(SignedDuration::from_secs(seconds));
        Time(time.unwrap())
    };
    let evicted = [
        ("a".to_owned(), ago(121)),
        ("b".to_owned(), ago(20)),
        ("c".to_owned(), ago(10)),
        ("gone".to_owned(), ago(10)),
    ];
    let mut budget = budget(json!({"minAvailable": 1}));
    budget.status = Some(PodDisruptionBudgetStatus {
        disrupted_pods: Some(evicted.into()),
        ..PodDisruptionBudgetStatus::default()
    });
    let DisruptionPlan {
        status,
        notices,
        again,
    } = planned(&budget, &pods);
    assert_eq!(numbers(&status), [2, 1, 4, 1]);
    assert_eq!(
        status.disrupted_pods,
        Some([("b".to_owned(), ago(20))].into())
    );
    assert_eq!(notices, [Notice::NotDeleted(pods[0].clone())]);
    assert_eq!(again, Some(Duration::from_secs(101)));
}

#[test]
fn an_unchanged_state_gives_the_same_status() {
    let pods = [pod("a", "single", true)];
    let mut budget = budget(json!({"maxUnavailable": 3}));
    let first = planned(&budget, &pods).status;
    budget.status = Some(first.clone());
    let later = plan(DisruptionInput {
        budget: &budget,
        pods: &pods,
        scale: &scale,
        now: now().checked_add(SignedDuration::from_secs(60)).unwrap(),
    });
    assert_eq!(later.status, first);
}
