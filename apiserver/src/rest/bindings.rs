//! The acts on pods that are subresources, `binding` and `eviction`, and `bindings` of a namespace,
//! the older path to `pods/NAME/binding`, where the body names the pod.

use futures::{FutureExt as _, future::BoxFuture};
use podplane_api::{
    ObjectKey, Scope,
    core::{Binding, Pod},
    policy::PodDisruptionBudget,
    strategy::Subresource,
    strict,
};
use podplane_proto::{error::ApiError, wire::BindPodRequest};
use serde_json::{Value, json};

use super::{
    request::{WriteOptions, delete_options},
    resource::{KindNames, Resource, WriteAnswer},
};
use crate::{
    error,
    registry::{ActAnswer, ChangeTerms, KindRegistry, Registry, SubresourceActions, WriteEffect},
};

/// The versions of `Eviction` that are accepted; they are the same.
const EVICTION_VERSIONS: [&str; 3] = ["", "policy/v1", "policy/v1beta1"];

/// Bindings of pods to nodes; they are carried out and not stored.
pub(crate) struct Bindings {
    pods: Registry<Pod>,
    names: KindNames,
}

impl Bindings {
    pub(crate) fn new(pods: Registry<Pod>) -> Self {
        let names = KindNames {
            scope: Scope::Namespaced,
            ..KindNames::new("", "v1", "Binding", "bindings", "binding")
        };
        Self { pods, names }
    }
}

impl Resource for Bindings {
    fn names(&self) -> &KindNames {
        &self.names
    }

    fn create<'a>(
        &'a self,
        document: Value,
        options: &'a WriteOptions,
    ) -> BoxFuture<'a, Result<WriteAnswer, ApiError>> {
        async move {
            let undecodable = |error| error::not_strictly(&self.names.kind, "v1", &error);
            let (binding, unknown) =
                strict::decode_noting::<Binding, _>(&document).map_err(undecodable)?;
            let warnings = options.judge(unknown).map_err(undecodable)?;
            let meta = &binding.metadata;
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            let key = ObjectKey::new(text(&meta.namespace), text(&meta.name));
            bind(&self.pods, &key, &document, options.write.terms()).await?;
            let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
            Ok(WriteAnswer {
                document: status,
                warnings,
                created: true,
            })
        }
        .boxed()
    }
}

/// The subresources `binding` and `eviction` of pods.
#[derive(Debug)]
pub(crate) struct PodActions {
    budgets: Registry<PodDisruptionBudget>,
}

impl PodActions {
    /// `budgets` may refuse evictions.
    pub(crate) fn new(budgets: Registry<PodDisruptionBudget>) -> Self {
        Self { budgets }
    }
}

impl SubresourceActions for PodActions {
    fn act<'a>(
        &'a self,
        pods: &'a KindRegistry,
        key: &'a ObjectKey,
        act: Subresource,
        document: &'a Value,
        terms: ChangeTerms<'a>,
    ) -> BoxFuture<'a, Result<ActAnswer, ApiError>> {
        async move {
            let pods = &Registry::of(pods.clone());
            match act {
                Subresource::Binding => bind(pods, key, document, terms).await?,
                Subresource::Eviction => evict(pods, &self.budgets, key, document, terms).await?,
                Subresource::Status
                | Subresource::Scale
                | Subresource::Log
                | Subresource::Attach
                | Subresource::Exec
                | Subresource::PortForward
                | Subresource::Approval
                | Subresource::Token => return Err(error::not_found::<Pod>(&key.name)),
            }
            Ok(ActAnswer::default())
        }
        .boxed()
    }
}

/// The text at a place of a document, or an empty one.
fn text(document: &Value, pointer: &str) -> String {
    let text = document.pointer(pointer).and_then(Value::as_str);
    text.unwrap_or_default().to_owned()
}

async fn bind(
    pods: &Registry<Pod>,
    key: &ObjectKey,
    binding: &Value,
    terms: ChangeTerms<'_>,
) -> Result<(), ApiError> {
    if !matches!(text(binding, "/target/kind").as_str(), "" | "Node") {
        return Err(error::bad_request("target.kind: must be empty or \"Node\""));
    }
    let request = BindPodRequest {
        namespace: key.namespace.clone(),
        name: key.name.clone(),
        uid: text(binding, "/metadata/uid"),
        node_name: text(binding, "/target/name"),
        resource_version: text(binding, "/metadata/resourceVersion"),
    };
    pods.bind(&request, terms).await.map(drop)
}

async fn evict(
    pods: &Registry<Pod>,
    budgets: &Registry<PodDisruptionBudget>,
    key: &ObjectKey,
    eviction: &Value,
    terms: ChangeTerms<'_>,
) -> Result<(), ApiError> {
    let (version, kind) = (text(eviction, "/apiVersion"), text(eviction, "/kind"));
    if !EVICTION_VERSIONS.contains(&version.as_str()) || !matches!(&*kind, "" | "Eviction") {
        return Err(error::bad_request(format!(
            "the body is a {kind:?} of {version:?}: must be an Eviction of \"policy/v1\""
        )));
    }
    if text(eviction, "/metadata/name") != key.name {
        return Err(error::bad_request(
            "name in URL does not match name in Eviction object",
        ));
    }
    let mut options = delete_options(&eviction["deleteOptions"], terms.by)?;
    options.fence = terms.fence.cloned();
    if terms.effect == WriteEffect::Dry {
        options.effect = terms.effect;
    }
    pods.evict(budgets, key, &options).await.map(drop)
}
