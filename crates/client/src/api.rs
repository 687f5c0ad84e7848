//! Reading and writing objects of one kind.

pub(crate) mod grpc;
pub(crate) mod rest;

use std::{marker::PhantomData, sync::Arc};

use futures::{Stream, StreamExt as _};
use podplane_api::{
    Object,
    certificates::CertificateSigningRequest,
    core::{Node, Pod},
};
use podplane_proto::{
    error::ApiError,
    fence::Fence,
    wire::{PatchType, Propagation, Verb},
};

use self::{grpc::GrpcCalls, rest::RestCalls};
use crate::{
    BlocksClient, Channel, MetadataClient, PatchFaults,
    endpoint::{self, Endpoint, EndpointError},
    faults::WriteFault,
    leader::LeaseTerm,
};

/// A client of one server. Cheap to clone; all clones share a connection.
#[derive(Clone, Debug)]
pub struct Client {
    transport: Transport,
    faults: Option<PatchFaults>,
}

/// The interface of the server that a client uses. Calls of the REST API are boxed, so that the
/// futures of gRPC's calls stay small.
#[derive(Clone, Debug)]
pub(crate) enum Transport {
    /// podplane's gRPC.
    Grpc(GrpcCalls),
    /// Kubernetes' REST API.
    Rest(Arc<RestCalls>),
}

impl Client {
    /// A client over a channel from [`endpoint::channel`].
    pub fn new(channel: impl Into<Channel>) -> Self {
        Self::over(Transport::Grpc(GrpcCalls::new(channel.into())))
    }

    /// A client of the server at `endpoint`, by gRPC. It connects at the first call.
    ///
    /// # Errors
    ///
    /// [`EndpointError::MissingAuthority`] for an `https://` address without authorities, and
    /// [`EndpointError::TokenWithoutTls`] for a token that would be sent in the clear.
    pub fn connect(endpoint: &Endpoint) -> Result<Self, EndpointError> {
        endpoint::channel(endpoint).map(Self::new)
    }

    pub(crate) fn over(transport: Transport) -> Self {
        Self {
            transport,
            faults: None,
        }
    }

    pub(crate) fn transport(&self) -> &Transport {
        &self.transport
    }

    /// The same client for a leader. podplane carries out its writes only while nobody else leads,
    /// and refuses them with [`Reason::FenceLost`](crate::Reason::FenceLost) from then on.
    ///
    /// Kubernetes has no fences: there a leader's own writes are refused by its client once its Lease
    /// was not renewed in time.
    #[must_use]
    pub fn fenced(&self, fence: &Fence) -> Self {
        self.with_fence(Some(fence))
    }

    /// The same client without a fence, to imitate a controller that has none.
    #[must_use]
    pub fn unfenced(self) -> Self {
        self.with_fence(None)
    }

    fn with_fence(&self, fence: Option<&Fence>) -> Self {
        Self {
            transport: match &self.transport {
                Transport::Grpc(calls) => Transport::Grpc(calls.with_fence(fence)),
                Transport::Rest(calls) => Transport::Rest(Arc::new(calls.with_fence(fence))),
            },
            faults: self.faults.clone(),
        }
    }

    /// The same client, which writes only during a leader's term, and refuses other writes itself
    /// with [`Reason::FenceLost`](crate::Reason::FenceLost). By gRPC it writes at any time: the
    /// server judges by the fence.
    #[must_use]
    pub(crate) fn during(self, term: &LeaseTerm) -> Self {
        match self.transport {
            Transport::Grpc(_) => self,
            Transport::Rest(calls) => Self {
                transport: Transport::Rest(Arc::new(calls.during(term))),
                ..self
            },
        }
    }

    /// The same client, whose first writes of node blocks fail as `faults` says.
    #[must_use]
    pub fn with_patch_faults(mut self, faults: Option<PatchFaults>) -> Self {
        self.faults = faults;
        self
    }

    /// The channel to the server, for a service that has generated code. `None` for a client of
    /// the REST API.
    pub fn channel(&self) -> Option<Channel> {
        match &self.transport {
            Transport::Grpc(calls) => Some(calls.channel()),
            Transport::Rest(_) => None,
        }
    }

    /// A kube-rs client of the same server, for kinds without types here. It sends the same fence,
    /// and needs a tokio runtime.
    pub fn kube(&self) -> kube::Client {
        match &self.transport {
            Transport::Grpc(calls) => calls.kube(),
            Transport::Rest(calls) => calls.connection(),
        }
    }

    /// A client of the same server for the metadata of objects of any kind. It needs a tokio
    /// runtime.
    pub fn metadata(&self) -> MetadataClient {
        MetadataClient::new(self)
    }

    /// The records of node blocks.
    pub fn blocks(&self) -> BlocksClient {
        BlocksClient::new(self.clone())
    }

    /// Objects of a kind in all namespaces, or of a cluster-scoped kind.
    pub fn all<K: Object>(&self) -> Api<K> {
        self.namespaced("")
    }

    /// Objects of a kind in one namespace.
    pub fn namespaced<K: Object>(&self, namespace: impl Into<String>) -> Api<K> {
        Api {
            client: self.clone(),
            namespace: namespace.into(),
            kind: PhantomData,
        }
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
}

/// The objects of kind `K` in one namespace, or in all.
///
/// All methods return [`ApiError`]. If its reason is `ServiceUnavailable`, a write may or may not
/// have been carried out.
#[derive(Clone, Debug)]
pub struct Api<K> {
    client: Client,
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
        match self.client.transport() {
            Transport::Grpc(calls) => calls.get(&self.namespace, name).await,
            Transport::Rest(calls) => Box::pin(calls.get(&self.namespace, name)).await,
        }
    }

    /// Lists the objects that match.
    ///
    /// # Errors
    ///
    /// `BadRequest` for an invalid selector, `Expired` for an old continue token, and others.
    pub async fn list(&self, params: &ListParams) -> Result<ObjectList<K>, ApiError> {
        match self.client.transport() {
            Transport::Grpc(calls) => {
                calls
                    .list_as(&self.namespace, params, |object| object)
                    .await
            }
            Transport::Rest(calls) => Box::pin(calls.list(&self.namespace, params)).await,
        }
    }

    /// Lists what `transform` makes of all objects that match, in any order. One at a time is
    /// decoded.
    pub(crate) async fn list_all_as<T>(
        &self,
        params: &ListParams,
        transform: impl FnMut(K) -> T,
    ) -> Result<ObjectList<T>, ApiError> {
        match self.client.transport() {
            Transport::Grpc(calls) => calls.list_as(&self.namespace, params, transform).await,
            Transport::Rest(calls) => {
                Box::pin(calls.list_all_as(&self.namespace, params, transform)).await
            }
        }
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
        Ok(match self.client.transport() {
            Transport::Grpc(calls) => {
                let events = calls
                    .watch(&self.namespace, params, resource_version)
                    .await?;
                events.left_stream()
            }
            Transport::Rest(calls) => {
                let events = calls.watch(&self.namespace, params, resource_version);
                Box::pin(events).await?.right_stream()
            }
        })
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

    async fn write(&self, verb: Verb, object: &K) -> Result<K, ApiError> {
        match self.client.transport() {
            Transport::Grpc(calls) => calls.write(verb, object).await,
            Transport::Rest(calls) => Box::pin(calls.write(verb, &self.namespace, object)).await,
        }
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
        match self.client.transport() {
            Transport::Grpc(calls) => calls.patch(verb, &self.namespace, name, params).await,
            Transport::Rest(calls) => {
                Box::pin(calls.patch(verb, &self.namespace, name, params)).await
            }
        }
    }

    /// Deletes the object, or begins to, and returns its last state. Kubernetes' REST API says of
    /// most objects that are gone at once only their name and UID, and the rest is empty then.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Conflict` if a precondition fails, and others.
    pub async fn delete(&self, name: &str, params: &DeleteParams) -> Result<K, ApiError> {
        match self.client.transport() {
            Transport::Grpc(calls) => calls.delete(&self.namespace, name, params).await,
            Transport::Rest(calls) => Box::pin(calls.delete(&self.namespace, name, params)).await,
        }
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
        match self.client.transport() {
            Transport::Grpc(calls) => calls.bind(&self.namespace, binding).await,
            Transport::Rest(calls) => Box::pin(calls.bind(&self.namespace, binding)).await,
        }
    }

    /// Deletes the pod unless its disruption budget forbids that. By gRPC it returns the pod's last
    /// state; by the REST API, which does not tell it, the name and UID.
    ///
    /// # Errors
    ///
    /// `TooManyRequests` if the budget allows no disruption now; `NotFound`, `Conflict` if a
    /// precondition fails, and others.
    pub async fn evict(&self, name: &str, params: &DeleteParams) -> Result<Pod, ApiError> {
        match self.client.transport() {
            Transport::Grpc(calls) => calls.evict(&self.namespace, name, params).await,
            Transport::Rest(calls) => Box::pin(calls.evict(&self.namespace, name, params)).await,
        }
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
        let call = async {
            match self.client.transport() {
                Transport::Grpc(calls) => {
                    let call = calls.assign_pod_cidrs(name, uid, resource_version, pod_cidrs);
                    call.await
                }
                Transport::Rest(calls) => {
                    let call = calls.assign_pod_cidrs(name, uid, resource_version, pod_cidrs);
                    Box::pin(call).await
                }
            }
        };
        self.client.patch(call).await
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
        match self.client.transport() {
            Transport::Grpc(calls) => calls.update_approval(request).await,
            Transport::Rest(calls) => Box::pin(calls.update_approval(request)).await,
        }
    }
}
