//! The gRPC services: one for each kind, all of one type.

mod authentication;
mod blocks;
mod journeys;
mod methods;
mod patch;
mod status;
mod store;
mod watch;

pub(crate) use self::{
    authentication::SelfReviews,
    blocks::BlockRecords,
    journeys::{SpanCollector, Traces},
    methods::{of_certificate_requests, of_nodes, of_pods},
    store::Backups,
};

use std::{
    convert::Infallible,
    future::ready,
    sync::Arc,
    task::{Context, Poll},
};

use futures::{FutureExt as _, future::BoxFuture};
use http::{Extensions, HeaderMap, StatusCode};
use podplane_api::strategy::Strategy;
use podplane_proto::{
    error::ApiError,
    fence::{Fence, InvalidFence, METADATA},
    wire::Verb,
};
use podplane_service_runtime::authentication::RequestContext;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, body::Body, codegen::Service, server::NamedService};

use crate::{
    error,
    metrics::{self, ApiserverMetrics, RequestLabels},
    registry::{Registry, WriteParams},
    rest::resource::Resource,
};

type Response = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

/// Serves a kind: the uniform methods, and its own.
pub(crate) struct KindService<K> {
    registry: Registry<K>,
    narrow: Option<NarrowMethods<K>>,
    /// Cancelled when open watches have to end.
    stop: CancellationToken,
    metrics: ApiserverMetrics,
}

impl<K> Clone for KindService<K> {
    fn clone(&self) -> Self {
        Self {
            registry: self.registry.clone(),
            narrow: self.narrow.clone(),
            stop: self.stop.clone(),
            metrics: self.metrics.clone(),
        }
    }
}

impl<K: Strategy> KindService<K> {
    pub(crate) fn new(
        registry: Registry<K>,
        narrow: Option<NarrowMethods<K>>,
        stop: CancellationToken,
        metrics: ApiserverMetrics,
    ) -> Self {
        Self {
            registry,
            narrow,
            stop,
            metrics,
        }
    }
}

impl<K: Strategy> NamedService for KindService<K> {
    const NAME: &'static str = K::SERVICE;
}

/// Answers a method that only one kind has.
pub(crate) type NarrowMethods<K> =
    Arc<dyn Fn(&Registry<K>, &str, WriteParams, http::Request<Body>) -> Response + Send + Sync>;

fn unknown<K: Strategy>(method: &str) -> Response {
    let unknown = Status::unimplemented(format!("{} has no method {method}", K::SERVICE));
    ready(Ok(unknown.into_http())).boxed()
}

/// The terms of a write by the caller, with the fence that it sent.
fn write_params(headers: &HeaderMap, extensions: &Extensions) -> Result<WriteParams, ApiError> {
    let by = RequestContext::of(extensions).identity;
    Ok(WriteParams {
        fence: fence(headers)?,
        ..WriteParams::by(by)
    })
}

/// The fence that the caller sent.
fn fence(headers: &HeaderMap) -> Result<Option<Fence>, ApiError> {
    let Some(value) = headers.get(METADATA) else {
        return Ok(None);
    };
    let text = String::from_utf8_lossy(value.as_bytes());
    text.parse()
        .map(Some)
        .map_err(|error: InvalidFence| error::bad_request(error.to_string()))
}

impl<K: Strategy> Service<http::Request<Body>> for KindService<K> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Response;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Response {
        let method = request
            .uri()
            .path()
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .to_owned();
        let write = match write_params(request.headers(), request.extensions()) {
            Ok(write) => write,
            Err(error) => return ready(Ok(status::of(error).into_http())).boxed(),
        };
        let verb = Verb::ALL
            .into_iter()
            .find(|verb| verb.method::<K>() == method);
        let (subresource, counted) = match verb {
            Some(Verb::Create) => ("", "POST"),
            Some(Verb::Get) => ("", "GET"),
            Some(Verb::List) => ("", "LIST"),
            Some(Verb::Watch) => ("", "WATCH"),
            Some(Verb::Update) => ("", "PUT"),
            Some(Verb::UpdateStatus) => ("status", "PUT"),
            Some(Verb::Patch) => ("", "PATCH"),
            Some(Verb::PatchStatus) => ("status", "PATCH"),
            Some(Verb::Delete) => ("", "DELETE"),
            // Kubernetes has a subresource and a patch for these.
            None if method == "BindPod" => ("binding", "POST"),
            None if method == "EvictPod" => ("eviction", "POST"),
            None if method == "AssignPodCIDRs" => ("", "PATCH"),
            None if method == "UpdateCertificateSigningRequestApproval" => ("approval", "PUT"),
            None => ("", "other"),
        };
        let names = Resource::names(&self.registry);
        let running = self
            .metrics
            .begins(RequestLabels::new(names, subresource, counted));
        let answer = match verb {
            Some(verb) => methods::call(self, verb, write, request),
            None => match &self.narrow {
                Some(narrow) => narrow(&self.registry, &method, write, request),
                None => unknown::<K>(&method),
            },
        };
        async move {
            let response = answer.await?;
            // Without a status header there are messages, which end with OK in nearly every case.
            let code = Status::from_header_map(response.headers()).map_or(Code::Ok, |s| s.code());
            running.answered(match (code, verb) {
                (Code::Ok, Some(Verb::Create)) => StatusCode::CREATED,
                (Code::ResourceExhausted, None) => StatusCode::TOO_MANY_REQUESTS,
                _ => metrics::http_code(code),
            });
            Ok(response)
        }
        .boxed()
    }
}
