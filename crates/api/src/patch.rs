//! Patches as in Kubernetes 1.33: a stored object and a patch document make a new document.
//!
//! [`json`] is RFC 6902, [`merge`] RFC 7386, [`strategic()`] Kubernetes' own strategic merge patch,
//! and [`apply`] server-side apply with its record of field owners. All are pure and do not
//! validate the result, which may have unknown fields; decode it strictly ([`crate::strict`]), as
//! with any other write. Tests compare them with the libraries that kubectl uses.

use json_patch::{
    AddOperation, CopyOperation, Patch, PatchOperation, ReplaceOperation, jsonptr::Pointer,
};
use serde_json::Value;

use crate::nesting::{self, MAX_DEPTH};

pub mod apply;
mod fields;
mod strategic;
mod typed;

pub use fields::FieldSet;
pub use strategic::strategic;

/// The most operations of a JSON patch, as in kube-apiserver.
const MAX_OPERATIONS: usize = 10_000;
/// The most bytes that the `copy` operations of a JSON patch may add, as in kube-apiserver.
const MAX_COPIED: usize = 3 * 1024 * 1024;

/// An error of applying a patch. Variants by status; the texts are those of kube-apiserver where it
/// has one.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PatchError {
    /// The patch is malformed: 400 BadRequest.
    #[error("{0}")]
    Malformed(String),
    /// The patch does not fit the object: 422 Invalid.
    #[error("{0}")]
    Unprocessable(String),
    /// The patch exceeds a limit: 413 RequestEntityTooLarge.
    #[error("{0}")]
    TooLarge(String),
}

/// Applies a JSON patch (RFC 6902, `application/json-patch+json`): all operations or none.
///
/// # Errors
///
/// [`PatchError::Malformed`] if `patch` is not a list of operations, [`PatchError::Unprocessable`]
/// naming the operation that fails, [`PatchError::TooLarge`] beyond kube-apiserver's limits.
pub fn json(mut document: Value, patch: Value) -> Result<Value, PatchError> {
    let Patch(operations) = serde_json::from_value(patch)
        .map_err(|error| PatchError::Malformed(format!("decode JSON patch: {error}")))?;
    if operations.len() > MAX_OPERATIONS {
        let got = operations.len();
        return Err(PatchError::TooLarge(format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {got}"
        )));
    }
    let mut copied = 0;
    for (index, operation) in operations.into_iter().enumerate() {
        if result_depth(&operation, &document) > MAX_DEPTH {
            return Err(PatchError::TooLarge(format!(
                "operation {index} would nest values deeper than {MAX_DEPTH} levels"
            )));
        }
        if let PatchOperation::Copy(copy) = &operation {
            let size = copy.from.resolve(&document).map_or(0, written_size);
            copied = size.saturating_add(copied);
            if copied > MAX_COPIED {
                return Err(PatchError::TooLarge(format!(
                    "Unable to complete the copy, the accumulated size increase of copy is {copied}, exceeding the limit {MAX_COPIED}"
                )));
            }
        }
        let Some(operation) = with_open_fields(operation, &document) else {
            continue;
        };
        json_patch::patch_unsafe(&mut document, &[operation]).map_err(|error| {
            let path = error.path;
            PatchError::Unprocessable(format!("operation {index} at {path:?}: {}", error.kind))
        })?;
    }
    Ok(document)
}

/// Adapts an operation to the library of kube-apiserver, in which an absent field can be replaced,
/// copied as `null`, and tested to be `null`. Returns `None` if nothing is left to do.
fn with_open_fields(operation: PatchOperation, document: &Value) -> Option<PatchOperation> {
    let is_open = |path: &Pointer| {
        let parent = path
            .parent()
            .and_then(|parent| parent.resolve(document).ok());
        parent.is_some_and(Value::is_object) && path.resolve(document).is_err()
    };
    Some(match operation {
        PatchOperation::Test(test) if test.value.is_null() && is_open(&test.path) => return None,
        PatchOperation::Replace(ReplaceOperation { path, value }) if is_open(&path) => {
            PatchOperation::Add(AddOperation { path, value })
        }
        PatchOperation::Copy(CopyOperation { from, path }) if is_open(&from) => {
            let value = Value::Null;
            PatchOperation::Add(AddOperation { path, value })
        }
        other => other,
    })
}

/// The nesting depth of the value that an operation writes.
fn result_depth(operation: &PatchOperation, document: &Value) -> usize {
    let (path, value) = match operation {
        PatchOperation::Add(add) => (&add.path, Some(&add.value)),
        PatchOperation::Replace(replace) => (&replace.path, Some(&replace.value)),
        PatchOperation::Move(moved) => (&moved.path, moved.from.resolve(document).ok()),
        PatchOperation::Copy(copy) => (&copy.path, copy.from.resolve(document).ok()),
        PatchOperation::Remove(_) | PatchOperation::Test(_) => return 0,
    };
    path.count().saturating_add(value.map_or(0, nesting::depth))
}

fn written_size(value: &Value) -> usize {
    value.to_string().len()
}

/// Applies a merge patch (RFC 7386, `application/merge-patch+json`).
///
/// As in kube-apiserver, a `null` in an object in a list is dropped, although the RFC copies lists
/// unchanged.
///
/// # Errors
///
/// [`PatchError::Malformed`] if `patch` is not an object.
pub fn merge(mut document: Value, mut patch: Value) -> Result<Value, PatchError> {
    if !patch.is_object() {
        let text = "a merge patch must be a JSON object";
        return Err(PatchError::Malformed(text.into()));
    }
    drop_nulls(&mut patch, false);
    json_patch::merge(&mut document, &patch);
    Ok(document)
}

/// Drops `null` fields of objects in lists.
fn drop_nulls(value: &mut Value, in_list: bool) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !in_list || !value.is_null());
            for value in fields.values_mut() {
                drop_nulls(value, in_list);
            }
        }
        Value::Array(elements) => {
            for element in elements {
                drop_nulls(element, true);
            }
        }
        _ => {}
    }
}
