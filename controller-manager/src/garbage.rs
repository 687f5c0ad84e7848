//! The garbage collector: what becomes of objects whose owners go.
//!
//! Everything with an owner that is nowhere, and none that is somewhere, is deleted. An object that was deleted with a policy carries a finalizer: under
//! `foregroundDeletion` its dependents go first, under `orphan` they are parted from it. It looks at the [`Graph`], and asks the server before it writes.

mod graph;
mod kind;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::future::join_all;
use podplane_api::{
    Object, ObjectKey,
    meta::{ObjectMeta, OwnerReference},
};
use podplane_client::{ApiError, Cache, Change, Client, DeleteParams, Propagation, WorkQueue};

use self::{
    graph::{FOREGROUND, Graph, Item, ORPHAN, Owner, State, Uid, Verdict, judge},
    kind::{Kind, Of},
};
use crate::{owner::remove_reference, work::Latch};

/// When an object is looked at again whose owner the server knows, and the graph does not yet.
const UNSEEN_AGAIN: Duration = Duration::from_secs(5);

/// Works on objects by UID.
#[derive(Default)]
pub(crate) struct Garbage {
    kinds: Vec<Box<dyn Kind>>,
    graph: Mutex<Graph>,
    pub(crate) queue: WorkQueue<Uid>,
}

impl Garbage {
    /// Makes a kind known. Returns what [`Garbage::follow`] wants to know it by.
    pub(crate) fn add<K: Object>(&mut self, client: &Client) -> usize {
        self.kinds.push(Box::new(Of::<K>::new(client.clone())));
        self.kinds.len() - 1
    }

    /// Takes in the changes of a kind, for ever; `ready` is told when all that was there at first is known.
    pub(crate) async fn follow<K: Object>(
        self: Arc<Self>,
        kind: usize,
        cache: Cache<K>,
        ready: Arc<Latch>,
    ) {
        let mut changes = cache.subscribe();
        cache.synced().await;
        while let Some(change) = changes.try_next() {
            self.take(kind, change);
        }
        ready.arrive();
        loop {
            self.take(kind, changes.next().await);
        }
    }

    fn take<K: Object>(&self, kind: usize, change: Change<K>) {
        let look = match change {
            Change::Applied { old, new } => {
                // Another of the same name: the one before is gone.
                let other = old.filter(|old| old.uid() != new.uid());
                let mut graph = self.graph();
                let mut look = other.map(|old| graph.remove(old.uid())).unwrap_or_default();
                look.extend(graph.apply(new.uid().to_owned(), Item::new(kind, new.metadata())));
                look
            }
            Change::Deleted(old) => self.graph().remove(old.uid()),
        };
        look.into_iter().for_each(|uid| self.queue.add(uid));
    }

    /// Does what an object needs; returns when to look again though nothing changes.
    pub(crate) async fn reconcile(&self, uid: &Uid) -> Result<Option<Duration>, ApiError> {
        let Some(item) = self.graph().get(uid).cloned() else {
            return Ok(None);
        };
        match item.state {
            State::Deleting => Ok(None),
            State::Orphaning => self.orphan(uid, &item).await.map(|()| None),
            State::DeletingDependents => self.finish(uid, &item).await.map(|()| None),
            State::Live if self.graph().is_owned(&item) => Ok(None),
            State::Live => self.judge(uid, &item).await,
        }
    }

    /// Parts the dependents from their owner, then lets it go.
    async fn orphan(&self, uid: &str, item: &Item) -> Result<(), ApiError> {
        let parted = self
            .dependents(uid)
            .into_iter()
            .map(async |(dependent, item)| {
                let part = |meta: &mut ObjectMeta| remove_reference(meta, uid);
                self.kinds[item.kind]
                    .change(&item.key, &dependent, &part)
                    .await
            });
        join_all(parted)
            .await
            .into_iter()
            .collect::<Result<(), _>>()?;
        self.remove_finalizer(uid, item, ORPHAN).await
    }

    /// Lets an owner go when nothing is left that it has to wait for.
    async fn finish(&self, uid: &str, item: &Item) -> Result<(), ApiError> {
        let dependents = self.dependents(uid);
        let blocks = |item: &Item| item.owners.get(uid) == Some(&true);
        if dependents.iter().any(|(_, dependent)| blocks(dependent)) {
            // Each was put into the queue when this began; one that has come since puts itself there.
            return Ok(());
        }
        self.remove_finalizer(uid, item, FOREGROUND).await
    }

    /// Decides on a live object of which not all owners are known to be there.
    async fn judge(&self, uid: &str, item: &Item) -> Result<Option<Duration>, ApiError> {
        let kind = &self.kinds[item.kind];
        let meta = match kind.get(&item.key).await {
            // It will be told that it is gone.
            Err(error) if error.is_not_found() => return Ok(None),
            found => found?,
        };
        if meta.uid.as_deref() != Some(uid) || meta.deletion_timestamp.is_some() {
            return Ok(None);
        }
        let (mut owners, mut again) = (BTreeMap::new(), None);
        for reference in meta.owner_references.iter().flatten() {
            let known = self.graph().get(&reference.uid).map(|owner| owner.state);
            let owner = match known {
                Some(State::DeletingDependents) => Owner::Waiting,
                Some(_) => Owner::Solid,
                None => {
                    let owner = self.look_up(&item.key, reference).await?;
                    if owner != Owner::Absent {
                        again = Some(UNSEEN_AGAIN);
                    }
                    owner
                }
            };
            owners.insert(reference.uid.clone(), owner);
        }
        let dependents = self.dependents(uid);
        let verdict = judge(&owners, !dependents.is_empty());
        match &verdict {
            Verdict::Keep => return Ok(again),
            Verdict::Unlink(others) => {
                tracing::info!(kind = kind.name(), object = %item.key, uid, "parting from owners that are gone");
                let part = |meta: &mut ObjectMeta| {
                    others
                        .iter()
                        .fold(false, |any, uid| remove_reference(meta, uid) | any)
                };
                kind.change(&item.key, uid, &part).await?;
            }
            Verdict::DeleteForeground => {
                self.unblock(uid, &dependents).await?;
                self.delete(uid, item, &meta, Some(Propagation::Foreground))
                    .await?;
            }
            // What its finalizers say of its dependents stays so.
            Verdict::Delete => self.delete(uid, item, &meta, None).await?,
        }
        Ok(None)
    }

    /// What the server knows of an owner.
    async fn look_up(
        &self,
        dependent: &ObjectKey,
        reference: &OwnerReference,
    ) -> Result<Owner, ApiError> {
        let Some(kind) = self.kinds.iter().find(|kind| kind.is_named_by(reference)) else {
            tracing::debug!(%dependent, kind = reference.kind, "owner of a kind that is not served");
            return Ok(Owner::Solid);
        };
        let namespace = match (kind.is_namespaced(), dependent.namespace.as_str()) {
            (false, _) => "",
            // What is in no namespace cannot be owned by what is in one; Kubernetes leaves it alone.
            (true, "") => return Ok(Owner::Solid),
            (true, namespace) => namespace,
        };
        let key = ObjectKey::new(namespace, reference.name.as_str());
        match kind.get(&key).await {
            Ok(owner) if owner.uid.as_ref() != Some(&reference.uid) => Ok(Owner::Absent),
            Ok(owner) if State::of(&owner) == State::DeletingDependents => Ok(Owner::Waiting),
            Ok(_) => Ok(Owner::Solid),
            Err(error) if error.is_not_found() => Ok(Owner::Absent),
            Err(error) => Err(error),
        }
    }

    /// Objects that own each other would wait for ever: those that wait already are waited for no longer.
    async fn unblock(&self, uid: &str, dependents: &[(Uid, Item)]) -> Result<(), ApiError> {
        let waiting = dependents
            .iter()
            .filter(|(_, item)| item.state == State::DeletingDependents);
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
            self.kinds[item.kind]
                .change(&item.key, dependent, &unblock)
                .await?;
        }
        Ok(())
    }

    /// Deletes the object as it was judged: owners that it has been given since would keep it.
    async fn delete(
        &self,
        uid: &str,
        item: &Item,
        meta: &ObjectMeta,
        propagation: Option<Propagation>,
    ) -> Result<(), ApiError> {
        let kind = &self.kinds[item.kind];
        tracing::info!(kind = kind.name(), object = %item.key, uid, "deleting what has no owner left");
        let params = DeleteParams {
            uid: Some(uid.to_owned()),
            resource_version: meta.resource_version.clone(),
            propagation,
            ..DeleteParams::default()
        };
        kind.delete(&item.key, &params).await
    }

    async fn remove_finalizer(
        &self,
        uid: &str,
        item: &Item,
        finalizer: &str,
    ) -> Result<(), ApiError> {
        let remove = |meta: &mut ObjectMeta| {
            let finalizers = meta.finalizers.get_or_insert_default();
            let before = finalizers.len();
            finalizers.retain(|other| other != finalizer);
            finalizers.len() < before
        };
        self.kinds[item.kind].change(&item.key, uid, &remove).await
    }

    fn dependents(&self, uid: &str) -> Vec<(Uid, Item)> {
        let graph = self.graph();
        let dependents = graph.dependents(uid);
        dependents
            .map(|(uid, item)| (uid.clone(), item.clone()))
            .collect()
    }

    fn graph(&self) -> MutexGuard<'_, Graph> {
        // The graph is whole whenever the lock is not held, so a panic elsewhere does not spoil it.
        self.graph.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
