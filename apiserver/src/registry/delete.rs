use std::sync::Arc;

use podplane_api::{
    Object as _, ObjectKey,
    any::{DynObject, KindNames},
    apiextensions::CustomResourceDefinition,
    core::Namespace,
    jiff::{SignedDuration, Timestamp},
    meta::Time,
    strategy::Strategy as _,
};
use podplane_host::clock;
use podplane_proto::{
    error::ApiError,
    fence::Fence,
    wire::{Preconditions, Propagation},
};
use podplane_service_runtime::identity::Identity;
use podplane_store::{Guard, Revision};

use super::{
    ChangeDecision, ChangeTerms, KindRegistry, ObjectPart, Operation, Registry, WriteEffect, now,
    truncated,
};
use crate::{authentication::server_identity, error};

/// The options of a deletion.
#[derive(Clone, Debug)]
pub(crate) struct DeleteOptions {
    /// The user who deletes.
    pub(crate) by: Arc<Identity>,
    pub(crate) grace_period_seconds: Option<i64>,
    pub(crate) preconditions: Preconditions,
    /// The fate of the objects that it owns; `None`: as its finalizers say, else
    /// [`Propagation::Background`].
    pub(crate) propagation: Option<Propagation>,
    pub(crate) effect: WriteEffect,
    /// The fence of the writer, if it sent one.
    pub(crate) fence: Option<Fence>,
}

impl DeleteOptions {
    /// A deletion by the server itself, without a request.
    pub(crate) fn by_server() -> Self {
        Self {
            by: Arc::clone(server_identity()),
            grace_period_seconds: None,
            preconditions: Preconditions::default(),
            propagation: None,
            effect: WriteEffect::Durable,
            fence: None,
        }
    }

    pub(super) fn terms(&self) -> ChangeTerms<'_> {
        ChangeTerms {
            by: &self.by,
            effect: self.effect,
            fence: self.fence.as_ref(),
        }
    }
}

impl KindRegistry {
    /// Removes an object, or begins to, and returns its last or its new state.
    pub(crate) async fn delete(
        &self,
        key: &ObjectKey,
        options: &DeleteOptions,
    ) -> Result<Box<DynObject>, ApiError> {
        let plan = |object: &DynObject| plan(self.names(), object.boxed(), options);
        self.change(key, Operation::Delete, options.terms(), &plan)
            .await
    }

    /// The objects that last occurred at `since` or before, with the time of the last occurrence.
    pub(crate) fn not_since(&self, since: Timestamp) -> Vec<(Timestamp, ObjectKey)> {
        self.cache.not_since(since)
    }

    /// The oldest of the objects in excess of `most`.
    pub(crate) fn oldest_beyond(&self, most: usize) -> Vec<(Timestamp, ObjectKey)> {
        self.cache.oldest_beyond(most)
    }

    /// Removes an object, unless it occurred again after `since`.
    pub(crate) async fn remove_unless_since(
        &self,
        key: &ObjectKey,
        since: Timestamp,
    ) -> Result<Box<DynObject>, ApiError> {
        let remove = |object: &DynObject| {
            let is_old = object.last_happened().is_some_and(|last| last <= since);
            Ok(if is_old {
                ChangeDecision::Remove(object.boxed())
            } else {
                ChangeDecision::Keep(object.boxed())
            })
        };
        self.change(key, Operation::Delete, ChangeTerms::by_server(), &remove)
            .await
    }

    /// Drops cached changes up to a revision.
    pub(crate) fn forget(&self, oldest: Revision) {
        self.cache.trim(oldest);
    }
}

impl Registry<CustomResourceDefinition> {
    /// Changes a definition that is being deleted, under guards that nothing is left of its
    /// objects. It is removed unless it has finalizers.
    pub(crate) async fn release_definition(
        &self,
        key: &ObjectKey,
        nothing_left: Vec<Guard>,
        release: impl Fn(&mut CustomResourceDefinition) + Send + Sync,
    ) -> Result<CustomResourceDefinition, ApiError> {
        let release = |definition: &CustomResourceDefinition| {
            let mut definition = definition.clone();
            if !definition.is_deleting() {
                return Ok(ChangeDecision::Keep(definition));
            }
            release(&mut definition);
            Ok(match definition.has_finalizers() {
                true => ChangeDecision::Put(definition),
                false => ChangeDecision::Remove(definition),
            })
        };
        let terms = ChangeTerms::by_server();
        let operation = Operation::Update(ObjectPart::Status);
        self.change_typed(key, nothing_left, operation, terms, release)
            .await
    }
}

impl Registry<Namespace> {
    /// Removes the content finalizer of an ending namespace, under guards that nothing is left in
    /// it. The namespace is removed unless it has other finalizers.
    pub(crate) async fn release(
        &self,
        key: &ObjectKey,
        nothing_left: Vec<Guard>,
    ) -> Result<Namespace, ApiError> {
        let release = |namespace: &Namespace| {
            let mut namespace = namespace.clone();
            if !namespace.is_deleting() {
                return Ok(ChangeDecision::Keep(namespace));
            }
            namespace.spec.get_or_insert_default().finalizers = None;
            Ok(if namespace.has_finalizers() {
                ChangeDecision::Put(namespace)
            } else {
                ChangeDecision::Remove(namespace)
            })
        };
        let terms = ChangeTerms::by_server();
        self.change_typed(key, nothing_left, Operation::Delete, terms, release)
            .await
    }
}

/// Decides a deletion, as Kubernetes' `rest.BeforeDelete` and the generic registry's `Delete`.
pub(super) fn plan(
    names: &KindNames,
    mut object: Box<DynObject>,
    options: &DeleteOptions,
) -> Result<ChangeDecision, ApiError> {
    expect(names, &*object, &options.preconditions)?;
    if let Some(why) = object.delete_refusal() {
        return Err(error::forbidden_in(names, object.name(), why));
    }
    if object.is_deleting() {
        return Ok(shorten(object, options));
    }
    propagate(&mut *object, options.propagation);
    match object.grace_period(options.grace_period_seconds) {
        Some(seconds) if seconds > 0 => {
            mark(&mut *object, seconds);
            Ok(ChangeDecision::Put(object))
        }
        _ if object.has_finalizers() => {
            mark(&mut *object, 0);
            Ok(ChangeDecision::Put(object))
        }
        _ => Ok(ChangeDecision::Remove(object)),
    }
}

/// Sets the finalizers that make the garbage collector handle the dependents before the object is
/// removed.
fn propagate(object: &mut DynObject, propagation: Option<Propagation>) {
    const FOREGROUND: &str = "foregroundDeletion";
    const ORPHAN: &str = "orphan";
    let wanted = match propagation {
        None => return,
        Some(Propagation::Background) => None,
        Some(Propagation::Foreground) => Some(FOREGROUND),
        Some(Propagation::Orphan) => Some(ORPHAN),
    };
    let meta = object.metadata_mut();
    let kept = meta.finalizers.take().unwrap_or_default().into_iter();
    let others = kept.filter(|finalizer| finalizer != FOREGROUND && finalizer != ORPHAN);
    let finalizers: Vec<_> = others.chain(wanted.map(Into::into)).collect();
    meta.finalizers = Some(finalizers).filter(|finalizers| !finalizers.is_empty());
}

/// Decides a second deletion: a pending grace period can only become shorter; an object that only
/// its finalizers keep can change its propagation.
fn shorten(mut object: Box<DynObject>, options: &DeleteOptions) -> ChangeDecision {
    if object.metadata().deletion_grace_period_seconds == Some(0) {
        propagate(&mut *object, options.propagation);
        return if object.has_finalizers() {
            ChangeDecision::Put(object)
        } else {
            ChangeDecision::Remove(object)
        };
    }
    let asked = options.grace_period_seconds;
    let asked = asked.and_then(|asked| object.grace_period(Some(asked)));
    let meta = object.metadata();
    let (Some(given), Some(seconds)) = (meta.deletion_grace_period_seconds, asked) else {
        return ChangeDecision::Keep(object);
    };
    if seconds >= given {
        return ChangeDecision::Keep(object);
    }
    let begun = meta
        .deletion_timestamp
        .as_ref()
        .and_then(|end| end.0.checked_sub(SignedDuration::from_secs(given)).ok())
        // An end after the latest representable time was cut off.
        .map_or_else(clock::timestamp, |begun| begun.min(clock::timestamp()));
    let meta = object.metadata_mut();
    meta.deletion_timestamp = Some(Time(after(begun, seconds)));
    meta.deletion_grace_period_seconds = Some(seconds);
    if seconds == 0 && !object.has_finalizers() {
        ChangeDecision::Remove(object)
    } else {
        ChangeDecision::Put(object)
    }
}

fn mark(object: &mut DynObject, grace_seconds: i64) {
    let meta = object.metadata_mut();
    meta.deletion_timestamp = Some(Time(after(now().0, grace_seconds)));
    meta.deletion_grace_period_seconds = Some(grace_seconds);
    meta.generation = meta
        .generation
        .map(|generation| generation.saturating_add(1));
    object.begin_deletion();
}

fn after(time: Timestamp, seconds: i64) -> Timestamp {
    truncated(
        time.saturating_add(SignedDuration::from_secs(seconds))
            .unwrap_or(time),
    )
}

pub(super) fn expect(
    names: &KindNames,
    stored: &DynObject,
    preconditions: &Preconditions,
) -> Result<(), ApiError> {
    let Preconditions {
        uid,
        resource_version,
    } = preconditions;
    let refuse = |why: &str| error::conflict(&error::resource_in(names), stored.name(), why);
    if let Some(uid) = uid.as_deref().filter(|uid| *uid != stored.uid()) {
        let why = format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been deleted and then recreated",
            stored.uid()
        );
        return Err(refuse(&why));
    }
    if let Some(revision) = resource_version
        .as_deref()
        .filter(|revision| *revision != stored.resource_version())
    {
        let why = format!(
            "the ResourceVersion in the precondition ({revision}) does not match the ResourceVersion in record ({}). The object might have been modified",
            stored.resource_version()
        );
        return Err(refuse(&why));
    }
    Ok(())
}
