//! A kind as the REST facade sees it: documents in, documents out. What follows is compiled once, not for each kind.

use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::BoxStream};
use http::StatusCode;
use podplane_api::{
    Object, ObjectKey, Scope,
    apps::{ControllerRevision, Deployment, ReplicaSet},
    canonical::canonicalize,
    coordination::Lease,
    core::{Event, Namespace, Node, Pod, Service},
    jiff::Timestamp,
    networking::ClusterCIDR,
    schema::Type,
    strict::StrictError,
    table::{Column, Row},
};
use podplane_proto::{
    error::ApiError,
    wire::{BindPodRequest, ListMeta, WatchEventType},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::request::{ListOptions, Selection, WriteOptions};
use crate::{
    cache::{INITIAL_EVENTS_END, Query},
    error,
    registry::{DeleteOptions, Effect, Listed, Part, Patch, Registry, Told, WatchOptions},
    strategy::Strategy,
};

/// What a kind is called, and what can be done with it.
#[derive(Debug)]
pub(crate) struct Names {
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
    /// Whether who deletes one gets it back, and not only a `Status` (`ReturnDeletedObject` of the reference's storage).
    pub(super) returns_deleted: bool,
    /// Whether there can be objects, or answers, of the kind.
    pub(super) is_stored: bool,
}

impl Names {
    /// `v1`, `apps/v1`
    pub(super) fn api_version(&self) -> String {
        match self.group {
            "" => self.version.to_owned(),
            group => format!("{group}/{}", self.version),
        }
    }
}

/// A part of an object, or an act on it, that has a path of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subresource {
    Status,
    Binding,
    Eviction,
    Log,
    Attach,
    Exec,
    PortForward,
    Scale,
}

impl Subresource {
    /// As in a path.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Binding => "binding",
            Self::Eviction => "eviction",
            Self::Log => "log",
            Self::Attach => "attach",
            Self::Exec => "exec",
            Self::PortForward => "portforward",
            Self::Scale => "scale",
        }
    }
}

/// What was written, and what the client is to be warned of.
#[derive(Debug)]
pub(crate) struct Written {
    pub(super) document: Value,
    pub(super) warnings: Vec<String>,
    /// Whether a patch or an update made it.
    pub(super) created: bool,
}

impl Written {
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
    pub(super) items: Vec<Value>,
}

/// What a watch says.
#[derive(Debug)]
pub(crate) struct Notice {
    pub(super) event_type: WatchEventType,
    pub(super) document: Value,
}

/// A stream of what a watch says; it ends after an error.
pub(crate) type Notices = BoxStream<'static, Result<Notice, ApiError>>;

/// The objects of a kind. What is not among the verbs of its names need not be there.
pub(crate) trait Resource: Send + Sync {
    fn names(&self) -> &Names;

    fn get<'a>(&'a self, _key: &'a ObjectKey) -> BoxFuture<'a, Result<Value, ApiError>> {
        not_a_verb()
    }

    fn list<'a>(&'a self, _options: &'a ListOptions) -> BoxFuture<'a, Result<Documents, ApiError>> {
        not_a_verb()
    }

    /// A watch; whoever asks for it ends it at `ends`.
    fn watch<'a>(
        &'a self,
        _options: &'a ListOptions,
        _ends: Instant,
    ) -> BoxFuture<'a, Result<Notices, ApiError>> {
        not_a_verb()
    }

    fn create<'a>(
        &'a self,
        _document: Value,
        _options: &'a WriteOptions,
    ) -> BoxFuture<'a, Result<Written, ApiError>> {
        not_a_verb()
    }

    fn update<'a>(
        &'a self,
        _document: Value,
        _part: Part,
        _options: &'a WriteOptions,
    ) -> BoxFuture<'a, Result<Written, ApiError>> {
        not_a_verb()
    }

    fn patch<'a>(
        &'a self,
        _key: &'a ObjectKey,
        _part: Part,
        _patch: &'a Patch,
        _options: &'a WriteOptions,
    ) -> BoxFuture<'a, Result<Written, ApiError>> {
        not_a_verb()
    }

    fn delete<'a>(
        &'a self,
        _key: &'a ObjectKey,
        _options: &'a DeleteOptions,
    ) -> BoxFuture<'a, Result<Value, ApiError>> {
        not_a_verb()
    }

    /// The keys of what a selection is of.
    fn keys<'a>(
        &'a self,
        _selection: &'a Selection,
    ) -> BoxFuture<'a, Result<Vec<ObjectKey>, ApiError>> {
        not_a_verb()
    }

    /// Acts on an object through one of its sub-resources that are no parts of it.
    fn act<'a>(
        &'a self,
        _key: &'a ObjectKey,
        _act: Subresource,
        _document: &'a Value,
        _effect: Effect,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        not_a_verb()
    }

    /// How many are stored; `None` of what is not.
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

/// What the facade has to know of a kind beside its strategy.
pub(crate) trait RestKind: Strategy + Row {
    /// What can be done with objects of the kind, in the order of the alphabet.
    const VERBS: &'static [&'static str] = &[
        "create",
        "delete",
        "deletecollection",
        "get",
        "list",
        "patch",
        "update",
        "watch",
    ];

    const SUBRESOURCES: &'static [Subresource] = &[];
    /// See [`Names::returns_deleted`].
    const RETURNS_DELETED: bool = false;

    /// See [`Resource::act`].
    fn act<'a>(
        _registry: &'a Registry<Self>,
        key: &'a ObjectKey,
        _act: Subresource,
        _document: &'a Value,
        _effect: Effect,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        async move { Err(error::not_found::<Self>(&key.name)) }.boxed()
    }
}

impl RestKind for Node {
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
}

impl RestKind for Namespace {
    const VERBS: &'static [&'static str] = &[
        "create", "delete", "get", "list", "patch", "update", "watch",
    ];
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
}

impl RestKind for Deployment {
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Scale, Subresource::Status];
}

impl RestKind for ReplicaSet {
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Scale, Subresource::Status];
}

impl RestKind for Service {
    const RETURNS_DELETED: bool = true;
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
}

impl RestKind for ClusterCIDR {}
impl RestKind for ControllerRevision {}
impl RestKind for Event {}
impl RestKind for Lease {}

impl RestKind for Pod {
    const RETURNS_DELETED: bool = true;
    const SUBRESOURCES: &'static [Subresource] = &[
        Subresource::Attach,
        Subresource::Binding,
        Subresource::Eviction,
        Subresource::Exec,
        Subresource::Log,
        Subresource::PortForward,
        Subresource::Status,
    ];

    fn act<'a>(
        registry: &'a Registry<Self>,
        key: &'a ObjectKey,
        act: Subresource,
        document: &'a Value,
        effect: Effect,
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
                    let mut options = super::request::delete_options(&document["deleteOptions"])?;
                    if effect == Effect::Dry {
                        options.effect = effect;
                    }
                    registry.delete(key, &options).await.map(drop)
                }
                Subresource::Status
                | Subresource::Scale
                | Subresource::Log
                | Subresource::Attach
                | Subresource::Exec
                | Subresource::PortForward => Err(error::not_found::<Self>(&key.name)),
            }
        }
        .boxed()
    }
}

struct Named<K>(std::marker::PhantomData<K>);

impl<K: RestKind> Named<K> {
    const NAMES: Names = Names {
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

impl<K: RestKind> Resource for Registry<K> {
    fn names(&self) -> &Names {
        &Named::<K>::NAMES
    }

    fn get<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Value, ApiError>> {
        async move { Self::get(self, key).await?.document() }.boxed()
    }

    fn list<'a>(&'a self, options: &'a ListOptions) -> BoxFuture<'a, Result<Documents, ApiError>> {
        async move {
            let query = query::<K>(&options.selection)?;
            let freshness = options.freshness()?;
            let list = Self::list(self, &query, options.limit, &options.token, freshness);
            let Listed { metadata, items } = list.await?;
            let items: Result<_, _> = items.iter().map(|entry| entry.document()).collect();
            Ok(Documents {
                metadata,
                items: items?,
            })
        }
        .boxed()
    }

    fn watch<'a>(
        &'a self,
        options: &'a ListOptions,
        ends: Instant,
    ) -> BoxFuture<'a, Result<Notices, ApiError>> {
        async move {
            let options = WatchOptions {
                query: query::<K>(&options.selection)?,
                start: options.start()?,
                bookmarks: options.bookmarks,
                ends: Some(ends),
                announce_end: options.announces_end(),
            };
            let told = Self::watch(self, options).await?;
            Ok(told
                .map(|told| told.and_then(|told| notice::<K>(&told)))
                .boxed())
        }
        .boxed()
    }

    fn create<'a>(
        &'a self,
        document: Value,
        options: &'a WriteOptions,
    ) -> BoxFuture<'a, Result<Written, ApiError>> {
        async move {
            let (object, warnings) = decode::<K>(document, options)?;
            written(&Self::create(self, object, &options.write).await?, warnings)
        }
        .boxed()
    }

    fn update<'a>(
        &'a self,
        document: Value,
        part: Part,
        options: &'a WriteOptions,
    ) -> BoxFuture<'a, Result<Written, ApiError>> {
        async move {
            let (object, warnings) = decode::<K>(document, options)?;
            let put = Self::put(self, object, part, &options.write);
            let (object, created) = put.await?;
            Ok(Written {
                created,
                ..written(&object, warnings)?
            })
        }
        .boxed()
    }

    fn patch<'a>(
        &'a self,
        key: &'a ObjectKey,
        part: Part,
        patch: &'a Patch,
        options: &'a WriteOptions,
    ) -> BoxFuture<'a, Result<Written, ApiError>> {
        async move {
            let decode = |document| {
                decode::<K>(document, options).map_err(|refused| match patch.document() {
                    Some(patch) if !refused.fields.is_empty() => error::misfit(patch, &refused),
                    _ => refused,
                })
            };
            let (object, warnings, created) =
                Self::patch(self, key, part, patch, &options.write, decode).await?;
            Ok(Written {
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
        effect: Effect,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        K::act(self, key, act, document, effect)
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

/// The object of a document, and what is to be warned of.
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

fn written<K: Object>(object: &K, warnings: Vec<String>) -> Result<Written, ApiError> {
    Ok(Written {
        document: json(object)?,
        warnings,
        created: false,
    })
}

fn notice<K: Object>(told: &Told) -> Result<Notice, ApiError> {
    let bookmark = |revision, annotations: Value| {
        let metadata = json!({"resourceVersion": format!("{revision}"), "creationTimestamp": null, "annotations": annotations});
        let mut document =
            json!({"apiVersion": K::API_VERSION, "kind": K::KIND, "metadata": metadata});
        if document["metadata"]["annotations"].is_null()
            && let Some(metadata) = document["metadata"].as_object_mut()
        {
            metadata.remove("annotations");
        }
        Notice {
            event_type: WatchEventType::Bookmark,
            document,
        }
    };
    Ok(match told {
        Told::Seen(seen) => Notice {
            event_type: seen.event_type(),
            document: seen.document()?,
        },
        Told::Bookmark(revision) => bookmark(revision, Value::Null),
        Told::InitialEnd(revision) => bookmark(revision, json!({INITIAL_EVENTS_END: "true"})),
    })
}
