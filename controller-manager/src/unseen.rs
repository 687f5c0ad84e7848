//! Writes of a controller that are not in the cache yet.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use podplane_api::{Object, ObjectKey};
use podplane_host::clock::Instant;

use crate::index::ObjectIndex;

/// The longest wait for a write. A decision made without it fails at the revision that it was made
/// from, so waiting only saves work.
const WAIT: Duration = Duration::from_secs(5);
/// The longest wait for a status that decides on more than the object: pods would be counted twice.
const STATUS_WAIT: Duration = Duration::from_secs(30);

type PendingWrites = BTreeMap<ObjectKey, BTreeMap<ObjectKey, PendingWrite>>;

/// Unobserved writes, by the owner and the object written.
#[derive(Debug)]
pub(crate) struct UnobservedWrites {
    writes: Mutex<PendingWrites>,
    wait: Duration,
}

impl Default for UnobservedWrites {
    fn default() -> Self {
        Self {
            writes: Mutex::default(),
            wait: WAIT,
        }
    }
}

#[derive(Debug)]
struct PendingWrite {
    /// The revision that it replaced; `None` for a new object.
    replaced: Option<String>,
    at: Instant,
}

impl UnobservedWrites {
    /// For writes of the status of the owners themselves.
    pub(crate) fn of_statuses() -> Self {
        Self {
            wait: STATUS_WAIT,
            ..Self::default()
        }
    }

    pub(crate) fn created<O: Object, K: Object>(&self, owner: &O, object: &K) {
        self.note(owner, object, None);
    }

    /// Records an update, unless it changed nothing.
    pub(crate) fn changed<O: Object, K: Object>(&self, owner: &O, object: &K, replaced: &str) {
        if object.resource_version() != replaced {
            self.note(owner, object, Some(replaced.to_owned()));
        }
    }

    fn note<O: Object, K: Object>(&self, owner: &O, object: &K, replaced: Option<String>) {
        let write = PendingWrite {
            replaced,
            at: Instant::now(),
        };
        let mut unseen = self.lock();
        unseen
            .entry(owner.key())
            .or_default()
            .insert(object.key(), write);
    }

    /// Returns whether all writes for an owner have been observed.
    pub(crate) fn is_settled<K: Object>(&self, owner: &ObjectKey, index: &ObjectIndex<K>) -> bool {
        let mut unseen = self.lock();
        let Some(writes) = unseen.get_mut(owner) else {
            return true;
        };
        writes.retain(|key, write| write.at.elapsed() < self.wait && !is_seen(index, key, write));
        let is_settled = writes.is_empty();
        if is_settled {
            unseen.remove(owner);
        }
        is_settled
    }

    pub(crate) fn forget(&self, owner: &ObjectKey) {
        self.lock().remove(owner);
    }

    fn lock(&self) -> MutexGuard<'_, PendingWrites> {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether the cache no longer has the replaced revision. A created object that was deleted
/// again is waited for in vain, until the wait ends.
fn is_seen<K: Object>(index: &ObjectIndex<K>, key: &ObjectKey, write: &PendingWrite) -> bool {
    match (index.get(key), &write.replaced) {
        (found, None) => found.is_some(),
        (None, Some(_)) => true,
        (Some(found), Some(replaced)) => found.resource_version() != replaced,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use podplane_api::core::Pod;
    use podplane_client::CacheChange;

    use super::*;

    fn pod(revision: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = Some("a".into());
        pod.metadata.resource_version = Some(revision.into());
        pod
    }

    #[test]
    fn waits_until_the_cache_has_another_revision() {
        let (writes, index) = (UnobservedWrites::of_statuses(), ObjectIndex::default());
        let key = pod("").key();
        let show = |revision: &str| {
            let (old, new) = (None, Arc::new(pod(revision)));
            index.apply(&CacheChange::Applied { old, new });
        };
        show("1");
        assert!(writes.is_settled(&key, &index));
        writes.changed(&pod("1"), &pod("1"), "1");
        assert!(writes.is_settled(&key, &index), "nothing was written");
        writes.changed(&pod("1"), &pod("2"), "1");
        assert!(!writes.is_settled(&key, &index));
        show("2");
        assert!(writes.is_settled(&key, &index));
        writes.changed(&pod("2"), &pod("3"), "2");
        writes.forget(&key);
        assert!(writes.is_settled(&key, &index));
    }
}
