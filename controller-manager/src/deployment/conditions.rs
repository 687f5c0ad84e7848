//! The conditions and counts in a Deployment's status.

use podplane_api::{
    Object as _,
    apps::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet, ReplicaSetCondition},
    jiff::{SignedDuration, Timestamp},
    meta::Time,
};

use super::replicas::{bounds, size, spec, total, wanted};

pub(crate) const PROGRESSING: &str = "Progressing";
pub(crate) const AVAILABLE: &str = "Available";
pub(crate) const REPLICA_FAILURE: &str = "ReplicaFailure";

pub(crate) const NEW_REPLICA_SET: &str = "NewReplicaSetCreated";
pub(crate) const FOUND_REPLICA_SET: &str = "FoundNewReplicaSet";
pub(crate) const REPLICA_SET_UPDATED: &str = "ReplicaSetUpdated";
pub(crate) const CREATE_FAILED: &str = "ReplicaSetCreateError";
const REPLICA_SET_AVAILABLE: &str = "NewReplicaSetAvailable";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const PAUSED: &str = "DeploymentPaused";
const RESUMED: &str = "DeploymentResumed";

/// The value of `progressDeadlineSeconds` that means no deadline.
const NO_DEADLINE: i32 = i32::MAX;

/// The condition of that type.
pub(crate) fn get<'a>(
    status: &'a DeploymentStatus,
    r#type: &str,
) -> Option<&'a DeploymentCondition> {
    let mut conditions = status.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == r#type)
}

/// Sets a condition. One with the same status and reason changes nothing; an unchanged status keeps
/// its transition time.
pub(crate) fn set(status: &mut DeploymentStatus, mut condition: DeploymentCondition) {
    let current = get(status, &condition.type_);
    if current.is_some_and(|current| {
        current.status == condition.status && current.reason == condition.reason
    }) {
        return;
    }
    if let Some(current) = current.filter(|current| current.status == condition.status) {
        condition
            .last_transition_time
            .clone_from(&current.last_transition_time);
    }
    remove(status, &condition.type_);
    status.conditions.get_or_insert_default().push(condition);
}

pub(crate) fn remove(status: &mut DeploymentStatus, r#type: &str) {
    if let Some(conditions) = &mut status.conditions {
        conditions.retain(|condition| condition.type_ != r#type);
    }
    status
        .conditions
        .take_if(|conditions| conditions.is_empty());
}

pub(crate) fn condition(
    r#type: &str,
    status: &str,
    reason: &str,
    message: impl Into<String>,
    now: Timestamp,
) -> DeploymentCondition {
    DeploymentCondition {
        type_: r#type.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.into()),
        last_update_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    }
}

/// The progress deadline; there is one by default.
pub(crate) fn deadline(deployment: &Deployment) -> Option<SignedDuration> {
    let seconds = spec(deployment).and_then(|spec| spec.progress_deadline_seconds)?;
    (seconds != NO_DEADLINE).then(|| SignedDuration::from_secs(seconds.into()))
}

fn reason<'a>(status: &'a DeploymentStatus, r#type: &str) -> Option<&'a str> {
    get(status, r#type)?.reason.as_deref()
}

/// Sets the condition of a paused or resumed rollout, so that the pause does not count for the
/// deadline. As Kubernetes' `checkPausedConditions`.
pub(crate) fn pause(deployment: &Deployment, status: &mut DeploymentStatus, now: Timestamp) {
    let current = reason(status, PROGRESSING);
    if deadline(deployment).is_none() || current == Some(TIMED_OUT) {
        return;
    }
    let paused = super::is_paused(deployment);
    let said = current == Some(PAUSED);
    if paused && !said {
        set(
            status,
            condition(PROGRESSING, "Unknown", PAUSED, "Deployment is paused", now),
        );
    } else if !paused && said {
        set(
            status,
            condition(
                PROGRESSING,
                "Unknown",
                RESUMED,
                "Deployment is resumed",
                now,
            ),
        );
    }
}

/// Sets the counts, and the condition whether enough replicas are available. As Kubernetes'
/// `calculateStatus`.
pub(crate) fn count(
    deployment: &Deployment,
    all: &[&ReplicaSet],
    new: Option<&ReplicaSet>,
    status: &mut DeploymentStatus,
    now: Timestamp,
) {
    let sum = |of: fn(&ReplicaSet) -> i32| total(all.iter().copied(), of);
    let available = sum(|set| {
        set.status
            .as_ref()
            .and_then(|status| status.available_replicas)
            .unwrap_or_default()
    });
    let ready = sum(|set| {
        set.status
            .as_ref()
            .and_then(|status| status.ready_replicas)
            .unwrap_or_default()
    });
    let some = |count: i32| (count != 0).then_some(count);
    status.observed_generation = deployment.metadata.generation;
    status.replicas = some(sum(actual));
    status.updated_replicas = some(new.map_or(0, actual));
    status.ready_replicas = some(ready);
    status.available_replicas = some(available);
    status.unavailable_replicas = some(sum(size).saturating_sub(available).max(0));
    let enough = available >= wanted(deployment) - bounds(deployment).unavailable;
    let availability = if enough {
        condition(
            AVAILABLE,
            "True",
            "MinimumReplicasAvailable",
            "Deployment has minimum availability.",
            now,
        )
    } else {
        condition(
            AVAILABLE,
            "False",
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.",
            now,
        )
    };
    set(status, availability);
}

/// The number of pods according to the ReplicaSet's status.
fn actual(set: &ReplicaSet) -> i32 {
    set.status.as_ref().map_or(0, |status| status.replicas)
}

/// Returns whether all replicas are of the new ReplicaSet, and available.
pub(crate) fn is_complete(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let wanted = wanted(deployment);
    let is_all = |count: Option<i32>| count.unwrap_or_default() == wanted;
    is_all(status.updated_replicas)
        && is_all(status.replicas)
        && is_all(status.available_replicas)
        && status.observed_generation >= deployment.metadata.generation
}

/// Sets the conditions of the rollout, from the former counts and those in `status`. As Kubernetes'
/// `syncRolloutStatus`.
pub(crate) fn progress(
    deployment: &Deployment,
    all: &[&ReplicaSet],
    new: Option<&ReplicaSet>,
    status: &mut DeploymentStatus,
    now: Timestamp,
) {
    let before = deployment.status.clone().unwrap_or_default();
    match deadline(deployment) {
        None => remove(status, PROGRESSING),
        Some(deadline) => {
            let was_complete = status.replicas == status.updated_replicas
                && reason(status, PROGRESSING) == Some(REPLICA_SET_AVAILABLE);
            if !was_complete {
                progress_condition(deployment, new, &before, deadline, status, now);
            }
        }
    }
    match failure(all, new) {
        Some(failure) => set(status, failure),
        None => remove(status, REPLICA_FAILURE),
    }
}

fn progress_condition(
    deployment: &Deployment,
    new: Option<&ReplicaSet>,
    before: &DeploymentStatus,
    deadline: SignedDuration,
    status: &mut DeploymentStatus,
    now: Timestamp,
) {
    let whose = match new {
        Some(new) => format!("ReplicaSet {:?}", new.name()),
        None => format!("Deployment {:?}", deployment.name()),
    };
    if is_complete(deployment, status) {
        let message = format!("{whose} has successfully progressed.");
        set(
            status,
            condition(PROGRESSING, "True", REPLICA_SET_AVAILABLE, message, now),
        );
    } else if has_progressed(before, status) {
        let mut progressing = condition(
            PROGRESSING,
            "True",
            REPLICA_SET_UPDATED,
            format!("{whose} is progressing."),
            now,
        );
        // Unlike other conditions it is renewed with each step, since the deadline counts from the
        // last one.
        if let Some(current) = get(status, PROGRESSING)
            && current.status == "True"
        {
            progressing
                .last_transition_time
                .clone_from(&current.last_transition_time);
        }
        remove(status, PROGRESSING);
        set(status, progressing);
    } else if due(status, deadline).is_some_and(|due| due < now) {
        let message = format!("{whose} has timed out progressing.");
        set(
            status,
            condition(PROGRESSING, "False", TIMED_OUT, message, now),
        );
    }
}

/// Returns whether there are more new pods, fewer old ones, or more that are ready or available.
fn has_progressed(before: &DeploymentStatus, after: &DeploymentStatus) -> bool {
    let count = |count: Option<i32>| count.unwrap_or_default();
    let old = |status: &DeploymentStatus| count(status.replicas) - count(status.updated_replicas);
    count(after.updated_replicas) > count(before.updated_replicas)
        || old(after) < old(before)
        || count(after.ready_replicas) > count(before.ready_replicas)
        || count(after.available_replicas) > count(before.available_replicas)
}

/// The time at which the deadline passes, while the rollout runs and has not exceeded it.
pub(crate) fn due(status: &DeploymentStatus, deadline: SignedDuration) -> Option<Timestamp> {
    let current = get(status, PROGRESSING)?;
    if matches!(
        current.reason.as_deref(),
        Some(REPLICA_SET_AVAILABLE | TIMED_OUT)
    ) {
        return None;
    }
    let from = current.last_update_time.as_ref()?;
    from.0.checked_add(deadline).ok()
}

/// The failure to create or delete pods that a ReplicaSet reports; the new one's first.
fn failure(all: &[&ReplicaSet], new: Option<&ReplicaSet>) -> Option<DeploymentCondition> {
    let of = |set: &ReplicaSet| {
        let status = set.status.as_ref()?;
        let mut conditions = status.conditions.iter().flatten();
        conditions
            .find(|condition| condition.type_ == REPLICA_FAILURE)
            .cloned()
    };
    let found = new
        .and_then(of)
        .or_else(|| all.iter().find_map(|set| of(set)))?;
    let ReplicaSetCondition {
        last_transition_time,
        message,
        reason,
        status,
        type_,
    } = found;
    Some(DeploymentCondition {
        last_update_time: last_transition_time.clone(),
        last_transition_time,
        message,
        reason,
        status,
        type_,
    })
}
