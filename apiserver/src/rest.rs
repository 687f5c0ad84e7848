//! The Kubernetes REST API: what kubectl and other clients of Kubernetes speak, over the same registry as gRPC and on the same socket.
//!
//! A request's path names the kind ([`resource`], as documents), its query the options ([`request`]); what comes back is a
//! document, a table ([`table`]), a stream ([`watch`]) or a `Status` ([`answer`]).

mod answer;
mod body;
mod discovery;
pub(crate) mod events;
mod health;
mod log;
mod metrics;
mod openapi;
mod patch;
mod request;
pub(crate) mod resource;
mod review;
mod scale;
mod table;
mod watch;

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::{Path, State},
    routing::{any, get},
};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{HeaderMap, Method, StatusCode, Uri, request::Parts};
use podplane_api::{ObjectKey, Scope};
use podplane_proto::{
    error::{ApiError, Reason},
    kubernetes,
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use self::{
    answer::{About, Answer, Form},
    metrics::Metrics,
    request::Options,
    resource::{Documents, Resource, Subresource, Written},
    table::{Include, Tables},
};
use crate::{
    cache::Position,
    error,
    registry::{Part, Patch},
};

/// The Kubernetes version whose API this is.
const MINOR: &str = "33";

/// How many objects of a collection are deleted at once.
const AT_ONCE: usize = 32;

/// What all requests share.
#[derive(Clone)]
struct Facade {
    kinds: Arc<[Arc<dyn Resource>]>,
    openapi: Arc<openapi::OpenApi>,
    metrics: Metrics,
    /// Ends open watches.
    stop: CancellationToken,
}

/// The routes of the REST API.
pub(crate) fn router(
    mut kinds: Vec<Arc<dyn Resource>>,
    position: Position,
    stop: CancellationToken,
) -> Router {
    kinds.extend(review::reviews(&kinds));
    let kinds: Arc<[_]> = kinds.into();
    let facade = Facade {
        metrics: Metrics::new(Arc::clone(&kinds), position),
        kinds,
        openapi: Arc::default(),
        stop,
    };
    Router::new()
        .merge(health::routes(facade.stop.clone()))
        .route("/metrics", get(metrics))
        .route("/version", get(|| async { version() }))
        .route("/", get(root))
        .route("/api", get(core))
        .route("/apis", get(groups))
        .route("/apis/{group}", get(group))
        .route("/api/{version}", get(core_resources))
        .route("/apis/{group}/{version}", get(group_resources))
        .route(
            "/openapi/v2",
            get(|headers: HeaderMap| async move { openapi::legacy(&headers) }),
        )
        .route("/openapi/v3", get(openapi_index))
        .route("/openapi/v3/{*path}", get(openapi_document))
        .route("/api/{version}/{*path}", any(core_object))
        .route("/apis/{group}/{version}/{*path}", any(group_object))
        .fallback(fallback)
        .with_state(facade)
}

/// What is asked of nothing that there is. gRPC has its own word for that.
async fn fallback(headers: HeaderMap) -> Answer {
    let grpc = body::media_type(&headers).starts_with("application/grpc");
    if grpc {
        return tonic::Status::unimplemented("").into_http();
    }
    answer::no_such_path()
}

async fn metrics(State(facade): State<Facade>) -> Answer {
    facade.metrics.show()
}

async fn root(State(facade): State<Facade>, headers: HeaderMap) -> Answer {
    discovery::root(&facade.kinds, &headers)
}

async fn core(State(facade): State<Facade>, headers: HeaderMap) -> Answer {
    discovery::core(&facade.kinds, &headers)
}

async fn groups(State(facade): State<Facade>, headers: HeaderMap) -> Answer {
    discovery::groups(&facade.kinds, &headers)
}

async fn group(
    State(facade): State<Facade>,
    Path(group): Path<String>,
    headers: HeaderMap,
) -> Answer {
    discovery::group(&facade.kinds, &group, &headers)
}

async fn core_resources(
    State(facade): State<Facade>,
    Path(version): Path<String>,
    headers: HeaderMap,
) -> Answer {
    discovery::resources(&facade.kinds, "", &version, &headers)
}

async fn group_resources(
    State(facade): State<Facade>,
    Path((group, version)): Path<(String, String)>,
    headers: HeaderMap,
) -> Answer {
    discovery::resources(&facade.kinds, &group, &version, &headers)
}

async fn openapi_index(State(facade): State<Facade>, headers: HeaderMap) -> Answer {
    facade.openapi.index(&facade.kinds, &headers)
}

async fn openapi_document(
    State(facade): State<Facade>,
    Path(path): Path<String>,
    uri: Uri,
    headers: HeaderMap,
) -> Answer {
    facade
        .openapi
        .document(&facade.kinds, &path, &uri, &headers)
}

fn version() -> Answer {
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
) -> Answer {
    facade.serve("", &version, &path, request).await
}

async fn group_object(
    State(facade): State<Facade>,
    Path((group, version, path)): Path<(String, String, String)>,
    request: http::Request<Body>,
) -> Answer {
    facade.serve(&group, &version, &path, request).await
}

/// What a path names.
struct Target {
    resource: Arc<dyn Resource>,
    /// Empty for cluster-scoped kinds, and for lists over all namespaces.
    namespace: String,
    /// Empty for all objects.
    name: String,
    subresource: Option<Subresource>,
}

impl Target {
    fn key(&self) -> ObjectKey {
        ObjectKey::new(self.namespace.as_str(), self.name.as_str())
    }

    fn about(&self) -> About<'_> {
        About {
            names: Some(self.resource.names()),
            name: &self.name,
        }
    }

    fn refusal(&self, error: &ApiError) -> Answer {
        answer::refusal(error, self.about())
    }
}

impl Facade {
    /// The resource, and the object if one is named, of the rest of a path.
    fn target(&self, group: &str, version: &str, path: &str) -> Option<Target> {
        let segments: Vec<_> = path.split('/').collect();
        let find = |plural: &str| {
            let named = |kind: &&Arc<dyn Resource>| {
                let names = kind.names();
                (names.group, names.version, names.plural) == (group, version, plural)
            };
            self.kinds.iter().find(named).map(Arc::clone)
        };
        let (namespace, rest) = match segments.as_slice() {
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
        let resource = find(plural)?;
        let names = resource.names();
        let in_one = names.scope == Scope::Namespaced && !name.is_empty();
        if in_one && namespace.is_empty() {
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
        Some(Target {
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
    ) -> Answer {
        let Some(target) = self.target(group, version, path) else {
            return answer::no_such_path();
        };
        let (
            Parts {
                method,
                uri,
                headers,
                ..
            },
            body,
        ) = request.into_parts();
        let names = target.resource.names();
        let has_protobuf = kubernetes::has(&names.api_version(), names.kind);
        let Some(form) = Form::accepted(&headers, has_protobuf) else {
            return answer::refuse(
                StatusCode::NOT_ACCEPTABLE,
                "NotAcceptable",
                "only the following media types are accepted: application/json, application/vnd.kubernetes.protobuf",
            );
        };
        let body = match body::read(body).await {
            Ok(body) => body,
            Err(answer) => return answer,
        };
        let call = Call {
            target: &target,
            method,
            uri,
            headers,
            form,
            body,
            facade: self,
        };
        let answer = call.answer().await.unwrap_or_else(|refused| match refused {
            Refused::Error(error) => target.refusal(&error),
            Refused::Answer(answer) => *answer,
        });
        let verb = metrics::verb(&call.method, !target.name.is_empty(), call.is_watch());
        let names = target.resource.names();
        self.metrics
            .answered(names, target.subresource, verb, answer.status());
        answer
    }
}

/// Why a call has no answer of its own.
enum Refused {
    Error(ApiError),
    Answer(Box<Answer>),
}

impl From<ApiError> for Refused {
    fn from(error: ApiError) -> Self {
        Self::Error(error)
    }
}

impl From<Answer> for Refused {
    fn from(answer: Answer) -> Self {
        Self::Answer(Box::new(answer))
    }
}

/// What is invalid in options is refused as of a kind of its own.
fn of_options(kind: &'static str) -> impl Fn(ApiError) -> Refused {
    move |error| match error.reason {
        Reason::Invalid => answer::refusal_of_options(&error, kind).into(),
        _ => error.into(),
    }
}

/// One request.
struct Call<'a> {
    target: &'a Target,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    form: Form,
    body: Bytes,
    facade: &'a Facade,
}

impl Call<'_> {
    async fn answer(&self) -> Result<Answer, Refused> {
        let options = Options::parse(&self.uri)?;
        let named = !self.target.name.is_empty();
        let names = self.target.resource.names();
        let verb = match (&self.method, named) {
            (&Method::GET, true) => "get",
            (&Method::GET, false) => "list",
            (&Method::POST, _) => "create",
            (&Method::PUT, true) => "update",
            (&Method::PATCH, true) => "patch",
            (&Method::DELETE, true) => "delete",
            (&Method::DELETE, false) => "deletecollection",
            _ => return Ok(answer::not_allowed()),
        };
        let allowed = match self.target.subresource {
            None => names.verbs,
            Some(subresource) => discovery::about(names, subresource).verbs,
        };
        if !allowed.contains(&verb) {
            return Ok(answer::not_allowed());
        }
        let part = match self.target.subresource {
            None => Part::Main,
            Some(Subresource::Status) => Part::Status,
            Some(Subresource::Log) => return self.log().await,
            Some(act @ (Subresource::Attach | Subresource::Exec | Subresource::PortForward)) => {
                return Ok(self.nothing_runs(act));
            }
            Some(Subresource::Scale) => return self.scale(&options).await,
            Some(act) => return self.act(act, &options).await,
        };
        match (&self.method, named) {
            (&Method::GET, true) => self.get(&options).await,
            (&Method::GET, false) => self.list(&options).await,
            (&Method::POST, false) => self.create(&options).await,
            (&Method::PUT, true) => self.update(part, &options).await,
            (&Method::PATCH, true) => self.patch(part, &options).await,
            (&Method::DELETE, true) => self.delete(&options).await,
            (&Method::DELETE, false) => self.delete_collection(&options).await,
            _ => Ok(answer::not_allowed()),
        }
    }

    fn is_watch(&self) -> bool {
        Options::parse(&self.uri).is_ok_and(|options| options.is_watch().unwrap_or_default())
    }

    async fn get(&self, options: &Options) -> Result<Answer, Refused> {
        let Target { resource, .. } = self.target;
        let document = resource.get(&self.target.key()).await?;
        Ok(self.shown(StatusCode::OK, document, options)?)
    }

    async fn list(&self, options: &Options) -> Result<Answer, Refused> {
        let Target {
            resource,
            namespace,
            ..
        } = self.target;
        let list = options.list(namespace).map_err(of_options("ListOptions"))?;
        let include = Include::parse(&options.include_object)?;
        if options.is_watch()? {
            let resource = Arc::clone(resource);
            let open = self.facade.metrics.watches(resource.names());
            let stop = self.facade.stop.clone();
            return Ok(watch::answer(resource, &list, self.form, include, stop, open).await);
        }
        let documents = resource.list(&list).await?;
        Ok(self.listed(documents, include)?)
    }

    fn listed(&self, documents: Documents, include: Include) -> Result<Answer, ApiError> {
        let names = self.target.resource.names();
        let Documents { metadata, items } = documents;
        let document = match self.form {
            Form::Table(version) => {
                Tables { version, include }.of(self.target.resource.as_ref(), &metadata, items)?
            }
            Form::Metadata(version) => {
                let items: Vec<_> = items
                    .iter()
                    .map(|item| table::metadata_only(item, version))
                    .collect();
                json!({"kind": "PartialObjectMetadataList", "apiVersion": version, "metadata": table::list_meta(&metadata), "items": items})
            }
            Form::Whole | Form::Protobuf => {
                json!({"kind": format!("{}List", names.kind), "apiVersion": names.api_version(), "metadata": table::list_meta(&metadata), "items": items})
            }
        };
        Ok(self.form.answer(StatusCode::OK, &document))
    }

    /// An object in the form that the client wants.
    fn shown(
        &self,
        code: StatusCode,
        document: Value,
        options: &Options,
    ) -> Result<Answer, ApiError> {
        let document = match self.form {
            Form::Whole | Form::Protobuf => document,
            Form::Metadata(version) => table::metadata_only(&document, version),
            Form::Table(version) => {
                let include = Include::parse(&options.include_object)?;
                let revision = document["metadata"]["resourceVersion"].as_str();
                let metadata = podplane_proto::wire::ListMeta {
                    resource_version: revision.map(str::to_owned),
                    ..Default::default()
                };
                let resource = self.target.resource.as_ref();
                Tables { version, include }.of(resource, &metadata, vec![document])?
            }
        };
        Ok(self.form.answer(code, &document))
    }

    fn written(
        &self,
        code: StatusCode,
        written: Written,
        options: &Options,
    ) -> Result<Answer, Refused> {
        let Written {
            document, warnings, ..
        } = written;
        let mut answer = self.shown(code, document, options)?;
        answer::warn(&mut answer, &warnings);
        Ok(answer)
    }

    /// The object of the body.
    fn object(&self) -> Result<Value, Refused> {
        self.placed(body::document(&self.headers, &self.body)?)
    }

    /// A document as an object of the kind, which must be the one, or in the namespace, that the path says.
    fn placed(&self, mut document: Value) -> Result<Value, Refused> {
        let names = self.target.resource.names();
        if !document.is_object() {
            return Err(error::bad_request("the body of the request is not an object").into());
        }
        let expected = names.api_version();
        let says = |field: &str| document[field].as_str().unwrap_or_default().to_owned();
        let (version, kind) = (says("apiVersion"), says("kind"));
        if !version.is_empty() && version != expected {
            let why = format!(
                "the API version in the data ({version}) does not match the expected API version ({expected})"
            );
            return Err(error::bad_request(why).into());
        }
        if !kind.is_empty() && kind != names.kind {
            let why = format!(
                "the kind in the data ({kind}) does not match the expected kind ({})",
                names.kind
            );
            return Err(error::bad_request(why).into());
        }
        document["apiVersion"] = expected.into();
        document["kind"] = names.kind.into();
        if document["metadata"].is_null() {
            document["metadata"] = json!({});
        }
        let Some(metadata) = document["metadata"].as_object_mut() else {
            return Err(error::bad_request("metadata: must be an object").into());
        };
        let namespace = metadata
            .get("namespace")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if names.scope == Scope::Namespaced {
            if !namespace.is_empty() && namespace != self.target.namespace {
                let why = "the namespace of the provided object does not match the namespace sent on the request";
                return Err(error::bad_request(why).into());
            }
            metadata.insert(
                "namespace".to_owned(),
                self.target.namespace.as_str().into(),
            );
        }
        let name = metadata
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if !self.target.name.is_empty() {
            if !name.is_empty() && name != self.target.name {
                let why = format!(
                    "the name of the object ({name}) does not match the name on the URL ({})",
                    self.target.name
                );
                return Err(error::bad_request(why).into());
            }
            metadata.insert("name".to_owned(), self.target.name.as_str().into());
        }
        Ok(document)
    }

    async fn create(&self, options: &Options) -> Result<Answer, Refused> {
        let Target { resource, .. } = self.target;
        let object = self.object()?;
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let name = name.to_owned();
        let write = options.write(&self.headers)?;
        let written = resource.create(object, &write).await.map_err(|error| {
            // The path does not name what is refused; and what is not found is its namespace.
            let names = Some(resource.names()).filter(|_| error.reason != Reason::NotFound);
            let name = names.map_or("", |_| &name);
            Refused::from(answer::refusal(&error, About { names, name }))
        })?;
        self.written(StatusCode::CREATED, written, options)
    }

    async fn update(&self, part: Part, options: &Options) -> Result<Answer, Refused> {
        let resource = &self.target.resource;
        let written = resource
            .update(self.object()?, part, &options.write(&self.headers)?)
            .await?;
        self.written(StatusCode::OK, written, options)
    }

    async fn patch(&self, part: Part, options: &Options) -> Result<Answer, Refused> {
        let write = options.write(&self.headers)?;
        let mut patch = patch::parse(&self.headers, &self.body)?;
        let applied = matches!(patch, Patch::Apply { .. });
        let forced = options.force(applied).map_err(of_options("PatchOptions"))?;
        if let Patch::Apply { config, force } = &mut patch {
            *config = self.placed(std::mem::take(config))?;
            *force = forced;
        }
        let key = self.target.key();
        let written = self
            .target
            .resource
            .patch(&key, part, &patch, &write)
            .await?;
        let code = if written.created {
            StatusCode::CREATED
        } else {
            StatusCode::OK
        };
        self.written(code, written, options)
    }

    async fn delete(&self, options: &Options) -> Result<Answer, Refused> {
        let options = options
            .delete(&body::document(&self.headers, &self.body)?)
            .map_err(of_options("DeleteOptions"))?;
        let Target { resource, name, .. } = self.target;
        let document = resource.delete(&self.target.key(), &options).await?;
        let names = resource.names();
        if names.returns_deleted || document["metadata"]["deletionTimestamp"].is_string() {
            // It may be there still, and says until when.
            return Ok(answer::document(StatusCode::OK, &document));
        }
        let mut details =
            json!({"name": name, "kind": names.plural, "uid": document["metadata"]["uid"]});
        if !names.group.is_empty() {
            details["group"] = names.group.into();
        }
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
        Ok(answer::document(StatusCode::OK, &status))
    }

    async fn delete_collection(&self, options: &Options) -> Result<Answer, Refused> {
        let Target {
            resource,
            namespace,
            ..
        } = self.target;
        let list = options.list(namespace).map_err(of_options("ListOptions"))?;
        let delete = options
            .delete(&body::document(&self.headers, &self.body)?)
            .map_err(of_options("DeleteOptions"))?;
        let keys = resource.keys(&list.selection).await?;
        // Futures do nothing before they are asked.
        let each: Vec<_> = keys
            .iter()
            .map(|key| resource.delete(key, &delete))
            .collect();
        let mut deleting = stream::iter(each).buffered(AT_ONCE);
        let mut items = Vec::new();
        while let Some(deleted) = deleting.next().await {
            match deleted {
                Ok(document) => items.push(document),
                // What somebody else deleted needs no deletion.
                Err(error) if error.reason == Reason::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        let documents = Documents {
            metadata: Default::default(),
            items,
        };
        Ok(self.listed(documents, Include::Metadata)?)
    }

    async fn log(&self) -> Result<Answer, Refused> {
        let is_event = |kind: &&Arc<dyn Resource>| {
            let names = kind.names();
            (names.group, names.plural) == ("", "events")
        };
        let Some(events) = self.facade.kinds.iter().find(is_event) else {
            return Ok(answer::no_such_path());
        };
        if self.method != Method::GET {
            return Ok(answer::not_allowed());
        }
        let pods = &self.target.resource;
        let sources = log::Sources { pods, events };
        let stop = self.facade.stop.clone();
        Ok(log::answer(sources, &self.target.key(), &self.uri, stop).await?)
    }

    /// What needs a process in the pod cannot be had.
    fn nothing_runs(&self, act: Subresource) -> Answer {
        let why = format!(
            "{} of pod {:?}: no containers run in the pods of podplane, which are networks only; `podplane exec` and `podplane ping` work in a pod's network",
            act.name(),
            self.target.name
        );
        answer::refuse(StatusCode::NOT_IMPLEMENTED, "NotImplemented", &why)
    }

    async fn act(&self, act: Subresource, options: &Options) -> Result<Answer, Refused> {
        let document = body::document(&self.headers, &self.body)?;
        let effect = options.effect()?;
        let Target { resource, .. } = self.target;
        resource
            .act(&self.target.key(), act, &document, effect)
            .await?;
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
        Ok(answer::document(StatusCode::CREATED, &status))
    }
}
