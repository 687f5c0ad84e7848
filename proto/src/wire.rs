//! The messages of the object services, once for all kinds.
//!
//! `CreatePodRequest{Pod pod = 1}` and `CreateNodeRequest{Node node = 1}` are the same bytes but for the type of what field 1 holds, and a
//! message in a field is encoded as its bytes are. So one Rust struct with `bytes` serves every kind, an object is encoded once
//! for all its watchers, and generic code stays generic. A test holds these structs against the published descriptors.

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
    /// `DeletePod`
    Delete,
}

impl Verb {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Create,
        Self::Get,
        Self::List,
        Self::Watch,
        Self::Update,
        Self::UpdateStatus,
        Self::Delete,
    ];

    /// The method's name for a kind: `ListPods`.
    pub fn method<K: Object>(self) -> String {
        let kind = K::KIND;
        let plural_end = &K::PLURAL[kind.len()..];
        match self {
            Self::Create => format!("Create{kind}"),
            Self::Get => format!("Get{kind}"),
            Self::List => format!("List{kind}{plural_end}"),
            Self::Watch => format!("Watch{kind}{plural_end}"),
            Self::Update => format!("Update{kind}"),
            Self::UpdateStatus => format!("Update{kind}Status"),
            Self::Delete => format!("Delete{kind}"),
        }
    }
}

/// The package that has a kind's message and service: `podplane.core.v1`. The kinds of `coordination.k8s.io` are in it too.
pub fn package<K: Object>() -> String {
    let group = match K::GROUP.split('.').next() {
        None | Some("" | "coordination") => "core",
        Some(group) => group,
    };
    format!("podplane.{group}.{}", K::VERSION)
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
    /// The object, encoded.
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub object: Option<Bytes>,
}

/// `GetXRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetRequest {
    /// Empty for cluster-scoped kinds.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// The object's name.
    #[prost(string, tag = "2")]
    pub name: String,
}

/// `ListXRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListRequest {
    /// Empty: all namespaces.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// Kubernetes' label selector syntax.
    #[prost(string, tag = "2")]
    pub label_selector: String,
    /// Kubernetes' field selector syntax.
    #[prost(string, tag = "3")]
    pub field_selector: String,
    /// At most so many items; 0 means all.
    #[prost(int64, tag = "4")]
    pub limit: i64,
    /// The token of the previous page.
    #[prost(string, tag = "5")]
    pub r#continue: String,
    /// Empty: as new as every acknowledged write.
    #[prost(string, tag = "6")]
    pub resource_version: String,
    /// `Exact` or `NotOlderThan`.
    #[prost(string, tag = "7")]
    pub resource_version_match: String,
}

/// `XList`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ObjectList {
    /// Revision and continuation.
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ListMeta>,
    /// The objects, encoded.
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub items: Vec<Bytes>,
}

/// `podplane.meta.v1.ListMeta`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListMeta {
    /// The token of the next page.
    #[prost(string, optional, tag = "1")]
    pub r#continue: Option<String>,
    /// How many items the following pages have, where known.
    #[prost(int64, optional, tag = "2")]
    pub remaining_item_count: Option<i64>,
    /// The revision of the list.
    #[prost(string, optional, tag = "3")]
    pub resource_version: Option<String>,
}

/// `WatchXRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WatchRequest {
    /// Empty: all namespaces.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// Kubernetes' label selector syntax.
    #[prost(string, tag = "2")]
    pub label_selector: String,
    /// Kubernetes' field selector syntax.
    #[prost(string, tag = "3")]
    pub field_selector: String,
    /// Changes after this revision; empty: all present objects first.
    #[prost(string, tag = "4")]
    pub resource_version: String,
    /// Whether to send bookmarks.
    #[prost(bool, tag = "5")]
    pub allow_watch_bookmarks: bool,
}

/// `XWatchEvent`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WatchEvent {
    /// A [`WatchEventType`].
    #[prost(enumeration = "WatchEventType", tag = "1")]
    pub r#type: i32,
    /// The object, encoded.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub object: Option<Bytes>,
}

/// `podplane.meta.v1.WatchEventType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum WatchEventType {
    /// Never sent.
    Unspecified = 0,
    /// Came into being, or began to match.
    Added = 1,
    /// Changed.
    Modified = 2,
    /// Gone, or no longer matching.
    Deleted = 3,
    /// Only says how far the watch has come.
    Bookmark = 4,
}

/// `DeleteXRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeleteRequest {
    /// Empty for cluster-scoped kinds.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// The object's name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Absent: the kind's default.
    #[prost(int64, optional, tag = "3")]
    pub grace_period_seconds: Option<i64>,
    /// What the object must be.
    #[prost(message, optional, tag = "4")]
    pub preconditions: Option<Preconditions>,
    /// A [`Propagation`]; absent: background.
    #[prost(string, optional, tag = "5")]
    pub propagation_policy: Option<String>,
}

/// What becomes of the objects that a deleted one owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// They are deleted afterwards.
    Background,
    /// They are deleted first.
    Foreground,
    /// They stay, without an owner.
    Orphan,
}

impl Propagation {
    /// Its name in Kubernetes' DeleteOptions.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Background => "Background",
            Self::Foreground => "Foreground",
            Self::Orphan => "Orphan",
        }
    }

    /// The one of that name; the empty one is none.
    ///
    /// # Errors
    ///
    /// `Invalid` if there is none of that name.
    pub fn parse(name: &str) -> Result<Option<Self>, ApiError> {
        let all = [Self::Background, Self::Foreground, Self::Orphan];
        match all.into_iter().find(|policy| policy.as_str() == name) {
            None if !name.is_empty() => Err(Self::invalid(format!(
                "Unsupported value: {name:?}: supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\""
            ))),
            found => Ok(found),
        }
    }

    /// In the words in which Kubernetes refuses `propagationPolicy` in DeleteOptions.
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
    /// The revision that the object must be at.
    #[prost(string, optional, tag = "1")]
    pub resource_version: Option<String>,
    /// The UID that it must have.
    #[prost(string, optional, tag = "2")]
    pub uid: Option<String>,
}

/// `BindPodRequest`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct BindPodRequest {
    /// The pod's namespace.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// The pod's name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// The UID that it must have, unless empty.
    #[prost(string, tag = "3")]
    pub uid: String,
    /// The node to run on.
    #[prost(string, tag = "4")]
    pub node_name: String,
    /// The revision that it must be at, unless empty.
    #[prost(string, tag = "5")]
    pub resource_version: String,
}

/// `AssignPodCIDRsRequest`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AssignPodCidrsRequest {
    /// The node's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The UID that it must have, unless empty.
    #[prost(string, tag = "2")]
    pub uid: String,
    /// The revision that it must be at, unless empty.
    #[prost(string, tag = "3")]
    pub resource_version: String,
    /// One block for each address family.
    #[prost(string, repeated, tag = "4")]
    pub pod_cidrs: Vec<String>,
}

#[cfg(test)]
mod tests;
