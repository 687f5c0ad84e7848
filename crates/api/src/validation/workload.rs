//! Common validation of workloads: selector, template, limits and replica counts (source:
//! `pkg/apis/apps/validation`).

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{ErrorList, FieldPath, metadata};
use crate::{
    IntOrString,
    core::{PodSpec, PodTemplateSpec},
    kinds::pod::validate_spec,
    meta::{LabelSelector, LabelSelectorRequirement},
    names, pod_exit, selector,
};

/// Checks that the number is at least 0.
pub(crate) fn non_negative(
    path: &FieldPath,
    number: Option<impl Into<i64>>,
    errors: &mut ErrorList,
) {
    match number.map(Into::into) {
        Some(number) if number < 0 => {
            errors.invalid(path, number, "must be greater than or equal to 0");
        }
        _ => {}
    }
}

/// Checks that the value is a number that is not negative, or a percentage.
pub(crate) fn int_or_percent(path: &FieldPath, value: &IntOrString, errors: &mut ErrorList) {
    match value {
        IntOrString::Int(number) => non_negative(path, Some(*number), errors),
        IntOrString::String(text) if percent(value).is_none() => errors.invalid(
            path,
            text.as_str(),
            "a valid percent string must be a numeric string followed by an ending '%' \
             (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')",
        ),
        IntOrString::String(_) => {}
    }
}

/// The number of a percentage such as `25%`; `None` for other values.
pub(crate) fn percent(value: &IntOrString) -> Option<u64> {
    let IntOrString::String(text) = value else {
        return None;
    };
    let digits = text.strip_suffix('%')?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    // A number with too many digits is above every limit.
    is_number.then(|| digits.parse().unwrap_or(u64::MAX))
}

/// Checks that the value is not a percentage above 100.
pub(crate) fn at_most_100_percent(path: &FieldPath, value: &IntOrString, errors: &mut ErrorList) {
    if percent(value).is_some_and(|percent| percent > 100) {
        errors.invalid(path, json!(value), "must not be greater than 100%");
    }
}

/// Checks that the selector is not empty and matches the template's labels. An absent selector is
/// an empty one here. `kind` is that of the workload.
pub(crate) fn selector_and_template(
    path: &FieldPath,
    kind: &str,
    selector: &LabelSelector,
    template: &PodTemplateSpec,
    errors: &mut ErrorList,
) {
    let (selector_path, template_path) = (path.child("selector"), path.child("template"));
    let LabelSelector {
        match_labels,
        match_expressions,
    } = selector;
    let absent = match_labels.is_none() && match_expressions.is_none();
    let mut malformed = ErrorList::new();
    label_selector(&selector_path, selector, &mut malformed);
    let well_formed = malformed.is_empty();
    errors.append(malformed);
    let parsed = selector::LabelSelector::from(selector);
    if absent {
        errors.required(&selector_path, "");
    } else if parsed.is_empty() {
        let detail = format!("empty selector is invalid for {kind}");
        errors.invalid(&selector_path, json!(selector), &detail);
    }
    if !well_formed {
        return errors.invalid(&selector_path, json!(selector), "invalid label selector");
    }
    let labels = template.metadata.as_ref();
    let labels = labels.and_then(|metadata| metadata.labels.clone());
    // An absent selector matches nothing, an empty one everything.
    if absent || !parsed.matches(labels.as_ref().unwrap_or(&BTreeMap::new())) {
        let detail = "`selector` does not match template `labels`";
        let path = template_path.child("metadata").child("labels");
        errors.invalid(&path, json!(labels), detail);
    }
    lasting_template(&template_path, template, errors);
}

/// Checks that the selector is unchanged.
pub(crate) fn immutable_selector(
    path: &FieldPath,
    new: &LabelSelector,
    old: &LabelSelector,
    errors: &mut ErrorList,
) {
    if new != old {
        errors.invalid(&path.child("selector"), json!(new), "field is immutable");
    }
}

/// Checks the keys, operators and values of a label selector.
pub(crate) fn label_selector(path: &FieldPath, selector: &LabelSelector, errors: &mut ErrorList) {
    metadata::labels(
        &path.child("matchLabels"),
        selector.match_labels.as_ref(),
        errors,
    );
    let expressions = selector.match_expressions.iter().flatten();
    for (index, expression) in expressions.enumerate() {
        requirement(
            &path.child("matchExpressions").index(index),
            expression,
            errors,
        );
    }
}

fn requirement(path: &FieldPath, requirement: &LabelSelectorRequirement, errors: &mut ErrorList) {
    let values = requirement.values.as_deref().unwrap_or_default();
    let values_path = path.child("values");
    match requirement.operator.as_str() {
        "In" | "NotIn" if values.is_empty() => errors.required(
            &values_path,
            "must be specified when `operator` is 'In' or 'NotIn'",
        ),
        "Exists" | "DoesNotExist" if !values.is_empty() => errors.forbidden(
            &values_path,
            "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
        ),
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        other => errors.invalid(
            &path.child("operator"),
            other,
            "not a valid selector operator",
        ),
    }
    let key = &requirement.key;
    errors.invalid_each(&path.child("key"), key, names::qualified_name(key));
    for (index, value) in values.iter().enumerate() {
        errors.invalid_each(&values_path.index(index), value, names::label_value(value));
    }
}

/// Checks the template of pods.
pub(crate) fn template(path: &FieldPath, template: &PodTemplateSpec, errors: &mut ErrorList) {
    if let Some(metadata) = &template.metadata {
        metadata::labels(&path.child("labels"), metadata.labels.as_ref(), errors);
        let annotations = path.child("annotations");
        metadata::annotations(&annotations, metadata, errors);
        pod_exit::validate(&annotations, metadata.annotations.as_ref(), errors);
    }
    let none = PodSpec::default();
    let spec = template.spec.as_ref().unwrap_or(&none);
    let path = path.child("spec");
    validate_spec(&path, spec, errors);
    if spec.ephemeral_containers.iter().flatten().next().is_some() {
        errors.forbidden(
            &path.child("ephemeralContainers"),
            "ephemeral containers not allowed in pod template",
        );
    }
}

/// Checks the template of pods that run until they are deleted.
pub(crate) fn lasting_template(
    path: &FieldPath,
    template: &PodTemplateSpec,
    errors: &mut ErrorList,
) {
    self::template(path, template, errors);
    let spec = template.spec.as_ref();
    let path = path.child("spec");
    match spec.and_then(|spec| spec.restart_policy.as_deref()) {
        Some("Always") => {}
        other => {
            let other = other.unwrap_or_default();
            errors.not_supported(&path.child("restartPolicy"), other, &["Always"]);
        }
    }
    if spec.is_some_and(|spec| spec.active_deadline_seconds.is_some()) {
        errors.forbidden(
            &path.child("activeDeadlineSeconds"),
            "activeDeadlineSeconds in ReplicaSet is not Supported",
        );
    }
}

/// The counts of a status, by field.
pub(crate) struct StatusCounts<'a> {
    pub(crate) replicas: Option<i32>,
    /// The count, with its field, that only this kind has and that is at most `replicas`.
    pub(crate) own: (&'static str, Option<i32>),
    pub(crate) ready: Option<i32>,
    pub(crate) available: Option<i32>,
    /// Numbers that must not be negative, with their fields.
    pub(crate) others: &'a [(&'static str, Option<i64>)],
}

impl StatusCounts<'_> {
    /// Checks that no count is negative or above the one that includes it.
    pub(crate) fn validate(&self, path: &FieldPath, errors: &mut ErrorList) {
        let Self {
            replicas,
            own,
            ready,
            available,
            others,
        } = self;
        let parts = [
            *own,
            ("readyReplicas", *ready),
            ("availableReplicas", *available),
        ];
        non_negative(&path.child("replicas"), *replicas, errors);
        for (field, count) in parts {
            non_negative(&path.child(field), count, errors);
        }
        for (field, number) in *others {
            non_negative(&path.child(field), *number, errors);
        }
        for (field, count) in parts {
            at_most(
                &path.child(field),
                count,
                "status.replicas",
                *replicas,
                errors,
            );
        }
        let path = path.child("availableReplicas");
        at_most(&path, *available, "readyReplicas", *ready, errors);
    }
}

/// Checks that a count is not above another one, whose name is `than`.
fn at_most(
    path: &FieldPath,
    count: Option<i32>,
    than: &str,
    bound: Option<i32>,
    errors: &mut ErrorList,
) {
    let count = count.unwrap_or_default();
    if count > bound.unwrap_or_default() {
        let detail = format!("cannot be greater than {than}");
        errors.invalid(path, Value::from(count), &detail);
    }
}
