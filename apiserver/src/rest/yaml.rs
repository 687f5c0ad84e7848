//! YAML answers, for clients that ask for them. They are converted from the JSON answer.

use axum::{
    body::Body,
    extract::{Request, State},
    middleware::Next,
};
use bytes::Bytes;
use http::{HeaderValue, header};
use http_body_util::BodyExt as _;
use serde_json::Value;

use super::answer::{self, RestAnswer};
use crate::renderers::Renderers;

/// The most bytes of an answer that is converted at once.
const SHORT: usize = 128 << 10;

/// Converts the answer if the request asks for YAML.
pub(super) async fn answer(
    State(renderers): State<Renderers>,
    request: Request,
    next: Next,
) -> RestAnswer {
    let is_wanted = answer::wants_yaml(request.headers());
    let answer = next.run(request).await;
    let media = answer.headers().get(header::CONTENT_TYPE);
    if !is_wanted || media.is_none_or(|media| media != "application/json") {
        return answer;
    }
    let (mut parts, body) = answer.into_parts();
    // Watches, which have no end, are refused in YAML.
    let json = match body.collect().await {
        Ok(json) => json.to_bytes(),
        Err(error) => return answer::refusal(&crate::error::internal(&error), Default::default()),
    };
    let yaml = match json.len() {
        ..SHORT => of_json(&json),
        _ => {
            let json = json.clone();
            let converted = renderers.run(move || of_json(&json)).await;
            match converted {
                Ok(yaml) => yaml,
                Err(error) => return answer::refusal(&error, Default::default()),
            }
        }
    };
    let Some(yaml) = yaml else {
        return RestAnswer::from_parts(parts, Body::from(json));
    };
    let yaml_type = HeaderValue::from_static(answer::YAML);
    parts.headers.insert(header::CONTENT_TYPE, yaml_type);
    parts.headers.remove(header::CONTENT_LENGTH);
    RestAnswer::from_parts(parts, Body::from(yaml))
}

/// Converts JSON to YAML; `None` if the bytes are not JSON.
fn of_json(json: &Bytes) -> Option<String> {
    text(&serde_json::from_slice(json).ok()?)
}

/// A YAML text that a YAML 1.1 parser reads back as the same value.
pub(super) fn text(document: &Value) -> Option<String> {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    serde_saphyr::to_string_with_options(document, options).ok()
}
