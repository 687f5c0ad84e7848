//! The OpenAPI documents: kubectl reads them before it applies, and `kubectl explain` prints them.
//!
//! Version 3 has a document for each version of a group ([`v3`]). Version 2 has one document of all
//! kinds ([`v2`]), converted from the same [`definitions`] and [`paths`]. Documents are made at the
//! first request: a server that only controllers use keeps none of this in memory.

mod definitions;
mod paths;
mod v2;
mod v3;

use bytes::Bytes;
use serde_json::{Value, json};

use self::{v2::OpenApiV2, v3::OpenApiV3};
use super::{MINOR, answer};

const JSON: &str = "application/json";

/// The documents of both versions.
#[derive(Debug, Default)]
pub(super) struct OpenApi {
    pub(super) v2: OpenApiV2,
    pub(super) v3: OpenApiV3,
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
