//! The layout of changes on disk. Integers are big-endian, so that keys sort by revision.
//!
//! | key | value |
//! |---|---|
//! | `M\|format` | u32, [`FORMAT_VERSION`] |
//! | `M\|id` | the store's id, 16 bytes |
//! | `M\|first` | u64, the revision that a restored store began with; a new one has no such record |
//! | `M\|oldest` | u64, the revision of the last compaction |
//! | `E\|`, revision u64, place u32 | kind u8, changes in the commit u32, length of the key u16, key; for a put created u64, value; for a split put created u64, length of the value u32 |
//! | `E\|`, revision u64, place u32, number u16 | a part of the value of a split put: [`PART_BYTES`], the last one perhaps fewer |
//!
//! A value of up to [`PART_BYTES`] is in the record of its change. A larger one is split, because
//! sled syncs only records of which 20 fit into one of its segments. Format version 1 had no split
//! values, and version 2 no [log](super::wal); a closed store is otherwise the same.

use std::sync::Arc;

use bytes::{Buf, BufMut};

use crate::{
    MAX_VALUE_BYTES,
    history::{ChangeId, KeyChange},
    store::{Item, Key, Revision},
};

/// The version of this layout. Opening raises a store of an older version to it; a newer one is
/// refused.
pub const FORMAT_VERSION: u32 = 3;

/// The version before values were split. Its stores are valid stores of [`FORMAT_VERSION`] too.
pub(super) const UNSPLIT_VERSION: u32 = 1;

/// The largest value of a record, 64 KiB: tests have shown that sled keeps values up to this size
/// over a power cut.
pub(super) const PART_BYTES: usize = 64 * 1024;

pub(super) const META: &[u8] = b"M|";
pub(super) const FORMAT: &[u8] = b"M|format";
pub(super) const ID: &[u8] = b"M|id";
pub(super) const FIRST: &[u8] = b"M|first";
pub(super) const OLDEST: &[u8] = b"M|oldest";
pub(super) const CHANGES: &[u8] = b"E|";

const DELETE: u8 = 0;
const PUT: u8 = 1;
const SPLIT_PUT: u8 = 2;

/// The key and the value of a record as sled stores it.
pub(super) type RawRecord = (Vec<u8>, Vec<u8>);

/// The id of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordId {
    pub(super) change: ChangeId,
    /// The number of a part of the value, from zero; `None` for the change itself.
    pub(super) part: Option<u16>,
}

/// A decoded change record.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ChangeRecord {
    /// The number of changes in its commit.
    pub(super) of: u32,
    pub(super) change: KeyChange,
    /// The bytes of the value in parts that follow: all of it, or none.
    pub(super) missing: usize,
}

pub(super) fn encode_id(id: ChangeId) -> Vec<u8> {
    let mut key = Vec::with_capacity(CHANGES.len() + 12);
    key.put_slice(CHANGES);
    key.put_u64(id.revision.number());
    key.put_u32(id.place);
    key
}

fn encode_part_id(id: ChangeId, number: u16) -> Vec<u8> {
    let mut key = encode_id(id);
    key.put_u16(number);
    key
}

/// The keys of all records of a change with a value of `value_bytes`.
pub(super) fn keys(id: ChangeId, value_bytes: usize) -> impl Iterator<Item = Vec<u8>> {
    let parts = match value_bytes {
        ..=PART_BYTES => 0,
        _ => value_bytes.div_ceil(PART_BYTES),
    };
    let parts = (0..=u16::MAX).take(parts);
    std::iter::once(encode_id(id)).chain(parts.map(move |number| encode_part_id(id, number)))
}

/// Decodes a record key; `None` if it is invalid.
pub(super) fn decode_id(key: &[u8]) -> Option<RecordId> {
    let mut rest = key.strip_prefix(CHANGES)?;
    let revision = Revision::new(rest.try_get_u64().ok()?)?;
    let place = rest.try_get_u32().ok()?;
    let part = match rest.is_empty() {
        true => None,
        false => Some(rest.try_get_u16().ok()?),
    };
    rest.is_empty().then_some(RecordId {
        change: ChangeId { revision, place },
        part,
    })
}

/// The records of a change of the commit `revision`, which has `of` changes.
pub(super) fn encode(revision: Revision, of: u32, change: &KeyChange) -> Vec<RawRecord> {
    let id = ChangeId {
        revision,
        place: change.place,
    };
    let key = change.key.as_bytes();
    let value = change.item.as_ref().map(|item| item.value());
    let value = value.as_deref().unwrap_or_default();
    let is_split = value.len() > PART_BYTES;
    let (kind, inline) = match &change.item {
        None => (DELETE, value),
        Some(_) if is_split => (SPLIT_PUT, &[][..]),
        Some(_) => (PUT, value),
    };
    let mut bytes = Vec::with_capacity(1 + 4 + 2 + key.len() + 8 + 4 + inline.len());
    bytes.put_u8(kind);
    bytes.put_u32(of);
    bytes.put_u16(u16::try_from(key.len()).expect("a Key is at most MAX_KEY_BYTES long"));
    bytes.put_slice(key);
    if let Some(item) = &change.item {
        bytes.put_u64(item.created.number());
    }
    if is_split {
        bytes.put_u32(u32::try_from(value.len()).expect("at most MAX_VALUE_BYTES"));
    }
    bytes.put_slice(inline);
    let mut records = vec![(encode_id(id), bytes)];
    if is_split {
        let parts = (0..).zip(value.chunks(PART_BYTES));
        records.extend(parts.map(|(number, part)| (encode_part_id(id, number), part.to_vec())));
    }
    records
}

/// Decodes a change record; `None` if it is invalid.
pub(super) fn decode(id: ChangeId, bytes: &[u8]) -> Option<ChangeRecord> {
    let ChangeId {
        revision: modified,
        place,
    } = id;
    let mut rest = bytes;
    let kind = rest.try_get_u8().ok()?;
    let of = rest.try_get_u32().ok()?;
    let key_len = usize::from(rest.try_get_u16().ok()?);
    let (key, mut rest) = rest.split_at_checked(key_len)?;
    let key = Key::new(key).ok()?;
    let mut missing = 0;
    let item = match kind {
        DELETE if rest.is_empty() => None,
        PUT | SPLIT_PUT => {
            let created = Revision::new(rest.try_get_u64().ok()?)?;
            if kind == SPLIT_PUT {
                missing = usize::try_from(rest.try_get_u32().ok()?).ok()?;
                if !(PART_BYTES + 1..=MAX_VALUE_BYTES).contains(&missing) || !rest.is_empty() {
                    return None;
                }
            }
            Some(Item::new(key.clone(), rest, created, modified))
        }
        _ => return None,
    };
    Some(ChangeRecord {
        of,
        change: KeyChange {
            place,
            key,
            item: item.map(Arc::new),
        },
        missing,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, prop_assert_eq, proptest};

    use super::*;

    proptest! {
        #[test]
        fn changes_round_trip(
            key in prop::collection::vec(any::<u8>(), 1..64),
            value in prop::option::of(prop::collection::vec(any::<u8>(), 0..64)),
            (modified, created, place, of) in (1u64.., 1u64.., any::<u32>(), any::<u32>()),
        ) {
            let (modified, created) = (Revision::new(modified).unwrap(), Revision::new(created).unwrap());
            let key = Key::new(key).unwrap();
            let item = value.map(|value| Arc::new(Item::new(key.clone(), &value, created, modified)));
            let id = ChangeId { revision: modified, place };
            let change = KeyChange { place, key, item };
            let records = encode(modified, of, &change);
            prop_assert_eq!(records.len(), 1);
            prop_assert_eq!(decode_id(&records[0].0), Some(RecordId { change: id, part: None }));
            let record = decode(id, &records[0].1).unwrap();
            prop_assert_eq!((record.of, record.change, record.missing), (of, change, 0));
        }

        #[test]
        fn decoding_invalid_bytes_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..32)) {
            decode_id(&bytes);
            decode(ChangeId { revision: crate::FIRST_REVISION, place: 0 }, &bytes);
        }

        #[test]
        fn record_keys_sort_like_changes(a in (1u64.., any::<u32>()), b in (1u64.., any::<u32>())) {
            let id = |(revision, place)| ChangeId { revision: Revision::new(revision).unwrap(), place };
            prop_assert_eq!(encode_id(id(a)).cmp(&encode_id(id(b))), id(a).cmp(&id(b)));
        }
    }

    #[test]
    fn splits_values_above_the_size_of_a_part() {
        let revision = Revision::new(7).unwrap();
        let key = Key::try_from("a").unwrap();
        for (bytes, parts) in [
            (PART_BYTES, 0),
            (PART_BYTES + 1, 2),
            (2 * PART_BYTES, 2),
            (MAX_VALUE_BYTES, MAX_VALUE_BYTES / PART_BYTES),
        ] {
            let value: Vec<u8> = (0..=u8::MAX).cycle().take(bytes).collect();
            let item = Item::new(key.clone(), &value, revision, revision);
            let change = KeyChange {
                place: 3,
                key: key.clone(),
                item: Some(Arc::new(item)),
            };
            let records = encode(revision, 9, &change);
            assert_eq!(records.len(), parts + 1);
            assert!(records.is_sorted());
            let id = ChangeId { revision, place: 3 };
            let names: Vec<_> = records.iter().map(|(name, _)| name.clone()).collect();
            assert_eq!(keys(id, bytes).collect::<Vec<_>>(), names);
            let missing = decode(id, &records[0].1).unwrap().missing;
            assert_eq!(missing, if parts == 0 { 0 } else { bytes });
            let mut joined = Vec::new();
            for (number, (name, part)) in (0..).zip(&records[1..]) {
                let part_of = decode_id(name).unwrap();
                assert_eq!((part_of.change, part_of.part), (id, Some(number)));
                joined.extend_from_slice(part);
            }
            assert!(parts == 0 || joined == value);
        }
    }
}
