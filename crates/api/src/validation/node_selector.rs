//! Validation of node selectors (source: `ValidateNodeSelector` of `pkg/apis/core/validation`).

use super::{ErrorList, FieldPath};
use crate::{
    core::{NodeSelector, NodeSelectorRequirement},
    names,
};

/// The only node field that a term can select by.
const NAME_FIELD: &str = "metadata.name";

pub(crate) fn validate(path: &FieldPath, selector: &NodeSelector, errors: &mut ErrorList) {
    let path = path.child("nodeSelectorTerms");
    if selector.node_selector_terms.is_empty() {
        errors.required(&path, "must have at least one node selector term");
    }
    for (index, term) in selector.node_selector_terms.iter().enumerate() {
        let path = path.index(index);
        let each = |list: &'static str| {
            let path = path.child(list);
            move |(index, requirement)| (path.index(index), requirement)
        };
        let expressions = term.match_expressions.iter().flatten().enumerate();
        for (path, requirement) in expressions.map(each("matchExpressions")) {
            of_label(&path, requirement, errors);
        }
        let fields = term.match_fields.iter().flatten().enumerate();
        for (path, requirement) in fields.map(each("matchFields")) {
            of_field(&path, requirement, errors);
        }
    }
}

fn of_label(path: &FieldPath, requirement: &NodeSelectorRequirement, errors: &mut ErrorList) {
    let count = requirement.values.as_ref().map_or(0, Vec::len);
    let values = path.child("values");
    match requirement.operator.as_str() {
        "In" | "NotIn" if count == 0 => errors.required(
            &values,
            "must be specified when `operator` is 'In' or 'NotIn'",
        ),
        "Exists" | "DoesNotExist" if count > 0 => errors.forbidden(
            &values,
            "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
        ),
        "Gt" | "Lt" if count != 1 => errors.required(
            &values,
            "must be specified single value when `operator` is 'Lt' or 'Gt'",
        ),
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => no_operator(path, other, errors),
    }
    let key = requirement.key.as_str();
    errors.invalid_each(&path.child("key"), key, names::qualified_name(key));
}

fn of_field(path: &FieldPath, requirement: &NodeSelectorRequirement, errors: &mut ErrorList) {
    let values = requirement.values.as_deref().unwrap_or_default();
    match requirement.operator.as_str() {
        "In" | "NotIn" if values.len() != 1 => errors.required(
            &path.child("values"),
            "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
        ),
        "In" | "NotIn" => {}
        other => no_operator(path, other, errors),
    }
    if requirement.key == NAME_FIELD {
        for (index, name) in values.iter().enumerate() {
            let path = path.child("values").index(index);
            errors.invalid_each(&path, name.as_str(), names::dns1123_subdomain(name));
        }
    } else {
        let detail = "not a valid field selector key";
        errors.invalid(&path.child("key"), requirement.key.as_str(), detail);
    }
}

fn no_operator(path: &FieldPath, operator: &str, errors: &mut ErrorList) {
    let detail = "not a valid selector operator";
    errors.invalid(&path.child("operator"), operator, detail);
}
