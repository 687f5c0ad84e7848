//! A kind as the REST API sees it: documents in, documents out. The code above this interface is
//! compiled once, not for each kind.

use std::sync::Arc;

use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::BoxStream};
use http::StatusCode;
use podplane_api::{
    Object, ObjectKey, Scope,
    canonical::canonicalize,
    jiff::Timestamp,
    schema::Type,
    strategy::{Strategy, Subresource},
    strict::StrictError,
    table::Column,
};
use podplane_host::clock::Instant;
use podplane_proto::{
    error::ApiError,
    wire::{ListMeta, WatchEventType},
};
use serde_json::{Value, json};

use super::request::{ListOptions, Selection, WriteOptions};
use crate::{
    cache::{CachedObject, INITIAL_EVENTS_END, Query},
    error,
    registry::{
        ActAnswer, ChangeTerms, DeleteOptions, ListPage, ObjectPart, Patch, Registry, StreamEvent,
        WatchOptions,
    },
};

/// The names of a kind, its verbs and its sub-resources.
#[derive(Debug)]
pub(crate) struct KindNames {
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) plural: &'static str,
    pub(super) singular: &'static str,
    pub(super) short: &'static [&'static str],
    pub(super) categories: &'static [&'static str],
    pub(super) scope: Scope,
    pub(super) verbs: &'static [&'static str],
    pub(super) subresources: &'static [Subresource],
    /// True if a deletion returns the object and not only a `Status` (`ReturnDeletedObject` of
    /// Kubernetes' storage).
    pub(super) returns_deleted: bool,
    /// False if there can be no objects, or answers, of the kind.
    pub(super) is_stored: bool,
}

impl KindNames {
    /// `v1`, `apps/v1`
    pub(super) fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }
}

/// A written object, with warnings for the client.
#[derive(Debug)]
pub(crate) struct WriteAnswer {
    pub(crate) document: Value,
    pub(super) warnings: Vec<String>,
    /// True if a patch or an update created it.
    pub(super) created: bool,
}

impl WriteAnswer {
    /// The code to answer with.
    pub(super) fn code(&self) -> StatusCode {
        match self.created {
            true => StatusCode::CREATED,
            false => StatusCode::OK,
        }
    }
}

/// A list of documents.
#[derive(Debug)]
pub(crate) struct Documents {
    pub(super) metadata: ListMeta,
    pub(super) items: Vec<ListedItem>,
}

/// An object of a list, which becomes a document when the list is rendered.
#[derive(Debug)]
pub(crate) struct ListedItem {
    object: ListedObject,
    /// For a kind that shows the objects of another one.
    convert: Option<fn(Value) -> Value>,
}

#[derive(Debug)]
enum ListedObject {
    Cached(Arc<CachedObject>),
    Document(Value),
}

impl ListedItem {
    /// The same object, as `convert` shows its document.
    pub(super) fn converted(self, convert: fn(Value) -> Value) -> Self {
        Self {
            convert: Some(convert),
            ..self
        }
    }

    /// The document.
    pub(super) fn document(self) -> Result<Value, ApiError> {
        let document = match self.object {
            ListedObject::Cached(object) => object.document()?,
            ListedObject::Document(document) => document,
        };
        Ok(match self.convert {
            Some(convert) => convert(document),
            None => document,
        })
    }
}

impl From<Value> for ListedItem {
    fn from(document: Value) -> Self {
        Self {
            object: ListedObject::Document(document),
            convert: None,
        }
    }
}

impl From<Arc<CachedObject>> for ListedItem {
    fn from(object: Arc<CachedObject>) -> Self {
        Self {
            object: ListedObject::Cached(object),
            convert: None,
        }
    }
}

/// An event of a watch.
#[derive(Debug)]
pub(crate) struct WatchNotice {
    pub(super) event_type: WatchEventType,
    pub(super) document: Value,
}

/// The events of a watch; it ends after an error.
pub(crate) type WatchNotices = BoxStream<'static, Result<WatchNotice, ApiError>>;

/// The objects of a kind. Methods for verbs that its names do not list need not be implemented.
pub(crate) trait Resource: Send + Sync {
    fn names(&self) -> &KindNames;

    fn get<'a>(&'a self, _key: &'a ObjectKey) -> BoxFuture<'a, Result<Value, ApiError>> {
        not_a_verb()
    }

    fn list<'a>(&'a self, _options: &'a ListOptions) -> BoxFuture<'a, Result<Documents, ApiError>> {
        not_a_verb()
    }

    /// Opens a watch; the caller ends it at `ends`.
    fn watch<'a>(
        &'a self,
        _options: &'a ListOptions,
        _ends: Instant,
    ) -> BoxFuture<'a, Result<WatchNotices, ApiError>> {
        not_a_verb()
    }

    fn create<'a>(
        &'a self,
        _document: Value,
        _options: &'a WriteOptions,
    ) -> BoxFuture<'a, Result<WriteAnswer, ApiError>> {
        not_a_verb()
    }

    fn update<'a>(
        &'a self,
        _document: Value,
        _part: ObjectPart,
        _options: &'a WriteOptions,
    ) -> BoxFuture<'a, Result<WriteAnswer, ApiError>> {
        not_a_verb()
    }

    fn patch<'a>(
        &'a self,
        _key: &'a ObjectKey,
        _part: ObjectPart,
        _patch: &'a Patch,
        _options: &'a WriteOptions,
    ) -> BoxFuture<'a, Result<WriteAnswer, ApiError>> {
        not_a_verb()
    }

    fn delete<'a>(
        &'a self,
        _key: &'a ObjectKey,
        _options: &'a DeleteOptions,
    ) -> BoxFuture<'a, Result<Value, ApiError>> {
        not_a_verb()
    }

    /// The keys of the selected objects.
    fn keys<'a>(
        &'a self,
        _selection: &'a Selection,
    ) -> BoxFuture<'a, Result<Vec<ObjectKey>, ApiError>> {
        not_a_verb()
    }

    /// Performs an act on an object through one of its sub-resources.
    fn act<'a>(
        &'a self,
        _key: &'a ObjectKey,
        _act: Subresource,
        _document: &'a Value,
        _terms: ChangeTerms<'a>,
    ) -> BoxFuture<'a, Result<ActAnswer, ApiError>> {
        not_a_verb()
    }

    /// The number of stored objects; `None` for kinds that are not stored.
    fn count(&self) -> Option<usize> {
        None
    }

    fn columns(&self) -> &'static [Column] {
        &[]
    }

    /// The cells of an object's row.
    fn cells(&self, _document: Value, _now: Timestamp) -> Result<Vec<String>, ApiError> {
        Ok(Vec::new())
    }
}

fn not_a_verb<'a, T: Send + 'a>() -> BoxFuture<'a, Result<T, ApiError>> {
    let why = "the server does not allow this method on the requested resource";
    async move { Err(error::bad_request(why)) }.boxed()
}

struct NamesOf<K>(std::marker::PhantomData<K>);

impl<K: Strategy> NamesOf<K> {
    const NAMES: KindNames = KindNames {
        group: K::GROUP,
        version: K::VERSION,
        kind: K::KIND,
        plural: K::PLURAL,
        singular: K::SINGULAR,
        short: K::SHORT_NAMES,
        categories: K::CATEGORIES,
        scope: K::SCOPE,
        verbs: K::VERBS,
        subresources: K::SUBRESOURCES,
        returns_deleted: K::RETURNS_DELETED,
        is_stored: true,
    };
}

/// The names of a kind, without its objects.
pub(crate) fn names_of<K: Strategy>() -> &'static KindNames {
    &NamesOf::<K>::NAMES
}

impl<K: Strategy> Resource for Registry<K> {
    fn names(&self) -> &KindNames {
        &NamesOf::<K>::NAMES
    }

    fn get<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Value, ApiError>> {
        async move { Self::get(self, key).await?.document() }.boxed()
    }

    fn list<'a>(&'a self, options: &'a ListOptions) -> BoxFuture<'a, Result<Documents, ApiError>> {
        async move {
            let query = query::<K>(&options.selection)?;
            let freshness = options.freshness()?;
            let list = Self::list(self, &query, options.limit, &options.token, freshness);
            let ListPage { metadata, items } = list.await?;
            let items = items.into_iter().map(ListedItem::from).collect();
            Ok(Documents { metadata, items })
        }
        .boxed()
    }

    fn watch<'a>(
        &'a self,
        options: &'a ListOptions,
        ends: Instant,
    ) -> BoxFuture<'a, Result<WatchNotices, ApiError>> {
        async move {
            let options = WatchOptions {
                query: query::<K>(&options.selection)?,
                start: options.start()?,
                bookmarks: options.bookmarks,
                ends: Some(ends),
                announce_end: options.announces_end(),
            };
            let events = Self::watch(self, options).await?;
            Ok(events
                .map(|event| event.and_then(|event| notice::<K>(&event)))
                .boxed())
        }
        .boxed()
    }

    fn create<'a>(
        &'a self,
        document: Value,
        options: &'a WriteOptions,
    ) -> BoxFuture<'a, Result<WriteAnswer, ApiError>> {
        async move {
            let (object, warnings) = decode::<K>(document, options)?;
            written(&Self::create(self, object, &options.write).await?, warnings)
        }
        .boxed()
    }

    fn update<'a>(
        &'a self,
        document: Value,
        part: ObjectPart,
        options: &'a WriteOptions,
    ) -> BoxFuture<'a, Result<WriteAnswer, ApiError>> {
        async move {
            let (object, warnings) = decode::<K>(document, options)?;
            let put = Self::put(self, object, part, &options.write);
            let (object, created) = put.await?;
            Ok(WriteAnswer {
                created,
                ..written(&object, warnings)?
            })
        }
        .boxed()
    }

    fn patch<'a>(
        &'a self,
        key: &'a ObjectKey,
        part: ObjectPart,
        patch: &'a Patch,
        options: &'a WriteOptions,
    ) -> BoxFuture<'a, Result<WriteAnswer, ApiError>> {
        async move {
            let (object, warnings, created) = patch_object(self, key, part, patch, options).await?;
            Ok(WriteAnswer {
                created,
                ..written(&object, warnings)?
            })
        }
        .boxed()
    }

    fn delete<'a>(
        &'a self,
        key: &'a ObjectKey,
        options: &'a DeleteOptions,
    ) -> BoxFuture<'a, Result<Value, ApiError>> {
        async move { json::<K>(&Self::delete(self, key, options).await?) }.boxed()
    }

    fn keys<'a>(
        &'a self,
        selection: &'a Selection,
    ) -> BoxFuture<'a, Result<Vec<ObjectKey>, ApiError>> {
        async move { Self::keys(self, &query::<K>(selection)?).await }.boxed()
    }

    fn act<'a>(
        &'a self,
        key: &'a ObjectKey,
        act: Subresource,
        document: &'a Value,
        terms: ChangeTerms<'a>,
    ) -> BoxFuture<'a, Result<ActAnswer, ApiError>> {
        match self.actions() {
            Some(own) => own.act(self, key, act, document, terms),
            None => async move { Err(error::not_found::<K>(&key.name)) }.boxed(),
        }
    }

    fn count(&self) -> Option<usize> {
        Some(Self::count(self))
    }

    fn columns(&self) -> &'static [Column] {
        K::COLUMNS
    }

    fn cells(&self, document: Value, now: Timestamp) -> Result<Vec<String>, ApiError> {
        let decoded = K::from_json_noting(document);
        let (object, _) = decoded.map_err(|error| error::not_strict::<K>(&error))?;
        Ok(object.cells(now))
    }
}

fn query<K: Strategy>(selection: &Selection) -> Result<Query, ApiError> {
    let Selection {
        namespace,
        labels,
        fields,
    } = selection;
    Query::parse::<K>(namespace.clone(), labels, fields)
}

/// Patches a part of an object; returns it, warnings, and true if it was created.
pub(crate) async fn patch_object<K: Strategy>(
    registry: &Registry<K>,
    key: &ObjectKey,
    part: ObjectPart,
    patch: &Patch,
    options: &WriteOptions,
) -> Result<(K, Vec<String>, bool), ApiError> {
    let decode = |document| {
        decode::<K>(document, options).map_err(|refused| match patch.document() {
            Some(patch) if !refused.fields.is_empty() => error::misfit(patch, &refused),
            _ => refused,
        })
    };
    registry
        .patch(key, part, patch, &options.write, decode)
        .await
}

/// Decodes a document; also returns warnings.
pub(super) fn decode<K: Object>(
    mut document: Value,
    options: &WriteOptions,
) -> Result<(K, Vec<String>), ApiError> {
    let undecodable = |error: StrictError| error::not_strict::<K>(&error);
    let changed = Type::of::<K>().map(|ty| canonicalize(ty, &mut document));
    let (object, unknown) = K::from_json_noting(document).map_err(undecodable)?;
    let mut warnings = options.judge(unknown).map_err(undecodable)?;
    warnings.extend(changed.into_iter().flatten());
    Ok((object, warnings))
}

fn json<K: Object>(object: &K) -> Result<Value, ApiError> {
    object.to_json().map_err(|error| error::internal(&error))
}

fn written<K: Object>(object: &K, warnings: Vec<String>) -> Result<WriteAnswer, ApiError> {
    Ok(WriteAnswer {
        document: json(object)?,
        warnings,
        created: false,
    })
}

fn notice<K: Object>(event: &StreamEvent) -> Result<WatchNotice, ApiError> {
    let bookmark = |revision, annotations: Value| {
        let metadata = json!({"resourceVersion": format!("{revision}"), "creationTimestamp": null, "annotations": annotations});
        let mut document =
            json!({"apiVersion": K::API_VERSION, "kind": K::KIND, "metadata": metadata});
        if document["metadata"]["annotations"].is_null()
            && let Some(metadata) = document["metadata"].as_object_mut()
        {
            metadata.remove("annotations");
        }
        WatchNotice {
            event_type: WatchEventType::Bookmark,
            document,
        }
    };
    Ok(match event {
        StreamEvent::Change(change) => WatchNotice {
            event_type: change.event_type(),
            document: change.document()?,
        },
        StreamEvent::Bookmark(revision) => bookmark(revision, Value::Null),
        StreamEvent::InitialEnd(revision) => {
            bookmark(revision, json!({INITIAL_EVENTS_END: "true"}))
        }
    })
}
