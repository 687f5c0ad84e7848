//! Bodies of requests.

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use podplane_proto::kubernetes;
use serde_json::Value;

use super::{
    answer::{self, Answer},
    call::Refused,
};
use crate::error;

/// As the reference's limit.
const MAX_BYTES: usize = 3 << 20;

/// The media type, without parameters.
pub(super) fn media_type(headers: &HeaderMap) -> String {
    let value = headers.get(header::CONTENT_TYPE);
    let text = value
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    text.split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase()
}

/// All of a body.
pub(super) async fn read(body: Body) -> Result<Bytes, Answer> {
    match Limited::new(body, MAX_BYTES).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(answer::refuse(
            StatusCode::PAYLOAD_TOO_LARGE,
            "RequestEntityTooLarge",
            &format!("Request entity too large: limit is {MAX_BYTES}"),
        )),
        Err(error) => Err(answer::refuse(
            StatusCode::BAD_REQUEST,
            "BadRequest",
            &format!("the body of the request ended early: {error}"),
        )),
    }
}

/// The document of a body; null if there is none.
pub(super) fn document(headers: &HeaderMap, body: &Bytes) -> Result<Value, Refused> {
    if body.is_empty() {
        return Ok(Value::Null);
    }
    match media_type(headers).as_str() {
        "" | "application/json" => serde_json::from_slice(body).map_err(|error| unreadable(&error)),
        "application/yaml" => yaml(body),
        kubernetes::MEDIA_TYPE => kubernetes::decode(body).map_err(|error| unreadable(&error)),
        _ => {
            let supported = [
                "application/json",
                "application/yaml",
                kubernetes::MEDIA_TYPE,
            ];
            Err(unsupported(&supported.join(", ")).into())
        }
    }
}

/// A document in YAML, of which JSON is a part.
pub(super) fn yaml(body: &Bytes) -> Result<Value, Refused> {
    let text = std::str::from_utf8(body).map_err(|error| unreadable(&error))?;
    serde_saphyr::from_str(text).map_err(|error| unreadable(&error))
}

pub(super) fn unsupported(supported: &str) -> Answer {
    answer::refuse(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "UnsupportedMediaType",
        &format!(
            "the body of the request was in an unknown format - accepted media types include: {supported}"
        ),
    )
}

fn unreadable(error: &dyn std::fmt::Display) -> Refused {
    error::bad_request(format!("the body of the request cannot be read: {error}")).into()
}
