//! Validation of resource names and quantities.

use std::{cmp::Ordering, collections::BTreeMap};

use super::field::{ErrorList, FieldPath};
use crate::{Quantity, core::ResourceRequirements, names, quantity};

type ResourceList = BTreeMap<String, Quantity>;

const QUANTITY: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";
const CONTAINER_RESOURCES: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

pub(crate) fn requirements(
    path: &FieldPath,
    requirements: &ResourceRequirements,
    errors: &mut ErrorList,
) {
    let (limits_path, requests_path) = (path.child("limits"), path.child("requests"));
    for (path, list) in [
        (&limits_path, &requirements.limits),
        (&requests_path, &requirements.requests),
    ] {
        for (name, quantity) in list.iter().flatten() {
            container_resource_name(&path.key(name), name, errors);
            non_negative(&path.key(name), name, quantity, errors);
        }
    }
    let empty = ResourceList::new();
    let limits = requirements.limits.as_ref().unwrap_or(&empty);
    for (name, request) in requirements.requests.iter().flatten() {
        let Some(limit) = limits.get(name) else {
            if !overcommits(name) {
                errors.required(
                    &limits_path,
                    "Limit must be set for non overcommitable resources",
                );
            }
            continue;
        };
        match compare(request, limit) {
            Some(Ordering::Greater) => {
                let detail = format!("must be less than or equal to {name} limit of {}", limit.0);
                errors.invalid(&requests_path, request.0.as_str(), &detail);
            }
            Some(Ordering::Less) if !overcommits(name) => {
                let detail = format!("must be equal to {name} limit of {}", limit.0);
                errors.invalid(&requests_path, request.0.as_str(), &detail);
            }
            _ => {}
        }
    }
}

/// Validates the capacity or allocatable resources of a node.
pub(crate) fn list<'a>(
    path: &FieldPath,
    resources: impl Iterator<Item = (&'a String, &'a Quantity)>,
    errors: &mut ErrorList,
) {
    for (name, quantity) in resources {
        errors.invalid_each(&path.key(name), name, names::qualified_name(name));
        non_negative(&path.key(name), name, quantity, errors);
    }
}

fn container_resource_name(path: &FieldPath, name: &str, errors: &mut ErrorList) {
    errors.invalid_each(path, name, names::qualified_name(name));
    let standard = CONTAINER_RESOURCES.contains(&name) || name.starts_with("hugepages-");
    if !name.contains('/') && !standard {
        errors.invalid(path, name, "must be a standard resource for containers");
    }
}

fn non_negative(path: &FieldPath, name: &str, quantity: &Quantity, errors: &mut ErrorList) {
    match quantity::millis(quantity).or_else(|_| quantity::units(quantity)) {
        Err(_) => errors.invalid(path, quantity.0.as_str(), QUANTITY),
        Ok(value) if value < 0 => errors.invalid(
            path,
            quantity.0.as_str(),
            "must be greater than or equal to 0",
        ),
        Ok(millis) => {
            let whole = quantity::millis(quantity).is_err() || millis % 1000 == 0;
            if !whole && (name == "pods" || !overcommits(name)) {
                errors.invalid(path, quantity.0.as_str(), "must be an integer");
            }
        }
    }
}

/// True if more may be used than is requested; false for huge pages and extended resources.
fn overcommits(name: &str) -> bool {
    let native = !name.contains('/') || name.contains("kubernetes.io/");
    native && !name.starts_with("hugepages-")
}

/// Compares in thousandths if both fit, in units if they are too large for that; `None` if either
/// is invalid.
fn compare(a: &Quantity, b: &Quantity) -> Option<Ordering> {
    match (quantity::millis(a), quantity::millis(b)) {
        (Ok(a), Ok(b)) => Some(a.cmp(&b)),
        _ => Some(quantity::units(a).ok()?.cmp(&quantity::units(b).ok()?)),
    }
}
