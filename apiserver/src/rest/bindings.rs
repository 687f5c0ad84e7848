//! `bindings` of a namespace: the older path to `pods/NAME/binding`. The body names the pod.

use futures::{FutureExt as _, future::BoxFuture};
use podplane_api::{
    ObjectKey, Scope,
    core::{Binding, Pod},
    strict,
};
use podplane_proto::error::ApiError;
use serde_json::{Value, json};

use super::{
    request::WriteOptions,
    resource::{Names, Resource, RestKind as _, Subresource, Written},
};
use crate::{error, registry::Registry};

/// Bindings of pods to nodes, which are carried out and not stored.
pub(crate) struct Bindings {
    pods: Registry<Pod>,
    names: Names,
}

impl Bindings {
    pub(crate) fn new(pods: Registry<Pod>) -> Self {
        let names = Names {
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
    fn names(&self) -> &Names {
        &self.names
    }

    fn create<'a>(
        &'a self,
        document: Value,
        options: &'a WriteOptions,
    ) -> BoxFuture<'a, Result<Written, ApiError>> {
        async move {
            let undecodable = |error| error::not_strictly(self.names.kind, "v1", &error);
            let (binding, unknown) =
                strict::decode_noting::<Binding, _>(&document).map_err(undecodable)?;
            let warnings = options.judge(unknown).map_err(undecodable)?;
            let meta = &binding.metadata;
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            let key = ObjectKey::new(text(&meta.namespace), text(&meta.name));
            let effect = options.write.effect;
            Pod::act(&self.pods, &key, Subresource::Binding, &document, effect).await?;
            let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
            Ok(Written {
                document: status,
                warnings,
                created: true,
            })
        }
        .boxed()
    }
}
