//! Whether the server lives, and whether it is ready: `/livez`, `/readyz` and the older `/healthz`, each whole or by check.

use axum::{Router, extract::Path, routing::get};
use http::{StatusCode, Uri};
use tokio_util::sync::CancellationToken;

use super::answer::{self, Answer};

/// What is checked, and whether it is well. That the server answers at all means that its store is open and its cache is filled.
type Checks = Vec<(&'static str, bool)>;

pub(super) fn routes<S: Clone + Send + Sync + 'static>(stop: CancellationToken) -> Router<S> {
    let alive: fn(&CancellationToken) -> Checks = |_| vec![("ping", true)];
    let ready: fn(&CancellationToken) -> Checks =
        |stop| vec![("ping", true), ("shutdown", !stop.is_cancelled())];
    let endpoints = [("healthz", alive), ("livez", alive), ("readyz", ready)];
    endpoints
        .into_iter()
        .fold(Router::new(), |router, (name, checks)| {
            let (whole, part) = (stop.clone(), stop.clone());
            router
                .route(
                    &format!("/{name}"),
                    get(async move |uri: Uri| answer(name, &checks(&whole), &uri)),
                )
                .route(
                    &format!("/{name}/{{check}}"),
                    get(async move |Path(check): Path<String>, uri: Uri| {
                        let mut checks = checks(&part);
                        checks.retain(|(name, _)| *name == check);
                        if checks.is_empty() {
                            return answer::no_such_path();
                        }
                        answer(name, &checks, &uri)
                    }),
                )
        })
}

fn answer(name: &str, checks: &Checks, uri: &Uri) -> Answer {
    let healthy = checks.iter().all(|(_, well)| *well);
    let mut query = uri.query().unwrap_or_default().split('&');
    let verbose = query.any(|option| option.split('=').next() == Some("verbose"));
    if healthy && !verbose {
        return answer::text(StatusCode::OK, "ok");
    }
    let line = |(check, well): &(&str, bool)| match well {
        true => format!("[+]{check} ok\n"),
        false => format!("[-]{check} failed: reason withheld\n"),
    };
    let lines: String = checks.iter().map(line).collect();
    match healthy {
        true => answer::text(StatusCode::OK, &format!("{lines}{name} check passed\n")),
        false => {
            let text = format!("{lines}{name} check failed\n");
            answer::text(StatusCode::INTERNAL_SERVER_ERROR, &text)
        }
    }
}
