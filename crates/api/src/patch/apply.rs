//! Server-side apply: managers apply configurations, the object records who owns which field, and
//! fields without an owner are removed.
//!
//! `metadata.managedFields` has an entry for each manager, operation, version and subresource with
//! the fields that it owns. [`apply`] merges a manager's configuration into the object; fields that
//! it owned, no longer applies, and that nobody else owns are removed. [`track`] records all other
//! writes: the writer owns the fields that it changed.

use std::fmt::Write as _;

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use serde_json::{Map, Value, json};

use super::{
    fields::FieldSet,
    typed::{self, TypeMismatch},
};
use crate::schema::TypeRef;

/// Fields without an owner: they identify the object, or are set by the server.
const OWNERLESS: &[&[&str]] = &[
    &["apiVersion"],
    &["kind"],
    &["metadata"],
    &["metadata", "clusterName"],
    &["metadata", "creationTimestamp"],
    &["metadata", "generation"],
    &["metadata", "managedFields"],
    &["metadata", "name"],
    &["metadata", "namespace"],
    &["metadata", "resourceVersion"],
    &["metadata", "selfLink"],
    &["metadata", "uid"],
];

/// The author and the context of a write.
#[derive(Clone, Copy, Debug)]
pub struct Writer<'a> {
    /// The field manager, such as `kubectl`.
    pub manager: &'a str,
    /// The group and version in which the object is written: `apps/v1`.
    pub api_version: &'a str,
    /// The subresource that is written; empty for the object itself.
    pub subresource: &'a str,
    /// The time of the write.
    pub now: Timestamp,
    /// Fields that this write does not change and its writer therefore does not own, whatever it
    /// sends: `status` in a write to the object itself.
    pub ignored: &'a FieldSet,
}

/// The handling of fields that others own with another value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conflicts {
    /// Fail, naming the fields.
    Refuse,
    /// Take over the fields: `force=true`.
    Take,
}

/// A field that another manager owns, with another value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The other manager as kube-apiserver describes it:
    /// `"kubectl-edit" using v1 at 2026-01-01T00:00:00Z`.
    pub manager: String,
    /// The path of the field: `.spec.replicas`.
    pub field: String,
}

/// The result of an apply.
#[derive(Clone, Debug)]
pub struct ApplyOutcome {
    /// The new object.
    pub object: Value,
    /// True if anything but `managedFields` changed.
    pub changed: bool,
    /// The fields that were taken over from others.
    pub conflicts: Vec<Conflict>,
}

/// An error of applying a configuration.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ApplyError {
    /// The configuration contains `managedFields`: 400 BadRequest.
    #[error("metadata.managedFields must be nil")]
    ManagedFields,
    /// The configuration, or the existing object, does not fit its kind: 400 BadRequest. One text
    /// for each field.
    #[error("failed to create typed patch object: {}", .0.join(", "))]
    Untypable(Vec<String>),
    /// Others own fields with other values: 409 Conflict, each with reason FieldManagerConflict.
    #[error("{}", describe(.0))]
    Conflicts(Vec<Conflict>),
}

impl Conflict {
    /// The text for this conflict alone: `conflict with "kubectl-edit" using v1`.
    pub fn message(&self) -> String {
        format!("conflict with {}", self.manager)
    }
}

/// The text of kube-apiserver for all conflicts.
fn describe(conflicts: &[Conflict]) -> String {
    if let [conflict] = conflicts {
        return format!(
            "Apply failed with 1 conflict: {}: {}",
            conflict.message(),
            conflict.field
        );
    }
    let mut lines = vec![format!("Apply failed with {} conflicts: ", conflicts.len())];
    let mut manager = "";
    for conflict in conflicts {
        if manager != conflict.manager {
            manager = &conflict.manager;
            let line = format!("conflicts with {manager}:");
            match lines.len() {
                1 => lines[0].push_str(&line),
                _ => lines.push(line),
            }
        }
        lines.push(format!("- {}", conflict.field));
    }
    lines.join("\n")
}

/// Applies a manager's configuration to the object; `live` is `None` if there is none yet.
///
/// # Errors
///
/// See [`ApplyError`].
pub fn apply(
    ty: TypeRef<'_>,
    live: Option<&Value>,
    config: &Value,
    writer: &Writer<'_>,
    conflicts: Conflicts,
) -> Result<ApplyOutcome, ApplyError> {
    if config
        .pointer("/metadata/managedFields")
        .is_some_and(|fields| !fields.is_null())
    {
        return Err(ApplyError::ManagedFields);
    }
    let blank = typed::blank(ty);
    let mut managers = Managers::of(live.unwrap_or(&blank));
    let is_new = live.is_none();
    let live = without_managers(live.unwrap_or(&blank));
    typed::check(ty, config).map_err(untypable)?;
    if managers.0.is_empty() && !is_new {
        managers.own_before_first_apply(ty, &live, writer);
    }
    let merged = typed::merge(ty, live.clone(), config.clone());
    let stated = typed::fields(ty, config)
        .outside(writer.ignored)
        .difference(&ownerless());
    let identity = writer.identity("Apply");
    let before = managers.replace(&identity, stated.clone());
    let object = prune(
        ty,
        merged,
        before.as_ref().map(|entry| &entry.fields),
        &managers,
    );
    let difference = typed::compare(ty, &live, &object).outside(writer.ignored);
    let written = difference.added.clone().union(&difference.modified);
    let taken = managers.conflicts(&identity, &written);
    if conflicts == Conflicts::Refuse && !taken.is_empty() {
        return Err(ApplyError::Conflicts(taken));
    }
    managers.take(&identity, &written, &difference.removed);
    let object = typed::drop_nulls(ty, object);
    // A null for an absent field is a difference, and not stored.
    let stored = || typed::compare(ty, &live, &object).outside(writer.ignored);
    let changed = !difference.is_empty() && !stored().is_empty();
    let time = match before {
        Some(entry) if !changed && entry.fields == stated => entry.time,
        _ => Some(writer.now),
    };
    managers.set_time(&identity, time);
    Ok(ApplyOutcome {
        object: managers.write(object),
        changed,
        conflicts: taken,
    })
}

/// Records in `new`, the object as it will be stored, which fields its writer changed; `live` is
/// `None` for a new object. For all writes except applies.
///
/// The previous owners are those in `new` if it has any that can be decoded, else those in `live`;
/// a list with one empty entry clears them.
pub fn track(ty: TypeRef<'_>, live: Option<&Value>, new: &Value, writer: &Writer<'_>) -> Value {
    let blank = typed::blank(ty);
    let live = live.unwrap_or(&blank);
    let mut managers = match Managers::read(new) {
        Some(managers) => managers,
        None => Managers::of(live),
    };
    let object = without_managers(new);
    let difference = typed::compare(ty, &without_managers(live), &object).outside(writer.ignored);
    let written = difference
        .added
        .clone()
        .union(&difference.modified)
        .difference(&ownerless());
    let identity = writer.identity("Update");
    managers.take(&identity, &written, &difference.removed);
    if !written.is_empty() {
        managers.add(&identity, &written);
        managers.set_time(&identity, Some(writer.now));
    }
    managers.forget(&identity, &difference.removed);
    managers.write(object)
}

/// Removes from the merged object the fields that the manager owned (`last`), no longer applies,
/// and nobody else owns.
fn prune(ty: TypeRef<'_>, merged: Value, last: Option<&FieldSet>, managers: &Managers) -> Value {
    let Some(last) = last.filter(|last| !last.is_empty()) else {
        return merged;
    };
    let fields = |value: &Value| typed::fields(ty, value).with_named(Some(ty));
    let last = last.clone().with_named(Some(ty));
    // The fields that identify the object are kept, even without any other metadata.
    let owned = managers
        .0
        .iter()
        .fold(ownerless(), |all, entry| all.union(&entry.fields))
        .with_named(Some(ty));
    let all = fields(&merged);
    let without_last = typed::remove(ty, &merged, &last);
    let unowned = all
        .clone()
        .difference(&fields(&without_last))
        .difference(&owned);
    let without_unowned = typed::remove(ty, &merged, &unowned);
    let gone = all
        .difference(&fields(&without_unowned))
        .intersection(&last);
    typed::remove(ty, &merged, &gone)
}

fn untypable(mismatches: Vec<TypeMismatch>) -> ApplyError {
    ApplyError::Untypable(
        mismatches
            .into_iter()
            .map(|TypeMismatch { path, message }| format!("{path}: {message}"))
            .collect(),
    )
}

fn ownerless() -> FieldSet {
    FieldSet::of_fields(OWNERLESS)
}

fn without_managers(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    object
}

impl Writer<'_> {
    fn identity(&self, operation: &str) -> ManagerKey {
        ManagerKey {
            operation: operation.to_owned(),
            manager: self.manager.to_owned(),
            api_version: self.api_version.to_owned(),
            subresource: self.subresource.to_owned(),
        }
    }
}

/// The key of an entry: two writes with the same key share an entry. Fields in the order in which
/// entries are sorted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ManagerKey {
    operation: String,
    manager: String,
    api_version: String,
    subresource: String,
}

#[derive(Clone, Debug)]
struct ManagerEntry {
    identity: ManagerKey,
    time: Option<Timestamp>,
    fields: FieldSet,
}

/// The entries of `managedFields`.
#[derive(Debug, Default)]
struct Managers(Vec<ManagerEntry>);

impl Managers {
    /// The owners that an object records; none if they cannot be decoded.
    fn of(object: &Value) -> Self {
        Self::read(object).unwrap_or_default()
    }

    /// Decodes the owners; `None` if they are absent or malformed.
    fn read(object: &Value) -> Option<Self> {
        let entries = object.pointer("/metadata/managedFields")?.as_array()?;
        if entries.is_empty() {
            return None;
        }
        if let [Value::Object(entry)] = &entries[..]
            && entry.is_empty()
        {
            return Some(Self::default());
        }
        entries
            .iter()
            .map(ManagerEntry::read)
            .collect::<Option<_>>()
            .map(Self)
    }

    /// Returns the object with the entries.
    fn write(mut self, mut object: Value) -> Value {
        self.0.retain_mut(|entry| {
            entry.fields = std::mem::take(&mut entry.fields).difference(&ownerless());
            !entry.fields.is_empty()
        });
        self.0.sort_by(|a, b| {
            let key = |entry: &ManagerEntry| {
                (
                    entry.identity.operation.clone(),
                    entry.time,
                    entry.identity.clone(),
                )
            };
            key(a).cmp(&key(b))
        });
        let entries: Vec<Value> = self.0.iter().map(ManagerEntry::write).collect();
        if let Some(object) = object.as_object_mut()
            && !entries.is_empty()
        {
            let metadata = object.entry("metadata").or_insert_with(|| json!({}));
            if let Some(metadata) = metadata.as_object_mut() {
                metadata.insert("managedFields".into(), entries.into());
            }
        }
        object
    }

    /// Assigns the fields of an object without recorded owners to a placeholder manager.
    fn own_before_first_apply(&mut self, ty: TypeRef<'_>, live: &Value, writer: &Writer<'_>) {
        let fields = typed::fields(ty, live).difference(&ownerless());
        let identity = ManagerKey {
            manager: "before-first-apply".into(),
            subresource: String::new(),
            ..writer.identity("Update")
        };
        self.0.push(ManagerEntry {
            identity,
            time: Some(writer.now),
            fields,
        });
    }

    fn entry_mut(&mut self, identity: &ManagerKey) -> Option<&mut ManagerEntry> {
        self.0.iter_mut().find(|entry| entry.identity == *identity)
    }

    /// Sets the fields of a manager. Returns its previous entry.
    fn replace(&mut self, identity: &ManagerKey, fields: FieldSet) -> Option<ManagerEntry> {
        let before = self.0.iter().position(|entry| entry.identity == *identity);
        let before = before.map(|at| self.0.remove(at));
        self.0.push(ManagerEntry {
            identity: identity.clone(),
            time: None,
            fields,
        });
        before
    }

    fn add(&mut self, identity: &ManagerKey, fields: &FieldSet) {
        let before = self.replace(identity, FieldSet::default());
        let before = before.map_or_else(FieldSet::default, |entry| entry.fields);
        if let Some(entry) = self.entry_mut(identity) {
            entry.fields = before.union(fields);
        }
    }

    fn forget(&mut self, identity: &ManagerKey, fields: &FieldSet) {
        if let Some(entry) = self.entry_mut(identity) {
            entry.fields = std::mem::take(&mut entry.fields).difference(fields);
        }
    }

    fn set_time(&mut self, identity: &ManagerKey, time: Option<Timestamp>) {
        if let Some(entry) = self.entry_mut(identity) {
            entry.time = time;
        }
    }

    /// The fields of `written` that others own, by manager.
    fn conflicts(&self, writer: &ManagerKey, written: &FieldSet) -> Vec<Conflict> {
        let mut conflicts = Vec::new();
        for entry in self.0.iter().filter(|entry| entry.identity != *writer) {
            let fields = entry.fields.clone().intersection(written);
            conflicts.extend(fields.paths().into_iter().map(|field| Conflict {
                manager: entry.describe(),
                field,
            }));
        }
        conflicts.sort_by(|a, b| a.manager.cmp(&b.manager));
        conflicts
    }

    /// Removes written and deleted fields from all other managers.
    fn take(&mut self, writer: &ManagerKey, written: &FieldSet, removed: &FieldSet) {
        for entry in self.0.iter_mut().filter(|entry| entry.identity != *writer) {
            entry.fields = std::mem::take(&mut entry.fields)
                .difference(written)
                .difference(removed);
        }
    }
}

impl ManagerEntry {
    fn read(value: &Value) -> Option<Self> {
        let text = |key: &str| {
            value
                .get(key)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let operation = text("operation");
        if !matches!(operation.as_str(), "Apply" | "Update") {
            return None;
        }
        Some(Self {
            identity: ManagerKey {
                operation,
                manager: text("manager"),
                api_version: text("apiVersion"),
                subresource: text("subresource"),
            },
            time: text("time").parse().ok(),
            fields: FieldSet::from_fields_v1(value.get("fieldsV1").unwrap_or(&Value::Null)),
        })
    }

    fn write(&self) -> Value {
        let ManagerKey {
            operation,
            manager,
            api_version,
            subresource,
        } = &self.identity;
        let mut entry = Map::new();
        for (key, value) in [
            ("manager", manager),
            ("operation", operation),
            ("apiVersion", api_version),
            ("subresource", subresource),
        ] {
            if !value.is_empty() {
                entry.insert(key.into(), value.as_str().into());
            }
        }
        if let Some(time) = self.time {
            entry.insert("time".into(), seconds(time).into());
        }
        entry.insert("fieldsType".into(), "FieldsV1".into());
        entry.insert("fieldsV1".into(), self.fields.to_fields_v1());
        Value::Object(entry)
    }

    fn describe(&self) -> String {
        let ManagerKey {
            operation,
            manager,
            api_version,
            subresource,
        } = &self.identity;
        let mut text = format!("{manager:?}");
        if !subresource.is_empty() {
            let _ = write!(text, " with subresource {subresource:?}");
        }
        if operation == "Update" {
            let _ = write!(text, " using {api_version}");
            if let Some(time) = self.time {
                let _ = write!(text, " at {}", seconds(time));
            }
        }
        text
    }
}

/// Formats times as Kubernetes does: whole seconds.
fn seconds(time: Timestamp) -> String {
    match serde_json::to_value(Time(time)) {
        Ok(Value::String(text)) => text,
        _ => String::new(),
    }
}
