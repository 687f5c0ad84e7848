//! Patches, by their media type.

use bytes::Bytes;
use http::HeaderMap;
use podplane_proto::{error::ApiError, wire::PatchType};
use serde_json::Value;

use super::{body, call::CallRefusal};
use crate::{error, registry::Patch};

const SUPPORTED: [(&str, PatchType); 4] = [
    ("application/json-patch+json", PatchType::Json),
    ("application/merge-patch+json", PatchType::Merge),
    ("application/apply-patch+yaml", PatchType::Apply),
    (
        "application/strategic-merge-patch+json",
        PatchType::Strategic,
    ),
];

/// The media types of patches.
pub(super) const ALL: [&str; 4] = [
    SUPPORTED[0].0,
    SUPPORTED[1].0,
    SUPPORTED[2].0,
    SUPPORTED[3].0,
];

/// The media types of patches of custom kinds, whose fields have no strategies.
pub(super) const OF_CUSTOM_KINDS: [&str; 3] = [SUPPORTED[0].0, SUPPORTED[1].0, SUPPORTED[2].0];

/// Parses the patch of a request.
pub(super) fn parse(headers: &HeaderMap, body: &Bytes) -> Result<Patch, CallRefusal> {
    let media_type = body::media_type(headers);
    let supported = SUPPORTED.iter().find(|(name, _)| *name == media_type);
    let Some((_, patch_type)) = supported else {
        return Err(body::unsupported(headers, &ALL).into());
    };
    Ok(read(*patch_type, body)?)
}

/// Parses a patch of a type. An apply refuses conflicts.
///
/// # Errors
///
/// `BadRequest` for an unreadable text, `RequestEntityTooLarge` for too many values.
pub(crate) fn read(patch_type: PatchType, text: &Bytes) -> Result<Patch, ApiError> {
    let json = || -> Result<Value, ApiError> {
        body::check_values(text)?;
        serde_json::from_slice(text)
            .map_err(|error| error::bad_request(format!("the patch cannot be read: {error}")))
    };
    Ok(match patch_type {
        PatchType::Json => Patch::Json(json()?),
        PatchType::Merge => Patch::Merge(json()?),
        PatchType::Strategic => Patch::Strategic(json()?),
        PatchType::Apply => Patch::Apply {
            config: body::yaml(text)?,
            force: false,
        },
        PatchType::Unspecified => {
            return Err(error::bad_request(
                "type is required: JSON_PATCH, MERGE_PATCH, STRATEGIC_MERGE_PATCH or APPLY",
            ));
        }
    })
}
