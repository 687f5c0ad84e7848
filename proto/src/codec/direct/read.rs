//! Conversion of a message to JSON text.

use std::io::Write as _;

use prost::{
    Message as _,
    encoding::{WireType, decode_key, decode_varint},
};
use prost_reflect::{DynamicMessage, MessageDescriptor};
use prost_types::Timestamp;

use super::{super::message_json, Cardinality, Field, FieldForm, SHAPES, Shape, timestamp_text};

/// The depth to which prost reads.
const DEPTH: u32 = 100;

/// The JSON of a message with this name. `None` if the message is unusual or invalid.
pub(in super::super) fn json_of(name: &str, message: &[u8]) -> Option<Vec<u8>> {
    let mut json = Vec::with_capacity(message.len() * 2);
    object(SHAPES.named(name)?, message, DEPTH, &mut json)?;
    Some(json)
}

fn object(shape: &Shape, mut bytes: &[u8], depth: u32, json: &mut Vec<u8>) -> Option<()> {
    let depth = depth.checked_sub(1)?;
    let mut seen = vec![false; shape.fields.len()];
    let mut open: Option<(usize, &Field)> = None;
    json.push(b'{');
    while !bytes.is_empty() {
        let (number, wire_type) = decode_key(&mut bytes).ok()?;
        let (place, field) = shape.numbered(number)?;
        match open {
            Some((last, _)) if last == place && field.count != Cardinality::One => json.push(b','),
            _ => {
                // Elements of a list need not be contiguous, and the last of several values counts;
                // both are rare.
                if std::mem::replace(&mut seen[place], true) {
                    return None;
                }
                if let Some((_, last)) = open {
                    json.extend_from_slice(end(last));
                    json.push(b',');
                }
                json.extend_from_slice(field.quoted.as_bytes());
                json.extend_from_slice(match field.count {
                    Cardinality::One => b"",
                    Cardinality::List => b"[",
                    Cardinality::Map => b"{",
                });
                open = Some((place, field));
            }
        }
        match field.count {
            Cardinality::Map => {
                let mut entry = delimited(wire_type, &mut bytes)?;
                let mut key = "";
                if let Some(rest) = entry.strip_prefix(&[MAP_KEY]) {
                    entry = rest;
                    key = text(delimited(WireType::LengthDelimited, &mut entry)?)?;
                }
                string(key, json)?;
                json.push(b':');
                // An absent value is a zero, whose form depends on the type.
                let (number, wire_type) = decode_key(&mut entry).ok()?;
                value(&field.form, wire_type, &mut entry, depth, json)?;
                if number != 2 || !entry.is_empty() {
                    return None;
                }
            }
            Cardinality::One | Cardinality::List => {
                value(&field.form, wire_type, &mut bytes, depth, json)?
            }
        }
    }
    if let Some((_, last)) = open {
        json.extend_from_slice(end(last));
    }
    json.push(b'}');
    Some(())
}

/// The field key of a map's key, which is a string.
const MAP_KEY: u8 = 1 << 3 | WireType::LengthDelimited as u8;

fn end(field: &Field) -> &'static [u8] {
    match field.count {
        Cardinality::One => b"",
        Cardinality::List => b"]",
        Cardinality::Map => b"}",
    }
}

fn value(
    form: &FieldForm,
    wire_type: WireType,
    bytes: &mut &[u8],
    depth: u32,
    json: &mut Vec<u8>,
) -> Option<()> {
    match form {
        FieldForm::String => string(text(delimited(wire_type, bytes)?)?, json),
        FieldForm::Message(place) => {
            let inner = delimited(wire_type, bytes)?;
            object(&SHAPES.messages[*place], inner, depth, json)
        }
        FieldForm::Timestamp => timestamp(delimited(wire_type, bytes)?, json),
        FieldForm::WellKnown(message) => well_known(message, delimited(wire_type, bytes)?, json),
        FieldForm::Bool | FieldForm::Int32 | FieldForm::Int64 if wire_type != WireType::Varint => {
            None
        }
        FieldForm::Bool => {
            let set = decode_varint(bytes).ok()? != 0;
            write!(json, "{set}").ok()
        }
        FieldForm::Int32 => {
            // Negative numbers have ten bytes; other decoders truncate numbers beyond 32 bits.
            let number = decode_varint(bytes).ok()?.cast_signed();
            write!(json, "{}", i32::try_from(number).ok()?).ok()
        }
        FieldForm::Int64 => write!(json, "{}", decode_varint(bytes).ok()?.cast_signed()).ok(),
        FieldForm::Other => None,
    }
}

fn timestamp(bytes: &[u8], json: &mut Vec<u8>) -> Option<()> {
    let time = Timestamp::decode(bytes).ok()?;
    // Unknown fields, which would be dropped here, are an error.
    let text = timestamp_text(time).filter(|_| time.encoded_len() == bytes.len())?;
    write!(json, "\"{text}\"").ok()
}

fn well_known(message: &MessageDescriptor, bytes: &[u8], json: &mut Vec<u8>) -> Option<()> {
    let message = DynamicMessage::decode(message.clone(), bytes).ok()?;
    if message.unknown_fields().next().is_some() {
        return None;
    }
    let value = message_json(&message).ok()?;
    serde_json::to_writer(json, &value).ok()
}

fn delimited<'a>(wire_type: WireType, bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    if wire_type != WireType::LengthDelimited {
        return None;
    }
    let length = usize::try_from(decode_varint(bytes).ok()?).ok()?;
    let (inner, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(inner)
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

fn string(text: &str, json: &mut Vec<u8>) -> Option<()> {
    serde_json::to_writer(json, text).ok()
}
