//! The document in protobuf: gnostic's messages, from the document in JSON.
//!
//! Each function makes one message. Fields without a counterpart in the message are dropped;
//! `convert` leaves none.

use podplane_proto::openapi::{
    AdditionalProperties, Any, BodyParameter, Definitions, Document, ExternalDocs, Info, Items,
    NamedAny, NamedPathItem, NamedResponseValue, NamedSchema, NonBodyParameter, Operation,
    Parameter, ParametersItem, PathItem, PathParameter, Paths, Properties, QueryParameter,
    Response, ResponseValue, Responses, Schema, SchemaItem, Type, additional_properties,
    non_body_parameter, parameter, parameters_item, response_value, schema_item,
};
use prost::Message as _;
use serde_json::Value;

use crate::rest::yaml;

/// Encodes a document.
pub(super) fn encode(document: &Value) -> Vec<u8> {
    let message = Document {
        swagger: text(document, "swagger"),
        info: document.get("info").map(info),
        paths: document.get("paths").map(paths),
        definitions: document.get("definitions").map(definitions),
    };
    message.encode_to_vec()
}

fn info(info: &Value) -> Info {
    Info {
        title: text(info, "title"),
        version: text(info, "version"),
    }
}

fn paths(paths: &Value) -> Paths {
    let path = entries(paths).map(|(name, item)| NamedPathItem {
        name: name.clone(),
        value: Some(path_item(item)),
    });
    Paths {
        path: path.collect(),
    }
}

fn path_item(item: &Value) -> PathItem {
    let operation = |method| item.get(method).map(operation);
    PathItem {
        get: operation("get"),
        put: operation("put"),
        post: operation("post"),
        delete: operation("delete"),
        patch: operation("patch"),
        parameters: parameters(item),
    }
}

fn operation(operation: &Value) -> Operation {
    Operation {
        produces: texts(operation, "produces"),
        consumes: texts(operation, "consumes"),
        parameters: parameters(operation),
        responses: operation.get("responses").map(responses),
        vendor_extension: extensions(operation),
    }
}

fn parameters(of: &Value) -> Vec<ParametersItem> {
    let item = |parameter| ParametersItem {
        item: Some(parameters_item::Item::Parameter(self::parameter(parameter))),
    };
    elements(of, "parameters").map(item).collect()
}

fn parameter(parameter: &Value) -> Parameter {
    let place = match parameter["in"].as_str() {
        Some("body") => parameter::Place::BodyParameter(body_parameter(parameter)),
        _ => parameter::Place::NonBodyParameter(non_body_parameter(parameter)),
    };
    Parameter { place: Some(place) }
}

fn body_parameter(parameter: &Value) -> BodyParameter {
    BodyParameter {
        name: text(parameter, "name"),
        r#in: text(parameter, "in"),
        required: flag(parameter, "required"),
        schema: parameter.get("schema").map(schema),
    }
}

fn non_body_parameter(parameter: &Value) -> NonBodyParameter {
    let required = flag(parameter, "required");
    let r#in = text(parameter, "in");
    let name = text(parameter, "name");
    let r#type = text(parameter, "type");
    let unique_items = flag(parameter, "uniqueItems");
    let place = match r#in.as_str() {
        "path" => non_body_parameter::Place::PathParameter(PathParameter {
            required,
            r#in,
            name,
            r#type,
            unique_items,
        }),
        _ => non_body_parameter::Place::QueryParameter(QueryParameter {
            required,
            r#in,
            name,
            r#type,
            unique_items,
        }),
    };
    NonBodyParameter { place: Some(place) }
}

fn responses(responses: &Value) -> Responses {
    let response_code = entries(responses).map(|(code, response)| NamedResponseValue {
        name: code.clone(),
        value: Some(ResponseValue {
            value: Some(response_value::Value::Response(self::response(response))),
        }),
    });
    Responses {
        response_code: response_code.collect(),
    }
}

fn response(response: &Value) -> Response {
    let schema = response.get("schema").map(|schema| SchemaItem {
        item: Some(schema_item::Item::Schema(self::schema(schema))),
    });
    Response {
        description: text(response, "description"),
        schema,
    }
}

fn definitions(definitions: &Value) -> Definitions {
    Definitions {
        additional_properties: named_schemas(definitions),
    }
}

fn named_schemas(schemas: &Value) -> Vec<NamedSchema> {
    let named = entries(schemas).map(|(name, schema)| NamedSchema {
        name: name.clone(),
        value: Some(self::schema(schema)),
    });
    named.collect()
}

fn schema(schema: &Value) -> Schema {
    Schema {
        reference: text(schema, "$ref"),
        format: text(schema, "format"),
        title: text(schema, "title"),
        description: text(schema, "description"),
        multiple_of: number(schema, "multipleOf"),
        maximum: number(schema, "maximum"),
        exclusive_maximum: flag(schema, "exclusiveMaximum"),
        minimum: number(schema, "minimum"),
        exclusive_minimum: flag(schema, "exclusiveMinimum"),
        max_length: integer(schema, "maxLength"),
        min_length: integer(schema, "minLength"),
        pattern: text(schema, "pattern"),
        max_items: integer(schema, "maxItems"),
        min_items: integer(schema, "minItems"),
        unique_items: flag(schema, "uniqueItems"),
        max_properties: integer(schema, "maxProperties"),
        min_properties: integer(schema, "minProperties"),
        required: texts(schema, "required"),
        r#enum: elements(schema, "enum").map(any).collect(),
        additional_properties: schema
            .get("additionalProperties")
            .map(|values| Box::new(additional_properties(values))),
        r#type: schema.get("type").map(|_| Type {
            value: vec![text(schema, "type")],
        }),
        items: schema.get("items").map(|items| Items {
            schema: vec![self::schema(items)],
        }),
        properties: schema.get("properties").map(|properties| Properties {
            additional_properties: named_schemas(properties),
        }),
        external_docs: schema.get("externalDocs").map(external_docs),
        example: schema.get("example").map(any),
        vendor_extension: extensions(schema),
    }
}

fn additional_properties(values: &Value) -> AdditionalProperties {
    let item = match values.as_bool() {
        Some(allowed) => additional_properties::Item::Boolean(allowed),
        None => additional_properties::Item::Schema(Box::new(schema(values))),
    };
    AdditionalProperties { item: Some(item) }
}

fn external_docs(docs: &Value) -> ExternalDocs {
    ExternalDocs {
        description: text(docs, "description"),
        url: text(docs, "url"),
    }
}

/// The fields whose names begin with `x-`.
fn extensions(of: &Value) -> Vec<NamedAny> {
    let extensions = entries(of).filter(|(name, _)| name.starts_with("x-"));
    let named = extensions.map(|(name, value)| NamedAny {
        name: name.clone(),
        value: Some(any(value)),
    });
    named.collect()
}

fn any(value: &Value) -> Any {
    // JSON is YAML, too.
    let yaml = yaml::text(value).unwrap_or_else(|| value.to_string());
    Any { yaml }
}

fn entries(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
    object.as_object().into_iter().flatten()
}

fn elements<'a>(of: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    of[name].as_array().into_iter().flatten()
}

fn text(of: &Value, name: &str) -> String {
    of[name].as_str().unwrap_or_default().to_owned()
}

fn texts(of: &Value, name: &str) -> Vec<String> {
    let texts = elements(of, name).filter_map(Value::as_str);
    texts.map(str::to_owned).collect()
}

fn flag(of: &Value, name: &str) -> bool {
    of[name] == Value::Bool(true)
}

fn number(of: &Value, name: &str) -> f64 {
    of[name].as_f64().unwrap_or_default()
}

fn integer(of: &Value, name: &str) -> i64 {
    of[name].as_i64().unwrap_or_default()
}
