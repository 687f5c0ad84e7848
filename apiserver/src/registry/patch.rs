use std::sync::{Mutex, PoisonError};

use podplane_api::{
    ObjectKey,
    any::{AnyKind, DynObject},
    patch::{
        self, PatchError,
        apply::{self, ApplyError, Conflicts},
    },
    schema::TypeRef,
};
use podplane_proto::error::{ApiError, FieldViolation, Reason};
use serde_json::Value;

use super::{KindRegistry, ObjectPart, Operation, WriteParams, managed};
use crate::error;

/// A patch of a document.
#[derive(Clone, Debug)]
pub(crate) enum Patch {
    /// RFC 6902.
    Json(Value),
    /// RFC 7386.
    Merge(Value),
    /// Kubernetes' strategic merge.
    Strategic(Value),
    /// A manager's configuration (server-side apply).
    Apply {
        config: Value,
        /// True to take fields over from other managers.
        force: bool,
    },
}

impl Patch {
    /// The document of the patch; `None` for an apply, whose document is a partial object.
    pub(crate) fn document(&self) -> Option<&Value> {
        match self {
            Self::Json(patch) | Self::Merge(patch) | Self::Strategic(patch) => Some(patch),
            Self::Apply { .. } => None,
        }
    }

    /// Applies the patch to a document of the type, if the type is known. An apply is refused: it
    /// needs a manager.
    pub(crate) fn of(
        &self,
        ty: Option<TypeRef<'_>>,
        resource: &str,
        document: Value,
    ) -> Result<Value, ApiError> {
        let changed = match (self, ty) {
            (Self::Json(patch), _) => patch::json(document, patch.clone()),
            (Self::Merge(patch), _) => patch::merge(document, patch.clone()),
            (Self::Strategic(patch), Some(ty)) => patch::strategic(ty, document, patch.clone()),
            (Self::Strategic(_), None) | (Self::Apply { .. }, _) => {
                return Err(error::unpatchable(resource));
            }
        };
        changed.map_err(|error| match error {
            PatchError::Malformed(why) => error::bad_request(why),
            PatchError::Unprocessable(why) => error::unprocessable(&why),
            PatchError::TooLarge(why) => ApiError::new(Reason::RequestEntityTooLarge, why),
        })
    }
}

/// Turns a changed document into an object and warnings.
type Decode<'a> =
    &'a (dyn Fn(Value) -> Result<(Box<DynObject>, Vec<String>), ApiError> + Send + Sync);

impl KindRegistry {
    /// Patches a part of an object through its document.
    ///
    /// `decode` turns the changed document into an object and warnings; it may be called again when
    /// another write comes between. An apply creates an object that does not exist. Returns the
    /// object, the warnings, and true if it was created.
    pub(crate) async fn patch(
        &self,
        key: &ObjectKey,
        part: ObjectPart,
        patch: &Patch,
        write: &WriteParams,
        decode: Decode<'_>,
    ) -> Result<(Box<DynObject>, Vec<String>, bool), ApiError> {
        let kind = &*self.kind;
        let manager = write.manager.as_deref().unwrap_or_default();
        let warnings = Mutex::new(Vec::new());
        let decode = |document| {
            let (object, warned) = decode(document)?;
            *warnings.lock().unwrap_or_else(PoisonError::into_inner) = warned;
            Ok::<_, ApiError>(object)
        };
        let change = |old: &DynObject| {
            let document = old.to_json().map_err(|error| error::internal(&error))?;
            let new = decode(patched(kind, Some(document), part, patch, manager)?)?;
            if new.name() != old.name() || new.namespace() != old.namespace() {
                return Err(error::bad_request(format!(
                    "the name and namespace of an object cannot change: {} is patched to {}",
                    old.key(),
                    new.key()
                )));
            }
            // An apply has its own record.
            let applied = matches!(patch, Patch::Apply { .. });
            self.replaced(
                old,
                new,
                part,
                write.manager.as_deref().filter(|_| !applied),
            )
        };
        let (object, created) = loop {
            match self
                .change(key, Operation::Update(part), write.terms(), &change)
                .await
            {
                Err(error)
                    if error.reason == Reason::NotFound
                        && part == ObjectPart::Main
                        && matches!(patch, Patch::Apply { .. }) => {}
                done => break (done?, false),
            }
            write.may_create()?;
            let object = decode(patched(kind, None, part, patch, manager)?)?;
            // The document already records the manager.
            let write = WriteParams {
                manager: None,
                ..write.clone()
            };
            match self.create(object, &write).await {
                Err(error) if error.reason == Reason::AlreadyExists => {}
                done => break (done?, true),
            }
        };
        let warnings = warnings
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        Ok((object, warnings, created))
    }
}

/// Applies a patch to a document; only an apply accepts a missing one.
fn patched(
    kind: &dyn AnyKind,
    live: Option<Value>,
    part: ObjectPart,
    patch: &Patch,
    manager: &str,
) -> Result<Value, ApiError> {
    let names = kind.names();
    let document = live.clone().unwrap_or_default();
    let Patch::Apply { config, force } = patch else {
        let changed = patch.of(kind.patch_type(), &error::resource_in(names), document);
        return changed.map_err(|refused| match patch {
            // It names the operation alone.
            Patch::Json(_) if refused.reason == Reason::Invalid => refused,
            _ => error::without_content(names, refused),
        });
    };
    let conflicts = if *force {
        Conflicts::Take
    } else {
        Conflicts::Refuse
    };
    let ty = kind.patch_type();
    let ty = ty.ok_or_else(|| error::unpatchable(&error::resource_in(names)))?;
    let applied = managed::with_writer(kind, manager, part, |writer| {
        apply::apply(ty, live.as_ref(), config, writer, conflicts)
    });
    applied
        .map(|applied| applied.object)
        .map_err(|error| error::without_content(names, inapplicable(&error)))
}

fn inapplicable(error: &ApplyError) -> ApiError {
    match error {
        ApplyError::ManagedFields | ApplyError::Untypable(_) => {
            error::bad_request(error.to_string())
        }
        ApplyError::Conflicts(conflicts) => {
            let violations = conflicts.iter().map(|conflict| FieldViolation {
                field: conflict.field.clone(),
                description: conflict.message(),
            });
            ApiError::new(Reason::Conflict, error.to_string()).with_fields(violations.collect())
        }
    }
}
