//! Validation of `metadata`, for every kind.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::field::{ErrorList, FieldPath};
use crate::{Object, Scope, meta::ObjectMeta, names};

/// The most bytes of all annotations together.
pub const ANNOTATIONS_MAX_BYTES: usize = 256 * 1024;

/// The rules for the names of a kind.
pub type NameRules = fn(&str) -> Vec<String>;

pub(crate) fn validate<K: Object>(object: &K, name_rules: NameRules) -> ErrorList {
    validate_metadata(object.metadata(), K::SCOPE, name_rules)
}

/// Validates the metadata of an object of any kind with that scope.
pub fn validate_metadata(meta: &ObjectMeta, scope: Scope, name_rules: NameRules) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = FieldPath::new("metadata");
    let name = meta.name.as_deref().unwrap_or_default();
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    if let Some(prefix) = meta
        .generate_name
        .as_deref()
        .filter(|prefix| !prefix.is_empty())
    {
        errors.invalid_each(
            &path.child("generateName"),
            prefix,
            name_rules(&complete(prefix)),
        );
    }
    match name {
        "" => errors.required(&path.child("name"), "name or generateName is required"),
        name => errors.invalid_each(&path.child("name"), name, name_rules(name)),
    }
    match (scope, namespace) {
        (Scope::Cluster, "") => {}
        (Scope::Cluster, _) => {
            errors.forbidden(&path.child("namespace"), "not allowed on this type")
        }
        (Scope::Namespaced, "") => errors.required(&path.child("namespace"), ""),
        (Scope::Namespaced, namespace) => {
            errors.invalid_each(
                &path.child("namespace"),
                namespace,
                names::dns1123_label(namespace),
            );
        }
    }
    labels(&path.child("labels"), meta.labels.as_ref(), &mut errors);
    annotations(&path.child("annotations"), meta, &mut errors);
    owner_references(&path.child("ownerReferences"), meta, &mut errors);
    finalizers(&path.child("finalizers"), meta, &mut errors);
    errors
}

pub(crate) fn validate_update<K: Object>(new: &K, old: &K) -> ErrorList {
    validate_metadata_update(new.metadata(), old.metadata())
}

/// Validates metadata as the successor of `old`.
pub fn validate_metadata_update(new: &ObjectMeta, old: &ObjectMeta) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = FieldPath::new("metadata");
    if old.deletion_timestamp.is_some() {
        let before = old.finalizers.as_deref().unwrap_or_default();
        let added: Vec<_> = new
            .finalizers
            .iter()
            .flatten()
            .filter(|name| !before.contains(name))
            .collect();
        if !added.is_empty() {
            let quoted: Vec<_> = added.iter().map(|name| format!("{name:?}")).collect();
            let detail = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                quoted.join(", ")
            );
            errors.forbidden(&path.child("finalizers"), &detail);
        }
    }
    let mut immutable = |field: &str, new: Value, old: Value| {
        if new != old {
            errors.invalid(&path.child(field), new, "field is immutable");
        }
    };
    immutable("name", json!(new.name), json!(old.name));
    immutable("namespace", json!(new.namespace), json!(old.namespace));
    immutable("uid", json!(new.uid), json!(old.uid));
    immutable(
        "creationTimestamp",
        json!(new.creation_timestamp),
        json!(old.creation_timestamp),
    );
    immutable(
        "deletionTimestamp",
        json!(new.deletion_timestamp),
        json!(old.deletion_timestamp),
    );
    immutable(
        "deletionGracePeriodSeconds",
        json!(new.deletion_grace_period_seconds),
        json!(old.deletion_grace_period_seconds),
    );
    errors
}

/// A name that the prefix may become: `a-` is a valid prefix, though not a valid name.
fn complete(prefix: &str) -> String {
    match prefix.strip_suffix('-') {
        Some(stem) if !stem.is_empty() => format!("{stem}a"),
        _ => prefix.to_owned(),
    }
}

pub(crate) fn labels(
    path: &FieldPath,
    labels: Option<&BTreeMap<String, String>>,
    errors: &mut ErrorList,
) {
    for (key, value) in labels.into_iter().flatten() {
        errors.invalid_each(path, key, names::qualified_name(key));
        errors.invalid_each(path, value, names::label_value(value));
    }
}

pub(crate) fn annotations(path: &FieldPath, meta: &ObjectMeta, errors: &mut ErrorList) {
    let mut bytes = 0;
    for (key, value) in meta.annotations.iter().flatten() {
        // Upper case is allowed in the prefix of annotation keys, for objects that were stored
        // before there was a rule.
        errors.invalid_each(path, key, names::qualified_name(&key.to_lowercase()));
        bytes += key.len() + value.len();
    }
    if bytes > ANNOTATIONS_MAX_BYTES {
        errors.too_long(path, ANNOTATIONS_MAX_BYTES);
    }
}

fn owner_references(path: &FieldPath, meta: &ObjectMeta, errors: &mut ErrorList) {
    let mut controller: Option<&str> = None;
    for owner in meta.owner_references.iter().flatten() {
        let fields = [
            (
                "apiVersion",
                &owner.api_version,
                "version must not be empty",
            ),
            ("kind", &owner.kind, "kind must not be empty"),
            ("name", &owner.name, "name must not be empty"),
            ("uid", &owner.uid, "uid must not be empty"),
        ];
        for (field, value, detail) in fields {
            if value.is_empty() {
                errors.invalid(&path.child(field), value.as_str(), detail);
            }
        }
        if owner.controller == Some(true) {
            if let Some(first) = controller {
                let detail = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {}",
                    owner.name
                );
                errors.invalid(path, json!(meta.owner_references), &detail);
            }
            controller = Some(&owner.name);
        }
    }
}

fn finalizers(path: &FieldPath, meta: &ObjectMeta, errors: &mut ErrorList) {
    for finalizer in meta.finalizers.iter().flatten() {
        errors.invalid_each(path, finalizer, names::qualified_name(finalizer));
    }
}
