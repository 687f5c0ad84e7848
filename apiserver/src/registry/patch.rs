use std::sync::{Mutex, PoisonError};

use podplane_api::{
    ObjectKey,
    patch::{
        self, PatchError,
        apply::{self, ApplyError, Conflicts},
    },
    schema::Type,
};
use podplane_proto::error::{ApiError, FieldViolation, Reason};
use serde_json::Value;

use super::{Part, Registry, Write, managed, update::replace};
use crate::{error, strategy::Strategy};

/// A change to a document.
#[derive(Clone, Debug)]
pub(crate) enum Patch {
    /// RFC 6902.
    Json(Value),
    /// RFC 7386.
    Merge(Value),
    /// Kubernetes' strategic merge.
    Strategic(Value),
    /// What a manager wants (server-side apply).
    Apply {
        config: Value,
        /// Whether fields are taken from other managers.
        force: bool,
    },
}

impl Patch {
    /// The patch itself, unless it is a part of the object.
    pub(crate) fn document(&self) -> Option<&Value> {
        match self {
            Self::Json(patch) | Self::Merge(patch) | Self::Strategic(patch) => Some(patch),
            Self::Apply { .. } => None,
        }
    }

    /// What it makes of a document of the type, where the type is known; what is applied needs a manager too, and is refused.
    pub(crate) fn of(
        &self,
        ty: Option<Type>,
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

impl<K: Strategy> Registry<K> {
    /// Changes a part of an object by way of its document. `decode` makes an object of the changed document and says what is
    /// to be warned of; it may be called again when another write comes between. What is applied and is not there is created, and then `true` is returned.
    pub(crate) async fn patch(
        &self,
        key: &ObjectKey,
        part: Part,
        patch: &Patch,
        write: &Write,
        decode: impl Fn(Value) -> Result<(K, Vec<String>), ApiError> + Send + Sync,
    ) -> Result<(K, Vec<String>, bool), ApiError> {
        let manager = write.manager.as_deref().unwrap_or_default();
        let warnings = Mutex::new(Vec::new());
        let decode = |document| {
            let (object, warned) = decode(document)?;
            *warnings.lock().unwrap_or_else(PoisonError::into_inner) = warned;
            Ok::<K, ApiError>(object)
        };
        let change = |old: K| {
            let document = old.to_json().map_err(|error| error::internal(&error))?;
            let new = decode(patched::<K>(Some(document), part, patch, manager)?)?;
            if new.name() != old.name() || new.namespace() != old.namespace() {
                return Err(error::bad_request(format!(
                    "the name and namespace of an object cannot change: {} is patched to {}",
                    old.key(),
                    new.key()
                )));
            }
            // What is applied brings its record.
            let applied = matches!(patch, Patch::Apply { .. });
            replace(
                &old,
                new,
                part,
                write.manager.as_deref().filter(|_| !applied),
            )
        };
        let (object, created) = loop {
            match self.change(key, write.terms(), &change).await {
                Err(error)
                    if error.reason == Reason::NotFound
                        && part == Part::Main
                        && matches!(patch, Patch::Apply { .. }) => {}
                done => break (done?, false),
            }
            let object = decode(patched::<K>(None, part, patch, manager)?)?;
            // The record of who applied is in the document.
            let write = Write {
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

/// What a patch makes of a document; only what is applied makes something of nothing.
fn patched<K: Strategy>(
    live: Option<Value>,
    part: Part,
    patch: &Patch,
    manager: &str,
) -> Result<Value, ApiError> {
    let document = live.clone().unwrap_or_default();
    let Patch::Apply { config, force } = patch else {
        return patch.of(Type::of::<K>(), &error::resource::<K>(), document);
    };
    let conflicts = if *force {
        Conflicts::Take
    } else {
        Conflicts::Refuse
    };
    let ty = Type::of::<K>().ok_or_else(|| error::unpatchable(&error::resource::<K>()))?;
    let applied = managed::with_writer::<K, _>(manager, part, |writer| {
        apply::apply(ty, live.as_ref(), config, writer, conflicts)
    });
    applied
        .map(|applied| applied.object)
        .map_err(|error| inapplicable(&error))
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
