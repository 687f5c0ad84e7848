//! The OpenAPI documents, which kubectl reads before it applies, and which `kubectl explain` prints.
//!
//! Version 3 has a document for each version of a group ([`v3`]), of [`definitions`] and [`paths`].
//! Documents are made at the first request: a server that only controllers use keeps none of this
//! in memory.

mod definitions;
mod paths;
mod v3;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};

pub(super) use self::v3::OpenApiV3;
use super::{
    MINOR,
    answer::{self, RestAnswer},
};

const JSON: &str = "application/json";
/// The media types of requests and, because `@` is not allowed in a media type, of answers.
const LEGACY: [&str; 2] = [
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
];

/// `/openapi/v2`, only in protobuf: a message without fields, which is a document without
/// definitions. kubectl asks for it when v3 does not know a kind, and then says that there is no
/// such kind.
pub(super) fn legacy(headers: &HeaderMap) -> RestAnswer {
    let mut accepted = answer::accepted(headers).split(',').map(str::trim);
    match accepted.any(|media| LEGACY.contains(&media)) {
        true => answer::body(StatusCode::OK, LEGACY[1], Bytes::new()),
        false => answer::no_such_path(),
    }
}

/// A document as it is sent.
#[derive(Debug)]
struct OpenApiDocument {
    hash: String,
    body: Bytes,
}

impl OpenApiDocument {
    fn new(body: impl Into<Bytes>) -> Self {
        let body = body.into();
        let hash = answer::hash(&body);
        Self { hash, body }
    }
}

/// The `info` of a document.
fn info() -> Value {
    json!({"title": "Kubernetes", "version": format!("v1.{MINOR}.0")})
}
