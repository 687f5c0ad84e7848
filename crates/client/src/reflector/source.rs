//! Where a reflector gets its objects.

use futures::Stream;
use podplane_api::Object;
use podplane_proto::error::ApiError;

use crate::api::{Api, ListParams, ObjectEvent, ObjectList};

/// A source of objects, which lists them and watches them from the list's revision.
pub trait ListWatch: Send + Sync + 'static {
    /// What it delivers.
    type Object: Send;

    /// The name of the kind, for logs.
    fn kind(&self) -> &str;

    /// The revision of an object.
    fn resource_version(object: &Self::Object) -> &str;

    /// Lists what `transform` makes of the objects.
    ///
    /// # Errors
    ///
    /// Those of the server and of the connection.
    fn list_as<T: Send>(
        &self,
        transform: &mut (impl FnMut(Self::Object) -> T + Send),
    ) -> impl Future<Output = Result<ObjectList<T>, ApiError>> + Send;

    /// Streams every change after a revision.
    ///
    /// # Errors
    ///
    /// `Expired` if the revision is too old, and others, also as items of the stream.
    fn watch(
        &self,
        resource_version: &str,
    ) -> impl Future<
        Output = Result<
            impl Stream<Item = Result<ObjectEvent<Self::Object>, ApiError>> + Send + 'static,
            ApiError,
        >,
    > + Send;
}

/// The objects of a kind that match.
pub(super) struct Selected<K> {
    pub(super) api: Api<K>,
    pub(super) params: ListParams,
}

impl<K: Object> ListWatch for Selected<K> {
    type Object = K;

    fn kind(&self) -> &str {
        K::KIND
    }

    fn resource_version(object: &K) -> &str {
        object.resource_version()
    }

    fn list_as<T: Send>(
        &self,
        transform: &mut (impl FnMut(K) -> T + Send),
    ) -> impl Future<Output = Result<ObjectList<T>, ApiError>> + Send {
        self.api.list_all_as(&self.params, transform)
    }

    fn watch(
        &self,
        resource_version: &str,
    ) -> impl Future<
        Output = Result<
            impl Stream<Item = Result<ObjectEvent<K>, ApiError>> + Send + 'static,
            ApiError,
        >,
    > + Send {
        self.api.watch(&self.params, resource_version)
    }
}
