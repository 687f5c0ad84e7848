//! The number of values in a message, counted before any of them is allocated.

use prost::{
    bytes::Buf,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field},
};
use prost_reflect::{Kind, MessageDescriptor};

/// The most values of a document or message: two bytes can become a kilobyte of memory. Stored
/// objects have far fewer.
pub const MAX_VALUES: usize = 50_000;

/// The depth to which prost decodes.
const MAX_DEPTH: usize = 100;

/// True if a message has more than [`MAX_VALUES`] values, including those of nested messages. An
/// invalid part of it is left to its decoder.
pub(crate) fn are_too_many(descriptor: &MessageDescriptor, bytes: &[u8]) -> bool {
    // Each value takes at least a byte.
    bytes.len() > MAX_VALUES && {
        let mut values = 0;
        count(descriptor, bytes, MAX_DEPTH, &mut values);
        values > MAX_VALUES
    }
}

/// Counts the values of a message; `None` if the rest cannot be parsed, or there are too many
/// already.
fn count(
    descriptor: &MessageDescriptor,
    mut bytes: &[u8],
    depth: usize,
    values: &mut usize,
) -> Option<()> {
    while bytes.has_remaining() && *values <= MAX_VALUES {
        let (tag, wire_type) = decode_key(&mut bytes).ok()?;
        let kind = descriptor.get_field(tag).map(|field| field.kind());
        *values += 1;
        if wire_type != WireType::LengthDelimited {
            let before = bytes.len();
            skip_field(wire_type, tag, &mut bytes, DecodeContext::default()).ok()?;
            if wire_type == WireType::StartGroup {
                *values += before - bytes.len();
            }
            continue;
        }
        let length = usize::try_from(decode_varint(&mut bytes).ok()?).ok()?;
        let (field, rest) = bytes.split_at_checked(length)?;
        bytes = rest;
        match kind {
            Some(Kind::Message(inner)) => count(&inner, field, depth.checked_sub(1)?, values)?,
            Some(Kind::String | Kind::Bytes) | None => {}
            // A packed list, in which a byte can be a number.
            Some(_) => *values += length,
        }
    }
    (*values <= MAX_VALUES).then_some(())
}

#[cfg(test)]
mod tests {
    use prost::encoding::{WireType, encode_key, encode_varint};

    use super::*;
    use crate::codec::POOL;

    fn field(tag: u32, content: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode_key(tag, WireType::LengthDelimited, &mut bytes);
        encode_varint(content.len() as u64, &mut bytes);
        bytes.extend_from_slice(content);
        bytes
    }

    #[test]
    fn counts_values_including_packed_and_unknown_ones() {
        let pod = POOL.get_message_by_name("podplane.core.v1.Pod").unwrap();
        let spec = pod.get_field_by_name("spec").unwrap();
        let Kind::Message(spec_message) = spec.kind() else {
            panic!("{spec:?}");
        };
        let containers = spec_message.get_field_by_name("containers").unwrap();
        let empty = field(containers.number(), &[]);
        let pod_of = |count: usize| field(spec.number(), &empty.repeat(count));
        assert!(!are_too_many(&pod, &pod_of(MAX_VALUES - 1)));
        assert!(are_too_many(&pod, &pod_of(MAX_VALUES)));
        // A large string is one value.
        let metadata = pod.get_field_by_name("metadata").unwrap();
        let Kind::Message(meta_message) = metadata.kind() else {
            panic!("{metadata:?}");
        };
        let name = meta_message.get_field_by_name("name").unwrap();
        let text = field(name.number(), &vec![b'x'; 3 * MAX_VALUES]);
        let large = field(metadata.number(), &text);
        assert!(!are_too_many(&pod, &large));
        // The decoder also keeps unknown fields.
        let unknown = field(1000, &[]).repeat(MAX_VALUES + 1);
        assert!(are_too_many(&pod, &unknown));
        // Invalid bytes are left to the decoder.
        assert!(!are_too_many(&pod, &vec![0xff; 2 * MAX_VALUES]));
    }
}
