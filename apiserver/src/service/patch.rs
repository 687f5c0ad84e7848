//! `PatchX` and `PatchXStatus`: the patches of the REST API, with the same rules.

use bytes::Bytes;
use http::HeaderMap;
use podplane_api::{ObjectKey, any::DynObject};
use podplane_proto::{
    error::ApiError,
    wire::{PatchRequest, PatchType},
};

use crate::{
    registry::{KindRegistry, ObjectPart, Patch, WriteParams},
    rest::{body, patch::read, place::place, request::RequestOptions, resource::patch_object},
};

/// Patches a part of the object at `key`, which has the name and namespace of the request.
pub(super) async fn patch(
    registry: &KindRegistry,
    key: &ObjectKey,
    part: ObjectPart,
    write: WriteParams,
    request: PatchRequest,
) -> Result<Box<DynObject>, ApiError> {
    let patch_type = request.r#type();
    let PatchRequest {
        patch,
        field_manager,
        force,
        ..
    } = request;
    let text = Bytes::from(patch);
    let is_recorded = !field_manager.is_empty();
    let options = RequestOptions::of_patch(field_manager, force);
    let mut patch = read(patch_type, &text)?;
    let is_applied = patch_type == PatchType::Apply;
    let is_forced = options.force(is_applied)?;
    if let Patch::Apply { config, force } = &mut patch {
        let names = registry.names();
        *config = place(std::mem::take(config), names, &key.namespace, &key.name)?;
        *force = is_forced;
    }
    let WriteParams {
        by,
        fence,
        refused_creation,
        ..
    } = write;
    let mut options = options.write(&HeaderMap::new(), &by)?;
    options.write.fence = fence;
    options.write.refused_creation = refused_creation;
    if !is_recorded {
        options.write.manager = None;
    }
    options.duplicates = match is_applied {
        true => body::duplicates_of_yaml(&text),
        false => body::duplicates_of_json(&text),
    };
    let (object, _warnings, _created) = patch_object(registry, key, part, &patch, &options).await?;
    Ok(object)
}
