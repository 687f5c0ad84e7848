//! Conversion of objects between the wire and the domain types.
//!
//! Both directions go through Kubernetes' JSON, to which the generated messages map exactly, so
//! only the schema has to agree. Nothing is dropped on the way: a field of the message that the
//! schema does not have is an error.

mod direct;

use std::sync::LazyLock;

use bytes::Bytes;
use podplane_api::{Object, strict::StrictError};
use prost::Message as _;
use prost_reflect::{
    DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor, SerializeOptions, Value,
};

use crate::{
    values::{self, MAX_VALUES},
    wire,
};

/// [`DESCRIPTORS`](crate::DESCRIPTORS) without comments, which are most of it.
const BARE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/bare.bin"));

/// All messages of the wire.
pub static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(BARE).expect("the build script wrote these descriptors")
});

/// An error of decoding an object.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are not a protobuf message of the kind's shape.
    #[error("not a protobuf {kind}")]
    Wire {
        /// The expected kind.
        kind: &'static str,
        /// prost's error.
        #[source]
        source: prost::DecodeError,
    },
    /// There are more than [`MAX_VALUES`].
    #[error("limit of values is {MAX_VALUES}")]
    TooManyValues,
    /// A field that Kubernetes does not have, or a malformed value.
    #[error(transparent)]
    Strict(#[from] StrictError),
}

impl DecodeError {
    /// The path of the invalid field, empty if it is the object as a whole.
    pub fn path(&self) -> &str {
        match self {
            Self::Wire { .. } | Self::TooManyValues => "",
            Self::Strict(error) => error.path(),
        }
    }
}

/// An error of encoding an object; it does not occur for objects from [`decode`] or the strict
/// decoder.
#[derive(Debug, thiserror::Error)]
#[error("{kind} cannot be put on the wire")]
pub struct EncodeError {
    kind: &'static str,
    #[source]
    source: serde_json::Error,
}

/// Encodes an object as its message.
///
/// # Errors
///
/// [`EncodeError`] if the object has values that its schema does not allow, such as a time after
/// the year 9999.
pub fn encode<K: Object>(object: &K) -> Result<Bytes, EncodeError> {
    let encoded = object.to_vec().and_then(|json| {
        match direct::message_of(&message_name::<K>(), &json, None) {
            Some(message) => Ok(message),
            None => encode_json(descriptor::<K>(), object.to_json()?),
        }
    });
    encoded.map_err(|source| EncodeError {
        kind: K::KIND,
        source,
    })
}

/// Encodes an object given as JSON text, at a revision that the text does not contain.
///
/// # Errors
///
/// As [`encode`], and if the text is not the JSON of an object of this kind.
pub fn encode_at<K: Object>(json: &[u8], revision: &str) -> Result<Bytes, EncodeError> {
    if let Some(message) = direct::message_of(&message_name::<K>(), json, Some(revision)) {
        return Ok(message);
    }
    // Fields that only a later version knows are dropped, as they are when the object is read.
    let encoded = K::from_slice(json).and_then(|mut object| {
        object.metadata_mut().resource_version = Some(revision.to_owned());
        encode_json(descriptor::<K>(), object.to_json()?)
    });
    encoded.map_err(|source| EncodeError {
        kind: K::KIND,
        source,
    })
}

fn encode_json(
    message: MessageDescriptor,
    json: serde_json::Value,
) -> Result<Bytes, serde_json::Error> {
    let options = DeserializeOptions::new().deny_unknown_fields(true);
    let message = DynamicMessage::deserialize_with_options(message, json, &options)?;
    Ok(message.encode_to_vec().into())
}

/// Decodes the object in a message.
///
/// # Errors
///
/// [`DecodeError`] if the bytes are not such a message, or contain an unknown field or a malformed
/// value.
pub fn decode<K: Object>(bytes: &[u8]) -> Result<K, DecodeError> {
    if values::are_too_many(&descriptor::<K>(), bytes) {
        return Err(DecodeError::TooManyValues);
    }
    let direct = direct::json_of(&message_name::<K>(), bytes);
    match direct.and_then(|json| K::from_slice(&json).ok()) {
        Some(object) => Ok(object),
        None => Ok(K::from_json(decode_json(
            K::KIND,
            descriptor::<K>(),
            bytes,
        )?)?),
    }
}

fn decode_json(
    kind: &'static str,
    message: MessageDescriptor,
    bytes: &[u8],
) -> Result<serde_json::Value, DecodeError> {
    let message = DynamicMessage::decode(message, bytes)
        .map_err(|source| DecodeError::Wire { kind, source })?;
    let mut unknown = Vec::new();
    find_unknown(&message, "", &mut unknown);
    if !unknown.is_empty() {
        return Err(StrictError::unknown(unknown).into());
    }
    let json = message_json(&message).map_err(|error| StrictError::Malformed {
        path: String::new(),
        message: error.to_string(),
    })?;
    Ok(json)
}

pub(crate) fn message_json(
    message: &DynamicMessage,
) -> Result<serde_json::Value, serde_json::Error> {
    let options = SerializeOptions::new().stringify_64_bit_integers(false);
    let mut json = message.serialize_with_options(serde_json::value::Serializer, &options)?;
    integral(&mut json);
    Ok(json)
}

fn message_name<K: Object>() -> String {
    format!("{}.{}", wire::package::<K>(), K::KIND)
}

fn descriptor<K: Object>() -> MessageDescriptor {
    POOL.get_message_by_name(&message_name::<K>())
        .expect("a message was generated for every served kind")
}

/// Finds the paths of fields, by number, that the schema does not have.
fn find_unknown(message: &DynamicMessage, path: &str, found: &mut Vec<String>) {
    let join = |name: &str| {
        if path.is_empty() {
            name.to_owned()
        } else {
            format!("{path}.{name}")
        }
    };
    found.extend(
        message
            .unknown_fields()
            .map(|field| join(&format!("#{}", field.number()))),
    );
    for (field, value) in message.fields() {
        let name = join(field.json_name());
        match value {
            Value::Message(inner) => find_unknown(inner, &name, found),
            Value::List(items) => {
                let messages = items
                    .iter()
                    .enumerate()
                    .filter_map(|(i, item)| Some((i, item.as_message()?)));
                messages.for_each(|(i, item)| find_unknown(item, &format!("{name}[{i}]"), found));
            }
            _ => {}
        }
    }
}

/// Converts floats that are whole to integers. `google.protobuf.Value` has only doubles, and no
/// field of Kubernetes is a fraction: a value that arrives as `8080.0` was the integer of an
/// IntOrString.
fn integral(json: &mut serde_json::Value) {
    match json {
        serde_json::Value::Array(items) => items.iter_mut().for_each(integral),
        serde_json::Value::Object(fields) => fields.values_mut().for_each(integral),
        serde_json::Value::Number(number) => {
            let whole = number
                .as_f64()
                .filter(|float| number.is_f64() && float.fract() == 0.0 && float.abs() < 9e15);
            if let Some(whole) = whole {
                #[expect(clippy::cast_possible_truncation, reason = "whole, and below 2^53")]
                let whole = whole as i64;
                *number = whole.into();
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
