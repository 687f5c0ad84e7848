//! Binding a pod to a node.

use crate::{
    core::{Pod, PodCondition, PodSpec},
    jiff::Timestamp,
    meta::Time,
};

/// Writes the node into the pod, as Kubernetes' binding handler does. The nomination of a node ends
/// with it (`ClearingNominatedNodeNameAfterBinding`, on since 1.35).
///
/// # Errors
///
/// The reason in words.
pub fn bind(pod: &mut Pod, node: &str, now: Timestamp) -> Result<(), String> {
    let name = pod.metadata.name.clone().unwrap_or_default();
    if pod.metadata.deletion_timestamp.is_some() {
        return Err(format!(
            "pod {name} is being deleted, cannot be assigned to a host"
        ));
    }
    let spec = pod.spec.get_or_insert_default();
    if let Some(bound) = spec.node_name.as_deref().filter(|bound| !bound.is_empty()) {
        return Err(format!("pod {name} is already assigned to node {bound:?}"));
    }
    if spec.scheduling_gates.iter().flatten().next().is_some() {
        return Err(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    spec.node_name = Some(node.to_owned());
    let status = pod.status.get_or_insert_default();
    status.nominated_node_name = None;
    let conditions = status.conditions.get_or_insert_default();
    let scheduled = PodCondition {
        type_: "PodScheduled".into(),
        status: "True".into(),
        last_transition_time: Some(Time(now)),
        ..PodCondition::default()
    };
    match conditions
        .iter_mut()
        .find(|condition| condition.type_ == scheduled.type_)
    {
        Some(condition) => *condition = scheduled,
        None => conditions.push(scheduled),
    }
    Ok(())
}

/// The condition of a new pod that waits for its scheduling gates.
pub(super) fn gated(spec: &PodSpec) -> Option<PodCondition> {
    spec.scheduling_gates.iter().flatten().next()?;
    Some(PodCondition {
        type_: "PodScheduled".into(),
        status: "False".into(),
        reason: Some("SchedulingGated".into()),
        message: Some("Scheduling is blocked due to non-empty scheduling gates".into()),
        ..PodCondition::default()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::object::Object as _;

    #[test]
    fn ends_the_nomination_of_a_node() {
        let document = json!({"metadata": {"name": "a"}, "status": {"phase": "Pending",
            "nominatedNodeName": "n", "conditions": [{"type": "PodScheduled", "status": "False"}]}});
        let mut pod = Pod::from_json(document).unwrap();
        bind(&mut pod, "m", Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(pod.spec.unwrap().node_name.as_deref(), Some("m"));
        let status = pod.status.unwrap();
        assert_eq!(status.nominated_node_name, None);
        assert_eq!(status.phase.as_deref(), Some("Pending"));
        assert_eq!(status.conditions.unwrap()[0].status, "True");
    }
}
