//! The parts of a pod's spec that may change.

use serde_json::Value;

use crate::{
    core::{Container, PodSpec, Toleration},
    validation::{ErrorList, FieldPath},
};

const MAY_CHANGE: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,\
     `spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),\
     `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

pub(super) fn validate(path: &FieldPath, new: &PodSpec, old: &PodSpec, errors: &mut ErrorList) {
    let counts = [
        ("containers", new.containers.len(), old.containers.len()),
        (
            "initContainers",
            count(new.init_containers.as_ref()),
            count(old.init_containers.as_ref()),
        ),
    ];
    for (field, _, _) in counts.iter().filter(|(_, new, old)| new != old) {
        errors.forbidden(
            &path.child(field),
            "pod updates may not add or remove containers",
        );
    }
    if counts.iter().any(|(_, new, old)| new != old) {
        return;
    }
    active_deadline(&path.child("activeDeadlineSeconds"), new, old, errors);
    let (added, kept) = (
        new.tolerations.as_deref().unwrap_or_default(),
        old.tolerations.as_deref().unwrap_or_default(),
    );
    if !kept
        .iter()
        .all(|toleration| added.iter().any(|new| same_but_seconds(new, toleration)))
    {
        errors.forbidden(
            &path.child("tolerations"),
            "existing toleration can not be modified except its tolerationSeconds",
        );
    }
    for gate in new.scheduling_gates.iter().flatten() {
        if !old
            .scheduling_gates
            .iter()
            .flatten()
            .any(|other| other.name == gate.name)
        {
            let detail = format!(
                "only deletion is allowed, but found new scheduling gate '{}'",
                gate.name
            );
            errors.forbidden(&path.child("schedulingGates"), &detail);
        }
    }
    let changed = changed_fields(&with_mutable_fields_of(new, old), old);
    if !changed.is_empty() {
        errors.forbidden(path, &format!("{MAY_CHANGE}\n{}", changed.join("\n")));
    }
}

fn count<T>(list: Option<&Vec<T>>) -> usize {
    list.map_or(0, Vec::len)
}

fn active_deadline(path: &FieldPath, new: &PodSpec, old: &PodSpec, errors: &mut ErrorList) {
    match (new.active_deadline_seconds, old.active_deadline_seconds) {
        (Some(new), Some(old)) if new > old => {
            errors.invalid(path, new, "must be less than or equal to previous value")
        }
        (None, Some(_)) => errors.invalid(
            path,
            Value::Null,
            "must not update from a positive integer to nil value",
        ),
        _ => {}
    }
}

fn same_but_seconds(a: &Toleration, b: &Toleration) -> bool {
    let Toleration {
        effect,
        key,
        operator,
        toleration_seconds: _,
        value,
    } = a;
    (effect, key, operator, value) == (&b.effect, &b.key, &b.operator, &b.value)
}

/// A copy of `new` in which all mutable fields have the values of `old`.
fn with_mutable_fields_of(new: &PodSpec, old: &PodSpec) -> PodSpec {
    let mut spec = new.clone();
    let restore = |new: &mut [Container], old: &[Container]| {
        for (new, old) in new.iter_mut().zip(old) {
            new.image.clone_from(&old.image);
        }
    };
    restore(&mut spec.containers, &old.containers);
    restore(
        spec.init_containers.as_deref_mut().unwrap_or_default(),
        old.init_containers.as_deref().unwrap_or_default(),
    );
    spec.active_deadline_seconds = old.active_deadline_seconds;
    spec.tolerations.clone_from(&old.tolerations);
    spec.scheduling_gates.clone_from(&old.scheduling_gates);
    if old
        .termination_grace_period_seconds
        .is_some_and(|seconds| seconds < 0)
        && spec.termination_grace_period_seconds == Some(1)
    {
        spec.termination_grace_period_seconds = old.termination_grace_period_seconds;
    }
    spec
}

/// Each top-level field that differs, before and after. Kubernetes prints a structural diff here,
/// whose format it does not promise.
fn changed_fields(new: &PodSpec, old: &PodSpec) -> Vec<String> {
    if new == old {
        return Vec::new();
    }
    let fields = |spec: &PodSpec| match serde_json::to_value(spec) {
        Ok(Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let (new, old) = (fields(new), fields(old));
    let names: std::collections::BTreeSet<_> = new.keys().chain(old.keys()).collect();
    let show = |value: Option<&Value>| value.map_or_else(|| "(unset)".to_owned(), Value::to_string);
    names
        .into_iter()
        .filter(|name| new.get(*name) != old.get(*name))
        .map(|name| {
            format!(
                "  {name}: {} -> {}",
                show(old.get(name)),
                show(new.get(name))
            )
        })
        .collect()
}
