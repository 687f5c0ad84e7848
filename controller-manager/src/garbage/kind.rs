//! Operations of the collector that are the same for all kinds.

use std::marker::PhantomData;

use futures::{FutureExt as _, future::BoxFuture};
use podplane_api::{
    Object, ObjectKey, Scope,
    apiextensions::CustomResourceDefinition,
    meta::{ObjectMeta, OwnerReference},
};
use podplane_client::{
    ApiError, ApiResource, Client, DeleteParams, MetadataApi, MetadataClient, answered,
};
use serde_json::{Map, Value, json};

use crate::work::unless_gone;

/// The clients that a collector writes with.
pub(super) struct CollectorClients {
    objects: Client,
    metadata: MetadataClient,
}

impl CollectorClients {
    pub(super) fn new(client: &Client) -> Self {
        Self {
            objects: client.clone(),
            metadata: client.metadata(),
        }
    }
}

/// A change of metadata; returns whether it changed anything.
pub(super) type MetadataChange<'a> = &'a (dyn Fn(&mut ObjectMeta) -> bool + Sync);

/// Reads and writes of objects of one kind by their metadata.
pub(super) trait CollectedKind: Send + Sync {
    fn name(&self) -> &str;

    fn is_namespaced(&self) -> bool;

    /// Returns whether the reference names this kind, in any version.
    fn is_named_by(&self, owner: &OwnerReference) -> bool;

    /// Returns whether the kind has a definition.
    fn is_defined<'a>(
        &'a self,
        clients: &'a CollectorClients,
    ) -> BoxFuture<'a, Result<bool, ApiError>>;

    fn get<'a>(
        &'a self,
        clients: &'a CollectorClients,
        key: &'a ObjectKey,
    ) -> BoxFuture<'a, Result<ObjectMeta, ApiError>>;

    /// Deletes the object; a missing one counts as deleted.
    fn delete<'a>(
        &'a self,
        clients: &'a CollectorClients,
        key: &'a ObjectKey,
        params: &'a DeleteParams,
    ) -> BoxFuture<'a, Result<(), ApiError>>;

    /// Changes the finalizers and owners of the object of that UID, if it still exists.
    fn change<'a>(
        &'a self,
        clients: &'a CollectorClients,
        key: &'a ObjectKey,
        uid: &'a str,
        change: MetadataChange<'a>,
    ) -> BoxFuture<'a, Result<(), ApiError>>;
}

fn is_named_by(owner: &OwnerReference, group: &str, kind: &str) -> bool {
    let version = owner.api_version.split_once('/');
    owner.kind == kind && version.map_or("", |(group, _)| group) == group
}

/// A kind with a type.
pub(super) struct TypedKind<K>(PhantomData<fn() -> K>);

impl<K> TypedKind<K> {
    pub(super) fn new() -> Self {
        Self(PhantomData)
    }
}

impl<K: Object> CollectedKind for TypedKind<K> {
    fn name(&self) -> &str {
        K::KIND
    }

    fn is_namespaced(&self) -> bool {
        K::SCOPE == Scope::Namespaced
    }

    fn is_named_by(&self, owner: &OwnerReference) -> bool {
        is_named_by(owner, K::GROUP, K::KIND)
    }

    fn is_defined<'a>(&'a self, _: &'a CollectorClients) -> BoxFuture<'a, Result<bool, ApiError>> {
        async { Ok(true) }.boxed()
    }

    fn get<'a>(
        &'a self,
        clients: &'a CollectorClients,
        key: &'a ObjectKey,
    ) -> BoxFuture<'a, Result<ObjectMeta, ApiError>> {
        async {
            let api = clients.objects.namespaced::<K>(&key.namespace);
            Ok(answered(api.get(&key.name)).await?.metadata().clone())
        }
        .boxed()
    }

    fn delete<'a>(
        &'a self,
        clients: &'a CollectorClients,
        key: &'a ObjectKey,
        params: &'a DeleteParams,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        async {
            let api = clients.objects.namespaced::<K>(&key.namespace);
            unless_gone(answered(api.delete(&key.name, params)).await)
        }
        .boxed()
    }

    fn change<'a>(
        &'a self,
        clients: &'a CollectorClients,
        key: &'a ObjectKey,
        uid: &'a str,
        change: MetadataChange<'a>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            let api = clients.objects.namespaced::<K>(&key.namespace);
            let mut object = match answered(api.get(&key.name)).await {
                Err(error) if error.is_not_found() => return Ok(()),
                found => found?,
            };
            if object.uid() != uid || !change(object.metadata_mut()) {
                return Ok(());
            }
            unless_gone(answered(api.update(&object)).await)
        }
        .boxed()
    }
}

/// A custom kind. Its objects are read and written by their metadata alone, as all of them are by
/// Kubernetes' collector.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CustomKind {
    pub(super) resource: ApiResource,
    pub(super) scope: Scope,
}

impl CustomKind {
    fn objects(&self, clients: &CollectorClients) -> MetadataApi {
        clients.metadata.of(&self.resource)
    }
}

impl CollectedKind for CustomKind {
    fn name(&self) -> &str {
        &self.resource.kind
    }

    fn is_namespaced(&self) -> bool {
        self.scope == Scope::Namespaced
    }

    fn is_named_by(&self, owner: &OwnerReference) -> bool {
        is_named_by(owner, &self.resource.group, &self.resource.kind)
    }

    fn is_defined<'a>(
        &'a self,
        clients: &'a CollectorClients,
    ) -> BoxFuture<'a, Result<bool, ApiError>> {
        async {
            let definitions = clients.objects.all::<CustomResourceDefinition>();
            let name = format!("{}.{}", self.resource.plural, self.resource.group);
            match answered(definitions.get(&name)).await {
                Ok(_) => Ok(true),
                Err(error) if error.is_not_found() => Ok(false),
                Err(error) => Err(error),
            }
        }
        .boxed()
    }

    fn get<'a>(
        &'a self,
        clients: &'a CollectorClients,
        key: &'a ObjectKey,
    ) -> BoxFuture<'a, Result<ObjectMeta, ApiError>> {
        async { answered(self.objects(clients).get(key)).await }.boxed()
    }

    fn delete<'a>(
        &'a self,
        clients: &'a CollectorClients,
        key: &'a ObjectKey,
        params: &'a DeleteParams,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        async { unless_gone(answered(self.objects(clients).delete(key, params)).await) }.boxed()
    }

    fn change<'a>(
        &'a self,
        clients: &'a CollectorClients,
        key: &'a ObjectKey,
        uid: &'a str,
        change: MetadataChange<'a>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            let objects = self.objects(clients);
            let old = match answered(objects.get(key)).await {
                Err(error) if error.is_not_found() => return Ok(()),
                found => found?,
            };
            let mut new = old.clone();
            if old.uid.as_deref() != Some(uid) || !change(&mut new) {
                return Ok(());
            }
            unless_gone(answered(objects.merge(key, &patch(&old, &new))).await)
        }
        .boxed()
    }
}

/// The merge patch that makes the finalizers and owners of `old` those of `new`, at the revision of
/// `old`.
fn patch(old: &ObjectMeta, new: &ObjectMeta) -> Value {
    let mut metadata = Map::new();
    metadata.insert("resourceVersion".to_owned(), json!(old.resource_version));
    if old.finalizers != new.finalizers {
        metadata.insert("finalizers".to_owned(), json!(new.finalizers));
    }
    if old.owner_references != new.owner_references {
        metadata.insert("ownerReferences".to_owned(), json!(new.owner_references));
    }
    json!({"metadata": metadata})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_names_what_changed_and_the_revision() {
        let old = ObjectMeta {
            resource_version: Some("7".into()),
            finalizers: Some(vec!["a".into(), "orphan".into()]),
            owner_references: Some(vec![OwnerReference::default()]),
            ..ObjectMeta::default()
        };
        let mut new = old.clone();
        new.finalizers = Some(vec!["a".into()]);
        let want = json!({"metadata": {"resourceVersion": "7", "finalizers": ["a"]}});
        assert_eq!(patch(&old, &new), want);
        new.clone_from(&old);
        new.owner_references = Some(Vec::new());
        let want = json!({"metadata": {"resourceVersion": "7", "ownerReferences": []}});
        assert_eq!(patch(&old, &new), want);
    }
}
