//! Which kinds podplane serves, and what every object of them has.

use std::fmt;

use k8s_openapi::{
    Metadata, Resource,
    api::{
        apps::v1::{ControllerRevision, Deployment, ReplicaSet},
        autoscaling::v1::Scale,
        coordination::v1::Lease,
        core::v1::{Event, Namespace, Node, Pod, Service},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    networking::ClusterCIDR,
    strict::{self, StrictError},
};

/// A kind that podplane stores and serves.
///
/// `Resource` (of `k8s-openapi`) has its group, version, kind and plural; this trait adds what generic code needs beside
/// them. Implemented for each kind in one line below.
///
/// The four conversions to and from JSON are what generic code should call: they are compiled once, here, where each use of serde's own
/// functions compiles the whole schema of every kind again.
pub trait Object:
    Metadata<Ty = ObjectMeta>
    + Resource
    + Serialize
    + DeserializeOwned
    + Clone
    + Default
    + fmt::Debug
    + PartialEq
    + Send
    + Sync
    + Unpin
    + 'static
{
    /// Whether objects of this kind live in a namespace.
    const SCOPE: Scope;

    /// The plural in lower case, as in URLs and store keys: `pods`.
    const PLURAL: &'static str = <Self as Resource>::URL_PATH_SEGMENT;

    /// The kind in lower case, as in messages.
    const SINGULAR: &'static str;

    /// What people type for the kind.
    const SHORT_NAMES: &'static [&'static str];

    /// The groups of kinds that people list together, `all` for one.
    const CATEGORIES: &'static [&'static str];

    /// Decodes a document, and tells the paths of the fields that Kubernetes does not have, which are dropped.
    ///
    /// # Errors
    ///
    /// See [`strict::decode_noting`].
    fn from_json_noting(document: Value) -> Result<(Self, Vec<String>), StrictError>;

    /// Decodes a document strictly: what Kubernetes does not have is refused by its path.
    ///
    /// # Errors
    ///
    /// See [`strict::decode`].
    fn from_json(document: Value) -> Result<Self, StrictError> {
        match Self::from_json_noting(document)? {
            (object, unknown) if unknown.is_empty() => Ok(object),
            (_, paths) => Err(StrictError::unknown(paths)),
        }
    }

    /// Decodes what [`Object::to_vec`] wrote, by this or another version: fields that this one does not know are ignored.
    ///
    /// # Errors
    ///
    /// serde's, if it is no such object.
    fn from_slice(bytes: &[u8]) -> Result<Self, serde_json::Error>;

    /// The object as a JSON document.
    ///
    /// # Errors
    ///
    /// serde's, for a value that JSON cannot hold.
    fn to_json(&self) -> Result<Value, serde_json::Error>;

    /// The object as the bytes of its JSON.
    ///
    /// # Errors
    ///
    /// serde's, for a value that JSON cannot hold.
    fn to_vec(&self) -> Result<Vec<u8>, serde_json::Error>;

    /// `metadata.name`, empty if absent.
    fn name(&self) -> &str {
        self.metadata().name.as_deref().unwrap_or_default()
    }

    /// `metadata.namespace`, empty if absent, as it always is for cluster-scoped kinds.
    fn namespace(&self) -> &str {
        self.metadata().namespace.as_deref().unwrap_or_default()
    }

    /// `metadata.uid`, empty if absent.
    fn uid(&self) -> &str {
        self.metadata().uid.as_deref().unwrap_or_default()
    }

    /// `metadata.resourceVersion`, empty if absent. Opaque: compare for equality only.
    fn resource_version(&self) -> &str {
        self.metadata()
            .resource_version
            .as_deref()
            .unwrap_or_default()
    }

    /// Namespace and name together.
    fn key(&self) -> ObjectKey {
        ObjectKey::new(self.namespace(), self.name())
    }

    /// Whether deletion has begun (`metadata.deletionTimestamp` is set).
    fn is_deleting(&self) -> bool {
        self.metadata().deletion_timestamp.is_some()
    }
}

/// Whether the objects of a kind live in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Names are unique in the whole cluster.
    Cluster,
    /// Names are unique in a namespace.
    Namespaced,
}

macro_rules! objects {
    ($($kind:ty: $scope:ident, $singular:literal, $short:expr, $categories:expr;)*) => {
        $(impl Object for $kind {
            const SCOPE: Scope = Scope::$scope;
            const SINGULAR: &'static str = $singular;
            const SHORT_NAMES: &'static [&'static str] = &$short;
            const CATEGORIES: &'static [&'static str] = &$categories;

            fn from_json_noting(document: Value) -> Result<(Self, Vec<String>), StrictError> {
                strict::decode_noting(document)
            }

            fn from_slice(bytes: &[u8]) -> Result<Self, serde_json::Error> {
                serde_json::from_slice(bytes)
            }

            fn to_json(&self) -> Result<Value, serde_json::Error> {
                serde_json::to_value(self)
            }

            fn to_vec(&self) -> Result<Vec<u8>, serde_json::Error> {
                serde_json::to_vec(self)
            }
        })*
    };
}

objects! {
    ClusterCIDR: Cluster, "clustercidr", [], [];
    ControllerRevision: Namespaced, "controllerrevision", [], [];
    Deployment: Namespaced, "deployment", ["deploy"], ["all"];
    Event: Namespaced, "event", ["ev"], [];
    Lease: Namespaced, "lease", [], [];
    Namespace: Cluster, "namespace", ["ns"], [];
    Node: Cluster, "node", ["no"], [];
    Pod: Namespaced, "pod", ["po"], ["all"];
    ReplicaSet: Namespaced, "replicaset", ["rs"], ["all"];
    // Not stored: a view of the kinds that have the sub-resource.
    Scale: Namespaced, "scale", [], [];
    Service: Namespaced, "service", ["svc"], ["all"];
}

/// What names an object within its kind: a namespace, empty for cluster-scoped kinds, and a name.
///
/// Ordered by namespace, then name, as lists are. Displayed as `namespace/name`, or `name` alone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// The namespace; empty for cluster-scoped kinds.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl ObjectKey {
    /// The key of `name` in `namespace`, which is empty for cluster-scoped kinds.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        f.write_str(&self.name)
    }
}
