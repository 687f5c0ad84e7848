//! Conditions of pods that evictions depend on, and set.

use crate::{
    core::{Pod, PodCondition},
    jiff::Timestamp,
    meta::Time,
};

const READY: &str = "Ready";
const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// Returns true if the pod's condition `Ready` is true.
pub fn is_ready(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == READY && condition.status == "True")
}

/// The source of a disruption: the reason and the message of its condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DisruptionSource {
    reason: &'static str,
    message: &'static str,
}

impl DisruptionSource {
    /// `pods/eviction`.
    pub const EVICTION: Self = Self {
        reason: "EvictionByEvictionAPI",
        message: "Eviction API: evicting",
    };
    /// The preemption by a scheduler.
    pub const PREEMPTION: Self = Self {
        reason: "PreemptionByScheduler",
        message: "default-scheduler: preempting to accommodate a higher priority pod",
    };
}

/// Sets the condition of a pod that is deleted by a disruption. The time of the last transition
/// changes only with the condition's status.
pub fn set_disruption_target(pod: &mut Pod, source: DisruptionSource, now: Timestamp) {
    let mut condition = PodCondition {
        type_: DISRUPTION_TARGET.into(),
        status: "True".into(),
        reason: Some(source.reason.into()),
        message: Some(source.message.into()),
        last_transition_time: Some(Time(now)),
        ..PodCondition::default()
    };
    let status = pod.status.get_or_insert_default();
    let conditions = status.conditions.get_or_insert_default();
    let mut present = conditions.iter_mut();
    match present.find(|present| present.type_ == condition.type_) {
        None => conditions.push(condition),
        Some(present) => {
            if present.status == condition.status {
                condition
                    .last_transition_time
                    .clone_from(&present.last_transition_time);
            }
            *present = condition;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Object as _;

    fn pod(conditions: serde_json::Value) -> Pod {
        Pod::from_json(json!({"metadata": {"name": "a"}, "status": {"conditions": conditions}}))
            .unwrap()
    }

    #[test]
    fn a_pod_is_ready_by_its_condition() {
        assert!(is_ready(&pod(json!([{"type": "Ready", "status": "True"}]))));
        for conditions in [
            json!([]),
            json!([{"type": "Ready", "status": "False"}]),
            json!([{"type": "Initialized", "status": "True"}]),
        ] {
            assert!(!is_ready(&pod(conditions)));
        }
        assert!(!is_ready(&Pod::default()));
    }

    #[test]
    fn an_eviction_is_recorded_once() {
        let mut pod = pod(json!([{"type": "Ready", "status": "True"}]));
        for second in [1, 2] {
            set_disruption_target(
                &mut pod,
                DisruptionSource::EVICTION,
                Timestamp::from_second(second).unwrap(),
            );
        }
        let conditions = pod.status.unwrap().conditions.unwrap();
        assert_eq!(
            serde_json::to_value(&conditions[1..]).unwrap(),
            json!([{
                "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                "message": "Eviction API: evicting", "lastTransitionTime": "1970-01-01T00:00:01Z",
            }])
        );
    }
}
