//! What a process tells those who watch over it: `/metrics`, `/livez`, `/readyz` and the older `/healthz`, for [`Listener::serve_with`](crate::server::Listener::serve_with).

use std::sync::Arc;

use axum::{
    Router,
    extract::RawQuery,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use prometheus_client::{encoding::text, registry::Registry};

/// What the encoder writes, and Prometheus asks for first.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What is checked, and whether it is well.
pub type Checks = Vec<(&'static str, bool)>;

/// The routes. A process that answers lives; it is ready while all that `ready` says is well.
pub fn routes(
    registry: Registry,
    ready: impl Fn() -> Checks + Clone + Send + Sync + 'static,
) -> Router {
    let registry = Arc::new(registry);
    let alive = || vec![("ping", true)];
    Router::new()
        .route("/metrics", get(async move || metrics(&registry)))
        .route(
            "/livez",
            get(async move |query| answer("livez", &alive(), query)),
        )
        .route(
            "/healthz",
            get(async move |query| answer("healthz", &alive(), query)),
        )
        .route(
            "/readyz",
            get(async move |query| answer("readyz", &ready(), query)),
        )
}

fn metrics(registry: &Registry) -> Response {
    let mut shown = String::new();
    match text::encode(&mut shown, registry) {
        Ok(()) => ([(CONTENT_TYPE, OPEN_METRICS)], shown).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// `ok`, or each check with its result, as Kubernetes' components answer.
fn answer(name: &str, checks: &Checks, RawQuery(query): RawQuery) -> Response {
    let healthy = checks.iter().all(|(_, well)| *well);
    let query = query.unwrap_or_default();
    let verbose = query
        .split('&')
        .any(|option| option.split('=').next() == Some("verbose"));
    if healthy && !verbose {
        return "ok".into_response();
    }
    let line = |(check, well): &(&str, bool)| match well {
        true => format!("[+]{check} ok\n"),
        false => format!("[-]{check} failed: reason withheld\n"),
    };
    let lines: String = checks.iter().map(line).collect();
    match healthy {
        true => format!("{lines}{name} check passed\n").into_response(),
        false => {
            let text = format!("{lines}{name} check failed\n");
            (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
        }
    }
}
