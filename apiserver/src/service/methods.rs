//! The methods of a kind: decode, call the registry, encode.

use std::sync::Arc;

use bytes::Bytes;
use futures::{FutureExt as _, TryFutureExt as _, future::BoxFuture};
use podplane_api::{
    Object, ObjectKey, Scope,
    certificates::CertificateSigningRequest,
    core::{Node, Pod},
    policy::PodDisruptionBudget,
    strategy::Strategy,
};
use podplane_proto::{
    codec,
    error::ApiError,
    transport::{Encoded, Wire, WireCodec},
    wire::{
        AssignPodCidrsRequest, BindPodRequest, DeleteRequest, GetRequest, ListRequest, ObjectList,
        PatchRequest, PatchType, Propagation, Verb, WriteRequest,
    },
};
use tonic::{Request, Status, body::Body, codegen::Service, server::Grpc};
use tonic_prost::ProstCodec;

use super::{KindCall, KindService, NarrowMethods, Response, patch::patch, status, unknown, watch};
use crate::{
    cache::Query,
    error,
    registry::{
        DeleteOptions, Freshness, ListPage, ObjectPart, Registry, WriteEffect, WriteParams,
    },
    rest::resource::names_of,
};

pub(super) fn call<K: Strategy>(
    service: &KindService<K>,
    verb: Verb,
    call: KindCall<K>,
    request: http::Request<Body>,
) -> Response {
    match verb {
        Verb::Create => encoded(request, move |WriteRequest { object }| async move {
            let object: K = match decode(object) {
                Ok(object) => object,
                Err(error) => return Err(call.unreadable(error, "create", "").await),
            };
            let registry = call.open("create", "", object.namespace(), "").await?;
            encode(&registry.create(object, &call.write).await?)
        }),
        Verb::Update => updated(call, ObjectPart::Main, request),
        Verb::UpdateStatus => updated(call, ObjectPart::Status, request),
        Verb::Get => encoded(request, move |GetRequest { namespace, name }| async move {
            let key = key::<K>(namespace, name);
            let registry = call.open("get", "", &key.namespace, &key.name).await?;
            let entry = registry.get(&key).await?;
            Ok(entry.message.clone())
        }),
        Verb::Patch => patched(call, ObjectPart::Main, request),
        Verb::PatchStatus => patched(call, ObjectPart::Status, request),
        Verb::Delete => encoded(request, move |request: DeleteRequest| async move {
            let key = key::<K>(request.namespace.clone(), request.name.clone());
            let registry = call.open("delete", "", &key.namespace, &key.name).await?;
            let (key, options) = deletion::<K>(request, call.write.clone())?;
            encode(&registry.delete(&key, &options).await?)
        }),
        Verb::List => list(call, request),
        Verb::Watch => {
            let watch = watch::Watch {
                call,
                stop: service.stop.clone(),
                watching: service.metrics.watches(names_of::<K>()).into(),
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

fn updated<K: Strategy>(
    call: KindCall<K>,
    part: ObjectPart,
    request: http::Request<Body>,
) -> Response {
    encoded(request, move |WriteRequest { object }| async move {
        let object: K = match decode(object) {
            Ok(object) => object,
            Err(error) => return Err(call.unreadable(error, "update", subresource(part)).await),
        };
        let (namespace, name) = (object.namespace(), object.name());
        let registry = call.open("update", subresource(part), namespace, name);
        encode(&registry.await?.update(object, part, &call.write).await?)
    })
}

/// The object to delete, and the options of its deletion.
fn deletion<K: Object>(
    request: DeleteRequest,
    write: WriteParams,
) -> Result<(ObjectKey, DeleteOptions), ApiError> {
    let DeleteRequest {
        namespace,
        name,
        grace_period_seconds,
        preconditions,
        propagation_policy,
    } = request;
    let WriteParams { by, fence, .. } = write;
    let options = DeleteOptions {
        by,
        grace_period_seconds,
        preconditions: preconditions.unwrap_or_default(),
        propagation: Propagation::parse(propagation_policy.as_deref().unwrap_or_default())?,
        effect: WriteEffect::Durable,
        fence,
    };
    Ok((key::<K>(namespace, name), options))
}

/// The methods of pods that no other kind has; `budgets` may refuse evictions.
pub(crate) fn of_pods(budgets: Registry<PodDisruptionBudget>) -> NarrowMethods<Pod> {
    Arc::new(move |call, method, request| {
        let budgets = budgets.clone();
        match method {
            "BindPod" => encoded(request, move |mut request: BindPodRequest| async move {
                request.namespace = or_default::<Pod>(request.namespace);
                let (namespace, name) = (&request.namespace, &request.name);
                let registry = call.open("create", "binding", namespace, name).await?;
                encode(&registry.bind(&request, call.write.terms()).await?)
            }),
            // The request has the fields of a deletion.
            "EvictPod" => encoded(request, move |request: DeleteRequest| async move {
                let key = key::<Pod>(request.namespace.clone(), request.name.clone());
                let registry = call.open("create", "eviction", &key.namespace, &key.name);
                let registry = registry.await?;
                let (key, options) = deletion::<Pod>(request, call.write.clone())?;
                encode(&registry.evict(&budgets, &key, &options).await?)
            }),
            _ => unknown::<Pod>(method),
        }
    })
}

/// The methods of nodes that no other kind has.
pub(crate) fn of_nodes() -> NarrowMethods<Node> {
    Arc::new(|call, method, request| match method {
        "AssignPodCIDRs" => encoded(request, move |request: AssignPodCidrsRequest| async move {
            let registry = call.open("update", "podcidrs", "", &request.name).await?;
            let terms = call.write.terms();
            encode(&registry.assign_pod_cidrs(&request, terms).await?)
        }),
        _ => unknown::<Node>(method),
    })
}

/// The methods of requests for certificates that no other kind has.
pub(crate) fn of_certificate_requests() -> NarrowMethods<CertificateSigningRequest> {
    Arc::new(|call, method, request| match method {
        "UpdateCertificateSigningRequestApproval" => updated(call, ObjectPart::Approval, request),
        _ => unknown::<CertificateSigningRequest>(method),
    })
}

fn patched<K: Strategy>(
    call: KindCall<K>,
    part: ObjectPart,
    request: http::Request<Body>,
) -> Response {
    encoded(request, move |mut request: PatchRequest| async move {
        let key = key::<K>(
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
        encode(&patch(registry, &key, part, write, request).await?)
    })
}

fn list<K: Strategy>(call: KindCall<K>, request: http::Request<Body>) -> Response {
    let handle = move |request: ListRequest| {
        let call = call.clone();
        async move {
            let ListRequest {
                namespace,
                label_selector,
                field_selector,
                limit,
                r#continue: token,
                resource_version: version,
                resource_version_match: version_match,
            } = request;
            let registry = call.open_selected("list", &namespace, &field_selector);
            let registry = registry.await?;
            let query = Query::parse::<K>(namespace, &label_selector, &field_selector)?;
            let errors = Freshness::validate(&version, &version_match, &token);
            if !errors.is_empty() {
                return Err(error::invalid_options("ListOptions", &errors));
            }
            let freshness = Freshness::parse(&version, &version_match, limit, &token)?;
            let list = registry.list(&query, limit, &token, freshness).await?;
            let ListPage { metadata, items } = list;
            let items = items.iter().map(|entry| entry.message.clone()).collect();
            Ok(ObjectList {
                metadata: Some(metadata),
                items,
            })
        }
    };
    async move {
        Ok(Grpc::new(ProstCodec::<ObjectList, ListRequest>::default())
            .unary(Handler(handle), request)
            .await)
    }
    .boxed()
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

fn decode<K: Object>(object: Option<Bytes>) -> Result<K, ApiError> {
    let field = K::KIND.to_lowercase();
    let object = object.ok_or_else(|| error::bad_request(format!("{field} is required")))?;
    let mut object: K = codec::decode(&object).map_err(|error| error::undecodable::<K>(&error))?;
    if K::SCOPE == Scope::Namespaced && object.namespace().is_empty() {
        object.metadata_mut().namespace = Some(DEFAULT_NAMESPACE.into());
    }
    Ok(object)
}

/// The namespace of an object that states none. In Kubernetes' REST API the namespace is in the
/// path, and kubectl puts this one there.
pub(super) const DEFAULT_NAMESPACE: &str = "default";

pub(super) fn or_default<K: Object>(namespace: String) -> String {
    match (K::SCOPE, namespace.as_str()) {
        (Scope::Namespaced, "") => DEFAULT_NAMESPACE.into(),
        _ => namespace,
    }
}

fn key<K: Object>(namespace: String, name: String) -> ObjectKey {
    ObjectKey::new(or_default::<K>(namespace), name)
}

fn encode<K: Object>(object: &K) -> Result<Bytes, ApiError> {
    codec::encode(object).map_err(|error| error::unencodable(&error))
}
