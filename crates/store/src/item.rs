//! Items, and the form of their values in memory.

use std::{borrow::Cow, fmt};

use crate::store::{Key, Revision};

/// A key with its value, at a revision.
#[derive(Clone, PartialEq, Eq)]
pub struct Item {
    /// The key.
    pub key: Key,
    value: PackedValue,
    /// The revision since which the key has been present without interruption.
    pub created: Revision,
    /// The revision of the commit that put this value.
    pub modified: Revision,
}

impl Item {
    /// An item with a copy of the value.
    pub fn new(key: Key, value: &[u8], created: Revision, modified: Revision) -> Self {
        Self {
            key,
            value: PackedValue::new(value),
            created,
            modified,
        }
    }

    /// The value.
    pub fn value(&self) -> Cow<'_, [u8]> {
        self.value.unpack()
    }

    /// The number of bytes of the value.
    pub fn value_len(&self) -> usize {
        self.value.len
    }
}

impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Item")
            .field("key", &self.key)
            .field("value", &self.value().escape_ascii().to_string())
            .field("created", &self.created)
            .field("modified", &self.modified)
            .finish()
    }
}

/// Values shorter than this are kept as they are.
const COMPRESSED_FROM: usize = 128;

/// A value, compressed with LZ4 if that makes it smaller. All that can be read is in memory, and an
/// object in JSON is compressed to about half; it takes some microseconds to compress and less than
/// one to decompress.
#[derive(Clone, PartialEq, Eq)]
struct PackedValue {
    /// The value if it has as many bytes, otherwise the compressed one, which has fewer.
    bytes: Box<[u8]>,
    len: usize,
}

impl PackedValue {
    fn new(value: &[u8]) -> Self {
        let len = value.len();
        let compressed = (len >= COMPRESSED_FROM).then(|| lz4_flex::block::compress(value));
        let compressed = compressed.filter(|compressed| compressed.len() < len);
        Self {
            bytes: compressed.map_or_else(|| value.into(), Vec::into_boxed_slice),
            len,
        }
    }

    fn unpack(&self) -> Cow<'_, [u8]> {
        if self.bytes.len() == self.len {
            return Cow::Borrowed(&self.bytes);
        }
        let value = lz4_flex::block::decompress(&self.bytes, self.len);
        Cow::Owned(value.expect("what was compressed here can be decompressed"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, prop_assert_eq, proptest};

    use super::*;

    proptest! {
        #[test]
        fn a_value_is_read_as_it_was_put(
            part in prop::collection::vec(any::<u8>(), 0..200),
            times in 0usize..20,
        ) {
            let value = part.repeat(times);
            let packed = PackedValue::new(&value);
            prop_assert_eq!(&packed.unpack()[..], &value[..]);
            prop_assert_eq!(packed.len, value.len());
        }
    }

    #[test]
    fn what_repeats_itself_is_compressed_and_what_does_not_is_kept() {
        let packed = |value: &[u8]| PackedValue::new(value).bytes.len();
        assert!(packed(&[7; 1000]) < 100);
        assert_eq!(packed(&[7; COMPRESSED_FROM - 1]), COMPRESSED_FROM - 1);
        let random: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..))
            .take(1000)
            .collect();
        assert_eq!(packed(&random), 1000);
    }
}
