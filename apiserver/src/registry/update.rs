use podplane_api::{
    ObjectKey,
    strategy::Strategy,
    validation::{ErrorList, FieldPath},
};
use podplane_proto::error::ApiError;

use super::{ChangeDecision, ChangeTerms, Operation, Registry, WriteParams, managed, now};
use crate::error;

/// The part of an object that a write changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectPart {
    /// Everything but the status.
    Main,
    /// The status; for some kinds labels and annotations too.
    Status,
    /// `spec.replicas`, through a scale; the whole object is written.
    Scale,
    /// The decision on a request for a certificate.
    Approval,
}

impl ObjectPart {
    /// The sub-resource of the write, as `metadata.managedFields` names it.
    pub(super) fn subresource(self) -> &'static str {
        match self {
            Self::Main => "",
            Self::Status => "status",
            Self::Scale => "scale",
            Self::Approval => "approval",
        }
    }

    /// The fields that a write of the part leaves unchanged.
    pub(super) fn untouched<K: Strategy>(self) -> &'static [&'static [&'static str]] {
        match self {
            Self::Main | Self::Scale => &[&["status"]],
            Self::Status if K::STATUS_HAS_METADATA => &[&["spec"]],
            Self::Status => &[&["spec"], &["metadata"]],
            Self::Approval => &[&["spec"], &["metadata"], &["status", "certificate"]],
        }
    }
}

impl<K: Strategy> Registry<K> {
    /// Replaces a part of an object.
    pub(crate) async fn update(
        &self,
        object: K,
        part: ObjectPart,
        write: &WriteParams,
    ) -> Result<K, ApiError> {
        let unconditional = object.resource_version().is_empty();
        let manager = write.manager.as_deref();
        let change = |old: K| {
            if unconditional && part == ObjectPart::Main && !K::UNCONDITIONAL_UPDATE {
                let mut errors = ErrorList::new();
                errors.invalid(
                    &FieldPath::new("metadata").child("resourceVersion"),
                    0,
                    "must be specified for an update",
                );
                return Err(error::invalid::<K>(object.name(), &errors));
            }
            replace(&old, object.clone(), part, manager)
        };
        self.change(
            &object.key(),
            Operation::Update(part),
            write.terms(),
            change,
        )
        .await
    }

    /// Replaces a part of an object, or creates the object if updates of its kind may create.
    /// Returns true if it was created.
    pub(crate) async fn put(
        &self,
        object: K,
        part: ObjectPart,
        write: &WriteParams,
    ) -> Result<(K, bool), ApiError> {
        let may_create = part == ObjectPart::Main && K::CREATE_ON_UPDATE;
        loop {
            match self.update(object.clone(), part, write).await {
                Err(error) if error.is_not_found() && may_create => {}
                done => return Ok((done?, false)),
            }
            let (uid, resource) = (object.uid(), error::resource::<K>());
            if !uid.is_empty() {
                return Err(error::other_uid(&resource, object.name(), uid, ""));
            }
            write.may_create()?;
            let mut new = object.clone();
            // The revision belongs to a deleted object.
            new.metadata_mut().resource_version = None;
            match self.create(new, write).await {
                Err(error) if error.is_already_exists() => {}
                done => return Ok((done?, true)),
            }
        }
    }

    /// Changes an object on behalf of the server. Validated like a client's update.
    pub(crate) async fn modify(
        &self,
        key: &ObjectKey,
        operation: Operation,
        terms: ChangeTerms<'_>,
        change: impl Fn(&mut K) -> Result<(), ApiError> + Send + Sync,
    ) -> Result<K, ApiError> {
        let change = |old: K| {
            let mut new = old.clone();
            change(&mut new)?;
            count_generation(&mut new, &old);
            finish(new, &old)
        };
        self.change(key, operation, terms, change).await
    }
}

/// Replaces a part of `old` by that of `new`, and records the manager if it is known.
pub(super) fn replace<K: Strategy>(
    old: &K,
    mut new: K,
    part: ObjectPart,
    manager: Option<&str>,
) -> Result<ChangeDecision<K>, ApiError> {
    expect(old, &new)?;
    match part {
        ObjectPart::Main | ObjectPart::Scale => {
            keep_system_fields(&mut new, old);
            new.set_defaults();
        }
        ObjectPart::Status => {
            let mut whole = old.clone();
            whole.set_status(&new);
            new = whole;
        }
        ObjectPart::Approval => {
            let mut whole = old.clone();
            whole.set_approval(&new, now().0);
            new = whole;
        }
    }
    if let Some(manager) = manager {
        managed::record(Some(old), &mut new, part, manager)?;
    }
    match part {
        ObjectPart::Main | ObjectPart::Scale => {
            new.prepare_for_update(old);
            count_generation(&mut new, old);
            finish(new, old)
        }
        ObjectPart::Status => finish(new, old),
        ObjectPart::Approval => {
            let errors = new.validate_approval(old);
            match errors.is_empty() {
                true => Ok(ChangeDecision::Put(new)),
                false => Err(error::invalid::<K>(new.name(), &errors)),
            }
        }
    }
}

/// Increments the generation if the spec differs. A write of the status does not change it.
fn count_generation<K: Strategy>(new: &mut K, old: &K) {
    if new.spec_differs(old) {
        new.metadata_mut().generation = old
            .metadata()
            .generation
            .map(|generation| generation.saturating_add(1));
    }
}

/// Validates the new object. If only finalizers kept it, it is removed with the last of them.
fn finish<K: Strategy>(new: K, old: &K) -> Result<ChangeDecision<K>, ApiError> {
    let errors = new.validate_update(old);
    if !errors.is_empty() {
        return Err(error::invalid::<K>(new.name(), &errors));
    }
    let only_finalizers =
        old.is_deleting() && old.metadata().deletion_grace_period_seconds == Some(0);
    Ok(if only_finalizers && !new.has_finalizers() {
        ChangeDecision::Remove(new)
    } else {
        ChangeDecision::Put(new)
    })
}

/// Checks the UID and revision of the update against the stored object.
fn expect<K: Strategy>(stored: &K, update: &K) -> Result<(), ApiError> {
    match update.uid() {
        uid if uid.is_empty() || uid == stored.uid() => {}
        uid => {
            return Err(error::other_uid(
                &error::resource::<K>(),
                stored.name(),
                uid,
                stored.uid(),
            ));
        }
    }
    match update.resource_version() {
        revision if revision.is_empty() || revision == stored.resource_version() => Ok(()),
        _ => Err(error::modified::<K>(stored.name())),
    }
}

/// Copies the fields that only the server sets: an update may leave them out, and one that changes
/// them is refused later.
fn keep_system_fields<K: Strategy>(new: &mut K, old: &K) {
    let (new, old) = (new.metadata_mut(), old.metadata());
    if new.uid.as_deref().is_none_or(str::is_empty) {
        new.uid.clone_from(&old.uid);
    }
    new.creation_timestamp = new
        .creation_timestamp
        .take()
        .or_else(|| old.creation_timestamp.clone());
    new.deletion_timestamp = new
        .deletion_timestamp
        .take()
        .or_else(|| old.deletion_timestamp.clone());
    new.deletion_grace_period_seconds = new
        .deletion_grace_period_seconds
        .or(old.deletion_grace_period_seconds);
    new.generation = old.generation;
    if new.managed_fields.is_none() {
        new.managed_fields.clone_from(&old.managed_fields);
    }
    new.self_link = None;
}
