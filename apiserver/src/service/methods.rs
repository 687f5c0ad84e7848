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
        PatchRequest, Propagation, Verb, WriteRequest,
    },
};
use tonic::{Request, Status, body::Body, codegen::Service, server::Grpc};
use tonic_prost::ProstCodec;

use super::{KindService, NarrowMethods, Response, patch::patch, status, unknown, watch};
use crate::{
    cache::Query,
    error,
    registry::{
        DeleteOptions, Freshness, ListPage, ObjectPart, Registry, WriteEffect, WriteParams,
    },
    rest::resource::Resource,
};

pub(super) fn call<K: Strategy>(
    service: &KindService<K>,
    verb: Verb,
    write: WriteParams,
    request: http::Request<Body>,
) -> Response {
    let registry = service.registry.clone();
    match verb {
        Verb::Create => encoded(request, move |WriteRequest { object }| async move {
            encode(&registry.create(decode(object)?, &write).await?)
        }),
        Verb::Update => encoded(request, move |WriteRequest { object }| async move {
            let object = decode(object)?;
            encode(&registry.update(object, ObjectPart::Main, &write).await?)
        }),
        Verb::UpdateStatus => encoded(request, move |WriteRequest { object }| async move {
            let object = decode(object)?;
            encode(&registry.update(object, ObjectPart::Status, &write).await?)
        }),
        Verb::Get => encoded(request, move |GetRequest { namespace, name }| async move {
            let entry = registry.get(&key::<K>(namespace, name)).await?;
            Ok(entry.message.clone())
        }),
        Verb::Patch => patched(registry, ObjectPart::Main, write, request),
        Verb::PatchStatus => patched(registry, ObjectPart::Status, write, request),
        Verb::Delete => encoded(request, move |request: DeleteRequest| async move {
            let (key, options) = deletion::<K>(request, write)?;
            encode(&registry.delete(&key, &options).await?)
        }),
        Verb::List => list(registry, request),
        Verb::Watch => {
            let watch = watch::Watch {
                registry,
                stop: service.stop.clone(),
                watching: service
                    .metrics
                    .watches(Resource::names(&service.registry))
                    .into(),
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
    Arc::new(move |registry, method, write, request| {
        let (registry, budgets) = (registry.clone(), budgets.clone());
        match method {
            "BindPod" => encoded(request, move |mut request: BindPodRequest| async move {
                request.namespace = or_default::<Pod>(request.namespace);
                encode(&registry.bind(&request, write.terms()).await?)
            }),
            // The request has the fields of a deletion.
            "EvictPod" => encoded(request, move |request: DeleteRequest| async move {
                let (key, options) = deletion::<Pod>(request, write)?;
                encode(&registry.evict(&budgets, &key, &options).await?)
            }),
            _ => unknown::<Pod>(method),
        }
    })
}

/// The methods of nodes that no other kind has.
pub(crate) fn of_nodes() -> NarrowMethods<Node> {
    Arc::new(|registry, method, write, request| {
        let registry = registry.clone();
        match method {
            "AssignPodCIDRs" => {
                encoded(request, move |request: AssignPodCidrsRequest| async move {
                    encode(&registry.assign_pod_cidrs(&request, write.terms()).await?)
                })
            }
            _ => unknown::<Node>(method),
        }
    })
}

/// The methods of requests for certificates that no other kind has.
pub(crate) fn of_certificate_requests() -> NarrowMethods<CertificateSigningRequest> {
    Arc::new(|registry, method, write, request| {
        let registry = registry.clone();
        match method {
            "UpdateCertificateSigningRequestApproval" => {
                encoded(request, move |WriteRequest { object }| async move {
                    let object = decode(object)?;
                    encode(
                        &registry
                            .update(object, ObjectPart::Approval, &write)
                            .await?,
                    )
                })
            }
            _ => unknown::<CertificateSigningRequest>(method),
        }
    })
}

fn patched<K: Strategy>(
    registry: Registry<K>,
    part: ObjectPart,
    write: WriteParams,
    request: http::Request<Body>,
) -> Response {
    encoded(request, move |mut request: PatchRequest| async move {
        let key = key::<K>(
            std::mem::take(&mut request.namespace),
            std::mem::take(&mut request.name),
        );
        encode(&patch(&registry, &key, part, write, request).await?)
    })
}

fn list<K: Strategy>(registry: Registry<K>, request: http::Request<Body>) -> Response {
    let handle = move |request: ListRequest| {
        let registry = registry.clone();
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
const DEFAULT_NAMESPACE: &str = "default";

fn or_default<K: Object>(namespace: String) -> String {
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
