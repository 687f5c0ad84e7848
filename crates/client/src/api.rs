//! Reading and writing objects of one kind.

use std::marker::PhantomData;

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use http::{HeaderValue, uri::PathAndQuery};
use podplane_api::{
    Object,
    certificates::CertificateSigningRequest,
    core::{Node, Pod},
};
use podplane_proto::{
    codec,
    error::{ApiError, Reason},
    fence::{Fence, METADATA},
    transport::{Encoded, Wire, WireCodec},
    wire::{self, PatchType, Propagation, Verb},
};
use tonic::{Request, Status, Streaming, client::Grpc, metadata::AsciiMetadataValue};

use crate::{
    BlocksClient, Channel, MetadataClient, PatchFaults,
    endpoint::{self, Endpoint, EndpointError},
    faults::WriteFault,
    trace,
};

/// A client of one server. Cheap to clone; all clones share a connection.
#[derive(Clone, Debug)]
pub struct Client {
    calls: Calls,
}

impl Client {
    /// A client over a channel from [`endpoint::channel`].
    pub fn new(channel: impl Into<Channel>) -> Self {
        let calls = Calls {
            channel: channel.into(),
            fence: None,
            faults: None,
        };
        Self { calls }
    }

    /// A client of the server at `endpoint`. It connects at the first call.
    ///
    /// # Errors
    ///
    /// [`EndpointError::MissingAuthority`] for an `https://` address without authorities, and
    /// [`EndpointError::TokenWithoutTls`] for a token that would be sent in the clear.
    pub fn connect(endpoint: &Endpoint) -> Result<Self, EndpointError> {
        endpoint::channel(endpoint).map(Self::new)
    }

    /// The same client for a leader. The server carries out its writes only while nobody else
    /// leads, and refuses them with [`Reason::FenceLost`] from then on.
    #[must_use]
    pub fn fenced(&self, fence: &Fence) -> Self {
        let fence = fence.to_string().parse();
        // A fence is made of names of objects, which are ASCII.
        let calls = Calls {
            channel: self.calls.channel.clone(),
            fence: Some(fence.expect("names of objects are ASCII")),
            faults: self.calls.faults.clone(),
        };
        Self { calls }
    }

    /// The same client without a fence, to imitate a controller that has none.
    #[must_use]
    pub fn unfenced(mut self) -> Self {
        self.calls.fence = None;
        self
    }

    /// The same client, whose first writes of node blocks fail as `faults` says.
    #[must_use]
    pub fn with_patch_faults(mut self, faults: Option<PatchFaults>) -> Self {
        self.calls.faults = faults;
        self
    }

    /// The channel to the server, for a service that has generated code.
    pub fn channel(&self) -> Channel {
        self.calls.channel.clone()
    }

    /// A client of the same server for the metadata of objects of any kind. It needs a tokio
    /// runtime.
    pub fn metadata(&self) -> MetadataClient {
        MetadataClient::new(self)
    }

    /// The fence as a header of HTTP.
    pub(crate) fn fence_header(&self) -> Option<HeaderValue> {
        let fence = self.calls.fence.as_ref()?;
        HeaderValue::from_bytes(fence.as_encoded_bytes()).ok()
    }

    /// Wraps a message for a service that has generated code.
    pub(crate) fn request<Q>(&self, message: Q) -> Request<Q> {
        self.calls.request(message)
    }

    /// The records of node blocks.
    pub fn blocks(&self) -> BlocksClient {
        BlocksClient::new(self.calls.clone())
    }

    /// Objects of a kind in all namespaces, or of a cluster-scoped kind.
    pub fn all<K: Object>(&self) -> Api<K> {
        self.namespaced("")
    }

    /// Objects of a kind in one namespace.
    pub fn namespaced<K: Object>(&self, namespace: impl Into<String>) -> Api<K> {
        Api {
            calls: self.calls.clone(),
            namespace: namespace.into(),
            kind: PhantomData,
        }
    }
}

/// The objects of kind `K` in one namespace, or in all.
///
/// All methods return [`ApiError`]. If its reason is `ServiceUnavailable`, a write may or may not
/// have been carried out.
#[derive(Clone, Debug)]
pub struct Api<K> {
    calls: Calls,
    namespace: String,
    kind: PhantomData<fn() -> K>,
}

/// The selection and paging of a list or a watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListParams {
    /// Kubernetes' label selector syntax; empty: all.
    pub label_selector: String,
    /// Kubernetes' field selector syntax; empty: all.
    pub field_selector: String,
    /// The maximum number of items in a list; 0: all.
    pub limit: i64,
    /// [`ObjectList::continue_token`] of the previous page.
    pub continue_token: String,
    /// The oldest acceptable revision of a list; empty: as new as every acknowledged write.
    pub resource_version: String,
    /// `Exact` for a list at exactly that revision, `NotOlderThan` or empty for one at least as
    /// new.
    pub resource_version_match: String,
}

/// A list at one revision.
#[derive(Clone, Debug)]
pub struct ObjectList<K> {
    /// The revision to watch from. Opaque.
    pub resource_version: String,
    /// The token of the next page; `None` on the last one.
    pub continue_token: Option<String>,
    /// The objects, by namespace and name.
    pub items: Vec<K>,
}

/// An event of a watch.
#[derive(Clone, Debug, PartialEq)]
pub enum ObjectEvent<K> {
    /// An object came into being, or began to match.
    Added(K),
    /// An object changed, and still matches.
    Modified(K),
    /// An object is gone, or no longer matches; its last state.
    Deleted(K),
    /// No other event up to this revision.
    Bookmark(String),
}

impl<K> ObjectEvent<K> {
    /// The same event of what `transform` makes of the object.
    pub(crate) fn map<T>(self, transform: impl FnOnce(K) -> T) -> ObjectEvent<T> {
        match self {
            Self::Added(object) => ObjectEvent::Added(transform(object)),
            Self::Modified(object) => ObjectEvent::Modified(transform(object)),
            Self::Deleted(object) => ObjectEvent::Deleted(transform(object)),
            Self::Bookmark(at) => ObjectEvent::Bookmark(at),
        }
    }
}

/// The options of a deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteParams {
    /// The grace period in seconds. `None`: the kind's default; `Some(0)`: delete at once.
    pub grace_period_seconds: Option<i64>,
    /// The UID that the object must have; `None`: any.
    pub uid: Option<String>,
    /// The revision that the object must be at; `None`: any.
    pub resource_version: Option<String>,
    /// The fate of the objects that it owns; `None`: they are deleted afterwards.
    pub propagation: Option<Propagation>,
}

/// The patch of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatchParams {
    /// The meaning of `patch`.
    pub patch_type: PatchType,
    /// The patch, or the configuration that is applied, as JSON text.
    pub patch: String,
    /// The writer that `metadata.managedFields` records. Required for [`PatchType::Apply`]; if
    /// empty, none is recorded.
    pub field_manager: String,
    /// True to let [`PatchType::Apply`] take fields over from other managers.
    pub force: bool,
}

/// A pod's assignment to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The pod's name.
    pub name: String,
    /// The UID that the pod must have.
    pub uid: String,
    /// The revision that the pod must be at; `None`: any.
    pub resource_version: Option<String>,
    /// The node.
    pub node_name: String,
}

impl<K: Object> Api<K> {
    /// Stores a new object and returns it as stored.
    ///
    /// # Errors
    ///
    /// `AlreadyExists`, `Invalid`, `NotFound` for its namespace, and others.
    pub async fn create(&self, object: &K) -> Result<K, ApiError> {
        self.write(Verb::Create, object).await
    }

    /// Reads the object of that name.
    ///
    /// # Errors
    ///
    /// `NotFound` and others.
    pub async fn get(&self, name: &str) -> Result<K, ApiError> {
        let request = wire::GetRequest {
            namespace: self.namespace.clone(),
            name: name.into(),
        };
        decode(
            &self
                .calls
                .get(path::<K>(&Verb::Get.method::<K>()), request)
                .await?,
        )
    }

    /// Lists the objects that match.
    ///
    /// # Errors
    ///
    /// `BadRequest` for an invalid selector, `Expired` for an old continue token, and others.
    pub async fn list(&self, params: &ListParams) -> Result<ObjectList<K>, ApiError> {
        self.list_as(params, |object| object).await
    }

    /// Lists what `transform` makes of the objects that match. One at a time is decoded.
    pub(crate) async fn list_as<T>(
        &self,
        params: &ListParams,
        mut transform: impl FnMut(K) -> T,
    ) -> Result<ObjectList<T>, ApiError> {
        let request = wire::ListRequest {
            namespace: self.namespace.clone(),
            label_selector: params.label_selector.clone(),
            field_selector: params.field_selector.clone(),
            limit: params.limit,
            r#continue: params.continue_token.clone(),
            resource_version: params.resource_version.clone(),
            resource_version_match: params.resource_version_match.clone(),
        };
        let list = self
            .calls
            .list(path::<K>(&Verb::List.method::<K>()), request)
            .await?;
        let metadata = list.metadata.unwrap_or_default();
        Ok(ObjectList {
            resource_version: metadata.resource_version.unwrap_or_default(),
            continue_token: metadata.r#continue.filter(|token| !token.is_empty()),
            items: list
                .items
                .iter()
                .map(|item| decode(item).map(&mut transform))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Streams every change after `resource_version`, with bookmarks. If it is empty, the stream
    /// begins with the present objects.
    ///
    /// The stream ends with the connection, and after an error;
    /// [`reflector`](crate::reflector::reflector) goes on.
    ///
    /// # Errors
    ///
    /// `Expired` if the revision is too old, and others, also as items of the stream.
    pub async fn watch(
        &self,
        params: &ListParams,
        resource_version: &str,
    ) -> Result<impl Stream<Item = Result<ObjectEvent<K>, ApiError>> + Send + 'static, ApiError>
    {
        let request = wire::WatchRequest {
            namespace: self.namespace.clone(),
            label_selector: params.label_selector.clone(),
            field_selector: params.field_selector.clone(),
            resource_version: resource_version.into(),
            allow_watch_bookmarks: true,
        };
        let events = self
            .calls
            .watch(path::<K>(&Verb::Watch.method::<K>()), request)
            .await?;
        Ok(events.map(|event| decode_event(event.map_err(refused)?)))
    }

    /// Replaces the object except its status, if it is still at the revision that `object` carries.
    ///
    /// # Errors
    ///
    /// `Conflict`, `NotFound`, `Invalid`, and others.
    pub async fn update(&self, object: &K) -> Result<K, ApiError> {
        self.write(Verb::Update, object).await
    }

    /// Replaces only the status, if the object is still at the revision that `object` carries.
    ///
    /// # Errors
    ///
    /// `Conflict`, `NotFound`, `Invalid`, and others.
    pub async fn update_status(&self, object: &K) -> Result<K, ApiError> {
        self.write(Verb::UpdateStatus, object).await
    }

    /// Changes the fields that a patch names, at any revision of the object.
    ///
    /// A [`PatchType::Apply`] of an object that does not exist creates it.
    ///
    /// # Errors
    ///
    /// `Conflict` if other managers own applied fields and the patch is not forced, or if the
    /// object is not at the revision that the patch names; `NotFound`; `Invalid` for fields that
    /// the kind does not have; and others.
    pub async fn patch(&self, name: &str, params: &PatchParams) -> Result<K, ApiError> {
        self.patch_part(Verb::Patch, name, params).await
    }

    /// Changes fields of the status that a patch names, at any revision of the object.
    ///
    /// # Errors
    ///
    /// Those of [`patch`](Self::patch); here, a [`PatchType::Apply`] creates no object.
    pub async fn patch_status(&self, name: &str, params: &PatchParams) -> Result<K, ApiError> {
        self.patch_part(Verb::PatchStatus, name, params).await
    }

    async fn patch_part(
        &self,
        verb: Verb,
        name: &str,
        params: &PatchParams,
    ) -> Result<K, ApiError> {
        let PatchParams {
            patch_type,
            patch,
            field_manager,
            force,
        } = params.clone();
        let request = wire::PatchRequest {
            namespace: self.namespace.clone(),
            name: name.into(),
            r#type: patch_type.into(),
            patch,
            field_manager,
            force,
        };
        let path = path::<K>(&verb.method::<K>());
        decode(&self.calls.patch_object(path, request).await?)
    }

    /// Deletes the object, or begins to, and returns its last state.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Conflict` if a precondition fails, and others.
    pub async fn delete(&self, name: &str, params: &DeleteParams) -> Result<K, ApiError> {
        self.delete_by(&Verb::Delete.method::<K>(), name, params)
            .await
    }

    async fn delete_by(
        &self,
        method: &str,
        name: &str,
        params: &DeleteParams,
    ) -> Result<K, ApiError> {
        let DeleteParams {
            grace_period_seconds,
            uid,
            resource_version,
            propagation,
        } = params.clone();
        let preconditions =
            (uid.is_some() || resource_version.is_some()).then_some(wire::Preconditions {
                resource_version,
                uid,
            });
        let request = wire::DeleteRequest {
            namespace: self.namespace.clone(),
            name: name.into(),
            grace_period_seconds,
            preconditions,
            propagation_policy: propagation.map(|policy| policy.as_str().to_owned()),
        };
        decode(&self.calls.delete(path::<K>(method), request).await?)
    }

    async fn write(&self, verb: Verb, object: &K) -> Result<K, ApiError> {
        let object = codec::encode(object)
            .map_err(|error| ApiError::new(Reason::BadRequest, error.to_string()))?;
        let request = wire::WriteRequest {
            object: Some(object),
        };
        decode(
            &self
                .calls
                .write(path::<K>(&verb.method::<K>()), request)
                .await?,
        )
    }
}

impl Api<Pod> {
    /// Binds a pod to a node; a pod is bound only once.
    ///
    /// # Errors
    ///
    /// `Conflict` if the pod is bound to another node, is being deleted, or has another UID or
    /// revision; `NotFound`, and others.
    pub async fn bind(&self, binding: &Binding) -> Result<(), ApiError> {
        let Binding {
            name,
            uid,
            resource_version,
            node_name,
        } = binding.clone();
        let request = wire::BindPodRequest {
            namespace: self.namespace.clone(),
            name,
            uid,
            node_name,
            resource_version: resource_version.unwrap_or_default(),
        };
        // The answer is the bound pod, which the watch delivers too.
        let answer = self.calls.bind(path::<Pod>("BindPod"), request).await;
        answer.map(drop)
    }

    /// Deletes the pod unless its disruption budget forbids that, and returns its last state.
    ///
    /// # Errors
    ///
    /// `TooManyRequests` if the budget allows no disruption now; `NotFound`, `Conflict` if a
    /// precondition fails, and others.
    pub async fn evict(&self, name: &str, params: &DeleteParams) -> Result<Pod, ApiError> {
        self.delete_by("EvictPod", name, params).await
    }
}

impl Api<Node> {
    /// Assigns a node its blocks, once, if it has this UID and is at this revision.
    ///
    /// # Errors
    ///
    /// `Conflict` if it has another UID, revision or other blocks; `NotFound`, and others.
    pub async fn assign_pod_cidrs(
        &self,
        name: &str,
        uid: &str,
        resource_version: &str,
        pod_cidrs: &[String],
    ) -> Result<Node, ApiError> {
        let request = wire::AssignPodCidrsRequest {
            name: name.into(),
            uid: uid.into(),
            resource_version: resource_version.into(),
            pod_cidrs: pod_cidrs.to_vec(),
        };
        decode(
            &self
                .calls
                .assign(path::<Node>("AssignPodCIDRs"), request)
                .await?,
        )
    }
}

impl Api<CertificateSigningRequest> {
    /// Approves or denies a request: writes the conditions of its status, if the object is still at
    /// the revision that `request` carries.
    ///
    /// # Errors
    ///
    /// `Conflict`, `NotFound`, `Invalid`, and others.
    pub async fn update_approval(
        &self,
        request: &CertificateSigningRequest,
    ) -> Result<CertificateSigningRequest, ApiError> {
        let object = codec::encode(request)
            .map_err(|error| ApiError::new(Reason::BadRequest, error.to_string()))?;
        let method = "UpdateCertificateSigningRequestApproval";
        let path = path::<CertificateSigningRequest>(method);
        let object = Some(object);
        decode(
            &self
                .calls
                .write(path, wire::WriteRequest { object })
                .await?,
        )
    }
}

/// The calls, without the type of the kind. Their messages are the same for every kind, so tonic's
/// machinery is compiled once, here, and not for each kind in each program.
#[derive(Clone, Debug)]
pub(crate) struct Calls {
    channel: Channel,
    fence: Option<AsciiMetadataValue>,
    faults: Option<PatchFaults>,
}

impl Calls {
    /// The channel, for a service that has generated code.
    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Wraps a message into a request with the fence and the trace context.
    pub(crate) fn request<Q>(&self, message: Q) -> Request<Q> {
        let mut request = Request::new(message);
        if let Some(fence) = &self.fence {
            request.metadata_mut().insert(METADATA, fence.clone());
        }
        trace::inject(request.metadata_mut());
        request
    }

    /// Makes a call that writes node blocks, or lets it fail if a [`PatchFaults`] says so.
    pub(crate) async fn patch<T>(
        &self,
        call: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        match self.faults.as_ref().and_then(PatchFaults::next) {
            None => call.await,
            Some(fault) => {
                if fault == WriteFault::Timeout {
                    call.await?;
                }
                tracing::warn!(?fault, "injected a fault into a write of node blocks");
                Err(fault.error())
            }
        }
    }

    async fn get(&self, path: PathAndQuery, request: wire::GetRequest) -> Result<Bytes, ApiError> {
        Ok(self.unary::<_, Encoded>(path, request).await?.0)
    }

    async fn list(
        &self,
        path: PathAndQuery,
        request: wire::ListRequest,
    ) -> Result<wire::ObjectList, ApiError> {
        self.unary(path, request).await
    }

    async fn watch(
        &self,
        path: PathAndQuery,
        request: wire::WatchRequest,
    ) -> Result<Streaming<wire::WatchEvent>, ApiError> {
        let codec = WireCodec::<wire::WatchRequest, wire::WatchEvent>::default();
        let mut grpc = self.ready().await?;
        let events = grpc
            .server_streaming(self.request(request), path, codec)
            .await;
        Ok(events.map_err(refused)?.into_inner())
    }

    async fn write(
        &self,
        path: PathAndQuery,
        request: wire::WriteRequest,
    ) -> Result<Bytes, ApiError> {
        Ok(self.unary::<_, Encoded>(path, request).await?.0)
    }

    async fn delete(
        &self,
        path: PathAndQuery,
        request: wire::DeleteRequest,
    ) -> Result<Bytes, ApiError> {
        Ok(self.unary::<_, Encoded>(path, request).await?.0)
    }

    async fn patch_object(
        &self,
        path: PathAndQuery,
        request: wire::PatchRequest,
    ) -> Result<Bytes, ApiError> {
        Ok(self.unary::<_, Encoded>(path, request).await?.0)
    }

    async fn bind(
        &self,
        path: PathAndQuery,
        request: wire::BindPodRequest,
    ) -> Result<Bytes, ApiError> {
        Ok(self.unary::<_, Encoded>(path, request).await?.0)
    }

    async fn assign(
        &self,
        path: PathAndQuery,
        request: wire::AssignPodCidrsRequest,
    ) -> Result<Bytes, ApiError> {
        let call = self.unary::<_, Encoded>(path, request);
        Ok(self.patch(call).await?.0)
    }

    async fn unary<Q: Wire, A: Wire>(&self, path: PathAndQuery, request: Q) -> Result<A, ApiError> {
        let mut grpc = self.ready().await?;
        let answer = grpc
            .unary(self.request(request), path, WireCodec::<Q, A>::default())
            .await;
        Ok(answer.map_err(refused)?.into_inner())
    }

    async fn ready(&self) -> Result<Grpc<Channel>, ApiError> {
        // A list of many objects is longer than tonic's default of 4 MiB for one message.
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(usize::MAX);
        let ready = grpc.ready().await;
        ready.map_err(|error| refused(Status::from_error(error.into())))?;
        Ok(grpc)
    }
}

fn path<K: Object>(method: &str) -> PathAndQuery {
    wire::method_path::<K>(method)
        .parse()
        .expect("kinds and methods are ASCII letters")
}

pub(crate) fn refused(status: Status) -> ApiError {
    ApiError::from(&status)
}

fn decode<K: Object>(object: &[u8]) -> Result<K, ApiError> {
    codec::decode(object).map_err(|error| {
        ApiError::new(
            Reason::InternalError,
            format!("the server sent an invalid {}: {error}", K::KIND),
        )
    })
}

fn decode_event<K: Object>(event: wire::WatchEvent) -> Result<ObjectEvent<K>, ApiError> {
    let kind = event.r#type();
    let object: K = decode(&event.object.unwrap_or_default())?;
    Ok(match kind {
        wire::WatchEventType::Added => ObjectEvent::Added(object),
        wire::WatchEventType::Modified => ObjectEvent::Modified(object),
        wire::WatchEventType::Deleted => ObjectEvent::Deleted(object),
        wire::WatchEventType::Bookmark => ObjectEvent::Bookmark(object.resource_version().into()),
        wire::WatchEventType::Unspecified => {
            return Err(ApiError::new(
                Reason::InternalError,
                "the server sent a watch event without a type",
            ));
        }
    })
}
