//! Calls over podplane's gRPC.

mod kube;

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
    wire::{self, Verb},
};
use tonic::{Request, Status, Streaming, client::Grpc, metadata::AsciiMetadataValue};

use super::{Binding, DeleteParams, ListParams, ObjectEvent, ObjectList, PatchParams};
use crate::{Channel, trace};

/// The connection, and what goes with each call. The messages are the same for every kind, so
/// tonic's machinery is compiled once, here, and not for each kind in each program.
#[derive(Clone, Debug)]
pub(crate) struct GrpcCalls {
    channel: Channel,
    fence: Option<AsciiMetadataValue>,
}

impl GrpcCalls {
    pub(crate) fn new(channel: Channel) -> Self {
        Self {
            channel,
            fence: None,
        }
    }

    /// The same calls with another fence.
    pub(crate) fn with_fence(&self, fence: Option<&Fence>) -> Self {
        // A fence is made of names of objects, which are ASCII.
        let value = |fence: &Fence| fence.to_string().parse();
        Self {
            channel: self.channel.clone(),
            fence: fence.map(|fence| value(fence).expect("names of objects are ASCII")),
        }
    }

    /// The channel, for a service that has generated code.
    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// A client of the REST API over the same connection, which sends the same fence.
    pub(crate) fn kube(&self) -> ::kube::Client {
        let fence = self.fence.as_ref();
        let fence = fence.and_then(|fence| HeaderValue::from_bytes(fence.as_encoded_bytes()).ok());
        kube::client(self.channel.clone(), fence)
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

    pub(super) async fn get<K: Object>(&self, namespace: &str, name: &str) -> Result<K, ApiError> {
        let request = wire::GetRequest {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        decode(&self.encoded(method::<K>(Verb::Get), request).await?)
    }

    pub(super) async fn list_as<K: Object, T>(
        &self,
        namespace: &str,
        params: &ListParams,
        mut transform: impl FnMut(K) -> T,
    ) -> Result<ObjectList<T>, ApiError> {
        let request = wire::ListRequest {
            namespace: namespace.to_owned(),
            label_selector: params.label_selector.clone(),
            field_selector: params.field_selector.clone(),
            limit: params.limit,
            r#continue: params.continue_token.clone(),
            resource_version: params.resource_version.clone(),
            resource_version_match: params.resource_version_match.clone(),
        };
        let list = self.list(method::<K>(Verb::List), request).await?;
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

    pub(super) async fn watch<K: Object>(
        &self,
        namespace: &str,
        params: &ListParams,
        resource_version: &str,
    ) -> Result<
        impl Stream<Item = Result<ObjectEvent<K>, ApiError>> + Send + use<K> + 'static,
        ApiError,
    > {
        let request = wire::WatchRequest {
            namespace: namespace.to_owned(),
            label_selector: params.label_selector.clone(),
            field_selector: params.field_selector.clone(),
            resource_version: resource_version.into(),
            allow_watch_bookmarks: true,
        };
        let events = self.events(method::<K>(Verb::Watch), request).await?;
        Ok(events.map(|event| decode_event(event.map_err(refused)?)))
    }

    pub(super) async fn write<K: Object>(&self, verb: Verb, object: &K) -> Result<K, ApiError> {
        self.write_by(method::<K>(verb), object).await
    }

    pub(super) async fn update_approval(
        &self,
        request: &CertificateSigningRequest,
    ) -> Result<CertificateSigningRequest, ApiError> {
        let method = "UpdateCertificateSigningRequestApproval";
        self.write_by(path::<CertificateSigningRequest>(method), request)
            .await
    }

    async fn write_by<K: Object>(&self, path: PathAndQuery, object: &K) -> Result<K, ApiError> {
        let object = codec::encode(object)
            .map_err(|error| ApiError::new(Reason::BadRequest, error.to_string()))?;
        let object = Some(object);
        decode(&self.encoded(path, wire::WriteRequest { object }).await?)
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
        } = params.clone();
        let request = wire::PatchRequest {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            r#type: patch_type.into(),
            patch,
            field_manager,
            force,
        };
        decode(&self.encoded(method::<K>(verb), request).await?)
    }

    pub(super) async fn delete<K: Object>(
        &self,
        namespace: &str,
        name: &str,
        params: &DeleteParams,
    ) -> Result<K, ApiError> {
        let request = delete_request(namespace, name, params);
        decode(&self.encoded(method::<K>(Verb::Delete), request).await?)
    }

    pub(super) async fn evict(
        &self,
        namespace: &str,
        name: &str,
        params: &DeleteParams,
    ) -> Result<Pod, ApiError> {
        let request = delete_request(namespace, name, params);
        decode(&self.encoded(path::<Pod>("EvictPod"), request).await?)
    }

    pub(super) async fn bind(&self, namespace: &str, binding: &Binding) -> Result<(), ApiError> {
        let Binding {
            name,
            uid,
            resource_version,
            node_name,
        } = binding.clone();
        let request = wire::BindPodRequest {
            namespace: namespace.to_owned(),
            name,
            uid,
            node_name,
            resource_version: resource_version.unwrap_or_default(),
        };
        // The answer is the bound pod, which the watch delivers too.
        let answer = self.encoded(path::<Pod>("BindPod"), request).await;
        answer.map(drop)
    }

    pub(super) async fn assign_pod_cidrs(
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
        let path = path::<Node>("AssignPodCIDRs");
        decode(&self.encoded(path, request).await?)
    }

    async fn list(
        &self,
        path: PathAndQuery,
        request: wire::ListRequest,
    ) -> Result<wire::ObjectList, ApiError> {
        self.unary(path, request).await
    }

    async fn events(
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

    /// Makes a call that is answered with an object.
    async fn encoded<Q: Wire>(&self, path: PathAndQuery, request: Q) -> Result<Bytes, ApiError> {
        Ok(self.unary::<_, Encoded>(path, request).await?.0)
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

fn delete_request(namespace: &str, name: &str, params: &DeleteParams) -> wire::DeleteRequest {
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
    wire::DeleteRequest {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        grace_period_seconds,
        preconditions,
        propagation_policy: propagation.map(|policy| policy.as_str().to_owned()),
    }
}

fn method<K: Object>(verb: Verb) -> PathAndQuery {
    path::<K>(&verb.method::<K>())
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
