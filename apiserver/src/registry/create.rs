use podplane_api::{
    Object as _, ObjectKey, Scope, any::DynObject, core::Namespace, names, strategy::Requester,
};
use podplane_host::{clock::Instant, random};
use podplane_proto::error::ApiError;
use podplane_service_runtime::identity::Identity;
use podplane_store::{Guard, StoreError, Txn};

use super::{
    KindRegistry, ObjectPart, Operation, WriteEffect, WriteParams, journey, managed, now, unchanged,
};
use crate::{
    admission::{CommitAdditions, ProposedChange, RequestedWrite, fences},
    error, storage,
};

/// The number of names tried for `generateName`, as in Kubernetes.
const GENERATED_NAMES: usize = 8;

/// The index, among the guards of a creation, of the one that the key is free. A failure of this
/// guard means that the name is taken; any other is worth another attempt.
const KEY_IS_FREE: usize = 0;

impl KindRegistry {
    /// Stores a new object and returns it as stored.
    pub(crate) async fn create(
        &self,
        object: Box<DynObject>,
        write: &WriteParams,
    ) -> Result<Box<DynObject>, ApiError> {
        let meta = object.metadata();
        if meta
            .resource_version
            .as_deref()
            .is_some_and(|revision| !revision.is_empty())
        {
            return Err(error::bad_request(
                "resourceVersion should not be set on objects to be created",
            ));
        }
        let prefix = meta.generate_name.clone().unwrap_or_default();
        if !object.name().is_empty() || prefix.is_empty() {
            return self.create_named(object, write).await;
        }
        for _ in 1..GENERATED_NAMES {
            let mut named = object.clone();
            named.metadata_mut().name = Some(names::generated(&prefix, random::value()));
            match self.create_named(named, write).await {
                Err(error) if error.reason == podplane_proto::error::Reason::AlreadyExists => {}
                done => return done,
            }
        }
        let mut named = object;
        named.metadata_mut().name = Some(names::generated(&prefix, random::value()));
        self.create_named(named, write).await
    }

    /// Stores a new object that has its name. Where other processes write to the store, what this
    /// server knows decides first: a commit is guarded by all that it follows from, and saves the
    /// wait for the newest state. A refusal is not guarded, and is decided again by that.
    async fn create_named(
        &self,
        object: Box<DynObject>,
        write: &WriteParams,
    ) -> Result<Box<DynObject>, ApiError> {
        if self.engine.is_shared() {
            match self.create_as_known(object.clone(), write).await {
                Err(refusal) if is_decision(&refusal) => {}
                done => return done,
            }
            self.engine.catch_up().await.map_err(error::store)?;
        }
        self.create_as_known(object, write).await
    }

    /// Stores a new object by the state that this server knows.
    ///
    /// The object is completed and validated once. What its commit depends on, besides a free key,
    /// is read before each attempt: the fence of the writer, the namespace, what it is allocated,
    /// and the additions of the admission. An attempt ends in one of these states:
    ///
    /// - committed: the object is returned with the revision of the commit;
    /// - the key is taken ([`KEY_IS_FREE`]): refused with `AlreadyExists`;
    /// - another guard failed: the leader, the namespace or the blocks changed in between. All
    ///   three are read anew; the first that now refuses the object ends the loop, otherwise the
    ///   next attempt begins;
    /// - another error of the store: returned.
    ///
    /// A dry run ends before the first attempt.
    async fn create_as_known(
        &self,
        mut object: Box<DynObject>,
        write: &WriteParams,
    ) -> Result<Box<DynObject>, ApiError> {
        let begun = Instant::now();
        // Checked before defaults are set, since a missing namespace is the more common mistake and
        // the clearer answer.
        let mut namespace = self.namespace_guard(&*object).await?;
        let meta = object.metadata_mut();
        meta.uid = None;
        meta.creation_timestamp = None;
        meta.deletion_timestamp = None;
        meta.deletion_grace_period_seconds = None;
        meta.generation = self.kind.rules().first_generation;
        meta.self_link = None;
        object.set_defaults();
        // Defaults belong to the writer; fields that the server adds from here on belong to no
        // manager.
        if let Some(manager) = &write.manager {
            managed::record(&*self.kind, None, &mut *object, ObjectPart::Main, manager)?;
        }
        let name = object.key();
        let requested = RequestedWrite {
            kind: &*self.kind,
            key: &name,
            operation: Operation::Create,
            by: &write.by,
            effect: write.effect,
            old: None,
            new: None,
        };
        object = self.mutated(object, requested, &self.mutations).await?;
        // A webhook may choose another name, and nothing else of these.
        if object.namespace() != name.namespace {
            return Err(error::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        let name = object.key();
        let meta = object.metadata_mut();
        meta.uid = Some(random::uuid().to_string());
        meta.creation_timestamp = Some(now());
        meta.deletion_timestamp = None;
        meta.deletion_grace_period_seconds = None;
        meta.generation = self.kind.rules().first_generation;
        meta.resource_version = None;
        let Identity {
            user,
            uid,
            groups,
            extra,
        } = &*write.by;
        object.prepare_for_create(Requester {
            user,
            uid,
            groups,
            extra,
        });
        let errors = object.validate();
        if !errors.is_empty() {
            return Err(error::invalid_in(self.names(), object.name(), &errors));
        }
        let unallocated = self.allocation.is_some().then(|| object.clone());
        let requested = RequestedWrite {
            key: &name,
            ..requested
        };
        self.allocated(&mut *object, requested).await?;
        let key = storage::key_of(&*self.kind, &object.key())?;
        let mut value = self.encode(&mut *object).await?;
        let fence = write.fence.as_ref();
        let mut leads = fences::guard(&self.engine, fence).await?;
        let mut additions = self
            .additions(creation(&*object, write), write.effect)
            .await?;
        if write.effect == WriteEffect::Dry {
            return match self.engine.get(&key).await.map_err(error::store)? {
                Some(_) => Err(error::already_exists_in(self.names(), object.name())),
                None => Ok(object),
            };
        }
        loop {
            let CommitAdditions { guards, writes } = additions;
            // `KEY_IS_FREE` comes first.
            let guards = std::iter::once(Guard::Absent(key.clone()))
                .chain(leads)
                .chain(namespace)
                .chain(guards)
                .collect();
            let txn = Txn {
                guards,
                writes,
                lifetime: object.last_happened().and(self.engine.expiry()),
                reclaims: false,
            };
            let txn = txn.put(key.clone(), value.clone());
            let pending = self.announce(&key, &*object, &value);
            match self.engine.commit(txn).await {
                Ok(committed) => {
                    if let Some(pending) = pending {
                        pending.committed(committed.revision);
                    }
                    storage::set_revision(object.metadata_mut(), committed.revision);
                    self.settled(committed.revision).await;
                    journey::record(begun, None, journey::state(&*object).as_ref());
                    return Ok(object);
                }
                Err(StoreError::Conflict {
                    guard: KEY_IS_FREE, ..
                }) => {
                    return Err(error::already_exists_in(self.names(), object.name()));
                }
                // Another process leads; the namespace changed and may be deleted or ending; or the
                // admission may now refuse the object.
                Err(StoreError::Conflict { .. }) => {
                    leads = fences::guard(&self.engine, fence).await?;
                    namespace = self.namespace_guard(&*object).await?;
                    self.check_guards(creation(&*object, write)).await?;
                    if let Some(unallocated) = &unallocated {
                        object.clone_from(unallocated);
                        self.allocated(&mut *object, requested).await?;
                        value = self.encode(&mut *object).await?;
                    }
                    additions = self
                        .additions(creation(&*object, write), write.effect)
                        .await?;
                }
                Err(error) => return Err(error::store(error)),
            }
        }
    }

    /// Allocates what a new object lacks, and asks the rules that are objects about it as it will be
    /// stored.
    async fn allocated(
        &self,
        object: &mut DynObject,
        write: RequestedWrite<'_>,
    ) -> Result<(), ApiError> {
        self.allocate(None, object).await?;
        match self.configured(write.operation, write.by) {
            Some(rules) => {
                let new = Some(&*object);
                rules.validate(RequestedWrite { new, ..write }).await
            }
            None => Ok(()),
        }
    }

    /// Checks that the object's namespace exists; the guard ensures it until the commit.
    async fn namespace_guard(&self, object: &DynObject) -> Result<Option<Guard>, ApiError> {
        let name = match (self.names().scope, object.namespace()) {
            (Scope::Cluster, _) => return Ok(None),
            (Scope::Namespaced, "") => {
                return Err(error::bad_request(
                    "an empty namespace may not be set during creation",
                ));
            }
            (Scope::Namespaced, name) => name,
        };
        let key = storage::key::<Namespace>(&ObjectKey::new("", name))?;
        let found = storage::get::<Namespace>(&self.engine, &key).await?;
        let (namespace, revision) = found.ok_or_else(|| error::not_found::<Namespace>(name))?;
        if namespace.is_deleting() {
            let why = format!(
                "unable to create new content in namespace {name} because it is being terminated"
            );
            return Err(error::forbidden_in(self.names(), object.name(), &why));
        }
        Ok(Some(unchanged(&key, revision)))
    }
}

/// The creation of an object, as its admission sees it.
fn creation<'a>(new: &'a DynObject, write: &'a WriteParams) -> ProposedChange<'a, DynObject> {
    ProposedChange {
        old: None,
        new: Some(new),
        operation: Operation::Create,
        by: &write.by,
        fence: write.fence.as_ref(),
    }
}

/// Returns true if a newer state might decide otherwise. Not if the object may have been stored, or
/// somebody else failed.
fn is_decision(error: &ApiError) -> bool {
    use podplane_proto::error::Reason::{InternalError, ServiceUnavailable, Timeout};
    !matches!(error.reason, InternalError | ServiceUnavailable | Timeout)
}
