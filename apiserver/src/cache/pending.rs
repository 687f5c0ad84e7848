//! Objects that this server is writing, in the forms that it serves. The writer has the object at
//! hand, so the cache need not decode it again, and the answer to the writer is the message of the
//! cache.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use podplane_api::{
    any::{AnyKind, DynObject},
    jiff::Timestamp,
    selector::FieldSet,
};
use podplane_proto::codec::{self, UnstampedMessage};
use podplane_store::{Item, Key, Revision};

use super::kind::{CachedObject, PackedLabels};

/// The objects of a kind whose commits are under way, or not yet in the cache.
#[derive(Debug, Default)]
pub(super) struct PendingObjects(Mutex<HashMap<Key, PendingObject>>);

/// An object as it is served, once its revision is known.
#[derive(Debug)]
pub(super) struct PendingObject {
    value: Bytes,
    message: UnstampedMessage,
    labels: PackedLabels,
    fields: FieldSet,
    last_happened: Option<Timestamp>,
    /// The revision of its commit, once the writer knows it.
    revision: Option<Revision>,
}

/// An announced write. If it is dropped before it is [committed](Self::committed), the cache does
/// not expect it any more.
#[derive(Debug)]
pub(crate) struct PendingWrite<'a> {
    pending: &'a PendingObjects,
    key: Key,
    /// By which it is told from that of another writer of the same key.
    value: Bytes,
    is_committed: bool,
}

impl PendingWrite<'_> {
    /// Leaves the object to the cache, which sees the commit.
    pub(crate) fn committed(mut self, revision: Revision) {
        self.is_committed = true;
        let mut pending = self.pending.lock();
        if let Some(object) = pending.get_mut(&self.key)
            && self.is_of(object)
        {
            object.revision = Some(revision);
        }
    }

    fn is_of(&self, object: &PendingObject) -> bool {
        std::ptr::eq(object.value.as_ptr(), self.value.as_ptr())
    }
}

impl Drop for PendingWrite<'_> {
    fn drop(&mut self) {
        if self.is_committed {
            return;
        }
        let mut pending = self.pending.lock();
        if pending
            .get(&self.key)
            .is_some_and(|object| self.is_of(object))
        {
            pending.remove(&self.key);
        }
    }
}

impl PendingObjects {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, PendingObject>> {
        // Only code that does not panic runs under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces the write of an object, whose stored form is `value`. `None` for one that has no
    /// message, or an unusual one.
    pub(super) fn announce(
        &self,
        kind: &dyn AnyKind,
        key: &Key,
        object: &DynObject,
        value: &Bytes,
    ) -> Option<PendingWrite<'_>> {
        kind.service()?;
        let object = PendingObject {
            value: value.clone(),
            message: codec::encode_unstamped(kind, value)?,
            labels: PackedLabels::of(object),
            fields: object.field_set(),
            last_happened: object.last_happened(),
            revision: None,
        };
        self.lock().insert(key.clone(), object);
        Some(PendingWrite {
            pending: self,
            key: key.clone(),
            value: value.clone(),
            is_committed: false,
        })
    }

    /// Takes the object that a commit wrote; `None` if the commit is another server's, or another
    /// writer's of this one.
    pub(super) fn take(&self, item: &Item) -> Option<PendingObject> {
        let mut pending = self.lock();
        let is_it = *pending.get(&item.key)?.value == *item.value();
        is_it.then(|| pending.remove(&item.key))?
    }

    /// Expects no write any more. Objects whose commits come nevertheless are decoded.
    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    /// The message of an object that was committed at a revision, if the cache does not have it
    /// yet.
    pub(super) fn message(&self, key: &Key, revision: &str) -> Option<Bytes> {
        let pending = self.lock();
        let object = pending.get(key)?;
        let is_it = object.revision?.to_string() == revision;
        is_it.then(|| object.message.at(revision))
    }
}

impl PendingObject {
    pub(super) fn committed(self, item: &Arc<Item>) -> CachedObject {
        CachedObject {
            labels: self.labels,
            fields: self.fields,
            message: self.message.at(&item.modified.to_string()),
            item: Arc::clone(item),
            last_happened: self.last_happened,
        }
    }
}

#[cfg(test)]
mod tests {
    use podplane_api::{Object as _, any::kind_of, core::Pod};
    use serde_json::json;

    use super::*;
    use crate::cache::{KindCache, Sink as _};

    /// A pod and its stored form.
    fn pod(uid: &str) -> (Pod, Bytes) {
        let pod = json!({"metadata": {"name": "a", "namespace": "b", "uid": uid, "labels": {"app": "web"}}});
        let pod = Pod::from_json(pod).unwrap();
        let value = pod.to_vec().unwrap();
        (pod, value.into())
    }

    fn key() -> Key {
        Key::try_from("/registry/pods/b/a").unwrap()
    }

    fn item(value: &Bytes, revision: u64) -> Arc<Item> {
        let revision = Revision::new(revision).unwrap();
        Arc::new(Item::new(key(), value, revision, revision))
    }

    #[test]
    fn a_commit_has_the_forms_that_its_writer_announced() {
        let (pending, kind) = (PendingObjects::default(), kind_of::<Pod>());
        let (pod, value) = pod("1");
        let write = pending.announce(&*kind, &key(), &pod, &value).unwrap();
        assert_eq!(pending.message(&key(), "7"), None, "before the commit");
        let item = item(&value, 7);
        write.committed(item.modified);
        let message = codec::encode_any_at(&*kind, &value, "7").unwrap();
        assert_eq!(pending.message(&key(), "7"), Some(message.clone()));
        assert_eq!(pending.message(&key(), "8"), None, "another revision");
        let entry = pending.take(&item).unwrap().committed(&item);
        let decoded = crate::cache::entry(&*kind, &item).unwrap();
        assert_eq!(entry.message, message);
        assert_eq!(entry.fields, decoded.fields);
        assert_eq!(entry.labels.get("app"), Some("web"));
        assert!(pending.take(&item).is_none(), "taken twice");
    }

    #[test]
    fn a_write_that_was_not_committed_is_forgotten() {
        let pending = PendingObjects::default();
        let (pod, value) = pod("1");
        drop(pending.announce(&*kind_of::<Pod>(), &key(), &pod, &value));
        assert!(pending.take(&item(&value, 7)).is_none());
    }

    /// As after a server was cut off: the commit and a deletion are only in the list.
    #[test]
    fn a_cache_that_is_loaded_again_forgets_committed_writes() {
        let cache = KindCache::new(kind_of::<Pod>());
        let (pod, value) = pod("1");
        let write = cache.announce(&key(), &pod, &value).unwrap();
        write.committed(Revision::new(7).unwrap());
        assert!(cache.message(&key(), "7").is_some());
        cache.load(&[], Revision::new(9).unwrap());
        assert_eq!(cache.message(&key(), "7"), None);
    }

    /// Two write the same key, and the second announces its object before the first is committed.
    #[test]
    fn writers_of_one_key_do_not_get_each_others_objects() {
        let (pending, kind) = (PendingObjects::default(), kind_of::<Pod>());
        let ((one, first), (two, second)) = (pod("1"), pod("2"));
        let of_first = pending.announce(&*kind, &key(), &one, &first).unwrap();
        let of_second = pending.announce(&*kind, &key(), &two, &second).unwrap();
        of_first.committed(Revision::new(7).unwrap());
        assert_eq!(pending.message(&key(), "7"), None);
        assert!(pending.take(&item(&first, 7)).is_none());
        of_second.committed(Revision::new(8).unwrap());
        assert!(pending.take(&item(&second, 8)).is_some());
    }
}
