//! `apiVersion`, `kind` and `metadata`: of an object, and of the resources that it embeds.

use podplane_api::{meta::ObjectMeta, names, validation::ErrorList};
use serde_json::Value;

use crate::{
    place::Place,
    schema::{Additional, Schema},
};

/// Metadata that cannot be decoded. Formatted as in the reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: Invalid value: {value}: {reason}")]
pub struct MetadataError {
    path: String,
    value: String,
    reason: String,
}

/// Decodes `apiVersion`, `kind` and `metadata` of an object and of embedded ones, and drops unknown
/// fields of metadata, whose paths are returned.
pub(crate) fn coerce(
    schema: &Schema,
    value: &mut Value,
    is_resource: bool,
) -> Result<Vec<String>, MetadataError> {
    let mut dropped = Vec::new();
    walk(schema, value, is_resource, &Place::default(), &mut dropped)?;
    Ok(dropped)
}

fn walk(
    schema: &Schema,
    value: &mut Value,
    is_resource: bool,
    at: &Place,
    dropped: &mut Vec<String>,
) -> Result<(), MetadataError> {
    match value {
        Value::Object(fields) => {
            if is_resource {
                for (name, value) in fields.iter_mut() {
                    let at = at.child(name);
                    match name.as_str() {
                        "apiVersion" | "kind" if !value.is_string() => {
                            return Err(refused(&at, value, "must be a string"));
                        }
                        "metadata" => *value = metadata(value, &at, dropped)?,
                        _ => {}
                    }
                }
            }
            for (name, value) in fields {
                if is_resource && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
                    continue;
                }
                match (schema.properties.get(name), schema.additional.as_deref()) {
                    (Some(below), _) => {
                        walk(below, value, below.embedded, &at.child(name), dropped)?
                    }
                    (None, Some(Additional::Values(below))) => {
                        walk(below, value, below.embedded, &at.key(name), dropped)?;
                    }
                    (None, _) => {}
                }
            }
        }
        Value::Array(items) => {
            if let Some(below) = &schema.items {
                for (index, item) in items.iter_mut().enumerate() {
                    walk(below, item, below.embedded, &at.index(index), dropped)?;
                }
            }
        }
        _ => {}
    }
    Ok(())
}

fn refused(at: &Place, value: &Value, reason: &str) -> MetadataError {
    MetadataError {
        path: at.text().to_owned(),
        value: value.to_string(),
        reason: reason.to_owned(),
    }
}

/// The metadata without its unknown fields.
fn metadata(value: &Value, at: &Place, dropped: &mut Vec<String>) -> Result<Value, MetadataError> {
    if value.is_null() {
        return Ok(Value::Object(serde_json::Map::new()));
    }
    let decoded: ObjectMeta = serde_json::from_value(value.clone())
        .map_err(|error| refused(at, value, &error.to_string()))?;
    let known =
        serde_json::to_value(decoded).map_err(|error| refused(at, value, &error.to_string()))?;
    unknown(value, &known, at, dropped);
    Ok(known)
}

/// The fields that decoding has lost. Empty values are lost, too, and are no unknown fields.
fn unknown(value: &Value, known: &Value, at: &Place, dropped: &mut Vec<String>) {
    match (value, known) {
        (Value::Object(fields), Value::Object(known)) => {
            for (name, value) in fields {
                let is_empty = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
                match known.get(name) {
                    Some(known) => unknown(value, known, &at.child(name), dropped),
                    None if is_empty => {}
                    None => dropped.push(at.child(name).text().to_owned()),
                }
            }
        }
        (Value::Array(items), Value::Array(known)) => {
            for (index, (item, known)) in items.iter().zip(known).enumerate() {
                unknown(item, known, &at.index(index), dropped);
            }
        }
        _ => {}
    }
}

/// Checks the embedded resources of an object.
pub(crate) fn validate(
    schema: &Schema,
    value: &Value,
    is_resource: bool,
    at: &Place,
    errors: &mut ErrorList,
) {
    match value {
        Value::Object(fields) => {
            if is_resource {
                for name in ["apiVersion", "kind"] {
                    let at = at.child(name);
                    match fields.get(name) {
                        None => errors.required(&at.path(), ""),
                        Some(Value::String(text)) if text.is_empty() => {
                            errors.invalid(&at.path(), "", "must not be empty");
                        }
                        Some(Value::String(text)) if name == "kind" => {
                            let broken = names::dns1035_label(&text.to_lowercase());
                            if !broken.is_empty() {
                                let rules = broken.join(",");
                                let detail = format!(
                                    "may have mixed case, but should otherwise match: {rules}"
                                );
                                errors.invalid(&at.path(), text.as_str(), &detail);
                            }
                        }
                        Some(Value::String(text)) if text.matches('/').count() > 1 => {
                            let detail = format!("unexpected GroupVersion string: {text}");
                            errors.invalid(&at.path(), text.as_str(), &detail);
                        }
                        Some(Value::String(_)) => {}
                        Some(other) => {
                            errors.invalid(&at.path(), other.clone(), "must be a string")
                        }
                    }
                }
                if let Some(metadata) = fields.get("metadata") {
                    embedded_metadata(metadata, &at.child("metadata"), errors);
                }
            }
            for (name, value) in fields {
                match (schema.properties.get(name), schema.additional.as_deref()) {
                    (Some(below), _) => {
                        validate(below, value, below.embedded, &at.child(name), errors)
                    }
                    (None, Some(Additional::Values(below))) => {
                        validate(below, value, below.embedded, &at.key(name), errors);
                    }
                    (None, _) => {}
                }
            }
        }
        Value::Array(items) => {
            if let Some(below) = &schema.items {
                for (index, item) in items.iter().enumerate() {
                    validate(below, item, below.embedded, &at.index(index), errors);
                }
            }
        }
        _ => {}
    }
}

fn embedded_metadata(value: &Value, at: &Place, errors: &mut ErrorList) {
    let decoded: ObjectMeta = match serde_json::from_value(value.clone()) {
        Ok(decoded) => decoded,
        Err(error) => return errors.invalid(&at.path(), value.clone(), &error.to_string()),
    };
    if let Some(name) = decoded.name.as_deref().filter(|name| !name.is_empty()) {
        errors.invalid_each(&at.child("name").path(), name, names::path_segment(name));
    }
    if let Some(namespace) = decoded.namespace.as_deref().filter(|name| !name.is_empty()) {
        errors.invalid_each(
            &at.child("namespace").path(),
            namespace,
            names::dns1123_label(namespace),
        );
    }
    for (key, value) in decoded.labels.iter().flatten() {
        let path = at.child("labels").path();
        errors.invalid_each(&path, key, names::qualified_name(key));
        errors.invalid_each(&path, value, names::label_value(value));
    }
    for key in decoded.annotations.iter().flatten().map(|(key, _)| key) {
        let broken = names::qualified_name(&key.to_lowercase());
        errors.invalid_each(&at.child("annotations").path(), key, broken);
    }
}
