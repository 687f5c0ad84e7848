//! The documents by which others find the keys of ServiceAccounts' tokens (OpenID Connect Discovery
//! 1.0): a service that gets a token verifies it without asking this server.

use std::sync::Arc;

use axum::{Router, routing::get};
use http::{HeaderMap, HeaderValue, header};
use serde_json::{Value, json};

use super::answer::{self, RestAnswer};
use crate::authentication::AccountTokens;

const CONFIGURATION: &str = "/.well-known/openid-configuration";
const KEYS: &str = "/openid/v1/jwks";
/// As in Kubernetes: a new key signs at once, so clients look again when they find an unknown one.
const CACHE: HeaderValue = HeaderValue::from_static("public, max-age=3600");

/// The routes; none without an issuer, or if its name is not an address of this server.
pub(super) fn routes(tokens: Option<Arc<AccountTokens>>) -> Router {
    let tokens = tokens.filter(|tokens| tokens.issuer().starts_with("https://"));
    let Some(tokens) = tokens else {
        return Router::new();
    };
    let issuer = tokens.issuer().to_owned();
    Router::new()
        .route(
            CONFIGURATION,
            get(async move |headers: HeaderMap| {
                document(&headers, "application/json", &configuration(&issuer))
            }),
        )
        .route(
            KEYS,
            get(async move |headers: HeaderMap| {
                let keys = json!({"keys": tokens.public_keys()});
                document(&headers, "application/jwk-set+json", &keys)
            }),
        )
}

fn configuration(issuer: &str) -> Value {
    json!({
        "issuer": issuer,
        "jwks_uri": format!("{}{KEYS}", issuer.trim_end_matches('/')),
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
    })
}

fn document(headers: &HeaderMap, content_type: &'static str, document: &Value) -> RestAnswer {
    let content = document.to_string().into();
    let mut answer = answer::unchanged(headers, content_type, content, None);
    answer.headers_mut().insert(header::CACHE_CONTROL, CACHE);
    answer
}
