//! Strategic merge patch: a merge patch that knows the merge keys of lists, with directives for
//! operations that merging cannot express.
//!
//! | directive | in | means |
//! | --- | --- | --- |
//! | `$patch: replace` or `delete` | a map | the patch's map instead of the object's; nothing instead of it |
//! | `$patch: delete` beside the merge key | an element | the element goes |
//! | `$patch: replace` | any element | the patch's list instead of the object's |
//! | `$deleteFromPrimitiveList/FIELD` | a map | these elements of the list FIELD go |
//! | `$setElementOrder/FIELD` | a map | the order of the list FIELD |
//! | `$retainKeys` | a map | all other keys of the object's map go |
//!
//! kube-apiserver visits the keys of a map in random order; here it is the order of the keys, so
//! that directives come first.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::PatchError;
use crate::schema::{PatchMeta, TypeRef, TypeStructure};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE: &str = "$deleteFromPrimitiveList";
const ORDER: &str = "$setElementOrder";
/// Up to this length Go sorts by insertion.
const SHORT: usize = 20;

type JsonObject = Map<String, Value>;
type Result<T> = std::result::Result<T, PatchError>;

/// Applies a strategic merge patch (`application/strategic-merge-patch+json`) to an object of the
/// kind `ty`.
///
/// A `null` removes a field. All other values that the object lacks are added unchanged, unknown
/// fields included.
///
/// # Errors
///
/// [`PatchError::Malformed`] if `patch` is not an object or a directive is malformed,
/// [`PatchError::Unprocessable`] if an element lacks its merge key or the patch descends into an
/// unknown field.
pub fn strategic(ty: TypeRef<'_>, document: Value, patch: Value) -> Result<Value> {
    match (document, patch) {
        (Value::Object(document), Value::Object(patch)) => {
            merge_maps(ty, document, patch).map(Value::Object)
        }
        _ => Err(PatchError::Malformed("invalid JSON document".into())),
    }
}

fn merge_maps(
    ty: TypeRef<'_>,
    mut original: JsonObject,
    mut patch: JsonObject,
) -> Result<JsonObject> {
    if let Some(directive) = patch.remove(PATCH) {
        return match directive.as_str() {
            Some("replace") => Ok(patch),
            Some("delete") => Ok(JsonObject::new()),
            _ => {
                patch.insert(PATCH.into(), directive.clone());
                Err(unknown_directive(&directive, &Value::Object(patch)))
            }
        };
    }
    if let Some(retained) = patch.remove(RETAIN_KEYS) {
        retain_keys(&mut original, &patch, &retained)?;
    }
    merge_ordered_lists(ty, &mut original, &mut patch)?;
    for (key, patched) in patch {
        let deleting = key
            .strip_prefix(DELETE)
            .map(|rest| field_of(rest, DELETE))
            .transpose()?;
        let key = deleting.unwrap_or(&key);
        if patched.is_null() {
            original.remove(key);
            continue;
        }
        let merged = match (original.remove(key), patched) {
            (Some(Value::Object(old)), Value::Object(new)) => {
                let (ty, meta) = lookup(ty, key)?;
                Some(Value::Object(if meta.replace {
                    new
                } else {
                    merge_maps(ty, old, new)?
                }))
            }
            (Some(Value::Array(old)), Value::Array(new)) => {
                let (items, meta) = lookup_list(ty, key)?;
                Some(Value::Array(match deleting {
                    Some(_) => merge_lists(items, meta, old, new, ListMergeMode::Delete)?,
                    None if meta.merge => merge_lists(items, meta, old, new, ListMergeMode::Add)?,
                    None => new,
                }))
            }
            // There is nothing to delete from, or it is of another type.
            (old, _) if deleting.is_some() => old,
            (_, new) => without_directives(without_nulls(new)),
        };
        if let Some(merged) = merged {
            original.insert(key.to_owned(), merged);
        }
    }
    Ok(original)
}

/// Removes all fields except those in `retained`, which must include all that the patch sets.
fn retain_keys(original: &mut JsonObject, patch: &JsonObject, retained: &Value) -> Result<()> {
    let malformed = || PatchError::Malformed("invalid patch format of retainKeys".into());
    let retained: Vec<_> = retained
        .as_array()
        .ok_or_else(malformed)?
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let sets = |(key, value): (&String, &Value)| {
        !value.is_null()
            && !key.starts_with(DELETE)
            && !key.starts_with(ORDER)
            && !retained.contains(&key.as_str())
    };
    if patch.iter().any(sets) {
        return Err(malformed());
    }
    original.retain(|key, _| retained.contains(&key.as_str()));
    Ok(())
}

/// Merges the lists for which the patch gives an order, and removes them from the patch.
fn merge_ordered_lists(
    ty: TypeRef<'_>,
    original: &mut JsonObject,
    patch: &mut JsonObject,
) -> Result<()> {
    let directives: Vec<_> = patch
        .keys()
        .filter(|key| key.starts_with(ORDER))
        .cloned()
        .collect();
    for directive in directives {
        let order = list(patch.remove(&directive).unwrap_or_default())?;
        let field = field_of(&directive[ORDER.len()..], ORDER)?;
        let old = original.get(field).cloned().map(list).transpose()?;
        let new = patch.get(field).cloned().map(list).transpose()?;
        let (items, meta) = lookup_list(ty, field)?;
        check_order(new.as_deref().unwrap_or_default(), &order, meta)?;
        let mut server_order = old.clone().unwrap_or_default();
        let merged = match (old, new) {
            (None, None) => continue,
            (Some(old), None) => old,
            (None, Some(new)) => new.into_iter().filter_map(without_directives).collect(),
            (Some(old), Some(new)) if meta.merge => {
                fill_gaps(&mut server_order, &new, meta);
                merge_lists(items, meta, old, new, ListMergeMode::Add)?
            }
            (Some(_), Some(new)) => new,
        };
        let patched = patch.remove(field);
        let patched = patched.as_ref().and_then(Value::as_array);
        let kind = element_kind(&server_order, patched.map_or(&[][..], Vec::as_slice))?;
        original.insert(
            field.to_owned(),
            Value::Array(put_in_order(merged, &order, &server_order, kind, meta)?),
        );
    }
    Ok(())
}

/// As in kube-apiserver, an added element takes the place in the order that a deleted one leaves at
/// the end.
fn fill_gaps(order: &mut Vec<Value>, patch: &[Value], meta: &PatchMeta) {
    let room = order.len();
    let is_deleted =
        |element: &&Value| element.get(PATCH).and_then(Value::as_str) == Some("delete");
    let gone: HashSet<_> = patch
        .iter()
        .filter(is_deleted)
        .filter_map(|element| old_key(element, meta))
        .collect();
    order.retain(|element| !old_key(element, meta).is_some_and(|key| gone.contains(key)));
    let there: HashSet<_> = order
        .iter()
        .filter_map(|element| old_key(element, meta))
        .collect();
    let is_new = |element: &&Value| {
        element.get(PATCH).is_none()
            && !old_key(element, meta).is_some_and(|key| there.contains(key))
    };
    let added: Vec<_> = patch
        .iter()
        .filter(is_new)
        .take(room - order.len())
        .cloned()
        .collect();
    order.extend(added);
}

/// Checks that the elements of the patch are in the requested order, and all contained in it.
fn check_order(patch: &[Value], order: &[Value], meta: &PatchMeta) -> Result<()> {
    if patch.is_empty() || order.is_empty() {
        return Ok(());
    }
    let deleted = |element: &&Value| {
        meta.merge_key.is_some() && element.get(PATCH).and_then(Value::as_str) == Some("delete")
    };
    let mut elements = patch.iter().filter(|element| !deleted(element)).peekable();
    for next in order {
        let directive = |element: &&Value| element.get(PATCH).is_some();
        while elements.next_if(directive).is_some() {}
        match elements.peek() {
            Some(element) if key_of(element, meta)? == key_of(next, meta)? => elements.next(),
            Some(_) => continue,
            None => break,
        };
    }
    if elements.peek().is_some() {
        return Err(PatchError::Unprocessable(format!(
            "The order in patch list:\n{}\n doesn't match {ORDER} list:\n{}\n",
            go_list(patch),
            go_list(order)
        )));
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq)]
enum ListMergeMode {
    Add,
    Delete,
}

#[derive(Clone, Copy, PartialEq)]
enum ElementKind {
    Maps,
    Scalars,
}

fn merge_lists(
    items: TypeRef<'_>,
    meta: &PatchMeta,
    mut old: Vec<Value>,
    patch: Vec<Value>,
    mode: ListMergeMode,
) -> Result<Vec<Value>> {
    if old.is_empty() && patch.is_empty() {
        return Ok(old);
    }
    let kind = element_kind(&old, &patch)?;
    let (merged, patch) = match kind {
        ElementKind::Scalars if mode == ListMergeMode::Delete => {
            let gone: HashSet<_> = patch.iter().collect();
            old.retain(|element| !gone.contains(element));
            return Ok(old);
        }
        ElementKind::Scalars => {
            let mut seen = HashSet::new();
            let all = old.iter().chain(&patch);
            let merged = all.filter(|element| seen.insert(*element)).cloned();
            (merged.collect(), patch)
        }
        ElementKind::Maps => {
            let patch = take_directives(&mut old, patch, meta)?;
            (merge_elements(items, meta, old.clone(), &patch)?, patch)
        }
    };
    put_in_order(merged, &patch, &old, kind, meta)
}

/// Executes the directives among the elements of a patch; the other elements are merged.
fn take_directives(
    old: &mut Vec<Value>,
    patch: Vec<Value>,
    meta: &PatchMeta,
) -> Result<Vec<Value>> {
    if meta.merge_key.is_none() {
        return Err(PatchError::Unprocessable(
            "cannot merge lists without merge key for type map".into(),
        ));
    }
    let mut replace = false;
    let mut gone = HashSet::new();
    let mut rest = Vec::new();
    for element in patch {
        match element.get(PATCH) {
            None => rest.push(element),
            Some(directive) => match directive.as_str() {
                Some("delete") => {
                    gone.insert(key_of(&element, meta)?.clone());
                }
                Some("replace") => replace = true,
                Some("merge") => {
                    let text = "merging lists cannot yet be specified in the patch";
                    return Err(PatchError::Unprocessable(text.into()));
                }
                _ => return Err(unknown_directive(directive, &element)),
            },
        }
    }
    old.retain(|old| !old_key(old, meta).is_some_and(|key| gone.contains(key)));
    if replace {
        *old = std::mem::take(&mut rest);
    }
    Ok(rest)
}

fn merge_elements(
    items: TypeRef<'_>,
    meta: &PatchMeta,
    mut merged: Vec<Value>,
    patch: &[Value],
) -> Result<Vec<Value>> {
    let mut places: HashMap<Value, usize> = HashMap::new();
    for (place, element) in merged.iter().enumerate() {
        if let Some(key) = old_key(element, meta) {
            places.entry(key.clone()).or_insert(place);
        }
    }
    for element in patch {
        let key = key_of(element, meta)?;
        let found = places.get(key).and_then(|&place| merged.get_mut(place));
        match (found, element) {
            (Some(Value::Object(old)), Value::Object(new)) => {
                *old = merge_maps(items, std::mem::take(old), new.clone())?;
            }
            _ => {
                places.insert(key.clone(), merged.len());
                merged.push(element.clone());
            }
        }
    }
    Ok(merged)
}

/// Sorts elements that are in `order` by it, and others by `server_order`; where both fit, the
/// former come first.
fn put_in_order(
    merged: Vec<Value>,
    order: &[Value],
    server_order: &[Value],
    kind: ElementKind,
    meta: &PatchMeta,
) -> Result<Vec<Value>> {
    let (order, server_order) = (places(order, meta), places(server_order, meta));
    let mut named = Vec::new();
    let mut others = Vec::new();
    for element in merged {
        let key = key_of(&element, meta)?;
        let [at, at_server] = [&order, &server_order].map(|order| order.get(key).copied());
        match at {
            Some(_) => named.push((at, at_server, element)),
            None => others.push((at_server, at_server, element)),
        }
    }
    for list in [&mut named, &mut others] {
        sort(list, kind);
    }
    let mut named = named.into_iter().peekable();
    let mut others = others.into_iter().peekable();
    let mut out = Vec::new();
    while let (Some((_, named_at, _)), Some((_, other_at, _))) = (named.peek(), others.peek()) {
        let other_first =
            matches!((other_at, named_at), (Some(other), Some(named)) if other < named);
        out.extend(if other_first {
            others.next()
        } else {
            named.next()
        });
    }
    out.extend(named.chain(others));
    Ok(out.into_iter().map(|(_, _, element)| element).collect())
}

/// The positions of elements in a list, by key or, where the field has none, by value.
fn places<'a>(list: &'a [Value], meta: &PatchMeta) -> HashMap<&'a Value, usize> {
    let mut places = HashMap::new();
    for (place, element) in list.iter().enumerate() {
        let key = match meta.merge_key {
            Some(_) => old_key(element, meta),
            None => Some(element),
        };
        if let Some(key) = key {
            places.entry(key).or_insert(place);
        }
    }
    places
}

/// Sorts by position; elements to be deleted go last. In short lists, elements without a position
/// are swapped with their predecessors, as in kube-apiserver, whose comparison function is not a
/// valid order.
fn sort(list: &mut Vec<(Option<usize>, Option<usize>, Value)>, kind: ElementKind) {
    let deleted = |element: &Value| {
        kind == ElementKind::Maps && element.get(PATCH).and_then(Value::as_str) == Some("delete")
    };
    let (mut sorted, last): (Vec<_>, Vec<_>) = std::mem::take(list)
        .into_iter()
        .partition(|(.., element)| !deleted(element));
    let short = if sorted.len() <= SHORT {
        sorted.len()
    } else {
        0
    };
    if short == 0 {
        sorted.sort_by_key(|(at, ..)| at.unwrap_or(usize::MAX));
    }
    for end in 1..short {
        let before = |a: Option<usize>, b: Option<usize>| a.is_none() || b.is_none() || a < b;
        for at in (1..=end).rev() {
            if !before(sorted[at].0, sorted[at - 1].0) {
                break;
            }
            sorted.swap(at, at - 1);
        }
    }
    *list = sorted.into_iter().chain(last).collect();
}

/// Prepares a value that the object does not have yet: drops `null` fields, since there is nothing
/// to remove.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.into_iter().filter(|(_, value)| !value.is_null());
            kept.map(|(key, value)| (key, without_nulls(value)))
                .collect()
        }
        Value::Array(list) => list.into_iter().map(without_nulls).collect(),
        scalar => scalar,
    }
}

/// Prepares a value that the object does not have yet: drops maps with a `$patch` directive. `None`
/// if it is one itself.
fn without_directives(value: Value) -> Option<Value> {
    Some(match value {
        Value::Object(map) if map.contains_key(PATCH) => return None,
        Value::Object(map) => {
            let kept = map.into_iter();
            kept.filter_map(|(key, value)| Some((key, without_directives(value)?)))
                .collect()
        }
        Value::Array(list) => list.into_iter().filter_map(without_directives).collect(),
        scalar => scalar,
    })
}

fn lookup<'s>(ty: TypeRef<'s>, key: &str) -> Result<(TypeRef<'s>, &'s PatchMeta)> {
    let kind = match ty.kind() {
        TypeStructure::Struct(fields) => {
            let field = fields.field(key).ok_or_else(|| {
                PatchError::Unprocessable(format!(
                    "unable to find api field in struct {} for the json field {key:?}",
                    fields.name
                ))
            })?;
            return Ok((field.ty(), &field.patch));
        }
        TypeStructure::Map(_) => "map",
        TypeStructure::List(_) => "slice",
        TypeStructure::Scalar | TypeStructure::Any => "value",
    };
    Err(PatchError::Unprocessable(format!(
        "merging an object in json but data type is not struct, instead is: {kind}"
    )))
}

/// The type of the list's elements.
fn lookup_list<'s>(ty: TypeRef<'s>, key: &str) -> Result<(TypeRef<'s>, &'s PatchMeta)> {
    let (ty, meta) = lookup(ty, key)?;
    match ty.kind() {
        TypeStructure::List(list) => Ok((list.items(), meta)),
        _ => Err(PatchError::Unprocessable(format!(
            "expected slice or array type, but {key:?} is none"
        ))),
    }
}

fn element_kind(old: &[Value], patch: &[Value]) -> Result<ElementKind> {
    let mut elements = old.iter().chain(patch);
    let Some(first) = elements.next() else {
        let text = "no elements in any of the given slices";
        return Err(PatchError::Unprocessable(text.into()));
    };
    if elements.any(|other| type_of(other) != type_of(first)) {
        let (old, patch) = (go_list(old), go_list(patch));
        return Err(PatchError::Unprocessable(format!(
            "list element types are not identical: [{old} {patch}]"
        )));
    }
    match first {
        Value::Array(_) => Err(PatchError::Unprocessable(
            "lists of lists are not supported".into(),
        )),
        Value::Object(_) => Ok(ElementKind::Maps),
        _ => Ok(ElementKind::Scalars),
    }
}

fn key_of<'a>(element: &'a Value, meta: &PatchMeta) -> Result<&'a Value> {
    let Some(key) = &meta.merge_key else {
        return Ok(element);
    };
    if !element.is_object() {
        return Err(unexpected(element, "map[string]interface {}"));
    }
    element.get(key).ok_or_else(|| {
        PatchError::Unprocessable(format!(
            "map: {} does not contain declared merge key: {key}",
            go(element)
        ))
    })
}

/// The merge key of an element that need not have one; see [`key_of`].
fn old_key<'a>(element: &'a Value, meta: &PatchMeta) -> Option<&'a Value> {
    element.get(meta.merge_key.as_deref()?)
}

/// The field of a directive: the part after the slash.
fn field_of<'a>(rest: &'a str, directive: &str) -> Result<&'a str> {
    rest.strip_prefix('/').ok_or_else(|| {
        let what = if directive == DELETE {
            "primitive"
        } else {
            "setElementOrder"
        };
        PatchError::Malformed(format!("invalid patch format of {what} list"))
    })
}

fn list(value: Value) -> Result<Vec<Value>> {
    match value {
        Value::Array(list) => Ok(list),
        other => Err(unexpected(&other, "[]interface {}")),
    }
}

fn unexpected(value: &Value, expected: &str) -> PatchError {
    PatchError::Unprocessable(format!(
        "expected a {expected}, but received a {}",
        type_of(value)
    ))
}

fn unknown_directive(directive: &Value, map: &Value) -> PatchError {
    PatchError::Unprocessable(format!(
        "unknown patch type: {} in map: {}",
        go(directive),
        go(map)
    ))
}

/// Go's name for the type of the value, as used in the error texts.
fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "nil",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// Formats the value as Go prints it.
fn go(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".into(),
        Value::String(text) => text.clone(),
        Value::Array(list) => go_list(list),
        Value::Object(map) => {
            let fields: Vec<_> = map
                .iter()
                .map(|(key, value)| format!("{key}:{}", go(value)))
                .collect();
            format!("map[{}]", fields.join(" "))
        }
        scalar => scalar.to_string(),
    }
}

fn go_list(list: &[Value]) -> String {
    format!("[{}]", list.iter().map(go).collect::<Vec<_>>().join(" "))
}
