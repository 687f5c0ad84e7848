//! Writes of this controller that are not in the cache yet.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use podplane_api::{
    Object as _, ObjectKey,
    apps::{Deployment, ReplicaSet},
};
use podplane_host::clock::Instant;

use crate::{index::ObjectIndex, workloads::WorkloadCache};

/// The longest wait for a write. A decision made without it fails at the revision that it was made
/// from, so waiting only saves work.
const WAIT: Duration = Duration::from_secs(5);

/// Unobserved writes, by Deployment and ReplicaSet.
#[derive(Debug, Default)]
pub(super) struct UnobservedWrites(Mutex<BTreeMap<ObjectKey, BTreeMap<ObjectKey, PendingWrite>>>);

#[derive(Debug)]
struct PendingWrite {
    /// The revision that it replaced; `None` for a new object.
    replaced: Option<String>,
    at: Instant,
}

impl UnobservedWrites {
    pub(super) fn created(&self, deployment: &Deployment, set: &ReplicaSet) {
        self.note(deployment, set, None);
    }

    /// Records an update, unless it changed nothing.
    pub(super) fn changed(&self, deployment: &Deployment, set: &ReplicaSet, replaced: &str) {
        if set.resource_version() != replaced {
            self.note(deployment, set, Some(replaced.to_owned()));
        }
    }

    fn note(&self, deployment: &Deployment, set: &ReplicaSet, replaced: Option<String>) {
        let write = PendingWrite {
            replaced,
            at: Instant::now(),
        };
        let mut unseen = self.lock();
        unseen
            .entry(deployment.key())
            .or_default()
            .insert(set.key(), write);
    }

    /// Returns whether all writes for a Deployment have been observed.
    pub(super) fn is_settled(&self, deployment: &ObjectKey, cache: &WorkloadCache) -> bool {
        let mut unseen = self.lock();
        let Some(writes) = unseen.get_mut(deployment) else {
            return true;
        };
        writes.retain(|set, write| write.at.elapsed() < WAIT && !is_seen(&cache.sets, set, write));
        let is_settled = writes.is_empty();
        if is_settled {
            unseen.remove(deployment);
        }
        is_settled
    }

    pub(super) fn forget(&self, deployment: &ObjectKey) {
        self.lock().remove(deployment);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, BTreeMap<ObjectKey, PendingWrite>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether the cache no longer has the replaced revision. A created object that was deleted
/// again is waited for in vain, until the wait ends.
fn is_seen(sets: &ObjectIndex<ReplicaSet>, set: &ObjectKey, write: &PendingWrite) -> bool {
    match (sets.get(set), &write.replaced) {
        (found, None) => found.is_some(),
        (None, Some(_)) => true,
        (Some(found), Some(replaced)) => found.resource_version() != replaced,
    }
}
