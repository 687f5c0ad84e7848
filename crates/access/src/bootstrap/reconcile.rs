//! The repair of stored default objects when a server starts.

use std::collections::BTreeMap;

use podplane_api::{
    meta::{LabelSelector, ObjectMeta},
    rbac::{AggregationRule, ClusterRole, ClusterRoleBinding},
};

use super::AUTOUPDATE;
use crate::rbac::cover;

/// The repair of an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Reconciliation<K> {
    /// Create it.
    Create(K),
    /// Replace the stored object.
    Update(K),
    /// Delete the stored object and create this one: the role of a binding cannot be changed.
    Recreate(K),
    /// Nothing: the stored object is up to date, or its annotation [`AUTOUPDATE`] is `false`.
    Keep,
}

/// Compares a ClusterRole with its default. Missing rules, selectors, labels and annotations are
/// added; what an administrator added, or changed of labels and annotations, stays.
pub fn reconcile_role(
    expected: &ClusterRole,
    stored: Option<&ClusterRole>,
) -> Reconciliation<ClusterRole> {
    let Some(stored) = stored else {
        return Reconciliation::Create(expected.clone());
    };
    if opted_out(&stored.metadata) {
        return Reconciliation::Keep;
    }
    let mut role = stored.clone();
    complete(&mut role.metadata, &expected.metadata);
    let owned: Vec<_> = stored.rules.iter().flatten().collect();
    let missing = cover::missing(&owned, expected.rules.as_deref().unwrap_or_default());
    // The rules of an aggregating role are those of its parts, which are reconciled themselves.
    let is_aggregated = expected.aggregation_rule.is_some() && stored.aggregation_rule.is_some();
    if !missing.is_empty() && !is_aggregated {
        role.rules.get_or_insert_default().extend(missing);
    }
    match &expected.aggregation_rule {
        None => role.aggregation_rule = None,
        Some(rule) => {
            let own = role.aggregation_rule.get_or_insert_default();
            add_selectors(own, rule);
        }
    }
    changed(role, stored)
}

/// Compares a ClusterRoleBinding with its default. Missing subjects, labels and annotations are
/// added.
pub fn reconcile_binding(
    expected: &ClusterRoleBinding,
    stored: Option<&ClusterRoleBinding>,
) -> Reconciliation<ClusterRoleBinding> {
    let Some(stored) = stored else {
        return Reconciliation::Create(expected.clone());
    };
    if opted_out(&stored.metadata) {
        return Reconciliation::Keep;
    }
    if stored.role_ref != expected.role_ref {
        return Reconciliation::Recreate(expected.clone());
    }
    let mut binding = stored.clone();
    complete(&mut binding.metadata, &expected.metadata);
    for subject in expected.subjects.iter().flatten() {
        let subjects = binding.subjects.get_or_insert_default();
        if !subjects.contains(subject) {
            subjects.push(subject.clone());
        }
    }
    changed(binding, stored)
}

fn changed<K: PartialEq>(wanted: K, stored: &K) -> Reconciliation<K> {
    if wanted == *stored {
        Reconciliation::Keep
    } else {
        Reconciliation::Update(wanted)
    }
}

fn opted_out(metadata: &ObjectMeta) -> bool {
    let annotations = metadata.annotations.as_ref();
    let value = annotations.and_then(|annotations| annotations.get(AUTOUPDATE));
    value.is_some_and(|value| value == "false")
}

/// Adds the expected labels and annotations that are missing.
fn complete(metadata: &mut ObjectMeta, expected: &ObjectMeta) {
    fn add(
        own: &mut Option<BTreeMap<String, String>>,
        expected: Option<&BTreeMap<String, String>>,
    ) {
        for (key, value) in expected.into_iter().flatten() {
            let own = own.get_or_insert_default();
            own.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
    add(&mut metadata.labels, expected.labels.as_ref());
    add(&mut metadata.annotations, expected.annotations.as_ref());
}

fn add_selectors(own: &mut AggregationRule, expected: &AggregationRule) {
    let selectors: &mut Vec<LabelSelector> = own.cluster_role_selectors.get_or_insert_default();
    for selector in expected.cluster_role_selectors.iter().flatten() {
        if !selectors.contains(selector) {
            selectors.push(selector.clone());
        }
    }
}
