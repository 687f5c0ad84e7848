//! How changes are laid out on disk. Integers are big-endian, so that the order of keys is that of revisions.
//!
//! | key | value |
//! |---|---|
//! | `M\|format` | u32, [`FORMAT_VERSION`] |
//! | `M\|id` | the store's id, 16 bytes |
//! | `M\|first` | u64, the revision that a restored store began with; a new one has no such record |
//! | `M\|oldest` | u64, the revision of the last compaction |
//! | `E\|`, revision u64, place u32 | changes in the commit u32, length of the key u16, key, then for a put created u64, value |

use bytes::{Buf, BufMut, Bytes};

use crate::{
    history::{Change, ChangeId},
    store::{Item, Key, Revision},
};

/// The version of this layout. A store of another version is not opened.
pub const FORMAT_VERSION: u32 = 1;

pub(super) const META: &[u8] = b"M|";
pub(super) const FORMAT: &[u8] = b"M|format";
pub(super) const ID: &[u8] = b"M|id";
pub(super) const FIRST: &[u8] = b"M|first";
pub(super) const OLDEST: &[u8] = b"M|oldest";
pub(super) const CHANGES: &[u8] = b"E|";

const DELETE: u8 = 0;
const PUT: u8 = 1;

pub(super) struct Record {
    /// How many changes its commit had.
    pub(super) of: u32,
    pub(super) change: Change,
}

pub(super) fn encode_id(id: ChangeId) -> Vec<u8> {
    let mut key = Vec::with_capacity(CHANGES.len() + 12);
    key.put_slice(CHANGES);
    key.put_u64(id.revision.number());
    key.put_u32(id.place);
    key
}

/// `None` if the bytes are not such a key.
pub(super) fn decode_id(key: &[u8]) -> Option<ChangeId> {
    let mut rest = key.strip_prefix(CHANGES)?;
    let revision = Revision::new(rest.try_get_u64().ok()?)?;
    let place = rest.try_get_u32().ok()?;
    rest.is_empty().then_some(ChangeId { revision, place })
}

pub(super) fn encode(of: u32, change: &Change) -> Vec<u8> {
    let key = change.key.as_bytes();
    let value = change.item.as_ref().map_or(0, |item| item.value.len());
    let mut bytes = Vec::with_capacity(1 + 4 + 2 + key.len() + 8 + value);
    bytes.put_u8(if change.item.is_some() { PUT } else { DELETE });
    bytes.put_u32(of);
    bytes.put_u16(u16::try_from(key.len()).expect("a Key is at most MAX_KEY_BYTES long"));
    bytes.put_slice(key);
    if let Some(item) = &change.item {
        bytes.put_u64(item.created.number());
        bytes.put_slice(&item.value);
    }
    bytes
}

/// `None` if the bytes are not such a record.
pub(super) fn decode(id: ChangeId, bytes: &[u8]) -> Option<Record> {
    let ChangeId {
        revision: modified,
        place,
    } = id;
    let mut rest = bytes;
    let kind = rest.try_get_u8().ok()?;
    let of = rest.try_get_u32().ok()?;
    let key_len = usize::from(rest.try_get_u16().ok()?);
    let (key, mut rest) = rest.split_at_checked(key_len)?;
    let key = Key::new(Bytes::copy_from_slice(key)).ok()?;
    let item = match kind {
        DELETE if rest.is_empty() => None,
        PUT => {
            let created = Revision::new(rest.try_get_u64().ok()?)?;
            Some(Item {
                key: key.clone(),
                value: Bytes::copy_from_slice(rest),
                created,
                modified,
            })
        }
        _ => return None,
    };
    Some(Record {
        of,
        change: Change { place, key, item },
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_change_reads_back(
            key in prop::collection::vec(any::<u8>(), 1..64),
            value in prop::option::of(prop::collection::vec(any::<u8>(), 0..64)),
            (modified, created, place, of) in (1u64.., 1u64.., any::<u32>(), any::<u32>()),
        ) {
            let (modified, created) = (Revision::new(modified).unwrap(), Revision::new(created).unwrap());
            let key = Key::new(key).unwrap();
            let item = value.map(|value| Item { key: key.clone(), value: value.into(), created, modified });
            let id = ChangeId { revision: modified, place };
            let change = Change { place, key, item };
            prop_assert_eq!(decode_id(&encode_id(id)), Some(id));
            let record = decode(id, &encode(of, &change)).unwrap();
            prop_assert_eq!((record.of, record.change), (of, change));
        }

        #[test]
        fn rubbish_is_refused_not_panicked_on(bytes in prop::collection::vec(any::<u8>(), 0..32)) {
            decode_id(&bytes);
            decode(ChangeId { revision: crate::FIRST_REVISION, place: 0 }, &bytes);
        }

        #[test]
        fn the_order_of_keys_is_that_of_changes(a in (1u64.., any::<u32>()), b in (1u64.., any::<u32>())) {
            let id = |(revision, place)| ChangeId { revision: Revision::new(revision).unwrap(), place };
            prop_assert_eq!(encode_id(id(a)).cmp(&encode_id(id(b))), id(a).cmp(&id(b)));
        }
    }
}
