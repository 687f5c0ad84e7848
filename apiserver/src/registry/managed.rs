//! The record of field owners: `metadata.managedFields`.

use podplane_api::{
    any::{AnyKind, DynObject},
    patch::{
        FieldSet,
        apply::{self, Writer},
    },
};
use podplane_proto::error::ApiError;
use serde::Deserialize as _;
use serde_json::Value;

use super::ObjectPart;
use crate::error;

/// Calls `with` with the writer of a part of the objects of a kind.
pub(super) fn with_writer<T>(
    kind: &dyn AnyKind,
    manager: &str,
    part: ObjectPart,
    with: impl FnOnce(&Writer<'_>) -> T,
) -> T {
    let ignored = FieldSet::of_fields(part.untouched(kind.rules()));
    with(&Writer {
        manager,
        api_version: &kind.names().api_version(),
        subresource: part.subresource(),
        now: super::now().0,
        ignored: &ignored,
    })
}

/// Records in `new` that the manager wrote the fields that differ from `live`. Kinds without a
/// published schema have no such record.
pub(super) fn record(
    kind: &dyn AnyKind,
    live: Option<&DynObject>,
    new: &mut DynObject,
    part: ObjectPart,
    manager: &str,
) -> Result<(), ApiError> {
    let Some(ty) = kind.patch_type() else {
        return Ok(());
    };
    let json = |object: &DynObject| object.to_json().map_err(|error| error::internal(&error));
    let live = live.map(json).transpose()?;
    let document = json(new)?;
    let tracked = with_writer(kind, manager, part, |writer| {
        apply::track(ty, live.as_ref(), &document, writer)
    });
    let entries = tracked.pointer("/metadata/managedFields");
    let entries = Option::deserialize(entries.unwrap_or(&Value::Null));
    new.metadata_mut().managed_fields = entries.map_err(|error| error::internal(&error))?;
    Ok(())
}
