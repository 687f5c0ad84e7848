//! Values about nodes that all processes share: names, the namespace of leases, the backend of the
//! node network.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{core::Node, names};

/// The namespace of nodes' leases.
pub const LEASE_NAMESPACE: &str = "kube-node-lease";

/// The annotation by which a node says that it has left for good (ADR 0052): the time at which it
/// did. A node may not delete its own Node; the controller-manager does it for nodes that say so.
pub const LEAVING: &str = "podplane.io/leaving";

/// The time at which the node left for good, as it wrote it; `None` while it is a member.
#[must_use]
pub fn leaving(node: &Node) -> Option<&str> {
    let annotations = node.metadata.annotations.as_ref()?;
    annotations.get(LEAVING).map(String::as_str)
}

/// The message for a kernel that cannot make the devices of [`NetworkBackend::Vxlan`].
pub const NO_VXLAN: &str = "the kernel has no vxlan devices: load its module (`modprobe vxlan`; CONFIG_VXLAN) or take \
     --node-network-backend host-gw";

/// The name of a node: a DNS subdomain, and so also a file name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(String);

/// The name is not a valid node name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid node name {0:?}: must be a DNS subdomain of at most 253 lower-case letters, digits, '-' and '.', such as node-1"
)]
pub struct NodeNameError(String);

impl NodeName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NodeName {
    type Err = NodeNameError;

    fn from_str(text: &str) -> Result<Self, NodeNameError> {
        if names::dns1123_subdomain(text).is_empty() {
            Ok(Self(text.to_owned()))
        } else {
            Err(NodeNameError(text.to_owned()))
        }
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The way in which a node reaches the pods of other nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "NodeNetworkBackend")
)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkBackend {
    /// By routes through the other nodes, which are on the same link
    #[default]
    HostGw,
    /// In VXLAN tunnels to the other nodes
    Vxlan,
}

impl NetworkBackend {
    /// Its name, as flannel has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::HostGw => "host-gw",
            Self::Vxlan => "vxlan",
        }
    }
}

impl FromStr for NetworkBackend {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        let all = [Self::HostGw, Self::Vxlan];
        let mut known = all.into_iter();
        known.find(|backend| backend.name() == name).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_node_names_that_are_file_names() {
        for name in ["a", "node-1", "ip-10-0-0-1.eu.example"] {
            assert!(name.parse::<NodeName>().is_ok(), "{name}");
        }
        for name in ["", ".", "..", "a/b", "../a", "A", "-a", "a-", "a..b", "a b"] {
            assert!(name.parse::<NodeName>().is_err(), "{name}");
        }
    }
}
