//! The registry: reads of a kind's objects, and their writes on the way to the store.
//!
//! There is one [`Registry`] for each kind. Reads and watches come from the cache. Each write reads
//! the store, decides, and commits under a guard of the revision that it read. After a conflict it
//! decides again, unless the request names the revision.

mod create;
mod delete;
mod evict;
mod journey;
mod list;
mod managed;
mod narrow;
mod patch;
#[cfg(test)]
mod tests;
mod update;
mod watch;

pub(crate) use delete::DeleteOptions;
pub(crate) use list::{Freshness, ListPage, NOT_OLDER_THAN};
pub(crate) use patch::Patch;
pub(crate) use update::ObjectPart;
pub(crate) use watch::{StreamEvent, WatchOptions, WatchStart, revision as watch_revision};

use std::{fmt, sync::Arc};

use futures::future::BoxFuture;
use podplane_api::{
    Object, ObjectKey, Scope,
    jiff::Timestamp,
    meta::Time,
    strategy::{Strategy, Subresource},
};
use podplane_host::clock::{self, Instant};
use podplane_proto::{error::ApiError, fence::Fence};
use podplane_service_runtime::identity::Identity;
use podplane_store::{Guard, Key, Revision, StoreError, Txn};
use serde_json::Value;

use crate::{
    admission::{
        Admission, CommitAdditions, MutatingAdmission, ProposedChange, WriteCheck, fences,
    },
    authentication::server_identity,
    cache::{CachedObject, KindCache, Position, Query},
    engine::Engine,
    error, storage,
};

/// The answer to an act.
#[derive(Debug, Default)]
pub(crate) struct ActAnswer {
    /// The answer; `None`: a `Status` that says that the act was carried out.
    pub(crate) document: Option<Value>,
    /// Warnings for the client.
    pub(crate) warnings: Vec<String>,
}

/// Carries out the subresources of a kind that act on its objects.
pub(crate) trait SubresourceActions<K>: fmt::Debug + Send + Sync {
    fn act<'a>(
        &'a self,
        registry: &'a Registry<K>,
        key: &'a ObjectKey,
        act: Subresource,
        document: &'a Value,
        terms: ChangeTerms<'a>,
    ) -> BoxFuture<'a, Result<ActAnswer, ApiError>>;
}

/// Reads and writes of the objects of a kind.
#[derive(Debug)]
pub(crate) struct Registry<K> {
    engine: Engine,
    cache: Arc<KindCache<K>>,
    position: Position,
    mutations: Vec<Arc<dyn MutatingAdmission<K>>>,
    checks: Vec<Arc<dyn WriteCheck<K>>>,
    admission: Option<Arc<dyn Admission<K>>>,
    actions: Option<Arc<dyn SubresourceActions<K>>>,
}

impl<K> Clone for Registry<K> {
    fn clone(&self) -> Self {
        Self {
            engine: self.engine.clone(),
            cache: Arc::clone(&self.cache),
            position: self.position.clone(),
            mutations: self.mutations.clone(),
            checks: self.checks.clone(),
            admission: self.admission.clone(),
            actions: self.actions.clone(),
        }
    }
}

/// The effect of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum WriteEffect {
    /// The write is stored.
    #[default]
    Durable,
    /// The write is checked and answered as usual, and nothing is stored (`dryRun=All`).
    Dry,
}

/// The options of a write.
#[derive(Clone, Debug)]
pub(crate) struct WriteParams {
    /// The user who writes.
    pub(crate) by: Arc<Identity>,
    pub(crate) effect: WriteEffect,
    /// The writer that `metadata.managedFields` records. `None` for writes through gRPC, except
    /// patches that name a manager: other requests cannot. Kubernetes takes an object without
    /// records for one that existed before its first apply.
    pub(crate) manager: Option<String>,
    /// The fence of the writer, if it sent one.
    pub(crate) fence: Option<Fence>,
    /// The reason why an update or patch of this user may not create its object.
    pub(crate) refused_creation: Option<ApiError>,
}

impl WriteParams {
    /// A durable write by a user.
    pub(crate) fn by(by: Arc<Identity>) -> Self {
        Self {
            by,
            effect: WriteEffect::Durable,
            manager: None,
            fence: None,
            refused_creation: None,
        }
    }

    /// A durable write by the server itself, without a request.
    pub(crate) fn by_server() -> Self {
        Self::by(Arc::clone(server_identity()))
    }

    /// Checks that an update or patch may create its object.
    fn may_create(&self) -> Result<(), ApiError> {
        match &self.refused_creation {
            Some(refused) => Err(refused.clone()),
            None => Ok(()),
        }
    }

    pub(crate) fn terms(&self) -> ChangeTerms<'_> {
        ChangeTerms {
            by: &self.by,
            effect: self.effect,
            fence: self.fence.as_ref(),
        }
    }
}

/// The conditions of a change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChangeTerms<'a> {
    /// The user who asks for the change.
    pub(crate) by: &'a Arc<Identity>,
    pub(crate) effect: WriteEffect,
    /// The fence that must hold.
    pub(crate) fence: Option<&'a Fence>,
}

impl ChangeTerms<'_> {
    /// A durable change by the server itself, without a request.
    pub(crate) fn by_server() -> Self {
        Self {
            by: server_identity(),
            effect: WriteEffect::Durable,
            fence: None,
        }
    }
}

/// The act that a write is: what the object before and after it does not show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Update(ObjectPart),
    /// A deletion, or its beginning.
    Delete,
    /// The same through the subresource `eviction`.
    Evict,
    /// Through the subresource `binding`.
    Bind,
}

/// The decision about an object.
enum ChangeDecision<K> {
    /// Keep the object as it is, and answer with this.
    Keep(K),
    /// Replace the object.
    Put(K),
    /// Remove the object, and answer with this.
    Remove(K),
}

impl<K: Strategy> Registry<K> {
    pub(crate) fn new(engine: Engine, cache: Arc<KindCache<K>>, position: Position) -> Self {
        Self {
            engine,
            cache,
            position,
            mutations: Vec::new(),
            checks: Vec::new(),
            admission: None,
            actions: None,
        }
    }

    /// The same registry with an admission for each write.
    pub(crate) fn admitting(self, admission: Option<Arc<dyn Admission<K>>>) -> Self {
        Self { admission, ..self }
    }

    /// The same with admissions that complete new objects, in order.
    pub(crate) fn completing(self, mutations: Vec<Arc<dyn MutatingAdmission<K>>>) -> Self {
        Self { mutations, ..self }
    }

    /// The same with checks of who writes what.
    pub(crate) fn checking(self, checks: Vec<Arc<dyn WriteCheck<K>>>) -> Self {
        Self { checks, ..self }
    }

    /// The same with subresources that act.
    pub(crate) fn acting(self, actions: Option<Arc<dyn SubresourceActions<K>>>) -> Self {
        Self { actions, ..self }
    }

    /// The same without its subresources: for what these need themselves, which would otherwise own
    /// itself, and the store would never be closed.
    pub(crate) fn for_reading(&self) -> Self {
        self.clone().acting(None)
    }

    /// The subresources that act, if the kind has such.
    pub(crate) fn actions(&self) -> Option<&dyn SubresourceActions<K>> {
        self.actions.as_deref()
    }

    /// The guards and writes that the admission commits together with a valid change.
    ///
    /// # Errors
    ///
    /// The reason why the change is refused.
    async fn additions(
        &self,
        change: ProposedChange<'_, K>,
        effect: WriteEffect,
    ) -> Result<CommitAdditions, ApiError> {
        for check in &self.checks {
            check.check(change).await?;
        }
        let Some(admission) = &self.admission else {
            return Ok(CommitAdditions::default());
        };
        let additions = admission.additions(change).await?;
        if effect == WriteEffect::Dry {
            admission.check_guards(change).await?;
        }
        Ok(additions)
    }

    /// Asks the admission why one of its guards failed; `Ok` if the guards may hold now.
    async fn check_guards(&self, change: ProposedChange<'_, K>) -> Result<(), ApiError> {
        match &self.admission {
            Some(admission) => admission.check_guards(change).await,
            None => Ok(()),
        }
    }

    /// Reads the object, at least as new as every acknowledged write.
    pub(crate) async fn get(&self, key: &ObjectKey) -> Result<Arc<CachedObject>, ApiError> {
        scoped::<K>(key)?;
        self.position.reached(self.engine.acknowledged()).await?;
        self.cache
            .get(&storage::key::<K>(key)?)
            .ok_or_else(|| error::not_found::<K>(&key.name))
    }

    /// The object in the cache, which may be older than writes that clients know of.
    pub(crate) fn cached(&self, key: &ObjectKey) -> Option<K> {
        scoped::<K>(key).ok()?;
        let found = self.cache.get(&storage::key::<K>(key).ok()?)?;
        found.decode().ok()
    }

    /// Waits until the caches have every write that any client may know of; `None` if they do.
    pub(crate) fn lag(&self) -> Option<BoxFuture<'static, ()>> {
        let acknowledged = self.engine.acknowledged();
        if self.position.current().number() >= acknowledged {
            return None;
        }
        let position = self.position.clone();
        Some(Box::pin(async move {
            // If the server stops, the request is answered from what the cache has.
            _ = position.reached(acknowledged).await;
        }))
    }

    /// The number of objects in the cache.
    pub(crate) fn count(&self) -> usize {
        self.cache.len()
    }

    /// The keys of the objects that match, at least as new as every acknowledged write.
    pub(crate) async fn keys(&self, query: &Query) -> Result<Vec<ObjectKey>, ApiError> {
        self.position.reached(self.engine.acknowledged()).await?;
        Ok(self.cache.keys(query))
    }

    /// Reads the object, decides, and commits the decision; repeats this if another write comes
    /// between.
    async fn change(
        &self,
        key: &ObjectKey,
        operation: Operation,
        terms: ChangeTerms<'_>,
        decide: impl Fn(K) -> Result<ChangeDecision<K>, ApiError> + Send + Sync,
    ) -> Result<K, ApiError> {
        self.change_guarded(key, Vec::new(), operation, terms, &decide)
            .await
    }

    /// The same under further guards; a failure of one of them is a conflict. Compiled once for
    /// each kind, not for each decision.
    ///
    /// Each attempt reads the object, decides, and commits under guards in this order: the leader
    /// and the object's revision, `guards`, those of the admission. It ends in one of these states:
    ///
    /// - kept, unchanged, or a dry run: answered without a commit;
    /// - committed: answered with the revision of the commit;
    /// - a guard of the first group failed: the next attempt begins;
    /// - a guard of `guards` failed, or another error: returned;
    /// - a guard of the admission failed: refused if the admission still finds the reason,
    ///   otherwise the next attempt begins.
    async fn change_guarded(
        &self,
        key: &ObjectKey,
        guards: Vec<Guard>,
        operation: Operation,
        terms: ChangeTerms<'_>,
        decide: &(dyn Fn(K) -> Result<ChangeDecision<K>, ApiError> + Send + Sync),
    ) -> Result<K, ApiError> {
        let begun = Instant::now();
        scoped::<K>(key)?;
        let store_key = storage::key::<K>(key)?;
        let ChangeTerms { by, effect, fence } = terms;
        loop {
            let leads = fences::guard(&self.engine, fence).await?;
            let found = self.engine.get(&store_key).await.map_err(error::store)?;
            let item = found.ok_or_else(|| error::not_found::<K>(&key.name))?;
            let old: K = storage::decode(&item).map_err(|error| error::internal(&error))?;
            let revision = item.modified;
            let is_judged = self.admission.is_some() || !self.checks.is_empty();
            let before = is_judged.then(|| old.clone());
            let from = journey::state(&old);
            let decided = decide(old)?;
            let change = ProposedChange {
                old: before.as_ref(),
                new: match &decided {
                    ChangeDecision::Keep(object) | ChangeDecision::Put(object) => Some(object),
                    ChangeDecision::Remove(_) => None,
                },
                operation,
                by,
                fence,
            };
            let additions = self.additions(change, effect).await?;
            let mut txn = Txn {
                guards: leads.into_iter().collect(),
                writes: additions.writes,
                // So that objects which fill a disk can be removed, by every writer with a part in
                // their removal.
                reclaims: match &decided {
                    ChangeDecision::Keep(object) | ChangeDecision::Put(object) => {
                        object.is_deleting()
                    }
                    ChangeDecision::Remove(_) => true,
                },
            };
            txn.guards.push(unchanged(&store_key, revision));
            let of_what_was_read = txn.guards.len();
            txn.guards.extend(guards.iter().cloned());
            let of_admission = txn.guards.len();
            txn.guards.extend(additions.guards);
            let is_removed = matches!(decided, ChangeDecision::Remove(_));
            let (txn, mut object) = match decided {
                ChangeDecision::Keep(object) => return Ok(object),
                ChangeDecision::Put(mut object) => {
                    let value = storage::encode(&mut object)?;
                    if value == item.value {
                        // No change, so no event for watches.
                        storage::set_revision(&mut object, revision);
                        return Ok(object);
                    }
                    (txn.put(store_key.clone(), value), object)
                }
                ChangeDecision::Remove(object) => (txn.delete(store_key.clone()), object),
            };
            if effect == WriteEffect::Dry {
                storage::set_revision(&mut object, revision);
                return Ok(object);
            }
            match self.engine.commit(txn).await {
                Ok(committed) => {
                    storage::set_revision(&mut object, committed.revision);
                    let to = journey::state(&object).filter(|_| !is_removed);
                    journey::record(begun, from.as_ref(), to.as_ref());
                    return Ok(object);
                }
                // Only the object itself or the leader changed: decide again.
                Err(StoreError::Conflict { guard, .. }) if guard < of_what_was_read => {}
                Err(StoreError::Conflict { guard, .. }) if guard >= of_admission => {
                    let (old, new) = (before.as_ref(), Some(&object));
                    let change = ProposedChange {
                        old,
                        new,
                        operation,
                        by,
                        fence,
                    };
                    self.check_guards(change).await?;
                }
                Err(error) => return Err(error::store(error)),
            }
        }
    }
}

fn unchanged(key: &Key, revision: Revision) -> Guard {
    Guard::At {
        key: key.clone(),
        revision,
    }
}

/// Checks that the key names one object of the kind.
fn scoped<K: Object>(key: &ObjectKey) -> Result<(), ApiError> {
    match (K::SCOPE, key.namespace.as_str()) {
        _ if key.name.is_empty() => Err(error::bad_request("name is required")),
        (Scope::Namespaced, "") => Err(error::bad_request("namespace is required")),
        (Scope::Cluster, namespace) if !namespace.is_empty() => Err(error::bad_request(format!(
            "namespace may not be set: {} are not in one",
            K::PLURAL
        ))),
        // A slash would make a key that belongs to another object.
        _ if key.name.contains('/') || key.namespace.contains('/') => {
            Err(error::not_found::<K>(&key.name))
        }
        _ => Ok(()),
    }
}

/// The current time in whole seconds, as in Kubernetes.
fn now() -> Time {
    Time(truncated(clock::timestamp()))
}

fn truncated(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}
