//! The kinds that podplane serves, and the common interface of their objects.

use std::fmt;

use k8s_openapi::{
    Metadata, Resource, api::autoscaling::v1::Scale, apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::strict::StrictError;

/// A kind that podplane stores and serves.
///
/// `Resource` (of `k8s-openapi`) has the group, version, kind and plural; this trait adds what
/// generic code needs besides. Each kind implements it in its module of [`crate::kinds`].
///
/// Generic code should use the four conversions to and from JSON (`json_conversions!`): they are
/// compiled once, in this crate, where each use of serde's own functions compiles the whole schema
/// of every kind again.
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
    /// The scope of the kind's names.
    const SCOPE: Scope;

    /// The plural in lower case, as in URLs and store keys: `pods`.
    const PLURAL: &'static str = <Self as Resource>::URL_PATH_SEGMENT;

    /// The kind in lower case, as in messages.
    const SINGULAR: &'static str;

    /// The short names for the command line.
    const SHORT_NAMES: &'static [&'static str] = &[];

    /// The categories of kinds that are listed together, such as `all`.
    const CATEGORIES: &'static [&'static str] = &[];

    /// Decodes a document, and returns the paths of unknown fields, which are dropped.
    ///
    /// # Errors
    ///
    /// See [`decode_noting`](crate::strict::decode_noting).
    fn from_json_noting(document: Value) -> Result<(Self, Vec<String>), StrictError>;

    /// Decodes a document strictly: unknown fields are refused by path.
    ///
    /// # Errors
    ///
    /// See [`decode`](crate::strict::decode).
    fn from_json(document: Value) -> Result<Self, StrictError> {
        match Self::from_json_noting(document)? {
            (object, unknown) if unknown.is_empty() => Ok(object),
            (_, paths) => Err(StrictError::unknown(paths)),
        }
    }

    /// Decodes the output of [`Object::to_vec`] of this or another version: unknown fields are
    /// ignored.
    ///
    /// # Errors
    ///
    /// serde's, if the bytes are not an object of this kind.
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

    /// The plural with the capitals of the kind, as in the names of methods: `NetworkPolicies`.
    fn camel_plural() -> String {
        camel_plural(Self::KIND, Self::PLURAL)
    }

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

    /// The namespace and name.
    fn key(&self) -> ObjectKey {
        ObjectKey::new(self.namespace(), self.name())
    }

    /// True if deletion has begun (`metadata.deletionTimestamp` is set).
    fn is_deleting(&self) -> bool {
        self.metadata().deletion_timestamp.is_some()
    }
}

/// The plural with the capitals of the kind.
pub(crate) fn camel_plural(kind: &str, plural: &str) -> String {
    let alike = |(own, plural): &(char, char)| own.to_ascii_lowercase() == *plural;
    let same = kind.chars().zip(plural.chars()).take_while(alike).count();
    format!("{}{}", &kind[..same], &plural[same..])
}

/// The scope of a kind's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Names are unique in the whole cluster.
    Cluster,
    /// Names are unique in a namespace.
    Namespaced,
}

/// The four conversions to and from JSON, in the implementation of [`Object`] for a kind.
macro_rules! json_conversions {
    () => {
        fn from_json_noting(
            document: serde_json::Value,
        ) -> Result<(Self, Vec<String>), $crate::strict::StrictError> {
            $crate::strict::decode_noting(document)
        }

        fn from_slice(bytes: &[u8]) -> Result<Self, serde_json::Error> {
            serde_json::from_slice(bytes)
        }

        fn to_json(&self) -> Result<serde_json::Value, serde_json::Error> {
            serde_json::to_value(self)
        }

        fn to_vec(&self) -> Result<Vec<u8>, serde_json::Error> {
            serde_json::to_vec(self)
        }
    };
}
pub(crate) use json_conversions;

/// The same through a `Value`, for kinds that are seldom read and written: slower, and half the
/// code, since each format that serde knows compiles the whole schema of a kind again.
macro_rules! json_conversions_through_values {
    () => {
        fn from_json_noting(
            document: serde_json::Value,
        ) -> Result<(Self, Vec<String>), $crate::strict::StrictError> {
            $crate::strict::decode_noting(document)
        }

        fn from_slice(bytes: &[u8]) -> Result<Self, serde_json::Error> {
            let decoded = Self::from_json_noting(serde_json::from_slice(bytes)?);
            let decoded = decoded.map_err(<serde_json::Error as serde::de::Error>::custom);
            decoded.map(|(object, _unknown)| object)
        }

        fn to_json(&self) -> Result<serde_json::Value, serde_json::Error> {
            serde_json::to_value(self)
        }

        fn to_vec(&self) -> Result<Vec<u8>, serde_json::Error> {
            serde_json::to_vec(&self.to_json()?)
        }
    };
}
pub(crate) use json_conversions_through_values;

/// Not stored: a view of the kinds that have the subresource.
impl Object for Scale {
    const SCOPE: Scope = Scope::Namespaced;
    const SINGULAR: &'static str = "scale";

    json_conversions!();
}

/// The key of an object within its kind: a namespace, empty for cluster-scoped kinds, and a name.
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
    /// Creates the key of `name` in `namespace`, which is empty for cluster-scoped kinds.
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
