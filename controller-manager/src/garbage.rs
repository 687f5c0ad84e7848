//! The garbage collector: deletes or releases objects whose owners are deleted.
//!
//! An object with owners is deleted once all of them are gone. An object that was deleted with a
//! policy has a finalizer: under `foregroundDeletion` its dependents are deleted first, under
//! `orphan` their references to it are removed. The collector decides from the [`Graph`], and asks
//! the server before it writes.

pub(crate) mod custom;
mod graph;
mod kind;
mod kinds;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::future::join_all;
use podplane_api::{
    Object, ObjectKey,
    meta::{ObjectMeta, OwnerReference},
};
use podplane_client::{
    ApiError, Cache, CacheChange, CacheItem, Client, DeleteParams, Propagation, WorkQueue,
};
use podplane_host::clock::Instant;

use self::{
    graph::{DeletionState, FOREGROUND, Graph, ORPHAN, OwnerState, OwnerVerdict, Uid, judge},
    kind::{CollectedKind, CollectorClients, CustomKind},
    kinds::{CollectedKinds, KindState},
};
use crate::owner::remove_reference;

pub(crate) use self::graph::TrackedObject;

/// The delay before an object is reconciled again whose owner the server knows and the graph does
/// not yet.
const UNSEEN_AGAIN: Duration = Duration::from_secs(5);

/// The delay before an object is reconciled again whose dependents are not all known.
const INCOMPLETE_AGAIN: Duration = Duration::from_secs(1);

/// The observed owners and dependents, and the queue of UIDs to reconcile.
pub(crate) struct Garbage {
    kinds: Mutex<CollectedKinds>,
    graph: Mutex<Graph>,
    pub(crate) queue: WorkQueue<Uid>,
}

/// The garbage collector. It reconciles objects by UID.
pub(crate) struct GarbageCollector {
    garbage: Arc<Garbage>,
    clients: CollectorClients,
}

impl Garbage {
    /// An empty graph without kinds. The queue is closed.
    pub(crate) fn new() -> Self {
        Self {
            kinds: Mutex::default(),
            graph: Mutex::default(),
            queue: WorkQueue::closed(),
        }
    }

    /// Registers a kind, whose objects [`Garbage::follow`] observes. Returns its number.
    pub(crate) fn add<K: Object>(&self) -> usize {
        self.kinds().add::<K>()
    }

    fn follow_custom(&self, kind: CustomKind) -> Option<usize> {
        self.kinds().follow_custom(kind, Instant::now())
    }

    /// Notes the first list of a custom kind: objects that are not in it are deleted.
    fn listed(&self, kind: usize, uids: &BTreeSet<Uid>) {
        let look = self.graph().retain(kind, uids);
        self.kinds().listed(kind);
        self.add_all(look);
    }

    /// Follows a custom kind no more. Its objects are kept while it is only not served.
    fn leave(&self, kind: usize, state: KindState) {
        self.kinds().leave(kind, state);
        if state == KindState::Undefined {
            let look = self.graph().retain(kind, &BTreeSet::new());
            self.add_all(look);
        }
    }

    /// Opens the queue, and queues all present objects.
    pub(crate) fn open(&self) {
        self.queue.open();
        let uids = self.graph().uids();
        uids.into_iter().for_each(|uid| self.queue.add(uid));
    }

    /// Observes the changes of a kind's objects, for ever; `listed` is called when the first list
    /// has been observed.
    pub(crate) async fn follow<T: CacheItem>(
        &self,
        cache: Cache<T>,
        track: impl Fn(&T) -> TrackedObject,
        listed: impl FnOnce(),
    ) {
        let mut changes = cache.subscribe();
        cache.synced().await;
        while let Some(change) = changes.try_next() {
            self.take(change, &track);
        }
        listed();
        loop {
            self.take(changes.next().await, &track);
        }
    }

    fn take<T: CacheItem>(&self, change: CacheChange<T>, track: impl Fn(&T) -> TrackedObject) {
        let look = match change {
            CacheChange::Applied { old, new } => {
                // Another object of the same name: the former one is deleted.
                let other = old.filter(|old| old.uid() != new.uid());
                let mut graph = self.graph();
                let mut look = other.map(|old| graph.remove(old.uid())).unwrap_or_default();
                look.extend(graph.apply(new.uid().to_owned(), track(&new)));
                look
            }
            CacheChange::Deleted(old) => self.graph().remove(old.uid()),
        };
        self.add_all(look);
    }

    fn add_all(&self, uids: BTreeSet<Uid>) {
        uids.into_iter().for_each(|uid| self.queue.add(uid));
    }

    fn dependents(&self, uid: &str) -> Vec<(Uid, TrackedObject)> {
        let graph = self.graph();
        let dependents = graph.dependents(uid);
        dependents
            .map(|(uid, item)| (uid.clone(), item.clone()))
            .collect()
    }

    fn kind_of(&self, item: &TrackedObject) -> Arc<dyn CollectedKind> {
        self.kinds().get(item.kind)
    }

    // The graph and the kinds are consistent whenever their locks are free, so that a poisoned one
    // can be used.

    fn graph(&self) -> MutexGuard<'_, Graph> {
        self.graph.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kinds(&self) -> MutexGuard<'_, CollectedKinds> {
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GarbageCollector {
    /// A collector that writes with `client`. It needs a tokio runtime.
    pub(crate) fn new(garbage: Arc<Garbage>, client: &Client) -> Self {
        let clients = CollectorClients::new(client);
        Self { garbage, clients }
    }

    /// Reconciles an object; returns the delay until the next reconciliation, if one is due without
    /// a change.
    pub(crate) async fn reconcile(&self, uid: &Uid) -> Result<Option<Duration>, ApiError> {
        let Some(item) = self.garbage.graph().get(uid).cloned() else {
            return Ok(None);
        };
        let waits = matches!(
            item.state,
            DeletionState::Orphaning | DeletionState::DeletingDependents
        );
        if waits && !self.garbage.kinds().is_complete(Instant::now()) {
            return Ok(Some(INCOMPLETE_AGAIN));
        }
        match item.state {
            DeletionState::Deleting => Ok(None),
            DeletionState::Orphaning => self.orphan(uid, &item).await.map(|()| None),
            DeletionState::DeletingDependents => self.finish(uid, &item).await.map(|()| None),
            DeletionState::Live if self.garbage.graph().is_owned(&item) => Ok(None),
            DeletionState::Live => self.judge(uid, &item).await,
        }
    }

    /// Removes the dependents' references to the owner, then the owner's finalizer.
    async fn orphan(&self, uid: &str, item: &TrackedObject) -> Result<(), ApiError> {
        let parted = self
            .garbage
            .dependents(uid)
            .into_iter()
            .map(async |(dependent, item)| {
                let part = |meta: &mut ObjectMeta| remove_reference(meta, uid);
                let kind = self.garbage.kind_of(&item);
                kind.change(&self.clients, &item.key, &dependent, &part)
                    .await
            });
        join_all(parted)
            .await
            .into_iter()
            .collect::<Result<(), _>>()?;
        self.remove_finalizer(uid, item, ORPHAN).await
    }

    /// Removes the owner's finalizer when no dependent blocks its deletion any more.
    async fn finish(&self, uid: &str, item: &TrackedObject) -> Result<(), ApiError> {
        let dependents = self.garbage.dependents(uid);
        let blocks = |item: &TrackedObject| item.owners.get(uid) == Some(&true);
        if dependents.iter().any(|(_, dependent)| blocks(dependent)) {
            // Each was queued when the deletion began; a later one queues itself.
            return Ok(());
        }
        self.remove_finalizer(uid, item, FOREGROUND).await
    }

    /// Decides about a live object, not all of whose owners are known to exist.
    async fn judge(&self, uid: &str, item: &TrackedObject) -> Result<Option<Duration>, ApiError> {
        let kind = self.garbage.kind_of(item);
        let meta = match kind.get(&self.clients, &item.key).await {
            // The watch will report its deletion.
            Err(error) if error.is_not_found() => return Ok(None),
            found => found?,
        };
        if meta.uid.as_deref() != Some(uid) || meta.deletion_timestamp.is_some() {
            return Ok(None);
        }
        let (mut owners, mut again) = (BTreeMap::new(), None);
        for reference in meta.owner_references.iter().flatten() {
            let known = self
                .garbage
                .graph()
                .get(&reference.uid)
                .map(|owner| owner.state);
            let owner = match known {
                Some(DeletionState::DeletingDependents) => OwnerState::Waiting,
                Some(_) => OwnerState::Solid,
                None => {
                    let owner = self.look_up(&item.key, reference).await?;
                    if owner != OwnerState::Absent {
                        again = Some(UNSEEN_AGAIN);
                    }
                    owner
                }
            };
            owners.insert(reference.uid.clone(), owner);
        }
        let waits = owners.values().any(|owner| *owner == OwnerState::Waiting);
        if waits && !self.garbage.kinds().is_complete(Instant::now()) {
            return Ok(Some(INCOMPLETE_AGAIN));
        }
        let dependents = self.garbage.dependents(uid);
        let verdict = judge(&owners, !dependents.is_empty());
        match &verdict {
            OwnerVerdict::Keep => return Ok(again),
            OwnerVerdict::Unlink(others) => {
                tracing::info!(kind = kind.name(), object = %item.key, uid, "removing references to deleted owners");
                let part = |meta: &mut ObjectMeta| {
                    others
                        .iter()
                        .fold(false, |any, uid| remove_reference(meta, uid) | any)
                };
                kind.change(&self.clients, &item.key, uid, &part).await?;
            }
            OwnerVerdict::DeleteForeground => {
                self.unblock(uid, &dependents).await?;
                self.delete(uid, item, &meta, Some(Propagation::Foreground))
                    .await?;
            }
            // Its finalizers still say what to do with its dependents.
            OwnerVerdict::Delete => self.delete(uid, item, &meta, None).await?,
        }
        Ok(None)
    }

    /// The server's knowledge of an owner.
    async fn look_up(
        &self,
        dependent: &ObjectKey,
        reference: &OwnerReference,
    ) -> Result<OwnerState, ApiError> {
        let named = self.garbage.kinds().named_by(reference);
        let kind = match named {
            Some((kind, KindState::Followed)) => kind,
            // The watch of definitions may be behind: it may be defined again.
            Some((kind, KindState::Undefined)) => {
                return Ok(match kind.is_defined(&self.clients).await? {
                    true => OwnerState::Solid,
                    false => OwnerState::Absent,
                });
            }
            None | Some((_, KindState::Unserved)) => {
                tracing::debug!(%dependent, kind = reference.kind, "owner's kind is not served");
                return Ok(OwnerState::Solid);
            }
        };
        let namespace = match (kind.is_namespaced(), dependent.namespace.as_str()) {
            (false, _) => "",
            // A cluster-scoped object cannot have a namespaced owner; Kubernetes leaves such an
            // object alone.
            (true, "") => return Ok(OwnerState::Solid),
            (true, namespace) => namespace,
        };
        let key = ObjectKey::new(namespace, reference.name.as_str());
        match kind.get(&self.clients, &key).await {
            Ok(owner) if owner.uid.as_ref() != Some(&reference.uid) => Ok(OwnerState::Absent),
            Ok(owner) if DeletionState::of(&owner) == DeletionState::DeletingDependents => {
                Ok(OwnerState::Waiting)
            }
            Ok(_) => Ok(OwnerState::Solid),
            Err(error) if error.is_not_found() => Ok(OwnerState::Absent),
            Err(error) => Err(error),
        }
    }

    /// Objects that own each other would wait for ever: removes the references of those that
    /// already wait, so that nothing waits for them.
    async fn unblock(
        &self,
        uid: &str,
        dependents: &[(Uid, TrackedObject)],
    ) -> Result<(), ApiError> {
        let waiting = dependents
            .iter()
            .filter(|(_, item)| item.state == DeletionState::DeletingDependents);
        for (dependent, item) in waiting {
            let unblock = |meta: &mut ObjectMeta| {
                let owners = meta.owner_references.iter_mut().flatten();
                let blocking = owners
                    .filter(|owner| owner.uid == uid && owner.block_owner_deletion == Some(true));
                blocking
                    .map(|owner| owner.block_owner_deletion = Some(false))
                    .count()
                    > 0
            };
            let kind = self.garbage.kind_of(item);
            kind.change(&self.clients, &item.key, dependent, &unblock)
                .await?;
        }
        Ok(())
    }

    /// Deletes the object at the judged revision: an owner that it was given since would keep it.
    async fn delete(
        &self,
        uid: &str,
        item: &TrackedObject,
        meta: &ObjectMeta,
        propagation: Option<Propagation>,
    ) -> Result<(), ApiError> {
        let kind = self.garbage.kind_of(item);
        tracing::info!(kind = kind.name(), object = %item.key, uid, "deleting object whose owners are deleted");
        let params = DeleteParams {
            uid: Some(uid.to_owned()),
            resource_version: meta.resource_version.clone(),
            propagation,
            ..DeleteParams::default()
        };
        kind.delete(&self.clients, &item.key, &params).await
    }

    async fn remove_finalizer(
        &self,
        uid: &str,
        item: &TrackedObject,
        finalizer: &str,
    ) -> Result<(), ApiError> {
        let remove = |meta: &mut ObjectMeta| {
            let finalizers = meta.finalizers.get_or_insert_default();
            let before = finalizers.len();
            finalizers.retain(|other| other != finalizer);
            finalizers.len() < before
        };
        let kind = self.garbage.kind_of(item);
        kind.change(&self.clients, &item.key, uid, &remove).await
    }
}
