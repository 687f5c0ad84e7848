//! Objects in the store: their keys and their encoding.
//!
//! A value is the object's JSON without `metadata.resourceVersion`, which is the revision of the
//! commit that wrote it.

use bytes::Bytes;
use podplane_api::{
    Object, ObjectKey, Scope,
    any::{AnyKind, DynObject},
    jiff::Timestamp,
    meta::ObjectMeta,
    nesting::{self, MAX_DEPTH},
};
use podplane_proto::error::ApiError;
use podplane_store::{Item, Key, ListQuery, Prefix, Revision};
use serde_json::Value;

use crate::{engine::Engine, error};

/// A time without fractions of a second, as Kubernetes writes them.
pub(crate) fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// `/registry/pods/`
pub(crate) fn prefix<K: Object>() -> Prefix {
    prefix_under(K::PLURAL)
}

/// The same for a kind without its Rust type.
pub(crate) fn prefix_of(kind: &dyn AnyKind) -> Prefix {
    prefix_under(kind.storage_root())
}

fn prefix_under(root: &str) -> Prefix {
    Prefix::from(format!("/registry/{root}/"))
}

/// `/registry/pods/NAMESPACE/`
pub(crate) fn namespace_prefix<K: Object>(namespace: &str) -> Prefix {
    Prefix::from(format!("/registry/{}/{namespace}/", K::PLURAL))
}

/// The same for a kind without its Rust type.
pub(crate) fn namespace_prefix_of(kind: &dyn AnyKind, namespace: &str) -> Prefix {
    Prefix::from(format!("/registry/{}/{namespace}/", kind.storage_root()))
}

/// `/registry/pods/NAMESPACE/NAME`, or `/registry/nodes/NAME`.
pub(crate) fn key<K: Object>(key: &ObjectKey) -> Result<Key, ApiError> {
    key_under(K::PLURAL, K::SCOPE, key).ok_or_else(|| error::not_found::<K>(&key.name))
}

/// The same for a kind without its Rust type.
pub(crate) fn key_of(kind: &dyn AnyKind, key: &ObjectKey) -> Result<Key, ApiError> {
    let names = kind.names();
    let found = key_under(kind.storage_root(), names.scope, key);
    found.ok_or_else(|| error::not_found_in(names, &key.name))
}

/// `None` for a name that is too long for the store, which is not the name of an object.
fn key_under(root: &str, scope: Scope, key: &ObjectKey) -> Option<Key> {
    let ObjectKey { namespace, name } = key;
    let text = match scope {
        Scope::Cluster => format!("/registry/{root}/{name}"),
        Scope::Namespaced => format!("/registry/{root}/{namespace}/{name}"),
    };
    Key::try_from(text).ok()
}

/// Encodes an object as a value of the store.
///
/// # Errors
///
/// `BadRequest` if it could not be read again.
pub(crate) fn encode<K: Object>(object: &mut K) -> Result<Bytes, ApiError> {
    let revision = object.metadata_mut().resource_version.take();
    let value = object.to_vec();
    object.metadata_mut().resource_version = revision;
    storable(value, &|value| K::from_slice(value).map(drop))
}

/// The same for a kind without its Rust type.
pub(crate) fn encode_any(kind: &dyn AnyKind, object: &mut DynObject) -> Result<Bytes, ApiError> {
    let revision = object.metadata_mut().resource_version.take();
    let value = kind.stored(object);
    object.metadata_mut().resource_version = revision;
    storable(value, &|value| kind.read(value).map(drop))
}

/// Checks that an encoded object can be stored, and read again.
fn storable(
    value: Result<Vec<u8>, serde_json::Error>,
    read: &dyn Fn(&[u8]) -> Result<(), serde_json::Error>,
) -> Result<Bytes, ApiError> {
    // The value stays in memory, so it drops its spare capacity.
    let value = value.map(Vec::into_boxed_slice);
    let value = value.map_err(|error| error::internal(&error))?;
    // Patches can make objects that could not have been sent, and could not be read again.
    if nesting::text_depth(&value) > MAX_DEPTH {
        return Err(error::bad_request(format!(
            "the object nests values deeper than {MAX_DEPTH} levels"
        )));
    }
    // A year before 0 is written with a sign and cannot be read.
    if value
        .windows(3)
        .any(|text| text.starts_with(b"\"-") && text[2].is_ascii_digit())
    {
        read(&value).map_err(|error| {
            error::bad_request(format!("the object could not be read again: {error}"))
        })?;
    }
    Ok(Bytes::from(value))
}

/// Decodes the object of an item.
pub(crate) fn decode<K: Object>(item: &Item) -> Result<K, serde_json::Error> {
    let mut object = K::from_slice(&item.value())?;
    set_revision(object.metadata_mut(), item.modified);
    Ok(object)
}

/// The same for the value of a kind without its Rust type.
pub(crate) fn decode_any(
    kind: &dyn AnyKind,
    value: &[u8],
    modified: Revision,
) -> Result<Box<DynObject>, serde_json::Error> {
    let mut object = kind.read(value)?;
    set_revision(object.metadata_mut(), modified);
    Ok(object)
}

/// Decodes a stored value as a document, with its revision.
pub(crate) fn document(value: &[u8], revision: Revision) -> Result<Value, serde_json::Error> {
    let mut document: Value = serde_json::from_slice(value)?;
    if let Some(metadata) = document.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("resourceVersion".to_owned(), revision.to_string().into());
    }
    Ok(document)
}

/// Checks that an item is an object that belongs at its key.
///
/// # Errors
///
/// The problem in words, to be appended to the key.
pub fn check(item: &Item) -> Result<(), String> {
    let key = item.key.as_str().unwrap_or_default();
    // The server's own records, such as the lengths of blocks.
    if key.starts_with("/podplane/") {
        return Ok(());
    }
    let object: Value = serde_json::from_slice(&item.value())
        .map_err(|error| format!("is not an object: {error}"))?;
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    for field in ["/apiVersion", "/kind", "/metadata/name", "/metadata/uid"] {
        if text(field).is_none_or(str::is_empty) {
            return Err(format!("has no {}", field[1..].replace('/', ".")));
        }
    }
    let name = text("/metadata/name").unwrap_or_default();
    let place = match text("/metadata/namespace") {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    };
    let key = key.strip_prefix("/registry/");
    match key.and_then(|key| key.split_once('/')) {
        Some((_, found)) if found == place => Ok(()),
        _ => Err(format!("holds the object {place}, which has another key")),
    }
}

pub(crate) fn set_revision(metadata: &mut ObjectMeta, revision: Revision) {
    metadata.resource_version = Some(revision.to_string());
}

/// Reads the object at a key, and its revision.
pub(crate) async fn get<K: Object>(
    engine: &Engine,
    key: &Key,
) -> Result<Option<(K, Revision)>, ApiError> {
    let item = engine.get(key).await.map_err(error::store)?;
    let decoded = item.map(|item| decode(&item).map(|object| (object, item.modified)));
    decoded.transpose().map_err(|error| error::internal(&error))
}

/// Reads all objects of a kind under a prefix, which are few.
pub(crate) async fn list<K: Object>(engine: &Engine, prefix: Prefix) -> Result<Vec<K>, ApiError> {
    let all = ListQuery {
        prefix,
        at: None,
        after: None,
        limit: None,
    };
    let found = engine.list(all).await.map_err(error::store)?;
    let decoded: Result<_, _> = found.items.iter().map(|item| decode(item)).collect();
    decoded.map_err(|error| error::internal(&error))
}
