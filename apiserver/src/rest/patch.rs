//! Patches, by their media type.

use bytes::Bytes;
use http::HeaderMap;
use serde_json::Value;

use super::{body, call::Refused};
use crate::{error, registry::Patch};

const SUPPORTED: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/apply-patch+yaml",
    "application/strategic-merge-patch+json",
];

/// The patch of a request.
pub(super) fn parse(headers: &HeaderMap, body: &Bytes) -> Result<Patch, Refused> {
    let json = || -> Result<Value, Refused> {
        body::check_values(body)?;
        serde_json::from_slice(body).map_err(|error| {
            error::bad_request(format!("the patch cannot be read: {error}")).into()
        })
    };
    Ok(match body::media_type(headers).as_str() {
        "application/json-patch+json" => Patch::Json(json()?),
        "application/merge-patch+json" => Patch::Merge(json()?),
        "application/strategic-merge-patch+json" => Patch::Strategic(json()?),
        "application/apply-patch+yaml" => Patch::Apply {
            config: body::yaml(body)?,
            force: false,
        },
        _ => return Err(body::unsupported(headers, &SUPPORTED).into()),
    })
}
