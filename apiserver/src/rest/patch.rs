//! Patches, by their media type.

use bytes::Bytes;
use http::HeaderMap;
use serde_json::Value;

use super::{
    Refused, body,
    resource::{Names, Patch},
};
use crate::error;

const SUPPORTED: &str = "application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json";

/// What a patch does to a document.
pub(super) fn parse(_names: &Names, headers: &HeaderMap, body: &Bytes) -> Result<Patch, Refused> {
    let undecodable =
        |error: serde_json::Error| error::bad_request(format!("the patch cannot be read: {error}"));
    match body::media_type(headers).as_str() {
        "application/json-patch+json" => {
            let patch: json_patch::Patch = serde_json::from_slice(body).map_err(undecodable)?;
            Ok(Box::new(move |mut document| {
                json_patch::patch(&mut document, &patch)
                    .map_err(|error| error::unprocessable(&error.to_string()))?;
                Ok(document)
            }))
        }
        "application/merge-patch+json" => {
            let patch: Value = serde_json::from_slice(body).map_err(undecodable)?;
            Ok(Box::new(move |mut document| {
                json_patch::merge(&mut document, &patch);
                Ok(document)
            }))
        }
        other => Err(body::unsupported(other, SUPPORTED).into()),
    }
}
