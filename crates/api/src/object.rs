//! Which kinds podplane serves, and what every object of them has.

use std::fmt;

use k8s_openapi::{
    Metadata, Resource,
    api::{
        coordination::v1::Lease,
        core::v1::{Event, Namespace, Node, Pod},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::{Serialize, de::DeserializeOwned};

/// A kind that podplane stores and serves.
///
/// `Resource` (of `k8s-openapi`) has its group, version, kind and plural; this trait adds what generic code needs beside
/// them. Implemented for each kind in one line below.
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

impl Object for Pod {
    const SCOPE: Scope = Scope::Namespaced;
}
impl Object for Node {
    const SCOPE: Scope = Scope::Cluster;
}
impl Object for Namespace {
    const SCOPE: Scope = Scope::Cluster;
}
impl Object for Event {
    const SCOPE: Scope = Scope::Namespaced;
}
impl Object for Lease {
    const SCOPE: Scope = Scope::Namespaced;
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
