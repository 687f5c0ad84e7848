//! An index of a cache's objects by a key that is computed from them.

use std::collections::{BTreeSet, HashMap};

use podplane_api::ObjectKey;

use super::CacheItem;

/// The keys of objects by their index key, like client-go's Indexer.
pub(super) struct KeyIndex<K> {
    index_key: fn(&K) -> Option<&str>,
    keys: HashMap<String, BTreeSet<ObjectKey>>,
}

impl<K: CacheItem> KeyIndex<K> {
    pub(super) fn new(index_key: fn(&K) -> Option<&str>) -> Self {
        Self {
            index_key,
            keys: HashMap::new(),
        }
    }

    /// The keys of the objects that have this index key.
    pub(super) fn keys(&self, index_key: &str) -> impl Iterator<Item = &ObjectKey> {
        self.keys.get(index_key).into_iter().flatten()
    }

    /// Updates the index for an object that was `old` and is now `new`.
    pub(super) fn change(&mut self, old: Option<&K>, new: Option<&K>) {
        let (before, after) = (old.and_then(self.index_key), new.and_then(self.index_key));
        if before == after {
            return;
        }
        if let (Some(index_key), Some(old)) = (before, old)
            && let Some(keys) = self.keys.get_mut(index_key)
        {
            keys.remove(&old.key());
            if keys.is_empty() {
                self.keys.remove(index_key);
            }
        }
        if let (Some(index_key), Some(new)) = (after, new) {
            let keys = self.keys.entry(index_key.to_owned()).or_default();
            keys.insert(new.key());
        }
    }
}
