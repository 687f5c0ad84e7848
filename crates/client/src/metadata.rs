//! The metadata of objects whose kind is known at run time only: those of CustomResourceDefinitions.
//!
//! They have no `.proto`, so these calls go to Kubernetes' REST API of the same server, over the
//! same connection, as `PartialObjectMetadata`, also where other calls use gRPC.

use std::fmt;

use futures::{Stream, StreamExt as _};
pub use kube::api::ApiResource;
use kube::{
    Api,
    api::{DynamicObject, Patch, PatchParams, WatchParams},
};
use podplane_api::{ObjectKey, meta::ObjectMeta};
use podplane_proto::error::ApiError;
use serde_json::Value;

use crate::{
    api::{
        Client, DeleteParams, ObjectEvent, ObjectList,
        rest::{delete_params, observed, refused},
    },
    objects::ObjectsApi,
    reflector::ListWatch,
};

/// The name under which `metadata.managedFields` records patches of metadata.
const FIELD_MANAGER: &str = "podplane-controller-manager";

/// A client for the metadata of objects of any kind. Clones share it.
#[derive(Clone)]
pub struct MetadataClient(kube::Client);

impl fmt::Debug for MetadataClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MetadataClient(..)")
    }
}

/// The metadata of the objects of one kind, in all namespaces.
#[derive(Clone, Debug)]
pub struct MetadataApi {
    client: MetadataClient,
    resource: ApiResource,
}

impl MetadataClient {
    /// A client of the same server, which sends the same fence.
    pub(crate) fn new(client: &Client) -> Self {
        Self(client.kube())
    }

    /// The metadata of objects of a kind.
    pub fn of(&self, resource: &ApiResource) -> MetadataApi {
        MetadataApi {
            client: self.clone(),
            resource: resource.clone(),
        }
    }

    /// The whole objects of a kind, as JSON.
    pub fn objects(&self, resource: &ApiResource) -> ObjectsApi {
        ObjectsApi::new(self.0.clone(), resource)
    }
}

impl MetadataApi {
    /// Reads the metadata of an object.
    ///
    /// # Errors
    ///
    /// `NotFound`; `ServiceUnavailable` also if the kind is not served, which says nothing of the
    /// object; and others.
    pub async fn get(&self, key: &ObjectKey) -> Result<ObjectMeta, ApiError> {
        let object = self.objects(&key.namespace).get_metadata(&key.name).await;
        Ok(object.map_err(refused)?.metadata)
    }

    /// Merges a patch, a document with `metadata`, into an object.
    ///
    /// # Errors
    ///
    /// `Conflict` if the patch states another revision, and those of [`get`](Self::get).
    pub async fn merge(&self, key: &ObjectKey, patch: &Value) -> Result<ObjectMeta, ApiError> {
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let (objects, patch) = (self.objects(&key.namespace), Patch::Merge(patch));
        let patched = objects.patch_metadata(&key.name, &params, &patch).await;
        Ok(patched.map_err(refused)?.metadata)
    }

    /// Deletes an object.
    ///
    /// # Errors
    ///
    /// `Conflict` if a precondition fails, and those of [`get`](Self::get).
    pub async fn delete(&self, key: &ObjectKey, params: &DeleteParams) -> Result<(), ApiError> {
        let params = delete_params(params);
        let objects = self.objects(&key.namespace);
        let deleted = objects.delete(&key.name, &params).await;
        deleted.map(drop).map_err(refused)
    }

    /// The objects of a namespace, or those without one.
    fn objects(&self, namespace: &str) -> Api<DynamicObject> {
        let client = self.client.0.clone();
        match namespace {
            "" => Api::all_with(client, &self.resource),
            namespace => Api::namespaced_with(client, namespace, &self.resource),
        }
    }
}

impl ListWatch for MetadataApi {
    type Object = ObjectMeta;

    fn kind(&self) -> &str {
        &self.resource.kind
    }

    fn resource_version(object: &ObjectMeta) -> &str {
        object.resource_version.as_deref().unwrap_or_default()
    }

    async fn list_as<T: Send>(
        &self,
        transform: &mut (impl FnMut(ObjectMeta) -> T + Send),
    ) -> Result<ObjectList<T>, ApiError> {
        let list = self.objects("").list_metadata(&Default::default()).await;
        let list = list.map_err(refused)?;
        let items = list.items.into_iter().map(|item| transform(item.metadata));
        Ok(ObjectList {
            resource_version: list.metadata.resource_version.unwrap_or_default(),
            continue_token: None,
            items: items.collect(),
        })
    }

    async fn watch(
        &self,
        resource_version: &str,
    ) -> Result<
        impl Stream<Item = Result<ObjectEvent<ObjectMeta>, ApiError>> + Send + 'static,
        ApiError,
    > {
        let params = WatchParams {
            bookmarks: true,
            ..WatchParams::default()
        };
        let objects = self.objects("");
        let events = objects.watch_metadata(&params, resource_version).await;
        let events = events.map_err(refused)?;
        Ok(events.map(|event| Ok(observed(event)?.map(|object| object.metadata))))
    }
}
