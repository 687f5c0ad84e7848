//! The number of values in a message, counted before any of them takes memory.

use prost::{
    bytes::Buf,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field},
};
use prost_reflect::{Kind, MessageDescriptor};

/// The most values of a document or message: two bytes can become a kilobyte of memory. What is stored has far fewer.
pub const MAX_VALUES: usize = 50_000;

/// As deep as prost decodes.
const MAX_DEPTH: usize = 100;

/// Whether a message has more than [`MAX_VALUES`] values, those of the messages in it included. The part of it that
/// is not a message is left to its decoder.
pub(crate) fn are_too_many(descriptor: &MessageDescriptor, bytes: &[u8]) -> bool {
    // Each takes at least a byte.
    bytes.len() > MAX_VALUES && {
        let mut values = 0;
        count(descriptor, bytes, MAX_DEPTH, &mut values);
        values > MAX_VALUES
    }
}

/// Adds the values of a message; `None` where the rest cannot be read, or there are too many already.
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
            // Packed: a byte can be a number.
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
    fn counts_what_a_message_would_become() {
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
        // A large text is one value.
        let metadata = pod.get_field_by_name("metadata").unwrap();
        let Kind::Message(meta_message) = metadata.kind() else {
            panic!("{metadata:?}");
        };
        let name = meta_message.get_field_by_name("name").unwrap();
        let text = field(name.number(), &vec![b'x'; 3 * MAX_VALUES]);
        let large = field(metadata.number(), &text);
        assert!(!are_too_many(&pod, &large));
        // Fields that the message does not have are kept by the decoder, too.
        let unknown = field(1000, &[]).repeat(MAX_VALUES + 1);
        assert!(are_too_many(&pod, &unknown));
        // What cannot be read is for the decoder to refuse.
        assert!(!are_too_many(&pod, &vec![0xff; 2 * MAX_VALUES]));
    }
}
