//! Binding a pod to a node.

use crate::{
    core::{Pod, PodCondition, PodSpec},
    jiff::Timestamp,
    meta::Time,
};

/// Writes the node into the pod, as Kubernetes' binding handler does.
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
    let conditions = pod
        .status
        .get_or_insert_default()
        .conditions
        .get_or_insert_default();
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
