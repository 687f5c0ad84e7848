use podplane_api::validation::{ErrorList, Path};
use podplane_proto::error::ApiError;

use super::{Registry, Step};
use crate::{error, strategy::Strategy};

impl<K: Strategy> Registry<K> {
    /// Replaces an object but for its status.
    pub(crate) async fn update(&self, object: K) -> Result<K, ApiError> {
        let unconditional = object.resource_version().is_empty();
        if unconditional && !K::UNCONDITIONAL_UPDATE {
            let mut errors = ErrorList::new();
            errors.invalid(
                &Path::new("metadata").child("resourceVersion"),
                0,
                "must be specified for an update",
            );
            return Err(error::invalid::<K>(object.name(), &errors));
        }
        let change = |old: K| {
            expect(&old, &object)?;
            let mut new = object.clone();
            keep_system_fields(&mut new, &old);
            new.set_defaults();
            new.prepare_for_update(&old);
            finish(new, &old)
        };
        self.change(&object.key(), change).await
    }

    /// Replaces the status of an object and nothing else.
    pub(crate) async fn update_status(&self, object: K) -> Result<K, ApiError> {
        let change = |old: K| {
            expect(&old, &object)?;
            let mut new = old.clone();
            new.set_status(&object);
            finish(new, &old)
        };
        self.change(&object.key(), change).await
    }

    /// What the server itself changes in an object: judged as a client's update is.
    pub(crate) async fn modify(
        &self,
        key: &podplane_api::ObjectKey,
        change: impl Fn(&mut K) -> Result<(), ApiError> + Send + Sync,
    ) -> Result<K, ApiError> {
        let change = |old: K| {
            let mut new = old.clone();
            change(&mut new)?;
            finish(new, &old)
        };
        self.change(key, change).await
    }
}

/// Judges the new object. One that was only kept by its finalizers goes with the last of them.
fn finish<K: Strategy>(mut new: K, old: &K) -> Result<Step<K>, ApiError> {
    let errors = new.validate_update(old);
    if !errors.is_empty() {
        return Err(error::invalid::<K>(new.name(), &errors));
    }
    if new.spec_differs(old) {
        new.metadata_mut().generation = old
            .metadata()
            .generation
            .map(|generation| generation.saturating_add(1));
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
    new.self_link = None;
}
