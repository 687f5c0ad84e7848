//! The JSON schemas in a CustomResourceDefinition: names of fields that are no identifiers, and
//! values that are a schema or something else.

use std::sync::LazyLock;

use podplane_api::{
    apiextensions::CustomResourceDefinition,
    schema::{Struct, Type, TypeStructure},
};
use prost_reflect::{
    DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, ReflectMessage as _, Value,
};
use serde_json::{Map, Value as Json};

use super::{ConversionError, flatten, nest, unmapped};

/// The message of a schema.
const SCHEMA: &str = "JSONSchemaProps";

/// The names in protobuf and in JSON.
const NAMES: [(&str, &str); 9] = [
    ("ref", "$ref"),
    ("schema", "$schema"),
    (
        "xKubernetesEmbeddedResource",
        "x-kubernetes-embedded-resource",
    ),
    ("xKubernetesIntOrString", "x-kubernetes-int-or-string"),
    ("xKubernetesListMapKeys", "x-kubernetes-list-map-keys"),
    ("xKubernetesListType", "x-kubernetes-list-type"),
    ("xKubernetesMapType", "x-kubernetes-map-type"),
    (
        "xKubernetesPreserveUnknownFields",
        "x-kubernetes-preserve-unknown-fields",
    ),
    ("xKubernetesValidations", "x-kubernetes-validations"),
];

/// The fields of a schema.
static FIELDS: LazyLock<&'static Struct> = LazyLock::new(|| {
    let definition = Type::of::<CustomResourceDefinition>();
    let versions = definition.and_then(|ty| ty.field("spec")?.field("versions"));
    let version = versions.and_then(|ty| match ty.kind() {
        TypeStructure::List(list) => Some(list.items()),
        _ => None,
    });
    let schema = version.and_then(|ty| ty.field("schema")?.field("openAPIV3Schema"));
    match schema.map(Type::kind) {
        Some(TypeStructure::Struct(fields)) => fields,
        other => unreachable!("a definition has versions with schemas: {other:?}"),
    }
});

/// The name in JSON of a field of a schema, if it is another one.
pub(super) fn json_name(field: &FieldDescriptor) -> Option<&'static str> {
    if field.parent_message().name() != SCHEMA {
        return None;
    }
    let mut names = NAMES.into_iter();
    names.find_map(|(name, json)| (name == field.name()).then_some(json))
}

/// True if a message represents a schema or something else.
pub(super) fn is_union(descriptor: &MessageDescriptor) -> bool {
    let other = descriptor.name().strip_prefix(SCHEMA);
    matches!(other, Some("OrArray" | "OrBool" | "OrStringArray"))
}

/// The fields of such a message: the schema, and the other thing.
fn fields(
    descriptor: &MessageDescriptor,
) -> Result<(FieldDescriptor, FieldDescriptor), ConversionError> {
    let is_schema = |field: &FieldDescriptor| field.name() == "schema";
    let schema = descriptor.fields().find(is_schema);
    let other = descriptor.fields().find(|field| !is_schema(field));
    let both = schema.zip(other);
    both.ok_or_else(|| unmapped(&DynamicMessage::new(descriptor.clone())))
}

pub(super) fn to_json(message: &DynamicMessage) -> Result<Json, ConversionError> {
    let (schema, other) = fields(&message.descriptor())?;
    if message.has_field(&schema)
        && let Some(schema) = message.get_field(&schema).as_message()
    {
        return object(schema);
    }
    Ok(match message.get_field(&other).as_ref() {
        Value::Bool(allows) => (*allows).into(),
        Value::List(items) => {
            let each = items.iter().map(|item| match item {
                Value::Message(schema) => object(schema),
                text => Ok(text.as_str().unwrap_or_default().into()),
            });
            each.collect::<Result<_, _>>()?
        }
        _ => return Err(unmapped(message)),
    })
}

fn object(schema: &DynamicMessage) -> Result<Json, ConversionError> {
    let mut object = Map::new();
    flatten(schema, &FIELDS, &mut object)?;
    Ok(object.into())
}

pub(super) fn to_message(
    json: &Json,
    descriptor: MessageDescriptor,
) -> Result<DynamicMessage, ConversionError> {
    let wrong = || ConversionError::new(format!("{json} is not a {}", descriptor.name()));
    let (schema, other) = fields(&descriptor)?;
    let mut message = DynamicMessage::new(descriptor.clone());
    let nested = |json: &Json, field: &FieldDescriptor| match (json, field.kind()) {
        (Json::Object(object), Kind::Message(descriptor)) => {
            Ok(Value::Message(nest(descriptor, &FIELDS, object)?))
        }
        (Json::String(text), Kind::String) => Ok(Value::String(text.clone())),
        _ => Err(wrong()),
    };
    match json {
        Json::Object(_) => {
            message.set_field(&schema, nested(json, &schema)?);
            // A schema also allows.
            if other.kind() == Kind::Bool {
                message.set_field(&other, Value::Bool(true));
            }
        }
        Json::Bool(allows) if other.kind() == Kind::Bool => {
            message.set_field(&other, Value::Bool(*allows));
        }
        Json::Array(items) if other.is_list() => {
            let each = items.iter().map(|item| nested(item, &other));
            message.set_field(&other, Value::List(each.collect::<Result<_, _>>()?));
        }
        _ => return Err(wrong()),
    }
    Ok(message)
}
