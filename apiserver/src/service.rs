//! The gRPC services: one for each kind, all of one type.

mod authentication;
mod authorization;
mod blocks;
mod journeys;
mod methods;
mod patch;
mod status;
mod store;
mod watch;

pub(crate) use self::{
    authentication::{AUTHENTICATION_RULES, IdentityReviews},
    authorization::{AUTHORIZATION_RULES, AccessReviews},
    blocks::{BLOCK_RULES, BlockRecords, Records},
    journeys::{COLLECTOR_RULES, SpanCollector, Traces},
    methods::{of_certificate_requests, of_nodes, of_pods},
    store::{Backups, STORE_RULES},
};

use std::{
    convert::Infallible,
    future::ready,
    sync::Arc,
    task::{Context, Poll},
};

use futures::{FutureExt as _, future::BoxFuture};
use http::{Extensions, HeaderMap, StatusCode};
use podplane_access::ResourceTarget;
use podplane_api::{Scope, strategy::Strategy};
use podplane_proto::{
    error::ApiError,
    fence::{Fence, InvalidFence, METADATA},
    wire::Verb,
};
use podplane_service_runtime::{authentication::RequestContext, identity::AUTHENTICATED};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, body::Body, codegen::Service, server::NamedService};

use crate::{
    audit::RequestRecord,
    authorization::{Gate, Gated, requirements},
    error,
    metrics::{self, ApiserverMetrics, RequestLabels},
    registry::{Registry, WriteParams},
    rest::resource::names_of,
};

type Response = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

/// Serves a kind: the uniform methods, and its own.
pub(crate) struct KindService<K> {
    registry: Gated<Registry<K>>,
    gate: Gate,
    narrow: Option<NarrowMethods<K>>,
    /// Cancelled when open watches have to end.
    stop: CancellationToken,
    metrics: ApiserverMetrics,
}

impl<K> Clone for KindService<K> {
    fn clone(&self) -> Self {
        Self {
            registry: self.registry.clone(),
            gate: self.gate.clone(),
            narrow: self.narrow.clone(),
            stop: self.stop.clone(),
            metrics: self.metrics.clone(),
        }
    }
}

impl<K: Strategy> KindService<K> {
    pub(crate) fn new(
        registry: Registry<K>,
        gate: Gate,
        narrow: Option<NarrowMethods<K>>,
        stop: CancellationToken,
        metrics: ApiserverMetrics,
    ) -> Self {
        Self {
            registry: Gated::new(registry),
            gate,
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
    Arc<dyn Fn(KindCall<K>, &str, http::Request<Body>) -> Response + Send + Sync>;

/// A call of a method. Only a call that is authorized gets at the objects.
pub(crate) struct KindCall<K> {
    registry: Gated<Registry<K>>,
    gate: Gate,
    write: WriteParams,
    record: RequestRecord,
}

impl<K> Clone for KindCall<K> {
    fn clone(&self) -> Self {
        Self {
            registry: self.registry.clone(),
            gate: self.gate.clone(),
            write: self.write.clone(),
            record: self.record.clone(),
        }
    }
}

impl<K: Strategy> KindCall<K> {
    /// Judges a call about one object; its name is empty for a creation.
    async fn open(
        &self,
        verb: &str,
        subresource: &str,
        namespace: &str,
        name: &str,
    ) -> Result<&Registry<K>, ApiError> {
        let target = ResourceTarget {
            subresource,
            namespace: scoped::<K>(namespace),
            name,
            ..kind_target::<K>()
        };
        let (caller, record) = (&self.write.by, &self.record);
        let authorized = self.gate.authorize(caller, verb, target, record).await?;
        Ok(self.registry.open(&authorized))
    }

    /// The same call for a question whose answer does not decide about it, and is not recorded.
    fn unrecorded(&self) -> Self {
        Self {
            record: RequestRecord::none(),
            ..self.clone()
        }
    }

    /// The answer to a write whose object cannot be read: the reason, but not for everyone who
    /// reaches the port.
    async fn unreadable(&self, error: ApiError, verb: &str, subresource: &str) -> ApiError {
        match self.open(verb, subresource, "", "").await {
            Err(refused) if !self.write.by.is_in(AUTHENTICATED) => refused,
            _ => error,
        }
    }

    /// Judges a list or watch.
    async fn open_selected(
        &self,
        verb: &str,
        namespace: &str,
        field_selector: &str,
    ) -> Result<&Registry<K>, ApiError> {
        let fields = requirements(field_selector);
        let target = ResourceTarget {
            namespace: scoped::<K>(namespace),
            field_selector: &fields,
            ..kind_target::<K>()
        };
        let (caller, record) = (&self.write.by, &self.record);
        let authorized = self.gate.authorize(caller, verb, target, record).await?;
        Ok(self.registry.open(&authorized))
    }
}

/// The namespace of a request. A Role of a namespace allows nothing outside of namespaces.
fn scoped<K: Strategy>(namespace: &str) -> &str {
    match K::SCOPE {
        Scope::Cluster => "",
        Scope::Namespaced => namespace,
    }
}

/// All objects of a kind.
fn kind_target<K: Strategy>() -> ResourceTarget<'static> {
    ResourceTarget {
        group: K::GROUP,
        version: K::VERSION,
        resource: K::PLURAL,
        ..ResourceTarget::default()
    }
}

/// The refusal of a call.
pub(crate) fn refused(error: ApiError) -> http::Response<Body> {
    status::of(error).into_http()
}

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
        let call = KindCall {
            registry: self.registry.clone(),
            gate: self.gate.clone(),
            write,
            record: RequestRecord::of(request.extensions()),
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
        let names = names_of::<K>();
        let running = self
            .metrics
            .begins(RequestLabels::new(names, subresource, counted));
        let answer = match verb {
            Some(verb) => methods::call(self, verb, call, request),
            None => match &self.narrow {
                Some(narrow) => narrow(call, &method, request),
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
