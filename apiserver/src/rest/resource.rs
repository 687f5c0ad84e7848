//! A kind as the REST API sees it: documents in, documents out. The code above this interface is
//! compiled once, not for each kind.

use std::sync::Arc;

use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::BoxStream};
use http::StatusCode;
use podplane_api::{
    Object, ObjectKey,
    any::{AnyKind, ColumnDefinition, DynObject},
    autoscaling::Scale,
    canonical::canonicalize,
    jiff::Timestamp,
    schema::Type,
    strategy::Subresource,
    strict::StrictError,
};
use podplane_custom_resources::CustomKind;
use podplane_host::clock::Instant;
use podplane_proto::{
    error::ApiError,
    wire::{ListMeta, WatchEventType},
};
use podplane_store::Revision;
use serde_json::{Value, json};

pub(crate) use podplane_api::any::KindNames;

use super::{
    request::{ListOptions, Selection, WriteOptions},
    scale,
};
use crate::{
    cache::{CachedObject, INITIAL_EVENTS_END, Query},
    error,
    registry::{
        ActAnswer, ChangeTerms, DeleteOptions, KindRegistry, ListPage, ObjectPart, Patch,
        StreamEvent, WatchOptions,
    },
};

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
    pub(crate) metadata: ListMeta,
    pub(crate) items: Vec<ListedItem>,
}

/// An object of a list, which becomes a document when the list is rendered.
#[derive(Debug)]
pub(crate) struct ListedItem {
    object: ListedObject,
    /// For a kind that shows the objects of another one, or of another version.
    convert: Option<Convert>,
}

/// Converts a document for its clients.
#[derive(Clone)]
pub(crate) struct Convert(Arc<dyn Fn(Value) -> Value + Send + Sync>);

impl Convert {
    pub(crate) fn new(convert: impl Fn(Value) -> Value + Send + Sync + 'static) -> Self {
        Self(Arc::new(convert))
    }
}

impl std::fmt::Debug for Convert {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Convert(..)")
    }
}

#[derive(Debug)]
enum ListedObject {
    Cached(Arc<CachedObject>),
    Document(Value),
}

impl ListedItem {
    /// The same object, as `convert` shows its document.
    pub(crate) fn converted(self, convert: &Convert) -> Self {
        Self {
            convert: Some(convert.clone()),
            ..self
        }
    }

    /// The document.
    pub(crate) fn document(self) -> Result<Value, ApiError> {
        let document = match self.object {
            ListedObject::Cached(object) => object.document()?,
            ListedObject::Document(document) => document,
        };
        Ok(match self.convert {
            Some(convert) => (convert.0)(document),
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
    pub(crate) event_type: WatchEventType,
    pub(crate) document: Value,
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

    /// A document of another version of the kind, in this version.
    fn convert(&self, document: Value) -> BoxFuture<'_, Result<Value, ApiError>> {
        async move { Ok(document) }.boxed()
    }

    /// The scale of an object, as a document.
    fn scale(&self, document: &Value) -> Result<Value, ApiError> {
        Ok(scale::view(document))
    }

    /// The merge patch that a scale means for its object.
    fn scaled(&self, scale: &Scale) -> Result<Value, ApiError> {
        Ok(json!({"spec": {"replicas": scale::replicas(scale)}}))
    }

    /// The definition, for a kind that a CustomResourceDefinition declares.
    fn custom(&self) -> Option<&CustomKind> {
        None
    }

    /// A warning for every client of the resource.
    fn warning(&self) -> Option<&str> {
        None
    }

    /// The reason why no objects can be created now.
    fn refused_creation(&self) -> Option<String> {
        None
    }

    /// The number of stored objects; `None` for kinds that are not stored.
    fn count(&self) -> Option<usize> {
        None
    }

    fn columns(&self) -> &[ColumnDefinition] {
        &[]
    }

    /// The cells of an object's row.
    fn cells(&self, _document: Value, _now: Timestamp) -> Result<Vec<Value>, ApiError> {
        Ok(Vec::new())
    }
}

fn not_a_verb<'a, T: Send + 'a>() -> BoxFuture<'a, Result<T, ApiError>> {
    let why = "the server does not allow this method on the requested resource";
    async move { Err(error::bad_request(why)) }.boxed()
}

impl Resource for KindRegistry {
    fn names(&self) -> &KindNames {
        Self::names(self)
    }

    fn get<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Value, ApiError>> {
        async move { Self::get(self, key).await?.document() }.boxed()
    }

    fn list<'a>(&'a self, options: &'a ListOptions) -> BoxFuture<'a, Result<Documents, ApiError>> {
        async move {
            let query = query(self, &options.selection)?;
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
                query: query(self, &options.selection)?,
                start: options.start()?,
                bookmarks: options.bookmarks,
                ends: Some(ends),
                announce_end: options.announces_end(),
            };
            let events = Self::watch(self, options).await?;
            let bookmark = BookmarkForm::of(Self::names(self));
            Ok(events
                .map(move |event| event.and_then(|event| bookmark.notice(&event)))
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
            let (object, warnings) = decode(self.kind(), document, options)?;
            written(
                &*Self::create(self, object, &options.write).await?,
                warnings,
            )
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
            let (object, warnings) = decode(self.kind(), document, options)?;
            let put = Self::put(self, object, part, &options.write);
            let (object, created) = put.await?;
            Ok(WriteAnswer {
                created,
                ..written(&*object, warnings)?
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
                ..written(&*object, warnings)?
            })
        }
        .boxed()
    }

    fn delete<'a>(
        &'a self,
        key: &'a ObjectKey,
        options: &'a DeleteOptions,
    ) -> BoxFuture<'a, Result<Value, ApiError>> {
        async move { json(&*Self::delete(self, key, options).await?) }.boxed()
    }

    fn keys<'a>(
        &'a self,
        selection: &'a Selection,
    ) -> BoxFuture<'a, Result<Vec<ObjectKey>, ApiError>> {
        async move { Self::keys(self, &query(self, selection)?).await }.boxed()
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
            None => async move { Err(error::not_found_in(Self::names(self), &key.name)) }.boxed(),
        }
    }

    fn count(&self) -> Option<usize> {
        Some(Self::count(self))
    }

    fn columns(&self) -> &[ColumnDefinition] {
        self.kind().columns()
    }

    fn cells(&self, document: Value, now: Timestamp) -> Result<Vec<Value>, ApiError> {
        let cells = self.kind().cells(document, now);
        cells.map_err(|error| error::not_strict_in(Self::names(self), &error))
    }
}

fn query(registry: &KindRegistry, selection: &Selection) -> Result<Query, ApiError> {
    let Selection {
        namespace,
        labels,
        fields,
    } = selection;
    registry.query(namespace.clone(), labels, fields)
}

/// Patches a part of an object; returns it, warnings, and true if it was created.
pub(crate) async fn patch_object(
    registry: &KindRegistry,
    key: &ObjectKey,
    part: ObjectPart,
    patch: &Patch,
    options: &WriteOptions,
) -> Result<(Box<DynObject>, Vec<String>, bool), ApiError> {
    let hides = error::hides_content(registry.names());
    let decode = |document| {
        decode(registry.kind(), document, options).map_err(|refused| match patch.document() {
            Some(patch) if !refused.fields.is_empty() && !hides => error::misfit(patch, &refused),
            _ => refused,
        })
    };
    registry
        .patch(key, part, patch, &options.write, &decode)
        .await
}

/// Decodes a document; also returns warnings.
fn decode(
    kind: &dyn AnyKind,
    mut document: Value,
    options: &WriteOptions,
) -> Result<(Box<DynObject>, Vec<String>), ApiError> {
    let undecodable = |error: StrictError| error::not_strict_in(kind.names(), &error);
    let changed = kind.canonicalize(&mut document);
    let (object, unknown) = kind.decode_noting(document).map_err(undecodable)?;
    let mut warnings = options.judge(unknown).map_err(undecodable)?;
    warnings.extend(changed);
    Ok((object, warnings))
}

/// The same for a kind that is not stored.
pub(super) fn decode_view<K: Object>(
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

fn json(object: &DynObject) -> Result<Value, ApiError> {
    object.to_json().map_err(|error| error::internal(&error))
}

fn written(object: &DynObject, warnings: Vec<String>) -> Result<WriteAnswer, ApiError> {
    Ok(WriteAnswer {
        document: json(object)?,
        warnings,
        created: false,
    })
}

/// The form of a kind's bookmarks.
struct BookmarkForm {
    api_version: String,
    kind: String,
}

impl BookmarkForm {
    fn of(names: &KindNames) -> Self {
        Self {
            api_version: names.api_version(),
            kind: names.kind.clone().into_owned(),
        }
    }

    fn bookmark(&self, revision: Revision, annotation: Option<&str>) -> WatchNotice {
        let mut metadata =
            json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if let Some(annotation) = annotation {
            metadata["annotations"] = json!({annotation: "true"});
        }
        WatchNotice {
            event_type: WatchEventType::Bookmark,
            document: json!({"apiVersion": self.api_version, "kind": self.kind, "metadata": metadata}),
        }
    }

    fn notice(&self, event: &StreamEvent) -> Result<WatchNotice, ApiError> {
        Ok(match event {
            StreamEvent::Change(change) => WatchNotice {
                event_type: change.event_type(),
                document: change.document()?,
            },
            StreamEvent::Bookmark(revision) => self.bookmark(*revision, None),
            StreamEvent::InitialEnd(revision) => self.bookmark(*revision, Some(INITIAL_EVENTS_END)),
        })
    }
}
