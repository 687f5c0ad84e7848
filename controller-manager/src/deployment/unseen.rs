//! Writes of one's own that have not been told yet.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use podplane_api::{
    Object as _, ObjectKey,
    apps::{Deployment, ReplicaSet},
};

use crate::{index::Index, world::World};

/// How long a write is waited for. What is decided without it fails at the revision that it was decided from, so this saves work and no more.
const WAIT: Duration = Duration::from_secs(5);

/// By Deployment and ReplicaSet.
#[derive(Debug, Default)]
pub(super) struct Unseen(Mutex<BTreeMap<ObjectKey, BTreeMap<ObjectKey, Write>>>);

#[derive(Debug)]
struct Write {
    /// The revision that it replaced; none for a new object.
    replaced: Option<String>,
    at: Instant,
}

impl Unseen {
    pub(super) fn created(&self, deployment: &Deployment, set: &ReplicaSet) {
        self.note(deployment, set, None);
    }

    /// A write that changed nothing is none.
    pub(super) fn changed(&self, deployment: &Deployment, set: &ReplicaSet, replaced: &str) {
        if set.resource_version() != replaced {
            self.note(deployment, set, Some(replaced.to_owned()));
        }
    }

    fn note(&self, deployment: &Deployment, set: &ReplicaSet, replaced: Option<String>) {
        let write = Write {
            replaced,
            at: Instant::now(),
        };
        let mut unseen = self.lock();
        unseen
            .entry(deployment.key())
            .or_default()
            .insert(set.key(), write);
    }

    /// Whether every write of a Deployment has been told.
    pub(super) fn is_settled(&self, deployment: &ObjectKey, world: &World) -> bool {
        let mut unseen = self.lock();
        let Some(writes) = unseen.get_mut(deployment) else {
            return true;
        };
        writes.retain(|set, write| write.at.elapsed() < WAIT && !is_seen(&world.sets, set, write));
        let is_settled = writes.is_empty();
        if is_settled {
            unseen.remove(deployment);
        }
        is_settled
    }

    pub(super) fn forget(&self, deployment: &ObjectKey) {
        self.lock().remove(deployment);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, BTreeMap<ObjectKey, Write>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is there is not what was replaced. A new one that has gone again is waited for in vain, until the time is over.
fn is_seen(sets: &Index<ReplicaSet>, set: &ObjectKey, write: &Write) -> bool {
    match (sets.get(set), &write.replaced) {
        (found, None) => found.is_some(),
        (None, Some(_)) => true,
        (Some(found), Some(replaced)) => found.resource_version() != replaced,
    }
}
