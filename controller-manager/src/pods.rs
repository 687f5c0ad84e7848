//! The properties of pods that their controllers depend on.

use podplane_api::{
    Object as _,
    core::Pod,
    jiff::{SignedDuration, Timestamp},
    pod_ips,
};

/// Returns whether the pod counts: it has not ended, and is not being deleted.
pub(crate) fn is_active(pod: &Pod) -> bool {
    !pod_ips::is_terminal(pod) && !pod.is_deleting()
}

pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

/// The node that the pod is bound to.
pub(crate) fn node(pod: &Pod) -> Option<&str> {
    let node = pod.spec.as_ref()?.node_name.as_deref();
    node.filter(|node| !node.is_empty())
}

/// `Some` if the pod is ready, with the time since when, if known.
pub(crate) fn ready_since(pod: &Pod) -> Option<Option<Timestamp>> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    let ready = conditions.find(|condition| condition.type_ == "Ready")?;
    let since = || ready.last_transition_time.as_ref().map(|time| time.0);
    (ready.status == "True").then(since)
}

/// The time at which the pod has been, or will have been, ready for `min_ready`; `None` if it is
/// not ready.
pub(crate) fn available_from(pod: &Pod, min_ready: SignedDuration) -> Option<Timestamp> {
    let since = ready_since(pod)?;
    if min_ready.is_zero() {
        return Some(Timestamp::MIN);
    }
    since?.checked_add(min_ready).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(status: Value) -> Pod {
        serde_json::from_value(json!({"status": status})).unwrap()
    }

    #[test]
    fn pod_is_available_after_min_ready_seconds() {
        let ready = |status: &str| {
            pod(
                json!({"conditions": [{"type": "Ready", "status": status, "lastTransitionTime": "2026-11-21T10:00:00Z"}]}),
            )
        };
        let (none, ten) = (SignedDuration::ZERO, SignedDuration::from_secs(10));
        assert_eq!(available_from(&ready("False"), none), None);
        assert_eq!(available_from(&pod(json!({})), none), None);
        assert_eq!(available_from(&ready("True"), none), Some(Timestamp::MIN));
        assert_eq!(
            available_from(&ready("True"), ten),
            Some("2026-11-21T10:00:10Z".parse().unwrap())
        );
    }

    #[test]
    fn ignores_ended_and_deleted_pods() {
        assert!(is_active(&pod(json!({"phase": "Running"}))));
        assert!(is_active(&pod(json!({}))));
        assert!(!is_active(&pod(json!({"phase": "Failed"}))));
        assert!(!is_active(&pod(json!({"phase": "Succeeded"}))));
        let mut going = pod(json!({"phase": "Running"}));
        going.metadata.deletion_timestamp = Some(podplane_api::meta::Time(Timestamp::UNIX_EPOCH));
        assert!(!is_active(&going));
    }
}
