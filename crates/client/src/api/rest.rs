//! Calls of Kubernetes' REST API, over kube-rs.

mod guard;
mod params;
mod status;
#[cfg(test)]
mod tests;

use std::{
    borrow::Cow,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::{AsyncBufReadExt as _, Stream, StreamExt as _, pin_mut};
use http::{HeaderValue, Request, header::CONTENT_TYPE};
use kube::{
    api::{GetParams, Patch, PostParams, WatchParams},
    core::{Status, request},
};
use podplane_api::{
    Object, Resource, Scope,
    certificates::CertificateSigningRequest,
    core::{Node, Pod},
    meta::ListMeta,
};
use podplane_proto::{
    error::{ApiError, Reason},
    fence::Fence,
    wire::{PatchType, Verb},
};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json, value::RawValue};

use self::params::{list_params, watch_params};
pub use self::status::{is_unserved_kind, refused};
pub(crate) use self::{params::delete_params, status::observed};
use super::{Binding, DeleteParams, ListParams, ObjectEvent, ObjectList, PatchParams};
use crate::{blocks::AgentReports, leader::LeaseTerm};

/// The items of a page of a list, where the server does not stream lists. client-go asks for as
/// many.
const PAGE: u32 = 500;
/// The annotation of the bookmark that ends the present objects of a watch.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// The connection, and what goes with each call.
#[derive(Clone)]
pub(crate) struct RestCalls {
    /// The connection.
    base: kube::Client,
    /// The connection with the fence and the term.
    client: kube::Client,
    fence: Option<HeaderValue>,
    term: Option<LeaseTerm>,
    /// False once the server has found the parameters of a streamed list invalid.
    streams_lists: Arc<AtomicBool>,
    agent_reports: AgentReports,
}

impl fmt::Debug for RestCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RestCalls")
            .field("fence", &self.fence)
            .finish_non_exhaustive()
    }
}

/// A page of a list, whose items are not decoded yet.
#[derive(Deserialize)]
struct Page<'a> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

/// A line of a watch.
#[derive(Deserialize)]
struct WatchLine<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// The part of a bookmark that is used.
#[derive(Deserialize)]
struct Bookmark {
    metadata: podplane_api::meta::ObjectMeta,
}

/// An event of a watch that began with the present objects.
enum InitialEvent<K> {
    Event(ObjectEvent<K>),
    /// The end of the present objects, and their revision.
    End(String),
}

impl RestCalls {
    /// Calls over a connection. It needs a tokio runtime.
    pub(crate) fn new(connection: kube::Client) -> Self {
        let client = guard::client(&connection, None, None);
        Self {
            base: connection,
            client,
            fence: None,
            term: None,
            streams_lists: Arc::new(AtomicBool::new(true)),
            agent_reports: AgentReports::default(),
        }
    }

    /// The same calls with another fence, which Kubernetes ignores.
    pub(crate) fn with_fence(&self, fence: Option<&Fence>) -> Self {
        let value = |fence: &Fence| HeaderValue::from_str(&fence.to_string()).ok();
        self.guarded(fence.and_then(value), self.term.clone())
    }

    /// The same calls, of which writes are refused outside a term.
    pub(crate) fn during(&self, term: &LeaseTerm) -> Self {
        self.guarded(self.fence.clone(), Some(term.clone()))
    }

    fn guarded(&self, fence: Option<HeaderValue>, term: Option<LeaseTerm>) -> Self {
        Self {
            base: self.base.clone(),
            client: guard::client(&self.base, fence.clone(), term.clone()),
            fence,
            term,
            streams_lists: Arc::clone(&self.streams_lists),
            agent_reports: self.agent_reports.clone(),
        }
    }

    /// The reports on the blocks of deleted nodes that this process has seen.
    pub(crate) fn agent_reports(&self) -> AgentReports {
        self.agent_reports.clone()
    }

    /// The connection with the fence and the term.
    pub(crate) fn connection(&self) -> kube::Client {
        self.client.clone()
    }

    /// Sends JSON and decodes the answer.
    pub(crate) async fn post<A: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl serde::Serialize,
    ) -> Result<A, ApiError> {
        let body = serde_json::to_vec(body)
            .map_err(|error| ApiError::new(Reason::BadRequest, error.to_string()))?;
        let created = request::Request::new(path).create(&PostParams::default(), body);
        let answer = self.text(created).await?;
        serde_json::from_str(&answer).map_err(|error| invalid("answer", &error))
    }

    pub(super) async fn get<K: Object>(&self, namespace: &str, name: &str) -> Result<K, ApiError> {
        let request = objects::<K>(namespace, name)?.get(name, &GetParams::default());
        decode(&self.text(request).await?)
    }

    pub(super) async fn list<K: Object>(
        &self,
        namespace: &str,
        params: &ListParams,
    ) -> Result<ObjectList<K>, ApiError> {
        self.page(namespace, params, &mut |object| object).await
    }

    /// Lists all objects: as a stream, or in pages if that fails.
    pub(super) async fn list_all_as<K: Object, T>(
        &self,
        namespace: &str,
        params: &ListParams,
        mut transform: impl FnMut(K) -> T,
    ) -> Result<ObjectList<T>, ApiError> {
        if self.streams_lists.load(Ordering::Relaxed) {
            match self.stream(namespace, params, &mut transform).await {
                Ok(listed) => return Ok(listed),
                // As client-go, whatever the error is. A server with an etcd that cannot ask for
                // progress accepts the request, and then sends an error as its first event.
                Err(error) => {
                    tracing::debug!(kind = K::KIND, %error, "the server does not stream the list");
                    if matches!(error.reason, Reason::Invalid | Reason::BadRequest) {
                        self.streams_lists.store(false, Ordering::Relaxed);
                    }
                }
            }
        }
        let mut params = ListParams {
            limit: PAGE.into(),
            ..params.clone()
        };
        let mut items = Vec::new();
        loop {
            let page = self.page(namespace, &params, &mut transform).await?;
            items.extend(page.items);
            match page.continue_token {
                Some(token) => params.continue_token = token,
                None => {
                    return Ok(ObjectList {
                        resource_version: page.resource_version,
                        continue_token: None,
                        items,
                    });
                }
            }
        }
    }

    async fn page<K: Object, T>(
        &self,
        namespace: &str,
        params: &ListParams,
        transform: &mut impl FnMut(K) -> T,
    ) -> Result<ObjectList<T>, ApiError> {
        let text = self
            .text(collection::<K>(namespace).list(&list_params(params)?))
            .await?;
        let page: Page<'_> =
            serde_json::from_str(&text).map_err(|error| invalid("list", &error))?;
        let items = page.items.unwrap_or_default();
        let items = items.into_iter();
        Ok(ObjectList {
            resource_version: page.metadata.resource_version.unwrap_or_default(),
            continue_token: page.metadata.continue_.filter(|token| !token.is_empty()),
            items: items
                .map(|item| decode(item.get()).map(&mut *transform))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Lists all objects as Kubernetes' streaming lists do: a watch that begins with them.
    async fn stream<K: Object, T>(
        &self,
        namespace: &str,
        params: &ListParams,
        transform: &mut impl FnMut(K) -> T,
    ) -> Result<ObjectList<T>, ApiError> {
        let watch = WatchParams {
            send_initial_events: true,
            ..watch_params(params)
        };
        let request = collection::<K>(namespace).watch(&watch, &params.resource_version);
        let events = self.events::<K>(request).await?;
        pin_mut!(events);
        let mut items = Vec::new();
        while let Some(event) = events.next().await {
            match event? {
                InitialEvent::Event(ObjectEvent::Added(object) | ObjectEvent::Modified(object)) => {
                    items.push(transform(object));
                }
                InitialEvent::Event(ObjectEvent::Deleted(_) | ObjectEvent::Bookmark(_)) => {}
                InitialEvent::End(resource_version) => {
                    return Ok(ObjectList {
                        resource_version,
                        continue_token: None,
                        items,
                    });
                }
            }
        }
        let why = format!("the stream of {} ended before its last object", K::PLURAL);
        Err(ApiError::new(Reason::ServiceUnavailable, why))
    }

    pub(super) async fn watch<K: Object>(
        &self,
        namespace: &str,
        params: &ListParams,
        resource_version: &str,
    ) -> Result<
        impl Stream<Item = Result<ObjectEvent<K>, ApiError>> + Send + use<K> + 'static,
        ApiError,
    > {
        let request = collection::<K>(namespace).watch(&watch_params(params), resource_version);
        let events = self.events::<K>(request).await?;
        Ok(events.map(|event| {
            Ok(match event? {
                InitialEvent::Event(event) => event,
                InitialEvent::End(at) => ObjectEvent::Bookmark(at),
            })
        }))
    }

    /// The events of a watch, a line each.
    async fn events<K: Object>(
        &self,
        request: Result<Request<Vec<u8>>, request::Error>,
    ) -> Result<impl Stream<Item = Result<InitialEvent<K>, ApiError>> + Send + use<K>, ApiError>
    {
        let stream = self.client.request_stream(built(request)?).await;
        let lines = stream.map_err(refused)?.lines();
        Ok(lines.map(|line| {
            let broken = |error: std::io::Error| {
                ApiError::new(Reason::ServiceUnavailable, error.to_string())
            };
            event(&line.map_err(broken)?)
        }))
    }

    pub(super) async fn write<K: Object>(
        &self,
        verb: Verb,
        namespace: &str,
        object: &K,
    ) -> Result<K, ApiError> {
        let namespace = match namespace {
            "" => object.namespace(),
            namespace => namespace,
        };
        let name = object.name();
        let body = object
            .to_vec()
            .map_err(|error| ApiError::new(Reason::BadRequest, error.to_string()))?;
        let params = PostParams::default();
        let request = match verb {
            Verb::Create => collection::<K>(namespace).create(&params, body),
            Verb::UpdateStatus => {
                let object = objects::<K>(namespace, name)?;
                object.replace_subresource("status", name, &params, body)
            }
            _ => objects::<K>(namespace, name)?.replace(name, &params, body),
        };
        decode(&self.text(request).await?)
    }

    pub(super) async fn update_approval(
        &self,
        request: &CertificateSigningRequest,
    ) -> Result<CertificateSigningRequest, ApiError> {
        let body = request
            .to_vec()
            .map_err(|error| ApiError::new(Reason::BadRequest, error.to_string()))?;
        let name = request.name();
        let object = objects::<CertificateSigningRequest>("", name)?;
        let request = object.replace_subresource("approval", name, &PostParams::default(), body);
        decode(&self.text(request).await?)
    }

    pub(super) async fn patch<K: Object>(
        &self,
        verb: Verb,
        namespace: &str,
        name: &str,
        params: &PatchParams,
    ) -> Result<K, ApiError> {
        let PatchParams {
            patch_type,
            patch,
            field_manager,
            force,
        } = params;
        let patch: Value = serde_json::from_str(patch).map_err(|error| {
            ApiError::new(Reason::BadRequest, format!("invalid patch: {error}"))
        })?;
        let patch = match patch_type {
            PatchType::Unspecified => {
                return Err(ApiError::new(Reason::BadRequest, "the patch has no type"));
            }
            PatchType::Json | PatchType::Merge => Patch::Merge(patch),
            PatchType::Strategic => Patch::Strategic(patch),
            PatchType::Apply => Patch::Apply(patch),
        };
        let params = kube::api::PatchParams {
            field_manager: Some(field_manager.clone()).filter(|manager| !manager.is_empty()),
            force: *force && *patch_type == PatchType::Apply,
            ..kube::api::PatchParams::default()
        };
        let object = objects::<K>(namespace, name)?;
        let mut request = match verb {
            Verb::PatchStatus => object.patch_subresource("status", name, &params, &patch),
            _ => object.patch(name, &params, &patch),
        };
        // kube-rs has a type for these patches, of a crate that is used nowhere else here.
        if let (PatchType::Json, Ok(request)) = (patch_type, &mut request) {
            let json_patch = HeaderValue::from_static("application/json-patch+json");
            request.headers_mut().insert(CONTENT_TYPE, json_patch);
        }
        decode(&self.text(request).await?)
    }

    pub(super) async fn delete<K: Object>(
        &self,
        namespace: &str,
        name: &str,
        params: &DeleteParams,
    ) -> Result<K, ApiError> {
        let request = objects::<K>(namespace, name)?.delete(name, &delete_params(params));
        self.removed(namespace, name, request).await
    }

    pub(super) async fn evict(
        &self,
        namespace: &str,
        name: &str,
        params: &DeleteParams,
    ) -> Result<Pod, ApiError> {
        let eviction = json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": delete_params(params),
        });
        let request = subresource::<Pod>(namespace, name, "eviction", &eviction)?;
        self.removed(namespace, name, request).await
    }

    /// Sends a request that deletes an object. The answer is the object, or a Status.
    async fn removed<K: Object>(
        &self,
        namespace: &str,
        name: &str,
        request: Result<Request<Vec<u8>>, request::Error>,
    ) -> Result<K, ApiError> {
        #[derive(Deserialize)]
        struct Answer {
            kind: String,
            details: Option<Details>,
        }
        #[derive(Deserialize)]
        struct Details {
            uid: Option<String>,
        }
        let text = self.text(request).await?;
        let answer: Answer =
            serde_json::from_str(&text).map_err(|error| invalid("answer", &error))?;
        if answer.kind != "Status" {
            return decode(&text);
        }
        let mut gone = K::default();
        let metadata = gone.metadata_mut();
        metadata.name = Some(name.to_owned());
        metadata.namespace = Some(namespace.to_owned()).filter(|namespace| !namespace.is_empty());
        metadata.uid = answer.details.and_then(|details| details.uid);
        Ok(gone)
    }

    pub(super) async fn bind(&self, namespace: &str, binding: &Binding) -> Result<(), ApiError> {
        let Binding {
            name,
            uid,
            resource_version,
            node_name,
        } = binding;
        let body = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": uid,
                "resourceVersion": resource_version,
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": node_name},
        });
        let request = subresource::<Pod>(namespace, name, "binding", &body)?;
        self.text(request).await.map(drop)
    }

    pub(super) async fn assign_pod_cidrs(
        &self,
        name: &str,
        uid: &str,
        resource_version: &str,
        pod_cidrs: &[String],
    ) -> Result<Node, ApiError> {
        let resource_version = Some(resource_version).filter(|at| !at.is_empty());
        let patch = json!({
            "metadata": {"uid": uid, "resourceVersion": resource_version},
            "spec": {"podCIDR": pod_cidrs.first(), "podCIDRs": pod_cidrs},
        });
        let request = objects::<Node>("", name)?.patch(
            name,
            &kube::api::PatchParams::default(),
            &Patch::Merge(patch),
        );
        match self.text(request).await {
            Ok(node) => decode(&node),
            // Kubernetes finds another UID invalid.
            Err(error) if error.fields.iter().any(|of| of.field == "metadata.uid") => {
                Err(ApiError {
                    reason: Reason::Conflict,
                    ..error
                })
            }
            Err(error) => Err(error),
        }
    }

    async fn text(
        &self,
        request: Result<Request<Vec<u8>>, request::Error>,
    ) -> Result<String, ApiError> {
        let answer = self.client.request_text(built(request)?).await;
        answer.map_err(refused)
    }
}

fn built(request: Result<Request<Vec<u8>>, request::Error>) -> Result<Request<Vec<u8>>, ApiError> {
    request.map_err(|error| ApiError::new(Reason::BadRequest, error.to_string()))
}

/// The path of the objects of a cluster-scoped kind, or of all namespaces.
pub(crate) fn path_of<K: Resource>() -> String {
    format!("{}/{}", root::<K>(), K::URL_PATH_SEGMENT)
}

fn root<K: Resource>() -> String {
    match K::GROUP {
        "" => format!("/api/{}", K::VERSION),
        group => format!("/apis/{group}/{}", K::VERSION),
    }
}

/// The objects of a kind in a namespace, or in all.
fn collection<K: Object>(namespace: &str) -> request::Request {
    request::Request::new(match (K::SCOPE, namespace) {
        (Scope::Cluster, _) | (_, "") => path_of::<K>(),
        (_, namespace) => format!("{}/namespaces/{namespace}/{}", root::<K>(), K::PLURAL),
    })
}

/// The same, for a request for one object. Its name becomes a part of the path.
fn objects<K: Object>(namespace: &str, name: &str) -> Result<request::Request, ApiError> {
    let fits = |name: &str| {
        let is_allowed = |byte: u8| {
            byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b':' | b'~')
        };
        name.bytes().all(is_allowed) && !matches!(name, "." | "..")
    };
    if name.is_empty() || !fits(name) || !fits(namespace) {
        return Err(ApiError::not_found(K::PLURAL, name));
    }
    Ok(collection::<K>(namespace))
}

/// A request that creates a subresource of an object.
fn subresource<K: Object>(
    namespace: &str,
    name: &str,
    subresource: &str,
    body: &Value,
) -> Result<Result<Request<Vec<u8>>, request::Error>, ApiError> {
    let object = objects::<K>(namespace, name)?;
    let body = body.to_string().into_bytes();
    Ok(object.create_subresource(subresource, name, &PostParams::default(), body))
}

fn event<K: Object>(line: &str) -> Result<InitialEvent<K>, ApiError> {
    let WatchLine { r#type, object } =
        serde_json::from_str(line).map_err(|error| invalid("watch event", &error))?;
    let text = object.get();
    Ok(InitialEvent::Event(match &*r#type {
        "ADDED" => ObjectEvent::Added(decode(text)?),
        "MODIFIED" => ObjectEvent::Modified(decode(text)?),
        "DELETED" => ObjectEvent::Deleted(decode(text)?),
        "BOOKMARK" => {
            let bookmark: Bookmark =
                serde_json::from_str(text).map_err(|error| invalid("bookmark", &error))?;
            let metadata = bookmark.metadata;
            let at = metadata.resource_version.unwrap_or_default();
            let annotations = metadata.annotations.unwrap_or_default();
            if annotations.contains_key(INITIAL_EVENTS_END) {
                return Ok(InitialEvent::End(at));
            }
            ObjectEvent::Bookmark(at)
        }
        "ERROR" => {
            let status: Status =
                serde_json::from_str(text).map_err(|error| invalid("watch error", &error))?;
            return Err(refused(kube::Error::Api(Box::new(status))));
        }
        other => {
            let why = format!("the server sent a watch event of an unknown type: {other}");
            return Err(ApiError::new(Reason::InternalError, why));
        }
    }))
}

fn decode<K: Object>(text: &str) -> Result<K, ApiError> {
    K::from_slice(text.as_bytes()).map_err(|error| invalid(K::KIND, &error))
}

fn invalid(what: &str, error: &serde_json::Error) -> ApiError {
    let why = format!("the server sent an invalid {what}: {error}");
    ApiError::new(Reason::InternalError, why)
}
