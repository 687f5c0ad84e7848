//! Conversion of JSON text to a message.

use std::{borrow::Cow, cell::Cell, fmt};

use bytes::Bytes;
use podplane_api::jiff;
use prost::{
    Message as _,
    encoding::{WireType, encode_key, encode_varint},
};
use prost_reflect::{DeserializeOptions, DynamicMessage};
use prost_types::Timestamp;
use serde::{
    Deserialize as _, Deserializer,
    de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor},
};

use super::{Cardinality, Field, FieldForm, SHAPES, Shape, timestamp_text};

/// The message with this name for its JSON. `None` if the JSON is unusual or invalid.
pub(in super::super) fn message_of(name: &str, json: &[u8]) -> Option<Bytes> {
    let (message, _) = written(name, json)?;
    // It may stay in memory for long, so the spare capacity is dropped.
    Some(message.into_boxed_slice().into())
}

/// The same for an object whose JSON has no revision, and which gets one later. An object without
/// metadata has no place for it.
pub(in super::super) fn unstamped_message_of(name: &str, json: &[u8]) -> Option<UnstampedMessage> {
    let (message, metadata) = written(name, json)?;
    Some(UnstampedMessage {
        message,
        metadata: metadata?,
    })
}

/// The message, and the place of its metadata.
fn written(name: &str, json: &[u8]) -> Option<(Vec<u8>, Option<MetadataPlace>)> {
    let mut message = Vec::with_capacity(json.len());
    let metadata = Cell::new(None);
    let object = Object {
        shape: SHAPES.named(name)?,
        metadata: Some(&metadata),
        message: &mut message,
    };
    let mut json = serde_json::Deserializer::from_slice(json);
    object.deserialize(&mut json).ok()?;
    json.end().ok()?;
    Some((message, metadata.take()))
}

/// The message of an object without its revision.
#[derive(Debug)]
pub struct UnstampedMessage {
    message: Vec<u8>,
    metadata: MetadataPlace,
}

/// The place of the metadata in a message.
#[derive(Clone, Copy, Debug)]
struct MetadataPlace {
    /// The offset of its length.
    length: usize,
    begin: usize,
    end: usize,
    /// The number of the field of the revision.
    revision: u32,
}

impl UnstampedMessage {
    /// The message at a revision.
    pub fn at(&self, revision: &str) -> Bytes {
        let MetadataPlace {
            length,
            begin,
            end,
            revision: number,
        } = self.metadata;
        let mut stamp = Vec::with_capacity(2 + revision.len());
        put_text(number, revision.as_bytes(), &mut stamp);
        let whole = (end - begin + stamp.len()) as u64;
        let mut prefix = Vec::with_capacity(3);
        encode_varint(whole, &mut prefix);
        let parts = [
            &self.message[..length],
            &prefix,
            &self.message[begin..end],
            &stamp,
            &self.message[end..],
        ];
        parts.concat().into()
    }
}

/// A seed that writes the fields of an object.
struct Object<'a> {
    shape: &'static Shape,
    /// Takes the place of its metadata.
    metadata: Option<&'a Cell<Option<MetadataPlace>>>,
    message: &'a mut Vec<u8>,
}

/// A seed that writes a field, or an element of it, with its key.
struct Value<'a> {
    field: &'static Field,
    count: Cardinality,
    /// Takes its place, if it is the object's metadata.
    place: Option<&'a Cell<Option<MetadataPlace>>>,
    message: &'a mut Vec<u8>,
}

/// A seed that finds a field by name.
struct Name(&'static Shape);

impl<'de> DeserializeSeed<'de> for Object<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut fields: M) -> Result<(), M::Error> {
        while let Some(field) = fields.next_key_seed(Name(self.shape))? {
            let is_metadata = field.quoted == METADATA;
            fields.next_value_seed(Value {
                field,
                count: field.count,
                place: self.metadata.filter(|_| is_metadata),
                message: &mut *self.message,
            })?;
        }
        Ok(())
    }
}

const METADATA: &str = "\"metadata\":";

impl<'de> DeserializeSeed<'de> for Name {
    type Value = &'static Field;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<&'static Field, D::Error> {
        json.deserialize_identifier(self)
    }
}

impl Visitor<'_> for Name {
    type Value = &'static Field;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<&'static Field, E> {
        self.0.named(name).ok_or_else(|| E::custom("unknown field"))
    }
}

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        match (self.count, &self.field.form) {
            (Cardinality::One, FieldForm::WellKnown(message)) => {
                let json = serde_json::Value::deserialize(json)?;
                let options = DeserializeOptions::new().deny_unknown_fields(true);
                let inner =
                    DynamicMessage::deserialize_with_options(message.clone(), json, &options);
                self.text(&inner.map_err(D::Error::custom)?.encode_to_vec());
                Ok(())
            }
            _ => json.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of the field's type")
    }

    fn visit_bool<E: Error>(self, set: bool) -> Result<(), E> {
        match (self.count, &self.field.form) {
            (Cardinality::One, FieldForm::Bool) => self.varint(u64::from(set)),
            _ => Err(E::custom("a bool")),
        }
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<(), E> {
        let fits = match (self.count, &self.field.form) {
            (Cardinality::One, FieldForm::Int32) => i32::try_from(number).is_ok(),
            (Cardinality::One, FieldForm::Int64) => true,
            _ => false,
        };
        if !fits {
            return Err(E::custom("a number"));
        }
        self.varint(number.cast_unsigned())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        self.visit_i64(i64::try_from(number).map_err(E::custom)?)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        match (self.count, &self.field.form) {
            (Cardinality::One, FieldForm::String) => {
                self.text(text.as_bytes());
                Ok(())
            }
            (Cardinality::One, FieldForm::Timestamp) => {
                let time = timestamp(text).ok_or_else(|| E::custom("a time"))?;
                self.text(&time.encode_to_vec());
                Ok(())
            }
            _ => Err(E::custom("a string")),
        }
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut elements: S) -> Result<(), S::Error> {
        // Lists of numbers are packed, which is left to the slow path.
        if self.count != Cardinality::List
            || matches!(
                self.field.form,
                FieldForm::Bool | FieldForm::Int32 | FieldForm::Int64 | FieldForm::Other
            )
        {
            return Err(S::Error::custom("a list"));
        }
        let Self { field, message, .. } = self;
        loop {
            let element = Value {
                field,
                count: Cardinality::One,
                place: None,
                message: &mut *message,
            };
            if elements.next_element_seed(element)?.is_none() {
                return Ok(());
            }
        }
    }

    fn visit_map<M: MapAccess<'de>>(self, mut entries: M) -> Result<(), M::Error> {
        let Self {
            field,
            count,
            place: noted,
            message,
        } = self;
        match (count, &field.form) {
            (Cardinality::One, FieldForm::Message(place)) => {
                encode_key(field.number, WireType::LengthDelimited, message);
                let begin = message.len();
                let shape = &SHAPES.messages[*place];
                let object = Object {
                    shape,
                    metadata: None,
                    message: &mut *message,
                };
                object.visit_map(entries)?;
                let prefix = delimit(begin, message);
                if let Some((noted, field)) = noted.zip(shape.named("resourceVersion")) {
                    noted.set(Some(MetadataPlace {
                        length: begin,
                        begin: begin + prefix,
                        end: message.len(),
                        revision: field.number,
                    }));
                }
                Ok(())
            }
            (Cardinality::Map, FieldForm::String) => {
                while let Some((key, value)) =
                    entries.next_entry::<JsonText<'de>, JsonText<'de>>()?
                {
                    encode_key(field.number, WireType::LengthDelimited, message);
                    let begin = message.len();
                    put_text(1, key.0.as_bytes(), message);
                    put_text(2, value.0.as_bytes(), message);
                    delimit(begin, message);
                }
                Ok(())
            }
            _ => Err(M::Error::custom("an object")),
        }
    }
}

impl Value<'_> {
    fn varint<E>(self, number: u64) -> Result<(), E> {
        encode_key(self.field.number, WireType::Varint, self.message);
        encode_varint(number, self.message);
        Ok(())
    }

    fn text(self, bytes: &[u8]) {
        put_text(self.field.number, bytes, self.message);
    }
}

/// Parses a time in the form in which [`read`](super::read) writes it; other forms are left to the
/// slow path.
fn timestamp(text: &str) -> Option<Timestamp> {
    let parsed: jiff::Timestamp = text.parse().ok()?;
    let time = Timestamp {
        seconds: parsed.as_second(),
        nanos: parsed.subsec_nanosecond(),
    };
    (timestamp_text(time)? == text).then_some(time)
}

/// A string of the JSON, borrowed unless it has escapes.
#[derive(serde::Deserialize)]
struct JsonText<'a>(#[serde(borrow)] Cow<'a, str>);

fn put_text(number: u32, bytes: &[u8], message: &mut Vec<u8>) {
    encode_key(number, WireType::LengthDelimited, message);
    encode_varint(bytes.len() as u64, message);
    message.extend_from_slice(bytes);
}

/// Inserts the length before the bytes that were written since `begin`; returns its own length.
fn delimit(begin: usize, message: &mut Vec<u8>) -> usize {
    let length = message.len() - begin;
    let mut prefix = Vec::with_capacity(3);
    encode_varint(length as u64, &mut prefix);
    let bytes = prefix.len();
    message.splice(begin..begin, prefix);
    bytes
}
