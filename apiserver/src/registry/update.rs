use podplane_api::{
    ObjectKey,
    validation::{ErrorList, Path},
};
use podplane_proto::error::ApiError;

use super::{Registry, Step, Terms, Write, managed};
use crate::{error, strategy::Strategy};

/// Which part of an object a write is of; it leaves the rest as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// All but the status.
    Main,
    /// The status alone.
    Status,
    /// `spec.replicas`, by way of a scale; a whole object is written.
    Scale,
}

impl Part {
    /// The sub-resource that is written, as `metadata.managedFields` names it.
    pub(super) fn subresource(self) -> &'static str {
        match self {
            Self::Main => "",
            Self::Status => "status",
            Self::Scale => "scale",
        }
    }

    /// What a write of the part leaves as it is, whatever it says.
    pub(super) fn untouched(self) -> &'static [&'static [&'static str]] {
        match self {
            Self::Main | Self::Scale => &[&["status"]],
            Self::Status => &[&["spec"], &["metadata"]],
        }
    }
}

impl<K: Strategy> Registry<K> {
    /// Replaces a part of an object.
    pub(crate) async fn update(&self, object: K, part: Part, write: &Write) -> Result<K, ApiError> {
        let unconditional = object.resource_version().is_empty();
        let manager = write.manager.as_deref();
        let change = |old: K| {
            if unconditional && part == Part::Main && !K::UNCONDITIONAL_UPDATE {
                let mut errors = ErrorList::new();
                errors.invalid(
                    &Path::new("metadata").child("resourceVersion"),
                    0,
                    "must be specified for an update",
                );
                return Err(error::invalid::<K>(object.name(), &errors));
            }
            replace(&old, object.clone(), part, manager)
        };
        self.change(&object.key(), write.terms(), change).await
    }

    /// Replaces a part of an object, or creates the object if it is of a kind that updates may
    /// create. Returns whether it was created.
    pub(crate) async fn put(
        &self,
        object: K,
        part: Part,
        write: &Write,
    ) -> Result<(K, bool), ApiError> {
        let may_create = part == Part::Main && K::CREATE_ON_UPDATE;
        loop {
            match self.update(object.clone(), part, write).await {
                Err(error) if error.is_not_found() && may_create => {}
                done => return Ok((done?, false)),
            }
            let (uid, resource) = (object.uid(), error::resource::<K>());
            if !uid.is_empty() {
                return Err(error::other_uid(&resource, object.name(), uid, ""));
            }
            let mut new = object.clone();
            // The revision is of an object that is gone.
            new.metadata_mut().resource_version = None;
            match self.create(new, write).await {
                Err(error) if error.is_already_exists() => {}
                done => return Ok((done?, true)),
            }
        }
    }

    /// What the server itself changes in an object: judged as a client's update is.
    pub(crate) async fn modify(
        &self,
        key: &ObjectKey,
        terms: Terms<'_>,
        change: impl Fn(&mut K) -> Result<(), ApiError> + Send + Sync,
    ) -> Result<K, ApiError> {
        let change = |old: K| {
            let mut new = old.clone();
            change(&mut new)?;
            count_generation(&mut new, &old);
            finish(new, &old)
        };
        self.change(key, terms, change).await
    }
}

/// Puts a part of `new` into the place of that of `old`, and records who did, if that is known.
pub(super) fn replace<K: Strategy>(
    old: &K,
    mut new: K,
    part: Part,
    manager: Option<&str>,
) -> Result<Step<K>, ApiError> {
    expect(old, &new)?;
    match part {
        Part::Main | Part::Scale => {
            keep_system_fields(&mut new, old);
            new.set_defaults();
        }
        Part::Status => {
            let mut whole = old.clone();
            whole.set_status(&new);
            new = whole;
        }
    }
    if let Some(manager) = manager {
        managed::record(Some(old), &mut new, part, manager)?;
    }
    if part != Part::Status {
        new.prepare_for_update(old);
        count_generation(&mut new, old);
    }
    finish(new, old)
}

/// A new generation, if what is wanted differs. A write of the status wants nothing.
fn count_generation<K: Strategy>(new: &mut K, old: &K) {
    if new.spec_differs(old) {
        new.metadata_mut().generation = old
            .metadata()
            .generation
            .map(|generation| generation.saturating_add(1));
    }
}

/// Judges the new object. One that was only kept by its finalizers goes with the last of them.
fn finish<K: Strategy>(new: K, old: &K) -> Result<Step<K>, ApiError> {
    let errors = new.validate_update(old);
    if !errors.is_empty() {
        return Err(error::invalid::<K>(new.name(), &errors));
    }
    let only_finalizers =
        old.is_deleting() && old.metadata().deletion_grace_period_seconds == Some(0);
    Ok(if only_finalizers && !new.has_finalizers() {
        Step::Remove(new)
    } else {
        Step::Put(new)
    })
}

/// That the stored object is the one, at the revision, that the update is of.
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

/// What only the server sets: an update that leaves it out keeps it, and one that differs is then refused.
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
