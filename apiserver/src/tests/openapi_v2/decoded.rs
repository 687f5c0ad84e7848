//! The JSON of a document in protobuf. Fields without a value are not in it.

use podplane_proto::openapi::{
    AdditionalProperties, Any, Document, NamedAny, NamedSchema, Operation, Parameter,
    ParametersItem, PathItem, Response, Schema, additional_properties::Item, non_body_parameter,
    parameter, parameters_item, response_value, schema_item,
};
use serde_json::{Map, Value, json};

pub(super) fn document(document: &Document) -> Value {
    let info = document.info.as_ref().unwrap();
    let paths = &document.paths.as_ref().unwrap().path;
    let paths = paths
        .iter()
        .map(|path| (path.name.clone(), path_item(path.value.as_ref().unwrap())));
    let definitions = &document.definitions.as_ref().unwrap().additional_properties;
    json!({
        "swagger": document.swagger,
        "info": {"title": info.title, "version": info.version},
        "paths": paths.collect::<Map<_, _>>(),
        "definitions": schemas(definitions),
    })
}

fn path_item(item: &PathItem) -> Value {
    let operation = |one: &Option<Operation>| one.as_ref().map(operation);
    present(json!({
        "get": operation(&item.get),
        "put": operation(&item.put),
        "post": operation(&item.post),
        "delete": operation(&item.delete),
        "patch": operation(&item.patch),
        "parameters": parameters(&item.parameters),
    }))
}

fn operation(operation: &Operation) -> Value {
    let responses = operation.responses.as_ref().unwrap();
    let responses = responses.response_code.iter().map(|named| {
        let value = named.value.as_ref().unwrap().value.as_ref().unwrap();
        let response_value::Value::Response(Response {
            description,
            schema,
        }) = value;
        let Some(schema_item::Item::Schema(schema)) = &schema.as_ref().unwrap().item else {
            panic!("a schema")
        };
        let response = json!({"description": description, "schema": self::schema(schema)});
        (named.name.clone(), response)
    });
    let mut value = json!({
        "consumes": operation.consumes,
        "produces": operation.produces,
        "responses": responses.collect::<Map<_, _>>(),
    });
    extend(&mut value, &operation.vendor_extension);
    // An operation has parameters, even none.
    value["parameters"] = parameters(&operation.parameters);
    value
}

fn parameters(items: &[ParametersItem]) -> Value {
    let parameters = items.iter().map(|item| {
        let Some(parameters_item::Item::Parameter(Parameter { place })) = &item.item else {
            panic!("a parameter")
        };
        let place = match place.as_ref().unwrap() {
            parameter::Place::BodyParameter(body) => {
                return present(json!({
                    "name": body.name,
                    "in": body.r#in,
                    "required": body.required,
                    "schema": body.schema.as_ref().map(schema),
                }));
            }
            parameter::Place::NonBodyParameter(other) => other.place.as_ref().unwrap(),
        };
        let (name, place, required, ty, unique) = match place {
            non_body_parameter::Place::QueryParameter(query) => (
                &query.name,
                &query.r#in,
                query.required,
                &query.r#type,
                query.unique_items,
            ),
            non_body_parameter::Place::PathParameter(path) => (
                &path.name,
                &path.r#in,
                path.required,
                &path.r#type,
                path.unique_items,
            ),
        };
        present(
            json!({"name": name, "in": place, "required": required, "type": ty, "uniqueItems": unique}),
        )
    });
    parameters.collect()
}

fn schemas(named: &[NamedSchema]) -> Value {
    let schemas = named
        .iter()
        .map(|one| (one.name.clone(), schema(one.value.as_ref().unwrap())));
    schemas.collect::<Map<_, _>>().into()
}

fn schema(schema: &Schema) -> Value {
    let ty = schema.r#type.as_ref().map(|ty| {
        let [ty] = ty.value.as_slice() else {
            panic!("one type")
        };
        ty
    });
    let items = schema.items.as_ref().map(|items| {
        let [items] = items.schema.as_slice() else {
            panic!("one schema")
        };
        self::schema(items)
    });
    let docs = schema.external_docs.as_ref();
    let docs = docs.map(|docs| json!({"description": docs.description, "url": docs.url}));
    let mut value = present(json!({
        "$ref": schema.reference,
        "format": schema.format,
        "title": schema.title,
        "description": schema.description,
        "multipleOf": schema.multiple_of,
        "maximum": schema.maximum,
        "exclusiveMaximum": schema.exclusive_maximum,
        "minimum": schema.minimum,
        "exclusiveMinimum": schema.exclusive_minimum,
        "maxLength": schema.max_length,
        "minLength": schema.min_length,
        "pattern": schema.pattern,
        "maxItems": schema.max_items,
        "minItems": schema.min_items,
        "uniqueItems": schema.unique_items,
        "maxProperties": schema.max_properties,
        "minProperties": schema.min_properties,
        "required": schema.required,
        "enum": schema.r#enum.iter().map(any).collect::<Vec<_>>(),
        "type": ty,
        "items": items,
        "externalDocs": docs,
        "example": schema.example.as_ref().map(any),
    }));
    let values = schema.additional_properties.as_deref();
    if let Some(AdditionalProperties { item }) = values {
        value["additionalProperties"] = match item.as_ref().unwrap() {
            Item::Schema(values) => self::schema(values),
            Item::Boolean(allowed) => (*allowed).into(),
        };
    }
    if let Some(properties) = &schema.properties {
        value["properties"] = schemas(&properties.additional_properties);
    }
    extend(&mut value, &schema.vendor_extension);
    value
}

fn extend(value: &mut Value, extensions: &[NamedAny]) {
    for extension in extensions {
        value[&extension.name] = any(extension.value.as_ref().unwrap());
    }
}

fn any(any: &Any) -> Value {
    serde_saphyr::from_str(&any.yaml).unwrap()
}

/// The fields that have a value: the wire does not have the others.
fn present(mut value: Value) -> Value {
    let is_present = |value: &Value| match value {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(_) => true,
    };
    value
        .as_object_mut()
        .unwrap()
        .retain(|_, value| is_present(value));
    value
}
