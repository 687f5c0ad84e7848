use podplane_api::{
    any::{DynObject, WriteRules},
    validation::{ErrorList, FieldPath},
};
use podplane_proto::error::ApiError;

use super::{ChangeDecision, KindRegistry, Operation, WriteParams, managed, now};
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
    pub(crate) fn subresource(self) -> &'static str {
        match self {
            Self::Main => "",
            Self::Status => "status",
            Self::Scale => "scale",
            Self::Approval => "approval",
        }
    }

    /// The fields that a write of the part leaves unchanged.
    pub(super) fn untouched(self, rules: WriteRules) -> &'static [&'static [&'static str]] {
        match self {
            Self::Main | Self::Scale => &[&["status"]],
            Self::Status if rules.status_has_metadata => &[&["spec"]],
            Self::Status => &[&["spec"], &["metadata"]],
            Self::Approval => &[&["spec"], &["metadata"], &["status", "certificate"]],
        }
    }
}

impl KindRegistry {
    /// Replaces a part of an object.
    pub(crate) async fn update(
        &self,
        object: Box<DynObject>,
        part: ObjectPart,
        write: &WriteParams,
    ) -> Result<Box<DynObject>, ApiError> {
        let unconditional = object.resource_version().is_empty();
        let manager = write.manager.as_deref();
        let refuses_unconditional = !self.kind.rules().unconditional_update;
        let change = |old: &DynObject| {
            if unconditional && part == ObjectPart::Main && refuses_unconditional {
                let mut errors = ErrorList::new();
                errors.invalid(
                    &FieldPath::new("metadata").child("resourceVersion"),
                    0,
                    "must be specified for an update",
                );
                return Err(error::invalid_in(self.names(), object.name(), &errors));
            }
            self.replaced(old, object.clone(), part, manager)
        };
        self.change(
            &object.key(),
            Operation::Update(part),
            write.terms(),
            &change,
        )
        .await
    }

    /// Replaces a part of an object, or creates the object if updates of its kind may create.
    /// Returns true if it was created.
    pub(crate) async fn put(
        &self,
        object: Box<DynObject>,
        part: ObjectPart,
        write: &WriteParams,
    ) -> Result<(Box<DynObject>, bool), ApiError> {
        let may_create = part == ObjectPart::Main && self.kind.rules().create_on_update;
        loop {
            match self.update(object.clone(), part, write).await {
                Err(error) if error.is_not_found() && may_create => {}
                done => return Ok((done?, false)),
            }
            let (uid, resource) = (object.uid(), error::resource_in(self.names()));
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

    /// Replaces a part of `old` by that of `new`, and records the manager if it is known. Other
    /// rules may change the object before it is [completed](Self::completed).
    pub(super) fn replaced(
        &self,
        old: &DynObject,
        mut new: Box<DynObject>,
        part: ObjectPart,
        manager: Option<&str>,
    ) -> Result<ChangeDecision, ApiError> {
        self.expect(old, &*new)?;
        match part {
            ObjectPart::Main | ObjectPart::Scale => {
                keep_system_fields(&mut *new, old);
                new.set_defaults();
            }
            ObjectPart::Status => {
                let mut whole = old.boxed();
                whole.set_status(&*new);
                new = whole;
            }
            ObjectPart::Approval => {
                let mut whole = old.boxed();
                whole.set_approval(&*new, now().0);
                new = whole;
            }
        }
        if let Some(manager) = manager {
            managed::record(&*self.kind, Some(old), &mut *new, part, manager)?;
        }
        Ok(ChangeDecision::Replace(new, Some(part)))
    }

    /// Completes and validates an object of which a client, or the server itself (`None`), replaced
    /// a part. If only finalizers kept it, it is removed with the last of them.
    pub(super) fn completed(
        &self,
        mut new: Box<DynObject>,
        old: &DynObject,
        part: Option<ObjectPart>,
    ) -> Result<ChangeDecision, ApiError> {
        if let Some(ObjectPart::Main | ObjectPart::Scale) = part {
            new.prepare_for_update(old);
        }
        let errors = match part {
            None | Some(ObjectPart::Main | ObjectPart::Scale) => {
                count_generation(&mut *new, old);
                new.validate_update(old)
            }
            Some(ObjectPart::Status) => new.validate_status(old),
            Some(ObjectPart::Approval) => new.validate_approval(old),
        };
        if !errors.is_empty() {
            return Err(error::invalid_in(self.names(), new.name(), &errors));
        }
        let only_finalizers =
            old.is_deleting() && old.metadata().deletion_grace_period_seconds == Some(0);
        let ends = only_finalizers && part != Some(ObjectPart::Approval) && !new.has_finalizers();
        Ok(match ends {
            true => ChangeDecision::Remove(new),
            false => ChangeDecision::Put(new),
        })
    }

    /// Checks the UID and revision of the update against the stored object.
    fn expect(&self, stored: &DynObject, update: &DynObject) -> Result<(), ApiError> {
        match update.uid() {
            uid if uid.is_empty() || uid == stored.uid() => {}
            uid => {
                return Err(error::other_uid(
                    &error::resource_in(self.names()),
                    stored.name(),
                    uid,
                    stored.uid(),
                ));
            }
        }
        match update.resource_version() {
            revision if revision.is_empty() || revision == stored.resource_version() => Ok(()),
            _ => Err(error::modified_in(self.names(), stored.name())),
        }
    }
}

/// The object that rules changed, without their changes outside of the part that is written.
/// `proposed` is the object before them.
pub(super) fn kept_to_part(
    mut changed: Box<DynObject>,
    proposed: &DynObject,
    old: &DynObject,
    part: Option<ObjectPart>,
) -> Box<DynObject> {
    match part {
        None | Some(ObjectPart::Main | ObjectPart::Scale) => {
            keep_system_fields(&mut *changed, old);
            changed
        }
        Some(part) => {
            let mut whole = old.boxed();
            match part {
                ObjectPart::Approval => whole.set_approval(&*changed, now().0),
                ObjectPart::Main | ObjectPart::Scale | ObjectPart::Status => {
                    whole.set_status(&*changed);
                }
            }
            let managed = &proposed.metadata().managed_fields;
            whole.metadata_mut().managed_fields.clone_from(managed);
            whole
        }
    }
}

/// Increments the generation if the spec differs. A write of the status does not change it.
fn count_generation(new: &mut DynObject, old: &DynObject) {
    if new.spec_differs(old) {
        new.metadata_mut().generation = old
            .metadata()
            .generation
            .map(|generation| generation.saturating_add(1));
    }
}

/// Copies the fields that only the server sets: an update may leave them out, and one that changes
/// them is refused later.
fn keep_system_fields(new: &mut DynObject, old: &DynObject) {
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
