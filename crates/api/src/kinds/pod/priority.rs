//! The priority of a new pod.

use crate::{
    Object as _, core::Pod, kinds::priority_class::DEFAULT_POLICY, scheduling::PriorityClass,
};

/// The priority of a pod where no class is the global default.
const DEFAULT_PRIORITY: i32 = 0;

/// Sets the priority and the preemption policy of a new pod. `class` is the one that the pod names;
/// for a pod that names none, the global default if there is one. A pod keeps both when the class
/// changes or is deleted (source: `admitPod` of Kubernetes' `Priority` admission).
///
/// # Errors
///
/// The reason in words, if the pod itself states a priority or a policy other than that of its
/// class.
pub fn set_priority(pod: &mut Pod, class: Option<&PriorityClass>) -> Result<(), String> {
    // Refused by validation.
    let Some(spec) = &mut pod.spec else {
        return Ok(());
    };
    let (priority, policy) = match class {
        Some(class) => {
            spec.priority_class_name = Some(class.name().to_owned());
            (
                class.value.unwrap_or_default(),
                class.preemption_policy.as_deref(),
            )
        }
        None => (DEFAULT_PRIORITY, Some(DEFAULT_POLICY)),
    };
    if let Some(own) = spec.priority.filter(|own| *own != priority) {
        return Err(format!(
            "the integer value of priority ({own}) must not be provided in pod spec; priority admission controller computed {priority} from the given PriorityClass name"
        ));
    }
    spec.priority = Some(priority);
    let Some(policy) = policy else {
        return Ok(());
    };
    if let Some(own) = spec
        .preemption_policy
        .as_deref()
        .filter(|own| *own != policy)
    {
        return Err(format!(
            "the string value of PreemptionPolicy ({own}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
        ));
    }
    spec.preemption_policy = Some(policy.to_owned());
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(spec: serde_json::Value) -> Pod {
        Pod::from_json(json!({"metadata": {"name": "a"}, "spec": spec})).unwrap()
    }

    fn class(value: i32, policy: &str) -> PriorityClass {
        let document =
            json!({"metadata": {"name": "high"}, "value": value, "preemptionPolicy": policy});
        PriorityClass::from_json(document).unwrap()
    }

    fn spec(pod: Pod) -> (Option<String>, Option<i32>, Option<String>) {
        let spec = pod.spec.unwrap();
        (
            spec.priority_class_name,
            spec.priority,
            spec.preemption_policy,
        )
    }

    #[test]
    fn takes_priority_and_policy_of_the_class() {
        for own in [
            json!({"containers": [], "priorityClassName": "high"}),
            json!({"containers": [], "priority": 7, "preemptionPolicy": "Never"}),
        ] {
            let mut pod = pod(own);
            set_priority(&mut pod, Some(&class(7, "Never"))).unwrap();
            assert_eq!(
                spec(pod),
                (Some("high".into()), Some(7), Some("Never".into()))
            );
        }
    }

    #[test]
    fn is_zero_without_a_class() {
        let mut pod = pod(json!({"containers": [], "priority": 0}));
        set_priority(&mut pod, None).unwrap();
        assert_eq!(spec(pod), (None, Some(0), Some(DEFAULT_POLICY.into())));
    }

    #[test]
    fn refuses_a_priority_other_than_the_class_has() {
        let mut own = pod(json!({"containers": [], "priority": 8}));
        assert_eq!(
            set_priority(&mut own, Some(&class(7, "Never"))).unwrap_err(),
            "the integer value of priority (8) must not be provided in pod spec; priority admission controller computed 7 from the given PriorityClass name"
        );
        let mut own = pod(json!({"containers": [], "preemptionPolicy": "Never"}));
        assert_eq!(
            set_priority(&mut own, None).unwrap_err(),
            "the string value of PreemptionPolicy (Never) must not be provided in pod spec; priority admission controller computed PreemptLowerPriority from the given PriorityClass name"
        );
    }
}
