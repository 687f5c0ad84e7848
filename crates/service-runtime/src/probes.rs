//! The HTTP endpoints for monitoring: `/metrics`, `/livez`, `/readyz` and the older `/healthz`,
//! each as a whole or by check, and `/debug/log-level`.

use std::sync::Arc;

use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, Path, RawQuery},
    http::{HeaderMap, HeaderValue, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get},
};
use prometheus_client::{encoding::text, registry::Registry};

use crate::logging;

/// The media type that the encoder writes, and that Prometheus prefers.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The most bytes of a log filter.
const MAX_FILTER: usize = 4096;

/// The checks by name; true for a passing one.
pub(crate) type Checks = Vec<(&'static str, bool)>;

/// The routes. A process that answers is live; it is ready while all checks of `ready` pass.
pub(crate) fn routes(
    registry: Registry,
    ready: impl Fn() -> Checks + Clone + Send + Sync + 'static,
) -> Router {
    let registry = Arc::new(registry);
    let alive = || vec![("ping", true)];
    let router = Router::new()
        .route("/metrics", get(async move || metrics(&registry)))
        .route("/debug/log-level", log_level());
    let router = probe(router, "livez", alive);
    let router = probe(router, "healthz", alive);
    probe(router, "readyz", ready)
}

fn probe(
    router: Router,
    name: &'static str,
    checks: impl Fn() -> Checks + Clone + Send + Sync + 'static,
) -> Router {
    let all = checks.clone();
    let whole = get(async move |query| answer(name, &all(), query));
    let one = get(async move |Path(check): Path<String>, query| {
        let mut checks = checks();
        checks.retain(|(name, _)| *name == check);
        match checks.is_empty() {
            true => (StatusCode::NOT_FOUND, "404 page not found\n").into_response(),
            false => answer(name, &checks, query),
        }
    });
    let router = router.route(&format!("/{name}"), whole);
    router.route(&format!("/{name}/{{check}}"), one)
}

/// Shows the log filter, and changes it.
fn log_level() -> MethodRouter {
    let shown = || format!("{}\n", logging::filter().unwrap_or_default());
    let change = async move |headers: HeaderMap, body: Bytes| {
        // A browser can send a request from any web page only with other media types.
        let media_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        let media_type = media_type.and_then(|text| text.split(|byte| *byte == b';').next());
        if !media_type
            .is_some_and(|text| text.trim_ascii().eq_ignore_ascii_case(b"application/json"))
        {
            let want = "want Content-Type: application/json, and the filter as a JSON string such as \"info\"\n";
            return (StatusCode::UNSUPPORTED_MEDIA_TYPE, want).into_response();
        }
        let text = match serde_json::from_slice::<String>(&body) {
            Ok(text) => text,
            Err(error) => {
                let why = format!("want the filter as a JSON string such as \"info\": {error}\n");
                return (StatusCode::BAD_REQUEST, why).into_response();
            }
        };
        let text = text.trim();
        if text.is_empty() {
            // An empty filter would silence all logs, for which there is `off`.
            let want = "want a filter such as info, off or podplane_scheduler=debug\n";
            return (StatusCode::BAD_REQUEST, want).into_response();
        }
        match logging::set_filter(text) {
            Ok(()) => {
                tracing::info!(filter = text, "changed log filter");
                shown().into_response()
            }
            Err(error) => {
                let text = format!("{}\n", podplane_error_chain::one_line(&error));
                (StatusCode::BAD_REQUEST, text).into_response()
            }
        }
    };
    get(async move || shown())
        .put(change)
        .post(change)
        .layer(DefaultBodyLimit::max(MAX_FILTER))
}

fn metrics(registry: &Registry) -> Response {
    let mut shown = String::new();
    match text::encode(&mut shown, registry) {
        Ok(()) => ([(CONTENT_TYPE, OPEN_METRICS)], shown).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// `ok`, or the result of each check, in the format of Kubernetes' components.
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

#[cfg(test)]
mod tests {
    use axum::{body::Body, http::Request};
    use http_body_util::BodyExt as _;
    use tower::ServiceExt as _;

    use super::*;

    async fn ask(method: &str, path: &str, body: &str) -> (u16, String) {
        ask_as(method, path, "application/json", body).await
    }

    async fn ask_as(method: &str, path: &str, media: &str, body: &str) -> (u16, String) {
        let ready = || vec![("ping", true), ("nodes", false)];
        let mut request = Request::builder().method(method).uri(path);
        if !media.is_empty() {
            request = request.header(CONTENT_TYPE, media);
        }
        let request = request.body(Body::from(body.to_owned())).unwrap();
        let answer = routes(Registry::default(), ready).oneshot(request).await;
        let answer = answer.unwrap();
        let code = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (code, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn answers_each_check_by_name() {
        let failed = "[+]ping ok\n[-]nodes failed: reason withheld\nreadyz check failed\n";
        for (path, want) in [
            ("/livez", (200, "ok")),
            ("/livez/ping", (200, "ok")),
            ("/readyz", (500, failed)),
            ("/readyz/ping", (200, "ok")),
            ("/readyz/moon", (404, "404 page not found\n")),
        ] {
            let (code, text) = ask("GET", path, "").await;
            assert_eq!((code, text.as_str()), want, "{path}");
        }
    }

    #[tokio::test]
    async fn rejects_invalid_filters_with_the_reason() {
        let (code, text) = ask("PUT", "/debug/log-level", r#""podplane=loud""#).await;
        assert_eq!(code, 400);
        assert!(
            text.contains("invalid log filter \"podplane=loud\""),
            "{text}"
        );
        let (code, text) = ask("PUT", "/debug/log-level", r#"" ""#).await;
        assert_eq!((code, text.starts_with("want a filter")), (400, true));
        let (code, _) = ask("POST", "/debug/log-level", r#""podplane=debug""#).await;
        assert_eq!(code, 200);
        let (code, _) = ask("PUT", "/debug/log-level", &"x".repeat(5000)).await;
        assert_eq!(code, 413);
    }
    #[tokio::test]
    async fn refuses_filters_without_the_media_type_of_json() {
        for media in [
            "",
            "text/plain",
            "application/x-www-form-urlencoded",
            "application/jsonx",
        ] {
            for method in ["PUT", "POST"] {
                let (code, text) = ask_as(method, "/debug/log-level", media, r#""debug""#).await;
                assert_eq!(code, 415, "{media}");
                assert!(text.contains("Content-Type: application/json"), "{text}");
            }
        }
        let json = "Application/JSON; charset=utf-8";
        let (code, _) = ask_as("PUT", "/debug/log-level", json, r#""info""#).await;
        assert_eq!(code, 200);
        let (code, text) = ask("PUT", "/debug/log-level", "info").await;
        assert_eq!((code, text.contains("JSON string")), (400, true), "{text}");
    }
}
