//! The messages of the object services, declared once for all kinds.
//!
//! `CreatePodRequest{Pod pod = 1}` and `CreateNodeRequest{Node node = 1}` differ only in the type
//! of field 1, and a nested message is encoded as its bytes. One Rust struct with `bytes` therefore
//! serves every kind, an object is encoded once for all its watchers, and generic code stays
//! generic. A test compares these structs with the published descriptors.

use bytes::Bytes;
use podplane_api::Object;

use crate::error::{ApiError, FieldViolation, Reason};

/// The uniform methods of an object service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// `CreatePod`
    Create,
    /// `GetPod`
    Get,
    /// `ListPods`
    List,
    /// `WatchPods`
    Watch,
    /// `UpdatePod`
    Update,
    /// `UpdatePodStatus`
    UpdateStatus,
    /// `PatchPod`
    Patch,
    /// `PatchPodStatus`
    PatchStatus,
    /// `DeletePod`
    Delete,
}

impl Verb {
    /// All verbs.
    pub const ALL: [Self; 9] = [
        Self::Create,
        Self::Get,
        Self::List,
        Self::Watch,
        Self::Update,
        Self::UpdateStatus,
        Self::Patch,
        Self::PatchStatus,
        Self::Delete,
    ];

    /// The name of the method for a kind: `ListPods`.
    pub fn method<K: Object>(self) -> String {
        self.method_of(K::KIND, &K::camel_plural())
    }

    /// The same for a kind by its name and its plural in capitals.
    pub fn method_of(self, kind: &str, plural: &str) -> String {
        match self {
            Self::Create => format!("Create{kind}"),
            Self::Get => format!("Get{kind}"),
            Self::List => format!("List{plural}"),
            Self::Watch => format!("Watch{plural}"),
            Self::Update => format!("Update{kind}"),
            Self::UpdateStatus => format!("Update{kind}Status"),
            Self::Patch => format!("Patch{kind}"),
            Self::PatchStatus => format!("Patch{kind}Status"),
            Self::Delete => format!("Delete{kind}"),
        }
    }
}

/// The package with the message and service of a kind: `podplane.core.v1`. The kinds of
/// `coordination.k8s.io` are in it too.
pub fn package<K: Object>() -> String {
    package_of(K::GROUP, K::VERSION)
}

/// The same by the kind's group and version.
pub(crate) fn package_of(group: &str, version: &str) -> String {
    let group = match group.split('.').next() {
        None | Some("" | "coordination") => "core",
        Some(group) => group,
    };
    format!("podplane.{group}.{version}")
}

/// The full name of a kind's service: `podplane.core.v1.PodService`.
pub fn service_name<K: Object>() -> String {
    format!("{}.{}Service", package::<K>(), K::KIND)
}

/// The path of a method on the wire: `/podplane.core.v1.PodService/BindPod`.
pub fn method_path<K: Object>(method: &str) -> String {
    format!("/{}/{method}", service_name::<K>())
}

/// `CreateXRequest`, `UpdateXRequest` and `UpdateXStatusRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WriteRequest {
    /// The encoded object.
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub object: Option<Bytes>,
}

/// `GetXRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetRequest {
    /// Empty for cluster-scoped kinds.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// The name of the object.
    #[prost(string, tag = "2")]
    pub name: String,
}

/// `ListXRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListRequest {
    /// The namespace; empty for all.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// A label selector in Kubernetes' syntax.
    #[prost(string, tag = "2")]
    pub label_selector: String,
    /// A field selector in Kubernetes' syntax.
    #[prost(string, tag = "3")]
    pub field_selector: String,
    /// The most items to return; 0 means all.
    #[prost(int64, tag = "4")]
    pub limit: i64,
    /// The token of the previous page.
    #[prost(string, tag = "5")]
    pub r#continue: String,
    /// The resource version; empty: as new as every acknowledged write.
    #[prost(string, tag = "6")]
    pub resource_version: String,
    /// `Exact` or `NotOlderThan`.
    #[prost(string, tag = "7")]
    pub resource_version_match: String,
}

/// `XList`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ObjectList {
    /// The revision and the continue token.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ListMeta>,
    /// The encoded objects.
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub items: Vec<Bytes>,
}

/// The encoded [`ObjectList`], in parts that are encoded one at a time. A message is what its parts
/// are in a row: repeated fields add up.
#[derive(Clone, Debug)]
pub struct ObjectListParts {
    metadata: Option<ListMeta>,
    items: std::vec::IntoIter<Bytes>,
    size: usize,
    length: usize,
}

impl ObjectListParts {
    /// The parts of a list, of up to `size` objects each.
    #[must_use]
    pub fn new(list: ObjectList, size: usize) -> Self {
        let length = prost::Message::encoded_len(&list);
        let ObjectList { metadata, items } = list;
        Self {
            metadata,
            items: items.into_iter(),
            size: size.max(1),
            length,
        }
    }

    /// The bytes of the whole message.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "of the message")]
    pub fn len(&self) -> usize {
        self.length
    }
}

impl Iterator for ObjectListParts {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let part = ObjectList {
            metadata: self.metadata.take(),
            items: self.items.by_ref().take(self.size).collect(),
        };
        let is_empty = part.metadata.is_none() && part.items.is_empty();
        (!is_empty).then(|| prost::Message::encode_to_vec(&part).into())
    }
}

/// `podplane.meta.v1.ListMeta`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListMeta {
    /// The token of the next page.
    #[prost(string, optional, tag = "1")]
    pub r#continue: Option<String>,
    /// The number of items on the following pages, if known.
    #[prost(int64, optional, tag = "2")]
    pub remaining_item_count: Option<i64>,
    /// The revision of the list.
    #[prost(string, optional, tag = "3")]
    pub resource_version: Option<String>,
}

/// `WatchXRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WatchRequest {
    /// The namespace; empty for all.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// A label selector in Kubernetes' syntax.
    #[prost(string, tag = "2")]
    pub label_selector: String,
    /// A field selector in Kubernetes' syntax.
    #[prost(string, tag = "3")]
    pub field_selector: String,
    /// Only changes after this revision; empty: all existing objects first.
    #[prost(string, tag = "4")]
    pub resource_version: String,
    /// True to send bookmarks.
    #[prost(bool, tag = "5")]
    pub allow_watch_bookmarks: bool,
}

/// `XWatchEvent`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WatchEvent {
    /// A [`WatchEventType`].
    #[prost(enumeration = "WatchEventType", tag = "1")]
    pub r#type: i32,
    /// The encoded object.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub object: Option<Bytes>,
}

/// `podplane.meta.v1.WatchEventType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum WatchEventType {
    /// Never sent.
    Unspecified = 0,
    /// The object was created, or began to match.
    Added = 1,
    /// The object changed.
    Modified = 2,
    /// The object was deleted, or no longer matches.
    Deleted = 3,
    /// Reports only the progress of the watch.
    Bookmark = 4,
}

/// `PatchXRequest` and `PatchXStatusRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PatchRequest {
    /// Empty for cluster-scoped kinds.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// The object's name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// The meaning of the patch.
    #[prost(enumeration = "PatchType", tag = "3")]
    pub r#type: i32,
    /// The patch as JSON text, for [`PatchType::Apply`] also as YAML.
    #[prost(string, tag = "4")]
    pub patch: String,
    /// The writer that `metadata.managedFields` records. Required for [`PatchType::Apply`].
    #[prost(string, tag = "5")]
    pub field_manager: String,
    /// True to let [`PatchType::Apply`] take fields over from other managers.
    #[prost(bool, tag = "6")]
    pub force: bool,
}

/// `podplane.meta.v1.PatchType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum PatchType {
    /// Refused.
    Unspecified = 0,
    /// A list of operations (RFC 6902).
    Json = 1,
    /// The changed fields; null removes one, and a list replaces the whole list (RFC 7386).
    Merge = 2,
    /// The changed fields, where lists of the kind merge by their keys.
    Strategic = 3,
    /// The fields that a manager wants to own (server-side apply).
    Apply = 4,
}

/// `DeleteXRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeleteRequest {
    /// Empty for cluster-scoped kinds.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// The name of the object.
    #[prost(string, tag = "2")]
    pub name: String,
    /// The grace period in seconds; absent: the kind's default.
    #[prost(int64, optional, tag = "3")]
    pub grace_period_seconds: Option<i64>,
    /// The required state of the object.
    #[prost(message, optional, tag = "4")]
    pub preconditions: Option<Preconditions>,
    /// A [`Propagation`]; absent: background.
    #[prost(string, optional, tag = "5")]
    pub propagation_policy: Option<String>,
}

/// The handling of the objects that a deleted one owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// They are deleted afterwards.
    Background,
    /// They are deleted first.
    Foreground,
    /// They are kept, without the owner.
    Orphan,
}

impl Propagation {
    /// The name in Kubernetes' DeleteOptions.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Background => "Background",
            Self::Foreground => "Foreground",
            Self::Orphan => "Orphan",
        }
    }

    /// The propagation with that name; `None` for the empty name.
    ///
    /// # Errors
    ///
    /// `Invalid` if the name is unknown.
    pub fn parse(name: &str) -> Result<Option<Self>, ApiError> {
        let all = [Self::Background, Self::Foreground, Self::Orphan];
        match all.into_iter().find(|policy| policy.as_str() == name) {
            None if !name.is_empty() => Err(Self::invalid(format!(
                "Unsupported value: {name:?}: supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\""
            ))),
            found => Ok(found),
        }
    }

    /// The error with which Kubernetes refuses `propagationPolicy` in DeleteOptions.
    pub fn invalid(description: String) -> ApiError {
        let field = "propagationPolicy".to_owned();
        let message = format!("DeleteOptions.meta.k8s.io \"\" is invalid: {field}: {description}");
        let violation = FieldViolation { field, description };
        ApiError::new(Reason::Invalid, message).with_fields(vec![violation])
    }
}

/// `podplane.meta.v1.Preconditions`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Preconditions {
    /// The required revision of the object.
    #[prost(string, optional, tag = "1")]
    pub resource_version: Option<String>,
    /// The required UID of the object.
    #[prost(string, optional, tag = "2")]
    pub uid: Option<String>,
}

/// `BindPodRequest`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct BindPodRequest {
    /// The namespace of the pod.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// The name of the pod.
    #[prost(string, tag = "2")]
    pub name: String,
    /// The required UID, unless empty.
    #[prost(string, tag = "3")]
    pub uid: String,
    /// The node to run on.
    #[prost(string, tag = "4")]
    pub node_name: String,
    /// The required revision, unless empty.
    #[prost(string, tag = "5")]
    pub resource_version: String,
}

/// `AssignPodCIDRsRequest`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AssignPodCidrsRequest {
    /// The name of the node.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The required UID, unless empty.
    #[prost(string, tag = "2")]
    pub uid: String,
    /// The required revision, unless empty.
    #[prost(string, tag = "3")]
    pub resource_version: String,
    /// One block for each address family.
    #[prost(string, repeated, tag = "4")]
    pub pod_cidrs: Vec<String>,
}

#[cfg(test)]
mod tests;
