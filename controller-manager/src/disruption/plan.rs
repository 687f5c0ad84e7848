//! The status of a budget, from its pods and their workloads. Pure.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use podplane_api::{
    IntOrString, Object as _,
    core::Pod,
    jiff::{SignedDuration, Timestamp},
    kinds::{
        pod::is_ready,
        pod_disruption_budget::{DisruptionState, set_disruption_allowed},
    },
    meta::{OwnerReference, Time},
    policy::{PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus},
};

use crate::{
    owner::controller_of,
    percent::{Rounding, percent_of},
};

/// The time within which an evicted pod has to be marked as deleted, as in Kubernetes.
const DELETION_TIMEOUT: SignedDuration = SignedDuration::from_mins(2);

/// A workload with its number of replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ControllerScale {
    pub(super) uid: String,
    pub(super) replicas: i32,
}

/// The state that a budget's status depends on.
pub(super) struct DisruptionInput<'a> {
    pub(super) budget: &'a PodDisruptionBudget,
    /// The pods that the budget selects.
    pub(super) pods: &'a [Arc<Pod>],
    /// The workload behind a pod's controller, if it is known.
    pub(super) scale: &'a dyn Fn(&OwnerReference) -> Option<ControllerScale>,
    pub(super) now: Timestamp,
}

/// The decision about a budget.
#[derive(Debug, PartialEq)]
pub(super) struct DisruptionPlan {
    pub(super) status: PodDisruptionBudgetStatus,
    pub(super) notices: Vec<Notice>,
    /// The delay until an evicted pod that is still there counts again.
    pub(super) again: Option<Duration>,
}

/// An event to record.
#[derive(Debug, PartialEq)]
pub(super) enum Notice {
    /// The budget selects no pods.
    NoPods,
    /// The expected number of pods is unknown, for this reason.
    NotCounted(String),
    /// These pods have no controller, but the budget counts the replicas of controllers.
    Unmanaged(Vec<String>),
    /// The pod was not deleted in time after its eviction.
    NotDeleted(Arc<Pod>),
}

/// The numbers that a budget asks for.
#[derive(Debug, Default, PartialEq)]
struct ExpectedPods {
    count: i32,
    desired_healthy: i32,
    /// The names of pods without a controller.
    unmanaged: Vec<String>,
}

/// Decides about a budget.
pub(super) fn plan(input: DisruptionInput<'_>) -> DisruptionPlan {
    let DisruptionInput {
        budget,
        pods,
        scale,
        now,
    } = input;
    let old = budget.status.clone().unwrap_or_default();
    let spec = budget.spec.clone().unwrap_or_default();
    let mut notices = Vec::new();
    if pods.is_empty() {
        notices.push(Notice::NoPods);
    }
    let ExpectedPods {
        count,
        desired_healthy,
        unmanaged,
    } = match expected(&spec, pods, scale) {
        Ok(expected) => expected,
        // No eviction is allowed by numbers that may be wrong.
        Err(why) => {
            let mut status = PodDisruptionBudgetStatus {
                disruptions_allowed: Some(0),
                ..old
            };
            let failed = DisruptionState::SyncFailed(why.clone());
            set_disruption_allowed(&mut status, &failed, now);
            notices.push(Notice::NotCounted(why));
            return DisruptionPlan {
                status,
                notices,
                again: None,
            };
        }
    };
    if !unmanaged.is_empty() {
        notices.push(Notice::Unmanaged(unmanaged));
    }
    let Disrupted { kept, again } = disrupted(&old, pods, now, &mut notices);
    let is_healthy =
        |pod: &&Arc<Pod>| !pod.is_deleting() && !kept.contains_key(pod.name()) && is_ready(pod);
    let healthy = pods.iter().filter(is_healthy).count();
    let current_healthy = i32::try_from(healthy).unwrap_or(i32::MAX);
    let spare = current_healthy.saturating_sub(desired_healthy).max(0);
    let mut status = PodDisruptionBudgetStatus {
        current_healthy: Some(current_healthy),
        desired_healthy: Some(desired_healthy),
        expected_pods: Some(count),
        // A budget that selects no pods yet must not allow the disruption of its first ones.
        disruptions_allowed: Some(if count > 0 { spare } else { 0 }),
        disrupted_pods: Some(kept).filter(|kept| !kept.is_empty()),
        observed_generation: budget.metadata.generation,
        conditions: old.conditions,
    };
    set_disruption_allowed(&mut status, &DisruptionState::Counted, now);
    DisruptionPlan {
        status,
        notices,
        again,
    }
}

/// The expected and the desired number of pods (source: `getExpectedPodCount`). A minimum that is a
/// number refers to the present pods, all other limits to the replicas of their workloads.
fn expected(
    spec: &PodDisruptionBudgetSpec,
    pods: &[Arc<Pod>],
    scale: &dyn Fn(&OwnerReference) -> Option<ControllerScale>,
) -> Result<ExpectedPods, String> {
    let (max, min) = (&spec.max_unavailable, &spec.min_available);
    match (max, min) {
        (Some(max), _) => {
            let expected = of_workloads(pods, scale)?;
            let unavailable = scaled(max, expected.count)?;
            Ok(ExpectedPods {
                desired_healthy: expected.count.saturating_sub(unavailable).max(0),
                ..expected
            })
        }
        (None, Some(IntOrString::Int(min))) => Ok(ExpectedPods {
            count: i32::try_from(pods.len()).unwrap_or(i32::MAX),
            desired_healthy: *min,
            unmanaged: Vec::new(),
        }),
        (None, Some(min)) => {
            let expected = of_workloads(pods, scale)?;
            Ok(ExpectedPods {
                desired_healthy: scaled(min, expected.count)?,
                ..expected
            })
        }
        (None, None) => Ok(ExpectedPods::default()),
    }
}

/// The replicas of all workloads that control one of the pods.
fn of_workloads(
    pods: &[Arc<Pod>],
    scale: &dyn Fn(&OwnerReference) -> Option<ControllerScale>,
) -> Result<ExpectedPods, String> {
    let mut unmanaged = Vec::new();
    let mut workloads = BTreeMap::new();
    for pod in pods {
        let Some(owner) = controller_of(&pod.metadata) else {
            unmanaged.push(pod.name().to_owned());
            continue;
        };
        let Some(ControllerScale { uid, replicas }) = scale(owner) else {
            return Err(format!("found no controllers for pod {:?}", pod.name()));
        };
        workloads.insert(uid, replicas);
    }
    let count = workloads.into_values().fold(0, i32::saturating_add);
    Ok(ExpectedPods {
        count,
        desired_healthy: 0,
        unmanaged,
    })
}

/// A number, or a percentage of `of`, rounded up.
fn scaled(value: &IntOrString, of: i32) -> Result<i32, String> {
    match value {
        IntOrString::Int(number) => Ok(*number),
        IntOrString::String(text) => percent_of(text, of, Rounding::Up)
            .ok_or_else(|| format!("invalid value for IntOrString: {text:?} is not a percentage")),
    }
}

/// The evicted pods that are still to be deleted.
struct Disrupted {
    /// The pods by name, with the time of the eviction.
    kept: BTreeMap<String, Time>,
    again: Option<Duration>,
}

/// Keeps the evictions whose deletion has not been observed and is not overdue.
fn disrupted(
    old: &PodDisruptionBudgetStatus,
    pods: &[Arc<Pod>],
    now: Timestamp,
    notices: &mut Vec<Notice>,
) -> Disrupted {
    let mut kept = BTreeMap::new();
    let mut again: Option<Duration> = None;
    for pod in pods.iter().filter(|pod| !pod.is_deleting()) {
        let evicted = old.disrupted_pods.as_ref();
        let Some(time) = evicted.and_then(|evicted| evicted.get(pod.name())) else {
            continue;
        };
        let end = time.0.saturating_add(DELETION_TIMEOUT).unwrap_or(time.0);
        if end < now {
            notices.push(Notice::NotDeleted(pod.clone()));
            continue;
        }
        // A second more, so that the end has passed by then.
        let left = end.duration_since(now).unsigned_abs() + Duration::from_secs(1);
        again = Some(again.map_or(left, |again| again.min(left)));
        kept.insert(pod.name().to_owned(), time.clone());
    }
    Disrupted { kept, again }
}
