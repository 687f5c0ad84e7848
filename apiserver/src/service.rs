//! The gRPC services: one for each kind, all of one type.

mod authentication;
mod authorization;
mod blocks;
mod journeys;
mod list;
mod methods;
mod patch;
mod status;
mod store;
mod watch;

pub(crate) use self::{
    authentication::{AUTHENTICATION_RULES, IdentityReviews},
    authorization::{AUTHORIZATION_RULES, AccessReviews},
    blocks::{BLOCK_RULES, BlockRecords, GROUP as BLOCK_GROUP, Records},
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
use http::{Extensions, HeaderMap, StatusCode, header};
use podplane_access::ResourceTarget;
use podplane_api::{
    Scope,
    any::{AnyKind, KindNames},
};
use podplane_proto::{error::ApiError, wire::Verb};
use podplane_service_runtime::{authentication::RequestContext, identity::AUTHENTICATED};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, body::Body, codegen::Service};

use crate::{
    admission::{RequestNotes, fences},
    audit::RequestRecord,
    authorization::{Gate, Gated, requirements},
    metrics::{self, ApiserverMetrics, RequestLabels},
    registry::{KindRegistry, WriteParams},
    renderers::Renderers,
    rest::warning_values,
};

type Response = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

/// Serves a kind: the uniform methods, and its own.
#[derive(Clone)]
pub(crate) struct KindService {
    kind: Arc<KindMethods>,
    registry: Gated<KindRegistry>,
    gate: Gate,
    narrow: Option<NarrowMethods>,
    renderers: Renderers,
    /// Cancelled when open watches have to end.
    stop: CancellationToken,
    metrics: ApiserverMetrics,
}

/// A kind, and the names of its methods.
struct KindMethods {
    kind: Arc<dyn AnyKind>,
    verbs: Vec<(String, Verb)>,
}

impl KindService {
    pub(crate) fn new(
        registry: KindRegistry,
        gate: Gate,
        narrow: Option<NarrowMethods>,
        renderers: Renderers,
        stop: CancellationToken,
        metrics: ApiserverMetrics,
    ) -> Self {
        let kind = Arc::clone(registry.shared_kind());
        let names = kind.names();
        let plural = names.camel_plural();
        let verbs = Verb::ALL.into_iter();
        let verbs = verbs.map(|verb| (verb.method_of(&names.kind, &plural), verb));
        let verbs = verbs.collect();
        Self {
            kind: Arc::new(KindMethods { kind, verbs }),
            registry: Gated::new(registry),
            gate,
            narrow,
            renderers,
            stop,
            metrics,
        }
    }
}

/// Answers a method that only one kind has.
pub(crate) type NarrowMethods =
    Arc<dyn Fn(KindCall, &str, http::Request<Body>) -> Response + Send + Sync>;

/// A call of a method. Only a call that is authorized gets at the objects.
#[derive(Clone)]
pub(crate) struct KindCall {
    kind: Arc<KindMethods>,
    registry: Gated<KindRegistry>,
    gate: Gate,
    write: WriteParams,
    record: RequestRecord,
}

impl KindCall {
    /// The kind of the objects.
    fn kind(&self) -> &dyn AnyKind {
        &*self.kind.kind
    }

    fn names(&self) -> &KindNames {
        self.kind.kind.names()
    }

    /// The namespace of a request. A Role of a namespace allows nothing outside of namespaces.
    fn scoped<'a>(&self, namespace: &'a str) -> &'a str {
        match self.names().scope {
            Scope::Cluster => "",
            Scope::Namespaced => namespace,
        }
    }

    /// All objects of the kind.
    fn kind_target(&self) -> ResourceTarget<'_> {
        let names = self.names();
        ResourceTarget {
            group: &names.group,
            version: &names.version,
            resource: &names.plural,
            ..ResourceTarget::default()
        }
    }

    /// The answer to a method that the kind does not have.
    fn unknown(&self, method: &str) -> Response {
        unknown(self.kind(), method)
    }

    /// Judges a call about one object; its name is empty for a creation.
    async fn open(
        &self,
        verb: &str,
        subresource: &str,
        namespace: &str,
        name: &str,
    ) -> Result<&KindRegistry, ApiError> {
        let target = ResourceTarget {
            subresource,
            namespace: self.scoped(namespace),
            name,
            ..self.kind_target()
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
    ) -> Result<&KindRegistry, ApiError> {
        let fields = requirements(field_selector);
        let target = ResourceTarget {
            namespace: self.scoped(namespace),
            field_selector: &fields,
            ..self.kind_target()
        };
        let (caller, record) = (&self.write.by, &self.record);
        let authorized = self.gate.authorize(caller, verb, target, record).await?;
        Ok(self.registry.open(&authorized))
    }
}

/// The refusal of a call.
pub(crate) fn refused(error: ApiError) -> http::Response<Body> {
    status::of(error).into_http()
}

fn unknown(kind: &dyn AnyKind, method: &str) -> Response {
    let service = kind.service().unwrap_or_default();
    let unknown = Status::unimplemented(format!("{service} has no method {method}"));
    ready(Ok(unknown.into_http())).boxed()
}

/// The terms of a write by the caller, with the fence that it sent.
fn write_params(headers: &HeaderMap, extensions: &Extensions) -> Result<WriteParams, ApiError> {
    let by = RequestContext::of(extensions).identity;
    Ok(WriteParams {
        fence: fences::sent(headers)?,
        ..WriteParams::by(by)
    })
}

impl Service<http::Request<Body>> for KindService {
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
            kind: Arc::clone(&self.kind),
            registry: self.registry.clone(),
            gate: self.gate.clone(),
            write,
            record: RequestRecord::of(request.extensions()),
        };
        let record = call.record.clone();
        let mut verbs = self.kind.verbs.iter();
        let verb = verbs.find(|(name, _)| *name == method);
        let verb = verb.map(|(_, verb)| *verb);
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
        let names = self.kind.kind.names();
        let running = self
            .metrics
            .begins(RequestLabels::new(names, subresource, counted));
        let answer = match verb {
            Some(verb) => methods::call(self, verb, call, request),
            None => match &self.narrow {
                Some(narrow) => narrow(call, &method, request),
                None => unknown(&*self.kind.kind, &method),
            },
        };
        let notes = RequestNotes::default();
        async move {
            let mut response = notes.scope(answer).await?;
            for warning in warning_values(&notes.take_warnings()) {
                response.headers_mut().append(header::WARNING, warning);
            }
            record.annotate(notes.take_annotations());
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
