//! Bodies of requests.

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use serde_json::Value;

use super::{
    Refused,
    answer::{self, Answer},
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
    axum::body::to_bytes(body, MAX_BYTES)
        .await
        .map_err(|error| {
            answer::refuse(
                StatusCode::PAYLOAD_TOO_LARGE,
                "RequestEntityTooLarge",
                &format!("Request entity too large: limit is {MAX_BYTES}: {error}"),
            )
        })
}

/// The document of a body in JSON or YAML; null if there is none.
pub(super) fn document(headers: &HeaderMap, body: &Bytes) -> Result<Value, Refused> {
    if body.is_empty() {
        return Ok(Value::Null);
    }
    match media_type(headers).as_str() {
        "" | "application/json" => serde_json::from_slice(body).map_err(|error| unreadable(&error)),
        "application/yaml" => yaml(body),
        other => Err(unsupported(other, "application/json, application/yaml").into()),
    }
}

/// A document in YAML, of which JSON is a part.
pub(super) fn yaml(body: &Bytes) -> Result<Value, Refused> {
    let text = std::str::from_utf8(body).map_err(|error| unreadable(&error))?;
    serde_saphyr::from_str(text).map_err(|error| unreadable(&error))
}

pub(super) fn unsupported(media: &str, supported: &str) -> Answer {
    answer::refuse(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "UnsupportedMediaType",
        &format!(
            "the body of the request was in an unknown format ({media}) - accepted media types include: {supported}"
        ),
    )
}

fn unreadable(error: &dyn std::fmt::Display) -> Refused {
    error::bad_request(format!("the body of the request cannot be read: {error}")).into()
}
