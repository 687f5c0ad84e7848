//! The acts on pods that are subresources, and `bindings` of a namespace, the older path to
//! `pods/NAME/binding`, where the body names the pod.

use futures::{FutureExt as _, future::BoxFuture};
use podplane_api::{
    ObjectKey, Scope,
    core::{Binding, Pod},
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
    registry::{Registry, WriteEffect},
};

/// Bindings of pods to nodes; they are carried out and not stored.
pub(crate) struct Bindings {
    pods: Registry<Pod>,
    names: KindNames,
}

impl Bindings {
    pub(crate) fn new(pods: Registry<Pod>) -> Self {
        let names = KindNames {
            group: "",
            version: "v1",
            kind: "Binding",
            plural: "bindings",
            singular: "binding",
            short: &[],
            categories: &[],
            scope: Scope::Namespaced,
            verbs: &["create"],
            subresources: &[],
            returns_deleted: false,
            is_stored: true,
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
            let undecodable = |error| error::not_strictly(self.names.kind, "v1", &error);
            let (binding, unknown) =
                strict::decode_noting::<Binding, _>(&document).map_err(undecodable)?;
            let warnings = options.judge(unknown).map_err(undecodable)?;
            let meta = &binding.metadata;
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            let key = ObjectKey::new(text(&meta.namespace), text(&meta.name));
            let effect = options.write.effect;
            act(&self.pods, &key, Subresource::Binding, &document, effect).await?;
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

/// Carries out `binding` or `eviction` of a pod.
pub(crate) fn act<'a>(
    registry: &'a Registry<Pod>,
    key: &'a ObjectKey,
    act: Subresource,
    document: &'a Value,
    effect: WriteEffect,
) -> BoxFuture<'a, Result<(), ApiError>> {
    async move {
        let text = |pointer: &str| {
            let text = document.pointer(pointer).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        match act {
            Subresource::Binding => {
                if !matches!(text("/target/kind").as_str(), "" | "Node") {
                    return Err(error::bad_request("target.kind: must be empty or \"Node\""));
                }
                let request = BindPodRequest {
                    namespace: key.namespace.clone(),
                    name: key.name.clone(),
                    uid: text("/metadata/uid"),
                    node_name: text("/target/name"),
                    resource_version: text("/metadata/resourceVersion"),
                };
                registry.bind(&request, effect.into()).await.map(drop)
            }
            Subresource::Eviction => {
                let mut options = delete_options(&document["deleteOptions"])?;
                if effect == WriteEffect::Dry {
                    options.effect = effect;
                }
                registry.delete(key, &options).await.map(drop)
            }
            Subresource::Status
            | Subresource::Scale
            | Subresource::Log
            | Subresource::Attach
            | Subresource::Exec
            | Subresource::PortForward => Err(error::not_found::<Pod>(&key.name)),
        }
    }
    .boxed()
}
