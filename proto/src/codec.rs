//! Conversion of objects between the wire and the domain types.
//!
//! Both directions go through Kubernetes' JSON, to which the generated messages map exactly, so
//! only the schema has to agree. Nothing is dropped on the way: a field of the message that the
//! schema does not have is an error.

mod direct;

pub use direct::UnstampedMessage;

use std::sync::LazyLock;

use bytes::Bytes;
use podplane_api::{
    Object,
    any::{AnyKind, DynObject},
    strict::StrictError,
};
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
        kind: String,
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
    kind: String,
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
    MessageOf::of::<K>().encode_object(object.to_vec(), || object.to_json())
}

/// The same for an object of a kind without its Rust type, which must have messages.
///
/// # Errors
///
/// As [`encode`].
pub fn encode_any(kind: &dyn AnyKind, object: &DynObject) -> Result<Bytes, EncodeError> {
    MessageOf::any(kind).encode_object(object.to_vec(), || object.to_json())
}

/// Encodes an object given as JSON text, at a revision that the text does not contain.
///
/// # Errors
///
/// As [`encode`], and if the text is not the JSON of an object of this kind.
pub fn encode_any_at(
    kind: &dyn AnyKind,
    json: &[u8],
    revision: &str,
) -> Result<Bytes, EncodeError> {
    if let Some(message) = encode_unstamped(kind, json) {
        return Ok(message.at(revision));
    }
    let message = MessageOf::any(kind);
    // Fields that only a later version knows are dropped, as they are when the object is read.
    let encoded = kind.read(json).and_then(|mut object| {
        object.metadata_mut().resource_version = Some(revision.to_owned());
        message.encode(object.to_json()?)
    });
    encoded.map_err(|source| message.unencodable(source))
}

/// Encodes an object given as JSON text that has no revision yet. `None` if it is out of the
/// ordinary, or invalid: [`encode_any_at`] tells.
pub fn encode_unstamped(kind: &dyn AnyKind, json: &[u8]) -> Option<UnstampedMessage> {
    direct::unstamped_message_of(&MessageOf::any(kind).name, json)
}

/// Decodes the object in a message.
///
/// # Errors
///
/// [`DecodeError`] if the bytes are not such a message, or contain an unknown field or a malformed
/// value.
pub fn decode<K: Object>(bytes: &[u8]) -> Result<K, DecodeError> {
    let message = MessageOf::of::<K>();
    message.check_values(bytes)?;
    let direct = direct::json_of(&message.name, bytes);
    match direct.and_then(|json| K::from_slice(&json).ok()) {
        Some(object) => Ok(object),
        None => Ok(K::from_json(message.decode(bytes)?)?),
    }
}

/// The same for a kind without its Rust type, which must have messages.
///
/// # Errors
///
/// As [`decode`].
pub fn decode_any(kind: &dyn AnyKind, bytes: &[u8]) -> Result<Box<DynObject>, DecodeError> {
    let message = MessageOf::any(kind);
    message.check_values(bytes)?;
    let direct = direct::json_of(&message.name, bytes);
    if let Some(object) = direct.and_then(|json| kind.read(&json).ok()) {
        return Ok(object);
    }
    match kind.decode_noting(message.decode(bytes)?)? {
        (object, unknown) if unknown.is_empty() => Ok(object),
        (_, paths) => Err(StrictError::unknown(paths).into()),
    }
}

/// The message of a kind.
struct MessageOf<'a> {
    kind: &'a str,
    name: String,
}

impl<'a> MessageOf<'a> {
    /// The message of an object, from its text if that needs no conversion.
    fn encode_object(
        &self,
        text: Result<Vec<u8>, serde_json::Error>,
        json: impl FnOnce() -> Result<serde_json::Value, serde_json::Error>,
    ) -> Result<Bytes, EncodeError> {
        let encoded = text.and_then(|text| {
            let direct = direct::message_of(&self.name, &text);
            direct.map_or_else(|| self.encode(json()?), Ok)
        });
        encoded.map_err(|source| self.unencodable(source))
    }

    fn of<K: Object>() -> Self {
        Self::named(K::GROUP, K::VERSION, K::KIND)
    }

    fn any(kind: &'a dyn AnyKind) -> Self {
        let names = kind.names();
        Self::named(&names.group, &names.version, &names.kind)
    }

    fn named(group: &str, version: &str, kind: &'a str) -> Self {
        let name = format!("{}.{kind}", wire::package_of(group, version));
        Self { kind, name }
    }

    fn descriptor(&self) -> MessageDescriptor {
        POOL.get_message_by_name(&self.name)
            .expect("a message was generated for every served kind")
    }

    fn encode(&self, json: serde_json::Value) -> Result<Bytes, serde_json::Error> {
        encode_json(self.descriptor(), json)
    }

    fn check_values(&self, bytes: &[u8]) -> Result<(), DecodeError> {
        match values::are_too_many(&self.descriptor(), bytes) {
            true => Err(DecodeError::TooManyValues),
            false => Ok(()),
        }
    }

    fn decode(&self, bytes: &[u8]) -> Result<serde_json::Value, DecodeError> {
        decode_json(self.kind, self.descriptor(), bytes)
    }

    fn unencodable(&self, source: serde_json::Error) -> EncodeError {
        EncodeError {
            kind: self.kind.to_owned(),
            source,
        }
    }
}

fn encode_json(
    message: MessageDescriptor,
    json: serde_json::Value,
) -> Result<Bytes, serde_json::Error> {
    let options = DeserializeOptions::new().deny_unknown_fields(true);
    let message = DynamicMessage::deserialize_with_options(message, json, &options)?;
    Ok(message.encode_to_vec().into())
}

fn decode_json(
    kind: &str,
    message: MessageDescriptor,
    bytes: &[u8],
) -> Result<serde_json::Value, DecodeError> {
    let message = DynamicMessage::decode(message, bytes).map_err(|source| DecodeError::Wire {
        kind: kind.to_owned(),
        source,
    })?;
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
