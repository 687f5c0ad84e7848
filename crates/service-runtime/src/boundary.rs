//! The boundary around each request: the hosts that it may name ([`AllowedHosts`]), the time in
//! which its body must arrive, and the handling of panics.
//!
//! A panic ends its request with 500 or `INTERNAL`, is counted and logged, and does not affect the
//! process. Code whose state is unusable after a panic ends the process itself: see `fatal` in the
//! API server, and ADR 0022.

mod arrival;
mod body;
mod hosts;

pub use arrival::BODY_TIMEOUT;
pub use hosts::{AllowedHosts, HostName, HostNameError};

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::AtomicU64,
    task::{Context, Poll},
};

use futures::{FutureExt as _, future::BoxFuture};
use http_body_util::Full;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use tonic::{
    Code, Status,
    body::Body,
    codegen::{
        Bytes, Service, StdError,
        http::{HeaderMap, Method, Request, Response, StatusCode, Uri, header},
    },
};

use self::{body::GuardedBody, hosts::Refusal};
use crate::limits::LimitMetrics;

/// The message for clients after a panic. The panic's own message may quote another client's data.
const PANICKED: &str = "the handler of the request panicked; the server's log has more";

/// Counts of panics and refusals. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct BoundaryMetrics {
    panics: Counter<u64, AtomicU64>,
    refused: Family<RefusedLabels, Counter<u64, AtomicU64>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusedLabels {
    reason: &'static str,
}

impl BoundaryMetrics {
    /// Creates counts and registers them.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "podplane_request_panics",
            "Requests whose handler panicked; each was answered with 500 or INTERNAL",
            metrics.panics.clone(),
        );
        registry.register(
            "podplane_requests_refused",
            "Requests refused because of their Host or Origin",
            metrics.refused.clone(),
        );
        metrics
    }
}

/// The boundary around the requests of one socket.
#[derive(Clone, Debug)]
pub(crate) struct Boundary {
    pub(crate) metrics: BoundaryMetrics,
    pub(crate) limits: LimitMetrics,
    /// `None` for unix sockets, which no web page reaches.
    pub(crate) hosts: Option<AllowedHosts>,
}

/// A service behind a boundary.
#[derive(Clone, Debug)]
pub(crate) struct BoundaryService<S> {
    pub(crate) service: S,
    pub(crate) boundary: Boundary,
}

/// The logged part of a request that panicked: neither its query nor its body.
#[derive(Clone, Debug)]
struct RequestLine {
    method: Method,
    uri: Uri,
    metrics: BoundaryMetrics,
}

impl RequestLine {
    fn panicked(&self) {
        self.metrics.panics.inc();
        let (method, path) = (self.method.as_str(), self.uri.path());
        tracing::error!(method, path, "request handler panicked");
    }
}

impl<S, B> Service<Request<B>> for BoundaryService<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<StdError>,
{
    type Response = Response<GuardedBody>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let is_grpc = is_grpc(request.headers());
        let Boundary {
            metrics,
            limits,
            hosts,
        } = &self.boundary;
        let judged = hosts.as_ref().map_or(Ok(()), |hosts| {
            hosts.judge(request.uri(), request.headers())
        });
        if let Err(refusal) = judged {
            let reason = refusal.reason();
            metrics
                .refused
                .get_or_create(&RefusedLabels { reason })
                .inc();
            let refused = refused(&refusal, is_grpc).map(GuardedBody::unguarded);
            return std::future::ready(Ok(refused)).boxed();
        }
        let line = RequestLine {
            method: request.method().clone(),
            uri: request.uri().clone(),
            metrics: metrics.clone(),
        };
        let request = arrival::timed(request, limits);
        // A handler that panicked is dropped; state that it shares with others must not depend on
        // its completion.
        let called = catch_unwind(AssertUnwindSafe(|| self.service.call(request)));
        async move {
            let answered = match called {
                Ok(future) => AssertUnwindSafe(future).catch_unwind().await,
                Err(panic) => Err(panic),
            };
            match answered {
                Ok(Ok(response)) => Ok(response.map(|body| GuardedBody::new(body, line, is_grpc))),
                Ok(Err(error)) => Err(error),
                Err(_panic) => {
                    line.panicked();
                    let error = (StatusCode::INTERNAL_SERVER_ERROR, "InternalError");
                    Ok(failure(error, Code::Internal, PANICKED, is_grpc)
                        .map(GuardedBody::unguarded))
                }
            }
        }
        .boxed()
    }
}

/// Returns whether the request is a gRPC call, by its media type.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    let media_type = headers.get(header::CONTENT_TYPE);
    media_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

fn refused(refusal: &Refusal, is_grpc: bool) -> Response<Body> {
    let code = match refusal {
        Refusal::NoHost => (StatusCode::BAD_REQUEST, "BadRequest"),
        Refusal::Host(_) => (StatusCode::MISDIRECTED_REQUEST, "Forbidden"),
        Refusal::Origin(_) => (StatusCode::FORBIDDEN, "Forbidden"),
    };
    failure(code, Code::PermissionDenied, &refusal.to_string(), is_grpc)
}

/// A failure as Kubernetes' metav1.Status, without details. `reason` is one of its words for
/// programs, such as `Forbidden`.
#[must_use]
pub fn failure_status(code: StatusCode, reason: &str, message: &str) -> serde_json::Value {
    serde_json::json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code.as_u16(),
    })
}

/// A failure as gRPC clients read it, or as Kubernetes' `Status`, whose message kubectl shows.
pub(crate) fn failure(
    (code, reason): (StatusCode, &str),
    grpc: Code,
    message: &str,
    is_grpc: bool,
) -> Response<Body> {
    if is_grpc {
        return Status::new(grpc, message).into_http();
    }
    let mut status = failure_status(code, reason, message);
    status["details"] = serde_json::json!({});
    let mut response = Response::new(Body::new(Full::from(format!("{status}\n"))));
    *response.status_mut() = code;
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

#[cfg(test)]
mod tests;
