//! Operations of the collector that are the same for all kinds.

use std::marker::PhantomData;

use futures::{FutureExt as _, future::BoxFuture};
use podplane_api::{
    Object, ObjectKey, Scope,
    meta::{ObjectMeta, OwnerReference},
};
use podplane_client::{ApiError, Client, DeleteParams, answered};

use crate::work::unless_gone;

/// A change of metadata; returns whether it changed anything.
pub(super) type MetadataChange<'a> = &'a (dyn Fn(&mut ObjectMeta) -> bool + Sync);

/// Reads and writes of objects by their metadata.
pub(super) trait KindClient: Send + Sync {
    fn name(&self) -> &'static str;

    fn is_namespaced(&self) -> bool;

    /// Returns whether the reference names this kind, in any version.
    fn is_named_by(&self, owner: &OwnerReference) -> bool;

    fn get<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<ObjectMeta, ApiError>>;

    /// Deletes the object; a missing one counts as deleted.
    fn delete<'a>(
        &'a self,
        key: &'a ObjectKey,
        params: &'a DeleteParams,
    ) -> BoxFuture<'a, Result<(), ApiError>>;

    /// Changes the metadata of the object of that UID, if it still exists.
    fn change<'a>(
        &'a self,
        key: &'a ObjectKey,
        uid: &'a str,
        change: MetadataChange<'a>,
    ) -> BoxFuture<'a, Result<(), ApiError>>;
}

/// The implementation for an object type.
pub(super) struct TypedKind<K> {
    client: Client,
    kind: PhantomData<fn() -> K>,
}

impl<K> TypedKind<K> {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            kind: PhantomData,
        }
    }
}

impl<K: Object> KindClient for TypedKind<K> {
    fn name(&self) -> &'static str {
        K::KIND
    }

    fn is_namespaced(&self) -> bool {
        K::SCOPE == Scope::Namespaced
    }

    fn is_named_by(&self, owner: &OwnerReference) -> bool {
        let group = owner
            .api_version
            .split_once('/')
            .map_or("", |(group, _)| group);
        owner.kind == K::KIND && group == K::GROUP
    }

    fn get<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<ObjectMeta, ApiError>> {
        async {
            let api = self.client.namespaced::<K>(&key.namespace);
            Ok(answered(api.get(&key.name)).await?.metadata().clone())
        }
        .boxed()
    }

    fn delete<'a>(
        &'a self,
        key: &'a ObjectKey,
        params: &'a DeleteParams,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        async {
            let api = self.client.namespaced::<K>(&key.namespace);
            unless_gone(answered(api.delete(&key.name, params)).await)
        }
        .boxed()
    }

    fn change<'a>(
        &'a self,
        key: &'a ObjectKey,
        uid: &'a str,
        change: MetadataChange<'a>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            let api = self.client.namespaced::<K>(&key.namespace);
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
