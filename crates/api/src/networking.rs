//! The kinds of `networking.k8s.io/v1`, and ClusterCIDR of `networking.x-k8s.io/v1`.
//!
//! `k8s-openapi` has no ClusterCIDR: it was a part of Kubernetes up to 1.28 and is a custom
//! resource since. A test compares these structs with the published definition
//! (`schema/cluster-cidr.json`).

pub use k8s_openapi::api::networking::v1::*;
use k8s_openapi::{ClusterResourceScope, Metadata, Resource};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::{core::NodeSelector, meta::ObjectMeta};

/// Ranges of blocks for the nodes that a selector matches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "SerializedForm", into = "SerializedForm")]
pub struct ClusterCIDR {
    /// Standard object's metadata.
    pub metadata: ObjectMeta,
    /// The ranges and the node selector.
    pub spec: Option<ClusterCIDRSpec>,
}

/// The ranges of the blocks, their size, and the node selector.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterCIDRSpec {
    /// The range of the IPv4 blocks, in CIDR notation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv4: Option<String>,
    /// The range of the IPv6 blocks, in CIDR notation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<String>,
    /// The node selector; all nodes if it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<NodeSelector>,
    /// The number of host bits of a block: 8 makes blocks of 256 addresses.
    #[serde(default, deserialize_with = "null_is_default")]
    pub per_node_host_bits: i32,
}

impl Resource for ClusterCIDR {
    const API_VERSION: &'static str = "networking.x-k8s.io/v1";
    const GROUP: &'static str = "networking.x-k8s.io";
    const KIND: &'static str = "ClusterCIDR";
    const VERSION: &'static str = "v1";
    const URL_PATH_SEGMENT: &'static str = "clustercidrs";
    type Scope = ClusterResourceScope;
}

impl Metadata for ClusterCIDR {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// The serialized form, with apiVersion and kind, which may be absent but not different.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SerializedForm {
    #[serde(default)]
    api_version: ApiVersion,
    #[serde(default)]
    kind: Kind,
    #[serde(default, deserialize_with = "null_is_default")]
    metadata: ObjectMeta,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    spec: Option<ClusterCIDRSpec>,
}

impl From<SerializedForm> for ClusterCIDR {
    fn from(document: SerializedForm) -> Self {
        let SerializedForm { metadata, spec, .. } = document;
        Self { metadata, spec }
    }
}

impl From<ClusterCIDR> for SerializedForm {
    fn from(ClusterCIDR { metadata, spec }: ClusterCIDR) -> Self {
        Self {
            api_version: ApiVersion,
            kind: Kind,
            metadata,
            spec,
        }
    }
}

macro_rules! constants {
    ($($name:ident: $text:expr;)*) => {
        $(#[derive(Default)]
        struct $name;

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str($text)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                match String::deserialize(from)? {
                    text if text == $text => Ok(Self),
                    text => Err(D::Error::custom(format!("{text:?} is not {:?}", $text))),
                }
            }
        })*
    };
}

constants! {
    ApiVersion: ClusterCIDR::API_VERSION;
    Kind: ClusterCIDR::KIND;
}

/// Treats an explicit null as absent, as all types of `k8s-openapi` do.
fn null_is_default<'de, T, D>(from: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(from)?.unwrap_or_default())
}
