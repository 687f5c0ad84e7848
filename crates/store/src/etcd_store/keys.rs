//! The keys of a store in etcd: `PREFIX/data` with our key, and the store's own under
//! `PREFIX/store/`.

use bytes::Bytes;
use uuid::Uuid;

use crate::store::{Key, Prefix};

/// A range of etcd's keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyRange {
    pub(super) key: Bytes,
    /// The first key that is not in it.
    pub(super) end: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeySpace {
    prefix: String,
    data: Bytes,
}

impl KeySpace {
    pub(super) fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
            data: Bytes::from(format!("{prefix}/data")),
        }
    }

    /// The prefix of the flags.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The record of the store.
    pub(super) fn record(&self) -> Bytes {
        self.own("id")
    }

    /// The revision of the last compaction.
    pub(super) fn compacted(&self) -> Bytes {
        self.own("compacted")
    }

    /// A key that is written to have an event.
    pub(super) fn progress(&self) -> Bytes {
        self.own("progress")
    }

    /// The commit that last deleted something.
    pub(super) fn mark(&self) -> Bytes {
        self.own("mark")
    }

    /// The fence of a server.
    pub(super) fn fence(&self, server: Uuid) -> Bytes {
        self.own(&format!("fences/{server}"))
    }

    fn own(&self, name: &str) -> Bytes {
        Bytes::from(format!("{}/store/{name}", self.prefix))
    }

    /// All keys, the store's own included.
    pub(super) fn all(&self) -> KeyRange {
        range(Bytes::from(format!("{}/", self.prefix)))
    }

    pub(super) fn of(&self, key: &Key) -> Bytes {
        self.with(key.as_bytes())
    }

    /// Our key; `None` for one of the store's own.
    pub(super) fn ours(&self, etcd: &Bytes) -> Option<Key> {
        let key = etcd.strip_prefix(&*self.data)?;
        // The message that it came with, which has many, is not kept in memory for it.
        Key::new(key).ok()
    }

    pub(super) fn under(&self, prefix: &Prefix) -> KeyRange {
        range(self.with(prefix.as_bytes()))
    }

    /// The range of all data after a key, or from the beginning.
    pub(super) fn data_after(&self, last: Option<&Bytes>) -> KeyRange {
        let KeyRange { key, end } = range(self.data.clone());
        KeyRange {
            key: last.map_or(key, |last| following(last)),
            end,
        }
    }

    fn with(&self, key: &[u8]) -> Bytes {
        [&self.data, key].concat().into()
    }
}

/// The first key after this one.
pub(super) fn following(key: &[u8]) -> Bytes {
    [key, &[0]].concat().into()
}

/// The keys with a prefix, which is not empty and does not consist of bytes 255.
fn range(key: Bytes) -> KeyRange {
    let mut end = key.to_vec();
    while end.pop_if(|last| *last == u8::MAX).is_some() {}
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    KeyRange {
        key,
        end: end.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_ends_after_the_last_key_with_its_prefix() {
        let keys = KeySpace::new("/podplane");
        let range = keys.under(&Prefix::from("/pods/"));
        assert_eq!(&range.key[..], b"/podplane/data/pods/");
        assert_eq!(&range.end[..], b"/podplane/data/pods0");
        let of_bytes = keys.under(&Prefix::new(vec![b'a', 255, 255]));
        assert_eq!(&of_bytes.end[..], b"/podplane/datab");
        assert_eq!(&keys.all().end[..], b"/podplane0");
    }

    #[test]
    fn own_keys_are_no_data() {
        let keys = KeySpace::new("/podplane");
        let key = Key::try_from("/pods/a").expect("a key");
        assert_eq!(keys.ours(&keys.of(&key)), Some(key));
        assert_eq!(keys.ours(&keys.record()), None);
    }
}
