//! The methods of a kind: decode, call the registry, encode.

use std::sync::Arc;

use bytes::Bytes;
use futures::{FutureExt as _, TryFutureExt as _, future::BoxFuture};
use podplane_api::{
    ObjectKey, Scope,
    any::{AnyKind, DynObject, KindNames},
    core::{Node, Pod},
    policy::PodDisruptionBudget,
};
use podplane_proto::{
    codec,
    error::ApiError,
    transport::{Encoded, Wire, WireCodec},
    wire::{
        AssignPodCidrsRequest, BindPodRequest, DeleteRequest, GetRequest, PatchRequest, PatchType,
        Propagation, Verb, WriteRequest,
    },
};
use tonic::{Request, Status, body::Body, codegen::Service, server::Grpc};
use tonic_prost::ProstCodec;

use super::{KindCall, KindService, NarrowMethods, Response, list, patch::patch, status, watch};
use crate::{
    error,
    registry::{DeleteOptions, ObjectPart, Registry, WriteEffect, WriteParams},
};

pub(super) fn call(
    service: &KindService,
    verb: Verb,
    call: KindCall,
    request: http::Request<Body>,
) -> Response {
    match verb {
        Verb::Create => encoded(request, move |WriteRequest { object }| async move {
            let object = match decode(call.kind(), object) {
                Ok(object) => object,
                Err(error) => return Err(call.unreadable(error, "create", "").await),
            };
            let registry = call.open("create", "", object.namespace(), "").await?;
            let created = registry.create(object, &call.write).await?;
            registry.message(&*created)
        }),
        Verb::Update => updated(call, ObjectPart::Main, request),
        Verb::UpdateStatus => updated(call, ObjectPart::Status, request),
        Verb::Get => encoded(request, move |GetRequest { namespace, name }| async move {
            let key = key(call.names(), namespace, name);
            let registry = call.open("get", "", &key.namespace, &key.name).await?;
            let entry = registry.get(&key).await?;
            Ok(entry.message.clone())
        }),
        Verb::Patch => patched(call, ObjectPart::Main, request),
        Verb::PatchStatus => patched(call, ObjectPart::Status, request),
        Verb::Delete => encoded(request, move |request: DeleteRequest| async move {
            let key = key(
                call.names(),
                request.namespace.clone(),
                request.name.clone(),
            );
            let registry = call.open("delete", "", &key.namespace, &key.name).await?;
            let options = deletion(request, call.write.clone())?;
            registry.message(&*registry.delete(&key, &options).await?)
        }),
        Verb::List => list::answer(call, service.renderers.clone(), request),
        Verb::Watch => {
            let watch = watch::Watch {
                call,
                stop: service.stop.clone(),
                watching: service.metrics.watches(service.kind.kind.names()).into(),
            };
            async move {
                Ok(Grpc::new(ProstCodec::default())
                    .server_streaming(watch, request)
                    .await)
            }
            .boxed()
        }
    }
}

/// The subresource of a part, as authorizers see it.
fn subresource(part: ObjectPart) -> &'static str {
    match part {
        ObjectPart::Main => "",
        ObjectPart::Status => "status",
        ObjectPart::Scale => "scale",
        ObjectPart::Approval => "approval",
    }
}

fn updated(call: KindCall, part: ObjectPart, request: http::Request<Body>) -> Response {
    encoded(request, move |WriteRequest { object }| async move {
        let object = match decode(call.kind(), object) {
            Ok(object) => object,
            Err(error) => return Err(call.unreadable(error, "update", subresource(part)).await),
        };
        let (namespace, name) = (object.namespace(), object.name());
        let registry = call.open("update", subresource(part), namespace, name);
        let registry = registry.await?;
        let updated = registry.update(object, part, &call.write).await?;
        registry.message(&*updated)
    })
}

/// The options of a deletion.
fn deletion(request: DeleteRequest, write: WriteParams) -> Result<DeleteOptions, ApiError> {
    let DeleteRequest {
        grace_period_seconds,
        preconditions,
        propagation_policy,
        ..
    } = request;
    let WriteParams { by, fence, .. } = write;
    Ok(DeleteOptions {
        by,
        grace_period_seconds,
        preconditions: preconditions.unwrap_or_default(),
        propagation: Propagation::parse(propagation_policy.as_deref().unwrap_or_default())?,
        effect: WriteEffect::Durable,
        fence,
    })
}

/// The methods of pods that no other kind has; `budgets` may refuse evictions.
pub(crate) fn of_pods(budgets: Registry<PodDisruptionBudget>) -> NarrowMethods {
    Arc::new(move |call, method, request| {
        let budgets = budgets.clone();
        match method {
            "BindPod" => encoded(request, move |mut request: BindPodRequest| async move {
                request.namespace = or_default(call.names(), request.namespace);
                let (namespace, name) = (&request.namespace, &request.name);
                let registry = call.open("create", "binding", namespace, name).await?;
                let registry = Registry::<Pod>::of(registry.clone());
                let bound = registry.bind(&request, call.write.terms()).await?;
                registry.message(&bound)
            }),
            // The request has the fields of a deletion.
            "EvictPod" => encoded(request, move |request: DeleteRequest| async move {
                let namespace = request.namespace.clone();
                let key = key(call.names(), namespace, request.name.clone());
                let registry = call.open("create", "eviction", &key.namespace, &key.name);
                let registry = Registry::<Pod>::of(registry.await?.clone());
                let options = deletion(request, call.write.clone())?;
                let evicted = registry.evict(&budgets, &key, &options).await?;
                registry.message(&evicted)
            }),
            _ => call.unknown(method),
        }
    })
}

/// The methods of nodes that no other kind has.
pub(crate) fn of_nodes() -> NarrowMethods {
    Arc::new(|call, method, request| match method {
        "AssignPodCIDRs" => encoded(request, move |request: AssignPodCidrsRequest| async move {
            let registry = call.open("update", "podcidrs", "", &request.name).await?;
            let registry = Registry::<Node>::of(registry.clone());
            let assigned = registry.assign_pod_cidrs(&request, call.write.terms());
            registry.message(&assigned.await?)
        }),
        _ => call.unknown(method),
    })
}

/// The methods of requests for certificates that no other kind has.
pub(crate) fn of_certificate_requests() -> NarrowMethods {
    Arc::new(|call, method, request| match method {
        "UpdateCertificateSigningRequestApproval" => updated(call, ObjectPart::Approval, request),
        _ => call.unknown(method),
    })
}

fn patched(call: KindCall, part: ObjectPart, request: http::Request<Body>) -> Response {
    encoded(request, move |mut request: PatchRequest| async move {
        let key = key(
            call.names(),
            std::mem::take(&mut request.namespace),
            std::mem::take(&mut request.name),
        );
        let (namespace, name) = (&*key.namespace, &*key.name);
        let registry = call.open("patch", subresource(part), namespace, name);
        let registry = registry.await?;
        let mut write = call.write.clone();
        if request.r#type() == PatchType::Apply {
            let asked = call.unrecorded();
            write.refused_creation = asked.open("create", "", namespace, name).await.err();
        }
        let patched = patch(registry, &key, part, write, request).await?;
        registry.message(&*patched)
    })
}

/// Answers a unary call with a message that is already encoded.
fn encoded<Req, Fut>(
    request: http::Request<Body>,
    handle: impl FnOnce(Req) -> Fut + Clone + Send + Sync + 'static,
) -> Response
where
    Req: Wire,
    Fut: Future<Output = Result<Bytes, ApiError>> + Send + 'static,
{
    let handle = move |request| handle.clone()(request).map_ok(Encoded);
    async move {
        Ok(Grpc::new(WireCodec::<Encoded, Req>::default())
            .unary(Handler(handle), request)
            .await)
    }
    .boxed()
}

/// Adapts a function to tonic's service trait.
struct Handler<F>(F);

impl<Req, Res, F, Fut> Service<Request<Req>> for Handler<F>
where
    F: Fn(Req) -> Fut,
    Fut: Future<Output = Result<Res, ApiError>> + Send + 'static,
{
    type Response = tonic::Response<Res>;
    type Error = Status;
    type Future = BoxFuture<'static, Result<tonic::Response<Res>, Status>>;

    fn poll_ready(
        &mut self,
        _context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Status>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Req>) -> Self::Future {
        self.0(request.into_inner())
            .map(|answer| answer.map(tonic::Response::new).map_err(status::of))
            .boxed()
    }
}

fn decode(kind: &dyn AnyKind, object: Option<Bytes>) -> Result<Box<DynObject>, ApiError> {
    let names = kind.names();
    let field = names.kind.to_lowercase();
    let object = object.ok_or_else(|| error::bad_request(format!("{field} is required")))?;
    let mut object =
        codec::decode_any(kind, &object).map_err(|error| error::undecodable(names, &error))?;
    if names.scope == Scope::Namespaced && object.namespace().is_empty() {
        object.metadata_mut().namespace = Some(DEFAULT_NAMESPACE.into());
    }
    Ok(object)
}

/// The namespace of an object that states none. In Kubernetes' REST API the namespace is in the
/// path, and kubectl puts this one there.
pub(super) const DEFAULT_NAMESPACE: &str = "default";

/// The namespace of a request about an object in a namespace.
pub(super) fn default_namespace(namespace: String) -> String {
    match namespace.as_str() {
        "" => DEFAULT_NAMESPACE.into(),
        _ => namespace,
    }
}

fn or_default(names: &KindNames, namespace: String) -> String {
    match names.scope {
        Scope::Cluster => namespace,
        Scope::Namespaced => default_namespace(namespace),
    }
}

fn key(names: &KindNames, namespace: String, name: String) -> ObjectKey {
    ObjectKey::new(or_default(names, namespace), name)
}
