//! Whole objects whose kind is known at run time only, as JSON: those of other projects'
//! CustomResourceDefinitions.
//!
//! They are read and never written, over Kubernetes' REST API, as [`metadata`](crate::metadata) is.

use futures::{Stream, StreamExt as _};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, ListParams, WatchParams},
};
use podplane_proto::error::ApiError;

use crate::{
    api::{
        ObjectEvent, ObjectList,
        rest::{observed, refused},
    },
    reflector::ListWatch,
};

/// An object of any kind: its metadata, and the rest as JSON.
pub type JsonObject = DynamicObject;

/// The objects of one cluster-scoped kind. Its use is as the source of a
/// [`source_reflector`](crate::source_reflector).
#[derive(Clone, Debug)]
pub struct ObjectsApi {
    objects: Api<DynamicObject>,
    kind: String,
    /// The name of the only object of interest; `None`: all.
    name: Option<String>,
}

impl ObjectsApi {
    pub(crate) fn new(client: kube::Client, resource: &ApiResource) -> Self {
        Self {
            objects: Api::all_with(client, resource),
            kind: resource.kind.clone(),
            name: None,
        }
    }

    /// The object of this name alone.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self {
            name: Some(name.to_owned()),
            ..self
        }
    }

    fn field_selector(&self) -> Option<String> {
        let name = self.name.as_ref()?;
        Some(format!("metadata.name={name}"))
    }
}

impl ListWatch for ObjectsApi {
    type Object = JsonObject;

    fn kind(&self) -> &str {
        &self.kind
    }

    fn resource_version(object: &JsonObject) -> &str {
        let version = object.metadata.resource_version.as_deref();
        version.unwrap_or_default()
    }

    async fn list_as<T: Send>(
        &self,
        transform: &mut (impl FnMut(JsonObject) -> T + Send),
    ) -> Result<ObjectList<T>, ApiError> {
        let params = ListParams {
            field_selector: self.field_selector(),
            ..ListParams::default()
        };
        let list = self.objects.list(&params).await.map_err(refused)?;
        Ok(ObjectList {
            resource_version: list.metadata.resource_version.unwrap_or_default(),
            continue_token: None,
            items: list.items.into_iter().map(transform).collect(),
        })
    }

    async fn watch(
        &self,
        resource_version: &str,
    ) -> Result<
        impl Stream<Item = Result<ObjectEvent<JsonObject>, ApiError>> + Send + 'static,
        ApiError,
    > {
        let params = WatchParams {
            bookmarks: true,
            field_selector: self.field_selector(),
            ..WatchParams::default()
        };
        let events = self.objects.watch(&params, resource_version).await;
        Ok(events.map_err(refused)?.map(observed))
    }
}
