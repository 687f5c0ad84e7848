//! Typed traversals of objects: fields, differences, merges and removals.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::fields::{Element, FieldSet};
use crate::schema::{ElementIdentity, List, TypeRef, TypeStructure};

/// A field that does not fit its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TypeMismatch {
    pub(super) path: String,
    pub(super) message: String,
}

/// A value, by the way in which it merges.
enum MergeView<'a> {
    /// A single value.
    Leaf,
    /// A struct, a map, or an object with arbitrary fields.
    Fields(&'a Map<String, Value>),
    /// A list whose elements have an identity.
    Elements(&'a List, &'a [Value]),
}

impl MergeView<'_> {
    /// True for fields or elements of which there are none.
    fn is_empty(&self) -> bool {
        match self {
            Self::Leaf => false,
            Self::Fields(fields) => fields.is_empty(),
            Self::Elements(_, elements) => elements.is_empty(),
        }
    }
}

fn view<'a>(ty: TypeRef<'a>, value: &'a Value) -> MergeView<'a> {
    match (ty.kind(), value) {
        (
            TypeStructure::Struct(_) | TypeStructure::Map(_) | TypeStructure::Any,
            Value::Object(fields),
        ) if !ty.is_atomic_map() => MergeView::Fields(fields),
        (TypeStructure::List(list), Value::Array(elements))
            if list.identity != ElementIdentity::Atomic =>
        {
            MergeView::Elements(list, elements)
        }
        _ => MergeView::Leaf,
    }
}

/// The type of a field, and true if the kind declares it by name.
fn field<'s>(ty: TypeRef<'s>, name: &str) -> (Option<TypeRef<'s>>, bool) {
    (
        ty.field(name),
        matches!(ty.kind(), TypeStructure::Struct(_)),
    )
}

/// The identity of an element in its list.
fn identify(list: &List, element: &Value) -> Result<Element, String> {
    match &list.identity {
        ElementIdentity::Atomic => Err("an atomic list has no elements of its own".into()),
        ElementIdentity::Set => match element {
            Value::Object(_) => {
                Err("associative list without keys has an element that's a map type".into())
            }
            Value::Array(_) => Err("not supported: associative list with lists as elements".into()),
            Value::Null => {
                Err("associative list without keys has an element that's an explicit null".into())
            }
            scalar => Ok(Element::value(scalar)),
        },
        ElementIdentity::Keys(keys) => {
            let fields = match element {
                Value::Object(fields) => fields,
                Value::Null => {
                    return Err("associative list with keys may not have a null element".into());
                }
                _ => return Err("associative list with keys may not have non-map elements".into()),
            };
            let mut found = Map::new();
            for key in keys {
                let value = fields.get(&key.name).or(key.default.as_ref()).ok_or_else(|| {
                    format!("associative list with keys has an element that omits key field {:?} (and doesn't have default value)", key.name)
                })?;
                found.insert(key.name.clone(), value.clone());
            }
            Ok(Element::keys(found))
        }
    }
}

/// Checks that the value has the shape of its type, no unknown field, and no element twice.
pub(super) fn check(ty: TypeRef<'_>, value: &Value) -> Result<(), Vec<TypeMismatch>> {
    let mut mismatches = Vec::new();
    check_at(ty, value, "", &mut mismatches);
    if mismatches.is_empty() {
        Ok(())
    } else {
        Err(mismatches)
    }
}

fn check_at(ty: TypeRef<'_>, value: &Value, path: &str, mismatches: &mut Vec<TypeMismatch>) {
    let mut mismatch =
        |path: String, message: String| mismatches.push(TypeMismatch { path, message });
    match (ty.kind(), value) {
        (_, Value::Null) | (TypeStructure::Any, _) => {}
        (TypeStructure::Struct(_) | TypeStructure::Map(_), Value::Object(fields)) => {
            for (name, value) in fields {
                let path = format!("{path}.{name}");
                match ty.field(name) {
                    Some(ty) => check_at(ty, value, &path, mismatches),
                    None => mismatches.push(TypeMismatch {
                        path,
                        message: "field not declared in schema".into(),
                    }),
                }
            }
        }
        (TypeStructure::List(list), Value::Array(elements)) => {
            let mut seen = BTreeMap::new();
            for (index, element) in elements.iter().enumerate() {
                let at = match &list.identity {
                    ElementIdentity::Atomic => format!("{path}[{index}]"),
                    _ => match identify(list, element) {
                        Ok(identity) => {
                            let at = format!("{path}{identity}");
                            if seen.insert(identity.clone(), ()).is_some() {
                                let message = format!("duplicate entries for key {identity}");
                                mismatches.push(TypeMismatch {
                                    path: path.to_owned(),
                                    message,
                                });
                            }
                            at
                        }
                        Err(message) => {
                            let message = format!("element {index}: {message}");
                            mismatches.push(TypeMismatch {
                                path: path.to_owned(),
                                message,
                            });
                            continue;
                        }
                    },
                };
                check_at(list.items(), element, &at, mismatches);
            }
        }
        (TypeStructure::Scalar, Value::Array(_) | Value::Object(_)) => {
            mismatch(path.to_owned(), "expected a scalar".into())
        }
        (TypeStructure::Scalar, _) => {}
        (TypeStructure::Struct(_) | TypeStructure::Map(_), other) => {
            mismatch(path.to_owned(), format!("expected map, got {other}"))
        }
        (TypeStructure::List(_), other) => {
            mismatch(path.to_owned(), format!("expected list, got {other}"))
        }
    }
}

/// The fields that a value sets: its leaves, the keys of its maps and the elements of its lists.
pub(super) fn fields(ty: TypeRef<'_>, value: &Value) -> FieldSet {
    let mut set = FieldSet::default();
    collect(ty, value, &mut set);
    set
}

fn collect(ty: TypeRef<'_>, value: &Value, set: &mut FieldSet) {
    match view(ty, value) {
        MergeView::Leaf
            if value.is_null()
                || (value.is_array()
                    && matches!(ty.kind(), TypeStructure::List(list) if list.identity != ElementIdentity::Atomic)) =>
            {}
        MergeView::Leaf => set.add(),
        MergeView::Fields(values) => {
            for (name, value) in values {
                let (below, declared) = field(ty, name);
                let is_empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
                set.extend(Element::field(name), |set| {
                    match below {
                        Some(below) => collect(below, value, set),
                        None => set.add(),
                    }
                    if is_empty || !declared {
                        set.add();
                    }
                });
            }
        }
        MergeView::Elements(list, elements) => {
            for element in elements {
                if let Ok(identity) = identify(list, element) {
                    let set = set.child_mut(identity);
                    collect(list.items(), element, set);
                    set.add();
                }
            }
        }
    }
}

/// An object without fields, but with its structs: the state before the first write. Therefore
/// nobody owns `spec` as a whole.
pub(super) fn blank(ty: TypeRef<'_>) -> Value {
    let structs = match ty.kind() {
        TypeStructure::Struct(fields) => fields
            .fields()
            .filter(|(_, field)| matches!(field.ty().kind(), TypeStructure::Struct(_))),
        _ => return Value::Object(Map::new()),
    };
    structs
        .map(|(name, _)| (name.to_owned(), Value::Object(Map::new())))
        .collect()
}

/// The difference between two objects.
#[derive(Debug, Default)]
pub(super) struct ObjectDifference {
    /// Fields that only the new one has.
    pub(super) added: FieldSet,
    /// Fields that both have, with different values.
    pub(super) modified: FieldSet,
    /// Fields that only the old one had.
    pub(super) removed: FieldSet,
}

pub(super) fn compare(ty: TypeRef<'_>, old: &Value, new: &Value) -> ObjectDifference {
    diff(Some(ty), Some(old), Some(new))
}

fn diff(ty: Option<TypeRef<'_>>, old: Option<&Value>, new: Option<&Value>) -> ObjectDifference {
    let mut out = ObjectDifference::default();
    let see = |value| ty.map_or(MergeView::Leaf, |ty| view(ty, value));
    match (old.map(see), new.map(see)) {
        (None, None) => {}
        (Some(MergeView::Fields(a)), Some(MergeView::Fields(b)))
            if a.is_empty() && b.is_empty() => {}
        (Some(MergeView::Elements(_, [])), Some(MergeView::Elements(_, []))) => {}
        (Some(MergeView::Leaf), None) => out.removed.add(),
        (None, Some(MergeView::Leaf)) => out.added.add(),
        (Some(MergeView::Leaf), Some(MergeView::Leaf)) => {
            if old != new {
                out.modified.add();
            }
        }
        // Without fields or elements that could differ, a leaf differs as a whole, a null too.
        (Some(MergeView::Leaf), Some(other)) | (Some(other), Some(MergeView::Leaf))
            if other.is_empty() =>
        {
            out.modified.add();
        }
        (a, b) => {
            let names = |view: &Option<MergeView<'_>>| match view {
                Some(MergeView::Fields(fields)) => fields.keys().cloned().collect(),
                _ => Vec::new(),
            };
            let all: BTreeSet<String> = names(&a).into_iter().chain(names(&b)).collect();
            let declared = ty.is_some_and(|ty| matches!(ty.kind(), TypeStructure::Struct(_)));
            for name in all {
                let value =
                    |object: Option<&Value>| -> Option<Value> { object?.get(&name).cloned() };
                let (a, b) = (value(old), value(new));
                let below = ty.and_then(|ty| ty.field(&name));
                let mut found = diff(below, a.as_ref(), b.as_ref());
                if a.is_none() && !declared {
                    found.added.add();
                }
                out.put(Element::field(&name), found);
            }
            diff_elements(a.as_ref(), b.as_ref(), &mut out);
            let leaf = |view: &Option<MergeView<'_>>, value: Option<&Value>| {
                matches!(view, Some(MergeView::Leaf)) && value.is_some_and(|value| !value.is_null())
            };
            if leaf(&a, old) || leaf(&b, new) {
                out.modified.add();
            }
            if old.is_none() {
                out.added.add();
            }
            if new.is_none() {
                out.removed.add();
            }
        }
    }
    out
}

fn diff_elements<'a>(
    old: Option<&MergeView<'a>>,
    new: Option<&MergeView<'a>>,
    out: &mut ObjectDifference,
) {
    let of = |view: Option<&MergeView<'a>>| -> BTreeMap<Element, (TypeRef<'a>, Value)> {
        let Some(MergeView::Elements(list, elements)) = view else {
            return BTreeMap::new();
        };
        let identified = elements.iter().filter_map(|element| {
            Some((
                identify(list, element).ok()?,
                (list.items(), element.clone()),
            ))
        });
        identified.collect()
    };
    let (old, new) = (of(old), of(new));
    for (identity, (ty, value)) in &new {
        let before = old.get(identity).map(|(_, value)| value);
        let mut found = diff(Some(*ty), before, Some(value));
        if before.is_none() {
            found.added.add();
        }
        out.put(identity.clone(), found);
    }
    for (identity, (ty, value)) in &old {
        if !new.contains_key(identity) {
            let mut found = diff(Some(*ty), Some(value), None);
            found.removed.add();
            out.put(identity.clone(), found);
        }
    }
}

impl ObjectDifference {
    pub(super) fn is_empty(&self) -> bool {
        self.added.is_empty() && self.modified.is_empty() && self.removed.is_empty()
    }

    fn put(&mut self, element: Element, found: Self) {
        self.added.extend(element.clone(), |set| *set = found.added);
        self.modified
            .extend(element.clone(), |set| *set = found.modified);
        self.removed.extend(element, |set| *set = found.removed);
    }

    /// Drops everything at or below these paths.
    pub(super) fn outside(self, ignored: &FieldSet) -> Self {
        Self {
            added: self.added.outside(ignored),
            modified: self.modified.outside(ignored),
            removed: self.removed.outside(ignored),
        }
    }
}

/// Merges a configuration into an object. List elements are in the order of the configuration;
/// those that it does not have keep their places among the others.
pub(super) fn merge(ty: TypeRef<'_>, live: Value, config: Value) -> Value {
    match (view(ty, &live), view(ty, &config)) {
        (MergeView::Fields(_), MergeView::Fields(_)) => {
            let (Value::Object(mut live), Value::Object(config)) = (live, config) else {
                unreachable!("both are seen as fields")
            };
            for (name, value) in config {
                let value = match (live.remove(&name), ty.field(&name)) {
                    (Some(old), Some(ty)) => merge(ty, old, value),
                    _ => value,
                };
                live.insert(name, value);
            }
            Value::Object(live)
        }
        (MergeView::Elements(list, live), MergeView::Elements(_, config)) => {
            Value::Array(merge_elements(list, live, config))
        }
        // An explicit null does not affect the contents of a struct, map or list, nor those of an
        // object in arbitrary JSON; it takes the place of one without contents.
        (old @ (MergeView::Fields(_) | MergeView::Elements(..)), MergeView::Leaf)
            if config.is_null() && !old.is_empty() =>
        {
            live
        }
        _ => config,
    }
}

fn merge_elements(list: &List, live: &[Value], config: &[Value]) -> Vec<Value> {
    let identified = |elements: &[Value]| -> Vec<Option<Element>> {
        elements
            .iter()
            .map(|element| identify(list, element).ok())
            .collect()
    };
    fn places(elements: &[Option<Element>]) -> BTreeMap<&Element, usize> {
        let places = elements.iter().enumerate().rev();
        places
            .filter_map(|(place, element)| Some((element.as_ref()?, place)))
            .collect()
    }
    let (old, new) = (identified(live), identified(config));
    let (old_places, new_places) = (places(&old), places(&new));
    let mut shared = new
        .iter()
        .flatten()
        .filter(|element| old_places.contains_key(element));
    let mut next_shared = shared.next();
    let mut out = Vec::new();
    let (mut at, mut at_new) = (0, 0);
    while at < old.len() || at_new < new.len() {
        if let Some(element) = old.get(at) {
            let Some((element, place)) = element
                .as_ref()
                .and_then(|element| Some((element, *new_places.get(element)?)))
            else {
                out.push(live[at].clone());
                at += 1;
                continue;
            };
            // It is merged at its place in the configuration: already, or later in this loop.
            let moved = place != at_new && next_shared.is_some_and(|next| next != element);
            if moved || place < at_new {
                at += 1;
                continue;
            }
        }
        let Some(element) = new.get(at_new).map(Option::as_ref) else {
            // All elements of the configuration are done, and so are those that the object has
            // left.
            at += 1;
            continue;
        };
        let before = element.and_then(|element| old_places.get(element));
        out.push(match before {
            Some(&before) => merge(list.items(), live[before].clone(), config[at_new].clone()),
            None => config[at_new].clone(),
        });
        if element.is_some() && old.get(at).is_some_and(|old| old.as_ref() == element) {
            at += 1;
        }
        if element.is_some() && next_shared == element {
            next_shared = shared.next();
        }
        at_new += 1;
    }
    out
}

/// Removes these fields, keys and elements. A value that loses all its content becomes `null`, so
/// that it still exists; see [`drop_nulls`].
pub(super) fn remove(ty: TypeRef<'_>, value: &Value, set: &FieldSet) -> Value {
    let kept = match view(ty, value) {
        MergeView::Fields(fields) if !fields.is_empty() => {
            let kept = fields.iter().filter_map(|(name, value)| {
                let value = remove_at(ty.field(name), Element::field(name), value, set)?;
                Some((name.clone(), value))
            });
            Value::Object(kept.collect())
        }
        MergeView::Elements(list, elements) if !elements.is_empty() => {
            let kept = elements
                .iter()
                .filter_map(|element| match identify(list, element) {
                    Ok(identity) => remove_at(Some(list.items()), identity, element, set),
                    Err(_) => Some(element.clone()),
                });
            Value::Array(kept.filter(|element| !element.is_null()).collect())
        }
        _ => return value.clone(),
    };
    match &kept {
        Value::Object(fields) if fields.is_empty() => Value::Null,
        Value::Array(elements) if elements.is_empty() => Value::Null,
        _ => kept,
    }
}

fn remove_at(
    ty: Option<TypeRef<'_>>,
    element: Element,
    value: &Value,
    set: &FieldSet,
) -> Option<Value> {
    if set.has(&element) {
        return None;
    }
    Some(match (ty, set.below(&element)) {
        (Some(ty), Some(set)) => remove(ty, value, set),
        _ => value.clone(),
    })
}

/// Drops `null` fields of the object, but not those in arbitrary JSON, where `null` is a value.
pub(super) fn drop_nulls(ty: TypeRef<'_>, value: Value) -> Value {
    match (ty.kind(), value) {
        (TypeStructure::Any, any) => any,
        (_, Value::Object(fields)) => {
            let kept = fields.into_iter().filter(|(_, value)| !value.is_null());
            kept.map(|(name, value)| match ty.field(&name) {
                Some(ty) => (name, drop_nulls(ty, value)),
                None => (name, value),
            })
            .collect()
        }
        (TypeStructure::List(list), Value::Array(elements)) => {
            let items = list.items();
            let elements = elements.into_iter();
            elements.map(|value| drop_nulls(items, value)).collect()
        }
        (_, other) => other,
    }
}
