//! Conversion of paths and definitions from OpenAPI v3 to v2, in place.
//!
//! Version 2 has no alternatives, and nothing for `null` or for unknown fields. Its clients refuse
//! what a schema does not allow, so a schema that cannot be expressed becomes one that allows more.
//! The rules for custom kinds are those of Kubernetes' apiextensions-apiserver
//! (`ToStructuralOpenAPIV2`). As in Kubernetes there are no defaults.

use serde_json::{Map, Value, json};

const KINDS: &str = "x-kubernetes-group-version-kind";
const OPEN: &str = "x-kubernetes-preserve-unknown-fields";

/// Converts the path items of a document.
pub(super) fn paths(paths: &mut Value) {
    for item in values_of(paths) {
        for (name, part) in item.as_object_mut().into_iter().flatten() {
            match (name.as_str(), part) {
                ("parameters", Value::Array(all)) => all.iter_mut().for_each(parameter),
                (_, Value::Object(fields)) => operation(fields),
                _ => {}
            }
        }
    }
}

/// Converts a definition of a kind or of a type of fields.
pub(super) fn definition(definition: &mut Value) {
    if !is_true(definition, OPEN) {
        return schema(definition);
    }
    // A client would refuse all fields but those that are declared, `metadata` among them.
    let kinds = definition[KINDS].take();
    *definition = json!({"type": "object", KINDS: kinds});
}

fn operation(operation: &mut Map<String, Value>) {
    let body = operation.remove("requestBody");
    let body = body.and_then(|mut body| take_content(&mut body));
    // The body of a deletion is optional.
    let action = operation.get("x-kubernetes-action").and_then(Value::as_str);
    let is_required = !action.is_some_and(|action| action.starts_with("delete"));
    let mut parameters = match operation.remove("parameters") {
        Some(Value::Array(parameters)) => parameters,
        _ => Vec::new(),
    };
    parameters.iter_mut().for_each(parameter);
    let mut consumes = json!(["*/*"]);
    if let Some(body) = body {
        consumes = body.media_types;
        let mut parameter = json!({"in": "body", "name": "body"});
        if is_required {
            parameter["required"] = true.into();
        }
        parameter["schema"] = body.schema;
        parameters.insert(0, parameter);
    }
    operation.insert("consumes".to_owned(), consumes);
    operation.insert("parameters".to_owned(), parameters.into());
    let mut produces = Value::Null;
    let responses = operation.get_mut("responses");
    for response in responses.into_iter().flat_map(values_of) {
        if let Some(body) = take_content(response) {
            produces = body.media_types;
            response["schema"] = body.schema;
        }
    }
    operation.insert("produces".to_owned(), produces);
}

/// The body of a request or response.
struct BodyContent {
    media_types: Value,
    /// The schema in v2. It is the same for all media types.
    schema: Value,
}

/// Removes the content of a request body or response.
fn take_content(body: &mut Value) -> Option<BodyContent> {
    let Value::Object(content) = body.as_object_mut()?.remove("content")? else {
        return None;
    };
    let media_types = content.keys().cloned().collect();
    let mut schema = content.into_values().next()?["schema"].take();
    self::schema(&mut schema);
    Some(BodyContent {
        media_types,
        schema,
    })
}

/// Converts a parameter that is not a body: its schema's fields become its own.
fn parameter(parameter: &mut Value) {
    let Some(fields) = parameter.as_object_mut() else {
        return;
    };
    if let Some(Value::Object(schema)) = fields.remove("schema") {
        fields.extend(schema);
    }
}

/// Converts a schema and those below it.
fn schema(schema: &mut Value) {
    relax_required(schema);
    let is_open = is_true(schema, OPEN);
    let is_nullable = is_true(schema, "nullable");
    // `additionalProperties` may be a boolean.
    let Some(fields) = schema.as_object_mut() else {
        return;
    };
    let alternatives = ["allOf", "oneOf", "anyOf"].map(|name| fields.remove(name));
    let [all_of, one_of, _] = &alternatives;
    let first = |alternatives: &Option<Value>, field| {
        let first = alternatives.as_ref()?.get(0)?;
        first.get(field).cloned()
    };
    // In v2 a reference may have other fields beside it, which v3 says with `allOf`.
    let reference = fields.remove("$ref").or_else(|| first(all_of, "$ref"));
    if let Some(name) = reference.as_ref().and_then(name_of) {
        fields.insert("$ref".to_owned(), format!("#/definitions/{name}").into());
    }
    // Quantity and IntOrString are strings, the first of their types.
    if let Some(ty) = first(one_of, "type").filter(|_| !fields.contains_key("type")) {
        fields.insert("type".to_owned(), ty);
    }
    for name in ["default", "not", "nullable"] {
        fields.remove(name);
    }
    if is_nullable || is_open {
        fields.remove("items");
        fields.remove("properties");
    }
    // To a client empty properties are a type without fields. Kubernetes omits them.
    let properties = fields.get("properties").and_then(Value::as_object);
    if properties.is_some_and(Map::is_empty) {
        fields.remove("properties");
    }
    let has_items = fields.contains_key("items");
    let has_type = match fields.get("type").and_then(Value::as_str) {
        Some("array") => has_items,
        Some("object") => !is_open,
        _ => true,
    };
    if is_nullable || !has_type {
        fields.remove("type");
    }
    if let Some(properties) = fields.get_mut("properties") {
        values_of(properties).for_each(self::schema);
    }
    for name in ["items", "additionalProperties"] {
        if let Some(below) = fields.get_mut(name) {
            self::schema(below);
        }
    }
}

/// Removes fields that may be `null` from the required ones.
fn relax_required(schema: &mut Value) {
    let may_be_null = |below: Option<&Value>| below.is_some_and(|below| is_true(below, "nullable"));
    let keeps = |name: &Value| {
        let property = name
            .as_str()
            .and_then(|name| schema["properties"].get(name));
        !may_be_null(property)
    };
    let Some(required) = schema.get("required").and_then(Value::as_array) else {
        return;
    };
    let mut left: Vec<_> = required
        .iter()
        .filter(|name| keeps(name))
        .cloned()
        .collect();
    if may_be_null(schema.get("additionalProperties")) {
        left.clear();
    }
    match schema.as_object_mut() {
        Some(fields) if left.is_empty() => _ = fields.remove("required"),
        _ => schema["required"] = left.into(),
    }
}

fn values_of(object: &mut Value) -> impl Iterator<Item = &mut Value> {
    let fields = object.as_object_mut();
    fields.into_iter().flat_map(Map::values_mut)
}

/// The name of the definition that a reference is to.
fn name_of(reference: &Value) -> Option<&str> {
    reference.as_str()?.rsplit('/').next()
}

fn is_true(object: &Value, name: &str) -> bool {
    object.get(name) == Some(&Value::Bool(true))
}
