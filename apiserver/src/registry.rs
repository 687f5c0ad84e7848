//! The registry: reads of a kind's objects, and their writes on the way to the store.
//!
//! There is one [`KindRegistry`] for each kind. It knows the kind as a value and its objects as
//! [`DynObject`], so that it is compiled once for all of them (ADR 0055); [`Registry`] is a handle
//! of it for code that has objects of one Rust type. Reads and watches come from the cache. Each
//! write reads the store, decides, and commits under a guard of the revision that it read. After a
//! conflict it decides again, unless the request names the revision.

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
mod typed;
mod update;
mod watch;

pub(crate) use delete::DeleteOptions;
pub(crate) use list::{Freshness, ListPage, NOT_OLDER_THAN};
pub(crate) use patch::Patch;
pub(crate) use typed::Registry;
pub(crate) use update::ObjectPart;
use update::kept_to_part;
pub(crate) use watch::{StreamEvent, WatchOptions, WatchStart, revision as watch_revision};

use std::{fmt, sync::Arc};

use bytes::Bytes;
use futures::future::BoxFuture;
use podplane_api::{
    ObjectKey, Scope,
    any::{AnyKind, DynObject, KindNames},
    jiff::Timestamp,
    meta::Time,
    strategy::Subresource,
};
use podplane_host::clock::{self, Instant};
use podplane_proto::{codec, error::ApiError, fence::Fence};
use podplane_service_runtime::identity::Identity;
use podplane_store::{Guard, Item, Key, Revision, StoreError, Txn};
use serde_json::Value;

use crate::{
    admission::{
        Admission, Allocation, CommitAdditions, ConfiguredAdmission, MutatingAdmission,
        ProposedChange, RULES_GROUP, RequestedWrite, Rounds, WriteCheck, fences,
    },
    authentication::server_identity,
    cache::{CachedObject, KindCache, PendingWrite, Position, Query},
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
pub(crate) trait SubresourceActions: fmt::Debug + Send + Sync {
    fn act<'a>(
        &'a self,
        registry: &'a KindRegistry,
        key: &'a ObjectKey,
        act: Subresource,
        document: &'a Value,
        terms: ChangeTerms<'a>,
    ) -> BoxFuture<'a, Result<ActAnswer, ApiError>>;
}

/// Reads and writes of the objects of a kind.
#[derive(Clone, Debug)]
pub(crate) struct KindRegistry {
    kind: Arc<dyn AnyKind>,
    engine: Engine,
    cache: Arc<KindCache>,
    position: Position,
    mutations: Vec<Arc<dyn MutatingAdmission<DynObject>>>,
    checks: Vec<Arc<dyn WriteCheck<DynObject>>>,
    allocation: Option<Arc<dyn Allocation<DynObject>>>,
    admission: Option<Arc<dyn Admission<DynObject>>>,
    configured: Option<Arc<dyn ConfiguredAdmission>>,
    actions: Option<Arc<dyn SubresourceActions>>,
    stored_form: Option<Arc<dyn StoredForm>>,
}

/// The form of a kind's objects in the store, if it is not their own: that of another version.
pub(crate) trait StoredForm: fmt::Debug + Send + Sync {
    /// Converts a stored value to the kind's own form.
    fn read<'a>(&'a self, stored: &'a [u8]) -> BoxFuture<'a, Result<Bytes, ApiError>>;

    /// Converts a value to the form of the store.
    fn write(&self, value: Bytes) -> BoxFuture<'_, Result<Bytes, ApiError>>;
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
enum ChangeDecision<O = Box<DynObject>> {
    /// Keep the object as it is, and answer with this.
    Keep(O),
    /// Replace the object.
    Put(O),
    /// Replace the part of the object that a client wrote, or the object by one of the server
    /// (`None`); it is yet to be completed and validated.
    Replace(O, Option<ObjectPart>),
    /// Remove the object, and answer with this.
    Remove(O),
}

impl ChangeDecision {
    /// The object after the change.
    fn outcome(&self) -> Option<&DynObject> {
        match self {
            Self::Keep(object) | Self::Put(object) | Self::Replace(object, _) => Some(&**object),
            Self::Remove(_) => None,
        }
    }
}

/// Decides about an object, as it was read.
type Decide<'a> = &'a (dyn Fn(&DynObject) -> Result<ChangeDecision, ApiError> + Send + Sync);

impl KindRegistry {
    pub(crate) fn new(engine: Engine, cache: Arc<KindCache>, position: Position) -> Self {
        Self::of_version(Arc::clone(cache.kind()), engine, cache, position)
    }

    /// The registry of a version, which shares its cache with other versions of the kind.
    pub(crate) fn of_version(
        kind: Arc<dyn AnyKind>,
        engine: Engine,
        cache: Arc<KindCache>,
        position: Position,
    ) -> Self {
        Self {
            kind,
            engine,
            cache,
            position,
            mutations: Vec::new(),
            checks: Vec::new(),
            allocation: None,
            admission: None,
            configured: None,
            actions: None,
            stored_form: None,
        }
    }

    /// The same with rules that are objects.
    pub(crate) fn configured_by(self, configured: Option<Arc<dyn ConfiguredAdmission>>) -> Self {
        Self { configured, ..self }
    }

    /// The same for objects that are stored in another form.
    pub(crate) fn converting(self, stored_form: Option<Arc<dyn StoredForm>>) -> Self {
        Self {
            stored_form,
            ..self
        }
    }

    /// Decodes the object of an item.
    async fn decode(&self, item: &Item) -> Result<Box<DynObject>, ApiError> {
        let stored = item.value();
        let decoded = match &self.stored_form {
            None => storage::decode_any(&*self.kind, &stored, item.modified),
            Some(form) => {
                storage::decode_any(&*self.kind, &form.read(&stored).await?, item.modified)
            }
        };
        decoded.map_err(|error| error::internal(&error))
    }

    /// Encodes an object as a value of the store.
    async fn encode(&self, object: &mut DynObject) -> Result<Bytes, ApiError> {
        let value = storage::encode_any(&*self.kind, object)?;
        match &self.stored_form {
            None => Ok(value),
            Some(form) => form.write(value).await,
        }
    }

    /// Announces to the cache that an object is about to be committed. Not for one that is stored
    /// in another form than the cache's.
    fn announce(&self, key: &Key, object: &DynObject, value: &Bytes) -> Option<PendingWrite<'_>> {
        let is_own = Arc::ptr_eq(&self.kind, self.cache.kind()) && self.stored_form.is_none();
        is_own.then(|| self.cache.announce(key, object, value))?
    }

    /// The message of an object that was written.
    pub(crate) fn message(&self, object: &DynObject) -> Result<Bytes, ApiError> {
        let key = storage::key_of(&*self.kind, &object.key())?;
        match self.cache.message(&key, object.resource_version()) {
            Some(message) => Ok(message),
            None => {
                codec::encode_any(&*self.kind, object).map_err(|error| error::unencodable(&error))
            }
        }
    }

    /// The subresources that act, if the kind has such.
    pub(crate) fn actions(&self) -> Option<&dyn SubresourceActions> {
        self.actions.as_deref()
    }

    /// The kind of the objects.
    pub(crate) fn kind(&self) -> &dyn AnyKind {
        &*self.kind
    }

    /// The same, to keep.
    pub(crate) fn shared_kind(&self) -> &Arc<dyn AnyKind> {
        &self.kind
    }

    /// The names of the kind.
    pub(crate) fn names(&self) -> &KindNames {
        self.kind.names()
    }

    /// A query for objects of the kind.
    pub(crate) fn query(
        &self,
        namespace: String,
        labels: &str,
        fields: &str,
    ) -> Result<Query, ApiError> {
        Query::parse(&*self.kind, namespace, labels, fields)
    }

    /// Gives the object what it lacks.
    ///
    /// # Errors
    ///
    /// The reason why it cannot have that.
    async fn allocate(&self, old: Option<&DynObject>, new: &mut DynObject) -> Result<(), ApiError> {
        match &self.allocation {
            Some(allocation) => allocation.allocate(old, new).await,
            None => Ok(()),
        }
    }

    /// The guards and writes that the admission commits together with a valid change.
    ///
    /// # Errors
    ///
    /// The reason why the change is refused.
    async fn additions(
        &self,
        change: ProposedChange<'_, DynObject>,
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
    async fn check_guards(&self, change: ProposedChange<'_, DynObject>) -> Result<(), ApiError> {
        match &self.admission {
            Some(admission) => admission.check_guards(change).await,
            None => Ok(()),
        }
    }

    /// The rules in objects that concern an operation on the kind. Writes of the server itself are
    /// not subject to them: it must not need a webhook to start, or to clean up after one.
    fn configured(
        &self,
        operation: Operation,
        by: &Arc<Identity>,
    ) -> Option<&dyn ConfiguredAdmission> {
        // An eviction has been asked about before it took a disruption.
        self.concerned(operation, by)
            .filter(|_| operation != Operation::Evict)
    }

    fn concerned(
        &self,
        operation: Operation,
        by: &Arc<Identity>,
    ) -> Option<&dyn ConfiguredAdmission> {
        let configured = self.configured.as_deref()?;
        if Arc::ptr_eq(by, server_identity()) {
            return None;
        }
        let concerns = configured.concerns(self.names(), operation);
        concerns.then_some(configured)
    }

    /// Completes an object by `mutations`, and lets the rules that are objects change it. If these
    /// do, both are asked once more, as in Kubernetes.
    async fn mutated(
        &self,
        mut object: Box<DynObject>,
        write: RequestedWrite<'_>,
        mutations: &[Arc<dyn MutatingAdmission<DynObject>>],
    ) -> Result<Box<DynObject>, ApiError> {
        for mutation in mutations {
            mutation.complete(&mut *object).await?;
        }
        let Some(rules) = self.configured(write.operation, write.by) else {
            return Ok(object);
        };
        let mut rounds = Rounds::default();
        object = self.changed_by(rules, object, write, &mut rounds).await?;
        if rounds.begin_second() {
            for mutation in mutations {
                mutation.complete(&mut *object).await?;
            }
            object = self.changed_by(rules, object, write, &mut rounds).await?;
        }
        Ok(object)
    }

    /// Lets the rules that are objects change an object.
    async fn changed_by(
        &self,
        rules: &dyn ConfiguredAdmission,
        object: Box<DynObject>,
        write: RequestedWrite<'_>,
        rounds: &mut Rounds,
    ) -> Result<Box<DynObject>, ApiError> {
        let new = Some(&*object);
        let changed = rules
            .mutate(RequestedWrite { new, ..write }, rounds)
            .await?;
        Ok(changed.unwrap_or(object))
    }

    /// Asks the rules that are objects whether a pod may be evicted. They see the eviction alone.
    async fn asked_to_evict(
        &self,
        key: &ObjectKey,
        pod: &DynObject,
        terms: ChangeTerms<'_>,
    ) -> Result<(), ApiError> {
        let ChangeTerms { by, effect, .. } = terms;
        let Some(rules) = self.concerned(Operation::Evict, by) else {
            return Ok(());
        };
        let write = RequestedWrite {
            kind: &*self.kind,
            key,
            operation: Operation::Evict,
            by,
            effect,
            old: Some(pod),
            new: None,
        };
        rules.mutate(write, &mut Rounds::default()).await?;
        rules.validate(write).await
    }

    /// Asks the rules that may change objects about a decision that changes none of them: they may
    /// still refuse it.
    async fn asked(
        &self,
        decided: &ChangeDecision,
        write: RequestedWrite<'_>,
    ) -> Result<(), ApiError> {
        let Some(rules) = self.configured(write.operation, write.by) else {
            return Ok(());
        };
        let new = decided.outcome();
        let write = RequestedWrite { new, ..write };
        rules.mutate(write, &mut Rounds::default()).await.map(drop)
    }

    /// Waits until the server acts by a committed object, if it is a rule for the writes of others:
    /// whoever made it may rely on it once it has the answer.
    async fn settled(&self, revision: Revision) {
        if self.names().group == RULES_GROUP {
            // If the server stops, nobody relies on anything.
            _ = self.position.reached(revision.number()).await;
        }
    }

    /// Waits until the cache is as new as every acknowledged write, by whatever server.
    async fn fresh(&self) -> Result<(), ApiError> {
        let acknowledged = self.engine.acknowledged().await.map_err(error::store)?;
        self.position.reached(acknowledged).await
    }

    /// Reads the object, at least as new as every acknowledged write.
    pub(crate) async fn get(&self, key: &ObjectKey) -> Result<Arc<CachedObject>, ApiError> {
        self.scoped(key)?;
        self.fresh().await?;
        self.cache
            .get(&storage::key_of(&*self.kind, key)?)
            .ok_or_else(|| error::not_found_in(self.names(), &key.name))
    }

    /// The object in the cache, which may be older than writes that clients know of.
    fn cached_object(&self, key: &ObjectKey) -> Option<Arc<CachedObject>> {
        self.scoped(key).ok()?;
        self.cache.get(&storage::key_of(&*self.kind, key).ok()?)
    }

    /// Waits until the caches have every write that any client may know of; `None` if they do.
    pub(crate) fn lag(&self) -> Option<BoxFuture<'static, ()>> {
        let acknowledged = self.engine.known();
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
        self.fresh().await?;
        Ok(self.cache.keys(query))
    }

    /// Reads the object, decides, and commits the decision; repeats this if another write comes
    /// between.
    async fn change(
        &self,
        key: &ObjectKey,
        operation: Operation,
        terms: ChangeTerms<'_>,
        decide: Decide<'_>,
    ) -> Result<Box<DynObject>, ApiError> {
        self.change_guarded(key, Vec::new(), operation, terms, decide)
            .await
    }

    /// The same under further guards; a failure of one of them is a conflict.
    ///
    /// Each attempt reads the object, decides, allocates, and commits under guards in this order:
    /// the leader and the object's revision, `guards`, those of the admission. It ends in one of
    /// these states:
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
        decide: Decide<'_>,
    ) -> Result<Box<DynObject>, ApiError> {
        let begun = Instant::now();
        self.scoped(key)?;
        let kind = &*self.kind;
        let store_key = storage::key_of(kind, key)?;
        let ChangeTerms { by, effect, fence } = terms;
        self.engine.catch_up().await.map_err(error::store)?;
        loop {
            let leads = fences::guard(&self.engine, fence).await?;
            let found = self.engine.get(&store_key).await.map_err(error::store)?;
            let item = found.ok_or_else(|| error::not_found_in(kind.names(), &key.name))?;
            let old = self.decode(&item).await?;
            let revision = item.modified;
            let mut write = RequestedWrite {
                kind,
                key,
                operation,
                by,
                effect,
                old: Some(&*old),
                new: None,
            };
            let mut decided = match decide(&*old)? {
                ChangeDecision::Replace(new, part) => {
                    let new = match self.configured(operation, by) {
                        None => new,
                        Some(_) => {
                            let proposed = new.clone();
                            let changed = self.mutated(new, write, &[]).await?;
                            kept_to_part(changed, &*proposed, &*old, part)
                        }
                    };
                    self.completed(new, &*old, part)?
                }
                decided => {
                    self.asked(&decided, write).await?;
                    decided
                }
            };
            if let ChangeDecision::Put(new) | ChangeDecision::Replace(new, _) = &mut decided {
                self.allocate(Some(&*old), &mut **new).await?;
            }
            let new = decided.outcome();
            let is_removed = new.is_none();
            write.new = new;
            if let Some(rules) = self.configured(operation, by) {
                rules.validate(write).await?;
            }
            let change = ProposedChange {
                old: Some(&*old),
                new,
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
                lifetime: new
                    .and_then(|object| object.last_happened())
                    .and(self.engine.expiry()),
                reclaims: new.is_none_or(|object| object.is_deleting()),
            };
            txn.guards.push(unchanged(&store_key, revision));
            let of_what_was_read = txn.guards.len();
            txn.guards.extend(guards.iter().cloned());
            let of_admission = txn.guards.len();
            txn.guards.extend(additions.guards);
            let mut pending = None;
            let (txn, mut object) = match decided {
                ChangeDecision::Keep(object) => return Ok(object),
                ChangeDecision::Put(mut object) | ChangeDecision::Replace(mut object, _) => {
                    let value = self.encode(&mut *object).await?;
                    if *value == *item.value() {
                        // No change, so no event for watches.
                        storage::set_revision(object.metadata_mut(), revision);
                        return Ok(object);
                    }
                    pending = self.announce(&store_key, &*object, &value);
                    (txn.put(store_key.clone(), value), object)
                }
                ChangeDecision::Remove(object) => (txn.delete(store_key.clone()), object),
            };
            if effect == WriteEffect::Dry {
                storage::set_revision(object.metadata_mut(), revision);
                return Ok(object);
            }
            match self.engine.commit(txn).await {
                Ok(committed) => {
                    if let Some(pending) = pending {
                        pending.committed(committed.revision);
                    }
                    storage::set_revision(object.metadata_mut(), committed.revision);
                    self.settled(committed.revision).await;
                    let from = journey::state(&*old);
                    let to = journey::state(&*object).filter(|_| !is_removed);
                    journey::record(begun, from.as_ref(), to.as_ref());
                    return Ok(object);
                }
                // Only the object itself or the leader changed: decide again.
                Err(StoreError::Conflict { guard, .. }) if guard < of_what_was_read => {}
                Err(StoreError::Conflict { guard, .. }) if guard >= of_admission => {
                    let change = ProposedChange {
                        old: Some(&*old),
                        new: Some(&*object),
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

    /// Checks that the key names one object of the kind.
    fn scoped(&self, key: &ObjectKey) -> Result<(), ApiError> {
        let names = self.names();
        match (names.scope, key.namespace.as_str()) {
            _ if key.name.is_empty() => Err(error::bad_request("name is required")),
            (Scope::Namespaced, "") => Err(error::bad_request("namespace is required")),
            (Scope::Cluster, namespace) if !namespace.is_empty() => Err(error::bad_request(
                format!("namespace may not be set: {} are not in one", names.plural),
            )),
            // A slash would make a key that belongs to another object.
            _ if key.name.contains('/') || key.namespace.contains('/') => {
                Err(error::not_found_in(names, &key.name))
            }
            _ => Ok(()),
        }
    }
}

fn unchanged(key: &Key, revision: Revision) -> Guard {
    Guard::At {
        key: key.clone(),
        revision,
    }
}

/// The current time in whole seconds, as in Kubernetes.
fn now() -> Time {
    Time(truncated(clock::timestamp()))
}

fn truncated(time: Timestamp) -> Timestamp {
    storage::whole_seconds(time)
}
