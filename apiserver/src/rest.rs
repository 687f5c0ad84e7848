//! The Kubernetes REST API, for kubectl and other clients of Kubernetes, over the same registry as
//! gRPC and on the same socket.
//!
//! A request's path names the kind ([`resource`], as documents), its query the options
//! ([`request`]); the answer is a document, a table ([`table`]), a stream ([`watch`]) or a `Status`
//! ([`answer`]).

mod answer;
pub(crate) mod bindings;
pub(crate) mod body;
mod call;
mod discovery;
pub(crate) mod events;
mod issuer;
mod log;
mod openapi;
pub(crate) mod patch;
pub(crate) mod place;
mod render;
pub(crate) mod request;
pub(crate) mod resource;
mod review;
mod scale;
mod table;
pub(crate) mod token_review;
pub(crate) mod tokens;
mod watch;
mod yaml;

pub(crate) use self::answer::{code as status_code, warning_values};

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::{Path, State},
    middleware,
    routing::{MethodRouter, any, get},
};
use http::{HeaderMap, StatusCode, Uri, request::Parts};
use podplane_api::{ObjectKey, Scope, strategy::Subresource};
use podplane_proto::{error::ApiError, kubernetes};
use prometheus_client::registry::Registry;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use self::{
    answer::{ObjectForm, RefusalSubject, RestAnswer},
    call::{CallRefusal, RestCall},
    openapi::OpenApi,
    resource::Resource,
};
use crate::{
    audit::RequestRecord,
    authentication::AccountTokens,
    authorization::{Authorized, Gate},
    cache::Position,
    journeys::Journeys,
    metrics::{self, ApiserverMetrics, RequestLabels},
    renderers::Renderers,
    served::{KindList, ServedKinds},
};

/// The minor version of Kubernetes whose API this is.
const MINOR: &str = "36";

/// The answer to a request that was refused before its kind was looked at. `about` has the API
/// group, resource and name.
pub(crate) fn refused(error: &ApiError, about: [&str; 3]) -> http::Response<Body> {
    answer::refusal_of_gate(error, about)
}

/// The parts of the server that the REST API uses.
pub(crate) struct RestContext {
    pub(crate) journeys: Journeys,
    pub(crate) gate: Gate,
    pub(crate) renderers: Renderers,
    /// Cancelled when open watches have to end.
    pub(crate) stop: CancellationToken,
    /// The issuer of ServiceAccounts' tokens, if there is one.
    pub(crate) tokens: Option<Arc<AccountTokens>>,
}

/// The state shared by all requests.
#[derive(Clone)]
struct Facade {
    kinds: ServedKinds,
    openapi: Arc<OpenApi>,
    metrics: ApiserverMetrics,
    journeys: Journeys,
    gate: Gate,
    renderers: Renderers,
    /// Cancelled when open watches have to end.
    stop: CancellationToken,
}

/// The resources with those that need no place in the store: reviews.
pub(crate) fn with_unstored(
    mut kinds: Vec<Arc<dyn Resource>>,
    served: &ServedKinds,
    gate: &Gate,
) -> Vec<Arc<dyn Resource>> {
    kinds.extend(review::reviews(served, gate));
    kinds
}

/// The routes of the REST API.
pub(crate) fn router(
    kinds: ServedKinds,
    position: Position,
    shared: RestContext,
    metrics: ApiserverMetrics,
    registry: &mut Registry,
) -> Router {
    let RestContext {
        journeys,
        gate,
        renderers,
        stop,
        tokens,
    } = shared;
    ApiserverMetrics::show_stored(registry, kinds.clone(), position);
    let facade = Facade {
        metrics,
        kinds,
        openapi: Arc::default(),
        journeys,
        gate,
        renderers: renderers.clone(),
        stop,
    };
    let discovery: [(&str, MethodRouter<Facade>); 6] = [
        ("/version", get(|| async { version() })),
        ("/api", get(core)),
        ("/apis", get(groups)),
        ("/apis/{group}", get(group)),
        ("/api/{version}", get(core_resources)),
        ("/apis/{group}/{version}", get(group_resources)),
    ];
    // As in Kubernetes, a slash at the end changes nothing: the Python client writes one.
    let discovery = discovery
        .into_iter()
        .fold(Router::new(), |router, (path, method)| {
            router
                .route(&format!("{path}/"), method.clone())
                .route(path, method)
        });
    discovery
        .route("/", get(root))
        .route("/openapi/v3", get(openapi_index))
        .route("/openapi/v3/{*path}", get(openapi_document))
        .route("/api/{version}/{*path}", any(core_object))
        .route("/apis/{group}/{version}/{*path}", any(group_object))
        .fallback(fallback)
        .layer(middleware::from_fn_with_state(renderers, yaml::answer))
        // After the layer: this document is never YAML.
        .route("/openapi/v2", get(openapi_v2))
        .with_state(facade)
        .merge(issuer::routes(tokens))
}

/// The fallback route: 404, or UNIMPLEMENTED for gRPC.
async fn fallback(headers: HeaderMap) -> RestAnswer {
    let grpc = body::media_type(&headers).starts_with("application/grpc");
    if grpc {
        return tonic::Status::unimplemented("").into_http();
    }
    answer::no_such_path()
}

async fn root(State(facade): State<Facade>, headers: HeaderMap) -> RestAnswer {
    discovery::root(&facade.kinds.now().resources, &headers)
}

async fn core(State(facade): State<Facade>, headers: HeaderMap) -> RestAnswer {
    discovery::core(&facade.kinds.now().resources, &headers)
}

async fn groups(State(facade): State<Facade>, headers: HeaderMap) -> RestAnswer {
    discovery::groups(&facade.kinds.now().resources, &headers)
}

async fn group(
    State(facade): State<Facade>,
    Path(group): Path<String>,
    headers: HeaderMap,
) -> RestAnswer {
    discovery::group(&facade.kinds.now().resources, &group, &headers)
}

async fn core_resources(
    State(facade): State<Facade>,
    Path(version): Path<String>,
    headers: HeaderMap,
) -> RestAnswer {
    discovery::resources(&facade.kinds.now().resources, "", &version, &headers)
}

async fn group_resources(
    State(facade): State<Facade>,
    Path((group, version)): Path<(String, String)>,
    headers: HeaderMap,
) -> RestAnswer {
    discovery::resources(&facade.kinds.now().resources, &group, &version, &headers)
}

async fn openapi_v2(State(facade): State<Facade>, headers: HeaderMap) -> RestAnswer {
    let answer = move |openapi: &OpenApi, kinds: &KindList| openapi.v2.answer(kinds, &headers);
    facade.openapi(answer).await
}

async fn openapi_index(State(facade): State<Facade>, headers: HeaderMap) -> RestAnswer {
    let answer = move |openapi: &OpenApi, kinds: &KindList| openapi.v3.index(kinds, &headers);
    facade.openapi(answer).await
}

async fn openapi_document(
    State(facade): State<Facade>,
    Path(path): Path<String>,
    uri: Uri,
    headers: HeaderMap,
) -> RestAnswer {
    let answer = move |openapi: &OpenApi, kinds: &KindList| {
        openapi.v3.document(kinds, &path, &uri, &headers)
    };
    facade.openapi(answer).await
}

fn version() -> RestAnswer {
    let document = json!({
        "major": "1",
        "minor": MINOR,
        "gitVersion": format!("v1.{MINOR}.0+podplane"),
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    });
    answer::document(StatusCode::OK, &document)
}

async fn core_object(
    State(facade): State<Facade>,
    Path((version, path)): Path<(String, String)>,
    request: http::Request<Body>,
) -> RestAnswer {
    facade.serve("", &version, &path, request).await
}

async fn group_object(
    State(facade): State<Facade>,
    Path((group, version, path)): Path<(String, String, String)>,
    request: http::Request<Body>,
) -> RestAnswer {
    facade.serve(&group, &version, &path, request).await
}

/// The target of a path.
struct RequestTarget {
    resource: Arc<dyn Resource>,
    /// True for the deprecated paths that begin with `watch/`: a watch of all objects, or of the
    /// named one.
    is_watch: bool,
    /// The namespace; empty for cluster-scoped kinds, and for lists over all namespaces.
    namespace: String,
    /// The name; empty for all objects.
    name: String,
    subresource: Option<Subresource>,
}

impl RequestTarget {
    fn key(&self) -> ObjectKey {
        ObjectKey::new(self.namespace.as_str(), self.name.as_str())
    }

    fn about(&self) -> RefusalSubject<'_> {
        RefusalSubject {
            names: Some(self.resource.names()),
            name: &self.name,
        }
    }

    fn refusal(&self, error: &ApiError) -> RestAnswer {
        answer::refusal(error, self.about())
    }
}

impl Facade {
    /// Answers on a renderer thread: the documents may have to be made, which takes long.
    async fn openapi(
        self,
        answer: impl FnOnce(&OpenApi, &KindList) -> RestAnswer + Send + 'static,
    ) -> RestAnswer {
        let (openapi, kinds) = (self.openapi, self.kinds.now());
        let rendered = self.renderers.run(move || answer(&openapi, &kinds));
        let refusal = |error| answer::refusal(&error, RefusalSubject::default());
        rendered.await.unwrap_or_else(refusal)
    }

    /// Parses the rest of a path: the resource, and the object if one is named.
    fn target(&self, group: &str, version: &str, path: &str) -> Option<RequestTarget> {
        let segments: Vec<_> = path.trim_end_matches('/').split('/').collect();
        let (is_watch, segments) = match segments.as_slice() {
            ["watch", rest @ ..] if !rest.is_empty() => (true, rest),
            all => (false, all),
        };
        let kinds = self.kinds.now();
        let find = |plural: &str| kinds.find(group, version, plural);
        let (namespace, rest) = match segments {
            ["namespaces", namespace, rest @ ..]
                if !namespace.is_empty()
                    && rest.first().is_some_and(|plural| {
                        find(plural).is_some_and(|kind| kind.names().scope == Scope::Namespaced)
                    }) =>
            {
                (*namespace, rest)
            }
            all => ("", all),
        };
        let (plural, name, subresource) = match rest {
            [plural] => (plural, "", None),
            [plural, name] if !name.is_empty() => (plural, *name, None),
            [plural, name, subresource] if !name.is_empty() => (plural, *name, Some(*subresource)),
            _ => return None,
        };
        let resource = Arc::clone(find(plural)?);
        let names = resource.names();
        let in_one = names.scope == Scope::Namespaced && !name.is_empty();
        if in_one && namespace.is_empty() {
            return None;
        }
        if is_watch && (subresource.is_some() || !names.verbs.contains(&"watch")) {
            return None;
        }
        let subresource = match subresource {
            None => None,
            Some(text) => Some(
                *names
                    .subresources
                    .iter()
                    .find(|known| known.name() == text)?,
            ),
        };
        Some(RequestTarget {
            is_watch,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            subresource,
            resource,
        })
    }

    async fn serve(
        &self,
        group: &str,
        version: &str,
        path: &str,
        request: http::Request<Body>,
    ) -> RestAnswer {
        let Some(target) = self.target(group, version, path) else {
            return answer::no_such_path();
        };
        let (
            Parts {
                method,
                uri,
                headers,
                extensions,
                ..
            },
            body,
        ) = request.into_parts();
        let authorized = match Authorized::of(&extensions) {
            Ok(authorized) => authorized,
            Err(error) => return target.refusal(&error),
        };
        let names = target.resource.names();
        let has_protobuf = kubernetes::has(&names.api_version(), &names.kind);
        let Some(form) = ObjectForm::accepted(&headers, has_protobuf) else {
            return answer::not_acceptable(&[
                "application/json",
                answer::YAML,
                kubernetes::MEDIA_TYPE,
            ]);
        };
        let body = match body::read(body).await {
            Ok(body) => body,
            Err(answer) => return answer,
        };
        let call = RestCall {
            target: &target,
            method,
            uri,
            headers,
            form,
            body,
            authorized,
            facade: self,
        };
        let verb = metrics::verb(&call.method, !target.name.is_empty(), call.is_watch());
        let subresource = target.subresource.map_or("", Subresource::name);
        let request = RequestLabels::new(target.resource.names(), subresource, verb);
        let running = self.metrics.begins(request);
        let notes = call.notes();
        let answered = notes.scope(call.answer()).await;
        let mut answer = answered.unwrap_or_else(|refused| match refused {
            CallRefusal::Error(error) => target.refusal(&error),
            CallRefusal::Answer(answer) => *answer,
        });
        running.answered(answer.status());
        answer::warn(&mut answer, &notes.take_warnings());
        RequestRecord::of(&extensions).annotate(notes.take_annotations());
        if let Some(warning) = target.resource.warning() {
            answer::warn(&mut answer, &[warning.to_owned()]);
        }
        answer
    }
}
