//! Kubernetes' own protobuf encoding, `application/vnd.kubernetes.protobuf`, which Go clients send
//! and request.
//!
//! [`decode`] and [`encode`] convert between it and Kubernetes' JSON. The messages are the
//! published ones (`cargo xtask kubernetes`). The definitions of [`podplane_api::schema`] determine
//! where they differ from JSON: a field of a message that the definition does not have is an
//! embedded Go struct, flat in JSON and nested in protobuf. `scalars` has the few types whose JSON
//! is not made of their fields.

use std::sync::LazyLock;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::{BufMut as _, Bytes};
use podplane_api::schema::{Struct, Type, TypeStructure};
use prost::Message as _;
use prost_reflect::{
    DescriptorPool, DynamicMessage, ExtensionDescriptor, FieldDescriptor, Kind as FieldKind,
    MapKey, MessageDescriptor, ReflectMessage as _, Value,
};
use serde_json::{Map, Value as Json};

use crate::values::{self, MAX_VALUES};

mod scalars;
mod schemas;

/// The media type.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// The prefix of every encoded object.
const MAGIC: [u8; 4] = *b"k8s\0";

static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    let descriptors = include_bytes!(concat!(env!("OUT_DIR"), "/kubernetes.bin"));
    DescriptorPool::decode(descriptors.as_slice())
        .expect("the build script wrote these descriptors")
});

/// The option `gogoproto.nullable`.
static NULLABLE: LazyLock<ExtensionDescriptor> = LazyLock::new(|| {
    POOL.get_extension_by_name("gogoproto.nullable")
        .expect("every file imports it")
});

/// The envelope of an object (`k8s.io.apimachinery.pkg.runtime.Unknown`). Its contentEncoding and
/// contentType are not used for objects.
#[derive(prost::Message)]
struct Unknown {
    #[prost(message, optional, tag = "1")]
    type_meta: Option<TypeMeta>,
    #[prost(bytes = "bytes", optional, tag = "2")]
    raw: Option<Bytes>,
}

/// `k8s.io.apimachinery.pkg.runtime.TypeMeta`
#[derive(prost::Message)]
struct TypeMeta {
    #[prost(string, optional, tag = "1")]
    api_version: Option<String>,
    #[prost(string, optional, tag = "2")]
    kind: Option<String>,
}

/// `k8s.io.apimachinery.pkg.apis.meta.v1.WatchEvent`
#[derive(prost::Message)]
struct WatchEvent {
    #[prost(string, optional, tag = "1")]
    event_type: Option<String>,
    #[prost(message, optional, tag = "2")]
    object: Option<RawExtension>,
}

/// `k8s.io.apimachinery.pkg.runtime.RawExtension`
#[derive(prost::Message)]
struct RawExtension {
    #[prost(bytes = "bytes", optional, tag = "1")]
    raw: Option<Bytes>,
}

/// An error of decoding an object.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The prefix is missing.
    #[error("provided data does not appear to be a protobuf message, expected prefix {MAGIC:?}")]
    Prefix,
    /// The kind has no message.
    #[error("no kind {kind:?} is registered for version {api_version:?}")]
    NoKind {
        /// The version in the envelope.
        api_version: String,
        /// The kind in the envelope.
        kind: String,
    },
    /// The bytes are not a valid message.
    #[error("not a protobuf message")]
    Wire(#[from] prost::DecodeError),
    /// There are more than [`MAX_VALUES`].
    #[error("limit of values is {MAX_VALUES}")]
    TooManyValues,
    /// A value that JSON does not allow there.
    #[error("{path}: {message}")]
    Value {
        /// The path of the field.
        path: String,
        /// The error.
        message: String,
    },
}

/// An error of encoding an object.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// The kind has no message.
    #[error("{kind} of {api_version} has no protobuf encoding")]
    NoKind {
        /// The version in the document.
        api_version: String,
        /// The kind in the document.
        kind: String,
    },
    /// A value that the message does not allow there.
    #[error("{path}: {message}")]
    Value {
        /// The path of the field.
        path: String,
        /// The error.
        message: String,
    },
}

/// An error of converting a value. The path is added while the recursion returns.
#[derive(Debug)]
struct ConversionError {
    path: String,
    message: String,
}

impl ConversionError {
    fn new(message: impl Into<String>) -> Self {
        Self {
            path: String::new(),
            message: message.into(),
        }
    }

    fn under(mut self, name: &str) -> Self {
        let dot = match self.path.as_str() {
            "" => "",
            path if path.starts_with('[') => "",
            _ => ".",
        };
        self.path = format!("{name}{dot}{}", self.path);
        self
    }
}

impl From<ConversionError> for DecodeError {
    fn from(ConversionError { path, message }: ConversionError) -> Self {
        Self::Value { path, message }
    }
}

impl From<ConversionError> for EncodeError {
    fn from(ConversionError { path, message }: ConversionError) -> Self {
        Self::Value { path, message }
    }
}

/// True if a kind has a message.
pub fn has(api_version: &str, kind: &str) -> bool {
    shape(api_version, kind).is_some()
}

/// The JSON of an encoded object.
///
/// # Errors
///
/// [`DecodeError`] if the bytes are not an object of a kind that has a message.
pub fn decode(bytes: &[u8]) -> Result<Json, DecodeError> {
    let envelope = bytes.strip_prefix(&MAGIC).ok_or(DecodeError::Prefix)?;
    let Unknown { type_meta, raw } = Unknown::decode(envelope)?;
    let TypeMeta { api_version, kind } = type_meta.unwrap_or_default();
    let (api_version, kind) = (api_version.unwrap_or_default(), kind.unwrap_or_default());
    let Some((descriptor, fields)) = shape(&api_version, &kind) else {
        return Err(DecodeError::NoKind { api_version, kind });
    };
    let raw = raw.unwrap_or_default();
    if values::are_too_many(&descriptor, &raw) {
        return Err(DecodeError::TooManyValues);
    }
    let message = DynamicMessage::decode(descriptor, raw)?;
    let mut object = Map::new();
    object.insert("apiVersion".to_owned(), api_version.into());
    object.insert("kind".to_owned(), kind.into());
    flatten(&message, fields, &mut object)?;
    Ok(object.into())
}

/// Encodes an object given as JSON.
///
/// # Errors
///
/// [`EncodeError`] if its kind has no message, or it does not fit its kind's definition.
pub fn encode(document: &Json) -> Result<Vec<u8>, EncodeError> {
    let text = |key: &str| document[key].as_str().unwrap_or_default().to_owned();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let (Some((descriptor, fields)), Some(object)) =
        (shape(&api_version, &kind), document.as_object())
    else {
        return Err(EncodeError::NoKind { api_version, kind });
    };
    let message = nest(descriptor, fields, object)?;
    let envelope = Unknown {
        type_meta: Some(TypeMeta {
            api_version: Some(api_version),
            kind: Some(kind),
        }),
        raw: Some(message.encode_to_vec().into()),
    };
    let mut bytes = Vec::with_capacity(MAGIC.len() + envelope.encoded_len());
    bytes.extend(MAGIC);
    envelope.encode_raw(&mut bytes);
    Ok(bytes)
}

/// Encodes a watch event for a stream: a length, and the message.
///
/// # Errors
///
/// Those of [`encode`].
pub fn encode_event(event_type: &str, object: &Json) -> Result<Vec<u8>, EncodeError> {
    let event = WatchEvent {
        event_type: Some(event_type.to_owned()),
        object: Some(RawExtension {
            raw: Some(encode(object)?.into()),
        }),
    };
    let length =
        u32::try_from(event.encoded_len()).map_err(|_| ConversionError::new("too large"))?;
    let mut bytes = Vec::new();
    bytes.put_u32(length);
    event.encode_raw(&mut bytes);
    Ok(bytes)
}

/// The message and the fields of a kind.
fn shape(api_version: &str, kind: &str) -> Option<(MessageDescriptor, &'static Struct)> {
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    let ty = Type::of_kind(group, version, kind)?;
    let name = ty.definition()?.strip_prefix("io.k8s.")?;
    let TypeStructure::Struct(fields) = ty.kind() else {
        return None;
    };
    let name = name.replace('-', "_");
    Some((POOL.get_message_by_name(&format!("k8s.io.{name}"))?, fields))
}

/// Adds the fields of a message to an object.
fn flatten(
    message: &DynamicMessage,
    fields: &'static Struct,
    object: &mut Map<String, Json>,
) -> Result<(), ConversionError> {
    for (descriptor, value) in message.fields() {
        let name = json_name(&descriptor);
        let Some(field) = fields.field(name) else {
            if let Value::Message(embedded) = value {
                flatten(embedded, fields, object)?;
            }
            continue;
        };
        if is_unset(&descriptor, value) {
            continue;
        }
        let json = to_json(value, field.ty()).map_err(|error| error.under(name))?;
        object.insert(name.to_owned(), json);
    }
    Ok(())
}

/// The name of a field in JSON: that in protobuf, except for some whose capitals differ, and
/// the fields of JSON schemas that are no identifiers.
fn json_name(field: &FieldDescriptor) -> &str {
    match field.name() {
        "aPIGroup" => "apiGroup",
        "uID" => "uid",
        "Expression" => "expression",
        "Name" => "name",
        "Webhooks" => "webhooks",
        name => schemas::json_name(field).unwrap_or(name),
    }
}

/// True if a value is encoded only because the Go field is not a pointer: it means the same as an
/// absent field. Structs are kept, as Go's JSON keeps them.
fn is_unset(field: &FieldDescriptor, value: &Value) -> bool {
    match value {
        Value::Message(message) => scalars::is_zero(message),
        // A required field may be zero: `replicas: 0` of a status means the same as its absence.
        scalar => field.options().has_extension(&NULLABLE) && scalar.is_default(&field.kind()),
    }
}

fn to_json(value: &Value, ty: Type) -> Result<Json, ConversionError> {
    Ok(match (value, ty.kind()) {
        (Value::String(text), _) => text.as_str().into(),
        (Value::Bytes(bytes), _) => STANDARD.encode(bytes).into(),
        (Value::Bool(yes), _) => (*yes).into(),
        (Value::I32(number), _) => (*number).into(),
        (Value::I64(number), _) => (*number).into(),
        (Value::F64(number), _) => (*number).into(),
        (Value::List(items), TypeStructure::List(list)) => {
            let each = items.iter().enumerate().map(|(i, item)| {
                to_json(item, list.items()).map_err(|error| error.under(&format!("[{i}]")))
            });
            each.collect::<Result<_, _>>()?
        }
        (Value::Map(entries), TypeStructure::Map(values)) => {
            let each = entries.iter().map(|(key, value)| {
                let key = key.as_str().unwrap_or_default();
                let json = to_json(value, values).map_err(|error| error.under(key))?;
                Ok((key.to_owned(), json))
            });
            Json::Object(each.collect::<Result<_, _>>()?)
        }
        (Value::Message(message), TypeStructure::Struct(fields)) => {
            let mut object = Map::new();
            flatten(message, fields, &mut object)?;
            object.into()
        }
        (Value::Message(message), TypeStructure::List(_)) => {
            let items = message.get_field_by_name(ITEMS);
            to_json(items.as_deref().ok_or_else(|| unmapped(message))?, ty)?
        }
        (Value::Message(message), _) if schemas::is_union(&message.descriptor()) => {
            schemas::to_json(message)?
        }
        (Value::Message(message), _) => scalars::to_json(message)?,
        _ => return Err(ConversionError::new("has no place in the definition")),
    })
}

/// The only field of a message that represents a list in a map (`authentication.v1.ExtraValue`).
const ITEMS: &str = "items";

fn unmapped(message: &DynamicMessage) -> ConversionError {
    ConversionError::new(format!(
        "no JSON is known for {}",
        message.descriptor().full_name()
    ))
}

/// Converts an object's fields to a message.
fn nest(
    descriptor: MessageDescriptor,
    fields: &'static Struct,
    object: &Map<String, Json>,
) -> Result<DynamicMessage, ConversionError> {
    let mut message = DynamicMessage::new(descriptor.clone());
    for descriptor in descriptor.fields() {
        let (name, kind) = (json_name(&descriptor), descriptor.kind());
        match (fields.field(name), kind.as_message()) {
            (Some(field), _) => {
                if let Some(json) = object.get(name).filter(|json| !json.is_null()) {
                    let value = to_value(json, &descriptor, field.ty());
                    message.set_field(&descriptor, value.map_err(|error| error.under(name))?);
                }
            }
            (None, Some(embedded)) => {
                let nested = nest(embedded.clone(), fields, object)?;
                message.set_field(&descriptor, Value::Message(nested));
            }
            (None, None) => {}
        }
    }
    Ok(message)
}

fn to_value(json: &Json, field: &FieldDescriptor, ty: Type) -> Result<Value, ConversionError> {
    Ok(match (json, ty.kind(), field.kind()) {
        (Json::Array(items), TypeStructure::List(list), kind) if field.is_list() => {
            let each = items.iter().enumerate().map(|(i, item)| {
                let value = single(item, &kind, list.items());
                value.map_err(|error| error.under(&format!("[{i}]")))
            });
            Value::List(each.collect::<Result<_, _>>()?)
        }
        (Json::Object(entries), TypeStructure::Map(values), FieldKind::Message(entry))
            if field.is_map() =>
        {
            let kind = entry.map_entry_value_field().kind();
            let each = entries.iter().map(|(key, json)| {
                let value = single(json, &kind, values).map_err(|error| error.under(key))?;
                Ok((MapKey::String(key.clone()), value))
            });
            Value::Map(each.collect::<Result<_, _>>()?)
        }
        (json, _, kind) => single(json, &kind, ty)?,
    })
}

/// Converts a value that is neither a list nor a map.
fn single(json: &Json, kind: &FieldKind, ty: Type) -> Result<Value, ConversionError> {
    let wrong = || ConversionError::new(format!("{json} is not of the type of the field"));
    Ok(match (kind, json) {
        (FieldKind::String, Json::String(text)) => Value::String(text.clone()),
        (FieldKind::Bytes, Json::String(text)) => {
            Value::Bytes(STANDARD.decode(text).map_err(|_| wrong())?.into())
        }
        (FieldKind::Bool, Json::Bool(yes)) => Value::Bool(*yes),
        (FieldKind::Double, Json::Number(number)) => Value::F64(number.as_f64().ok_or_else(wrong)?),
        (FieldKind::Int64, Json::Number(number)) => Value::I64(number.as_i64().ok_or_else(wrong)?),
        (FieldKind::Int32, Json::Number(number)) => {
            let number = number.as_i64().and_then(|number| number.try_into().ok());
            Value::I32(number.ok_or_else(wrong)?)
        }
        (FieldKind::Message(descriptor), json) => Value::Message(match (ty.kind(), json) {
            (TypeStructure::Struct(fields), Json::Object(object)) => {
                nest(descriptor.clone(), fields, object)?
            }
            (TypeStructure::List(_), Json::Array(_)) => {
                let items = descriptor.get_field_by_name(ITEMS).ok_or_else(wrong)?;
                let mut message = DynamicMessage::new(descriptor.clone());
                message.set_field(&items, to_value(json, &items, ty)?);
                message
            }
            _ if schemas::is_union(descriptor) => schemas::to_message(json, descriptor.clone())?,
            _ => scalars::to_message(json, descriptor.clone())?,
        }),
        _ => return Err(wrong()),
    })
}

#[cfg(test)]
mod tests;
