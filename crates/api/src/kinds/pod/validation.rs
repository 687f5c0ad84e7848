//! Validation of pods: the required parts of a spec, and the few that may change.

pub(super) mod containers;
#[cfg(test)]
mod tests;
mod update;

use std::collections::BTreeSet;

use crate::{
    core::{Pod, PodSpec},
    kinds::priority_class,
    names, pod_exit,
    validation::{ErrorList, FieldPath, Validate, metadata, taints},
};

impl Validate for Pod {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let annotations = FieldPath::new("metadata").child("annotations");
        pod_exit::validate(
            &annotations,
            self.metadata.annotations.as_ref(),
            &mut errors,
        );
        match &self.spec {
            None => errors.required(&FieldPath::new("spec"), ""),
            Some(spec) => validate_spec(&FieldPath::new("spec"), spec, &mut errors),
        }
        errors
    }

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(self.validate());
        if let (Some(new), Some(old)) = (&self.spec, &old.spec) {
            update::validate(&FieldPath::new("spec"), new, old, &mut errors);
        }
        errors
    }
}

pub(crate) fn validate_spec(path: &FieldPath, spec: &PodSpec, errors: &mut ErrorList) {
    let volumes = volumes(&path.child("volumes"), spec, errors);
    containers::validate(path, spec, &volumes, errors);
    one_of(
        &path.child("restartPolicy"),
        spec.restart_policy.as_deref(),
        &["Always", "OnFailure", "Never"],
        errors,
    );
    one_of(
        &path.child("dnsPolicy"),
        spec.dns_policy.as_deref(),
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
        errors,
    );
    metadata::labels(
        &path.child("nodeSelector"),
        spec.node_selector.as_ref(),
        errors,
    );
    let optional: [(&str, &Option<String>, metadata::NameRules); 5] = [
        ("nodeName", &spec.node_name, names::dns1123_subdomain),
        (
            "serviceAccountName",
            &spec.service_account_name,
            names::dns1123_subdomain,
        ),
        ("hostname", &spec.hostname, names::dns1123_label),
        ("subdomain", &spec.subdomain, names::dns1123_label),
        (
            "priorityClassName",
            &spec.priority_class_name,
            names::dns1123_subdomain,
        ),
    ];
    for (field, value, rules) in optional {
        if let Some(value) = value.as_deref().filter(|value| !value.is_empty()) {
            errors.invalid_each(&path.child(field), value, rules(value));
        }
    }
    if let Some(seconds) = spec
        .active_deadline_seconds
        .filter(|seconds| !(1..=i64::from(i32::MAX)).contains(seconds))
    {
        let detail = "must be between 1 and 2147483647, inclusive";
        errors.invalid(&path.child("activeDeadlineSeconds"), seconds, detail);
    }
    taints::tolerations(
        &path.child("tolerations"),
        spec.tolerations.as_deref().unwrap_or_default(),
        errors,
    );
    if let Some(policy) = spec.preemption_policy.as_deref() {
        let path = path.child("preemptionPolicy");
        one_of(&path, Some(policy), &priority_class::POLICIES, errors);
    }
    scheduling_gates(path, spec, errors);
}

/// The names of the pod's volumes.
fn volumes<'a>(path: &FieldPath, spec: &'a PodSpec, errors: &mut ErrorList) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        let path = path.index(index).child("name");
        unique_label(&path, &volume.name, &mut seen, errors);
    }
    seen
}

fn scheduling_gates(path: &FieldPath, spec: &PodSpec, errors: &mut ErrorList) {
    let gates = spec.scheduling_gates.as_deref().unwrap_or_default();
    let mut seen = BTreeSet::new();
    for (index, gate) in gates.iter().enumerate() {
        let path = path.child("schedulingGates").index(index);
        errors.invalid_each(&path, &gate.name, names::qualified_name(&gate.name));
        if !seen.insert(&gate.name) {
            errors.duplicate(&path, gate.name.as_str());
        }
    }
    if !gates.is_empty()
        && spec
            .node_name
            .as_deref()
            .is_some_and(|name| !name.is_empty())
    {
        errors.forbidden(
            &path.child("nodeName"),
            "cannot be set until all schedulingGates have been cleared",
        );
    }
}

/// Validates a name that is required, a DNS label and unique in its list.
fn unique_label<'a>(
    path: &FieldPath,
    name: &'a str,
    seen: &mut BTreeSet<&'a str>,
    errors: &mut ErrorList,
) {
    if name.is_empty() {
        return errors.required(path, "");
    }
    errors.invalid_each(path, name, names::dns1123_label(name));
    if !seen.insert(name) {
        errors.duplicate(path, name);
    }
}

pub(crate) fn one_of(
    path: &FieldPath,
    value: Option<&str>,
    supported: &[&str],
    errors: &mut ErrorList,
) {
    match value.unwrap_or_default() {
        "" => errors.required(path, ""),
        value if supported.contains(&value) => {}
        value => errors.not_supported(path, value, supported),
    }
}
