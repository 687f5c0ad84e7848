//! Pruning of unknown fields, and defaults.

use serde_json::{Map, Value};

use crate::{
    place::Place,
    schema::{Additional, Schema},
};

/// Drops fields that the schema does not have; adds their paths to `dropped`. `is_resource` for an
/// object with `apiVersion`, `kind` and `metadata`.
pub(crate) fn prune(
    schema: &Schema,
    value: &mut Value,
    is_resource: bool,
    at: &Place,
    dropped: &mut Vec<String>,
) {
    match value {
        Value::Object(fields) => {
            if is_resource {
                resource(schema, fields, at, dropped);
            } else {
                object(schema, fields, at, dropped);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                match &schema.items {
                    Some(schema) => prune(schema, item, schema.embedded, &at.index(index), dropped),
                    // Without a schema nothing is known of the elements.
                    None if !schema.preserve => empty(item, &at.index(index), dropped),
                    None => {}
                }
            }
        }
        _ => {}
    }
}

fn resource(
    schema: &Schema,
    fields: &mut Map<String, Value>,
    at: &Place,
    dropped: &mut Vec<String>,
) {
    // These have fields of their own, which the coercion of metadata knows.
    let mut kept = Map::new();
    for name in ["apiVersion", "kind", "metadata"] {
        if let Some(value) = fields.remove(name) {
            kept.insert(name.to_owned(), value);
        }
    }
    object(schema, fields, at, dropped);
    fields.append(&mut kept);
}

fn object(schema: &Schema, fields: &mut Map<String, Value>, at: &Place, dropped: &mut Vec<String>) {
    let is_open = schema.preserve || matches!(schema.additional.as_deref(), Some(Additional::Any));
    fields.retain(|name, value| match schema.field(name) {
        Some(below) => {
            prune(below, value, below.embedded, &at.child(name), dropped);
            true
        }
        None => {
            if !is_open {
                dropped.push(at.child(name).text().to_owned());
            }
            is_open
        }
    });
}

/// Drops all fields of objects without a schema.
fn empty(value: &mut Value, at: &Place, dropped: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            dropped.extend(fields.keys().map(|name| at.child(name).text().to_owned()));
            fields.clear();
        }
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                empty(item, &at.index(index), dropped);
            }
        }
        _ => {}
    }
}

/// Fills absent fields with the schema's defaults. An explicit `null` is dropped where the field
/// has a default and is not nullable.
pub(crate) fn default(schema: &Schema, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, below) in &schema.properties {
                let Some(default) = &below.default else {
                    continue;
                };
                let is_absent = match fields.get(name) {
                    None => true,
                    Some(Value::Null) => !below.nullable,
                    Some(_) => false,
                };
                if is_absent {
                    fields.insert(name.clone(), default.clone());
                }
            }
            for (name, value) in fields {
                match (schema.properties.get(name), schema.additional.as_deref()) {
                    (Some(below), _) | (None, Some(Additional::Values(below))) => {
                        if value.is_null()
                            && !below.nullable
                            && let Some(default) = &below.default
                        {
                            *value = default.clone();
                        }
                        self::default(below, value);
                    }
                    (None, _) => {}
                }
            }
        }
        Value::Array(items) => {
            if let Some(below) = &schema.items {
                for item in items {
                    if item.is_null()
                        && !below.nullable
                        && let Some(default) = &below.default
                    {
                        *item = default.clone();
                    }
                    default(below, item);
                }
            }
        }
        _ => {}
    }
}
