//! The part of the objects that a view shows.

use std::fmt;

use ipnet::IpNet;

use crate::facts::PodFact;

/// The part of the objects that a view shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All.
    #[default]
    All,
    /// Those in a namespace.
    Namespace(String),
    /// The pods on a node.
    Node(String),
    /// The pods that wait for the same reason.
    Waiting(String),
    /// The pods with an address in a block.
    Block(IpNet),
}

impl Scope {
    pub(crate) fn has_namespace(&self, namespace: &str) -> bool {
        match self {
            Self::Namespace(wanted) => wanted == namespace,
            _ => true,
        }
    }

    pub(crate) fn has_pod(&self, pod: &PodFact) -> bool {
        match self {
            Self::All => true,
            Self::Namespace(namespace) => *namespace == pod.key.namespace,
            Self::Node(node) => pod.node.as_ref() == Some(node),
            Self::Waiting(reason) => {
                let waits = pod.waits.as_ref();
                waits.is_some_and(|waits| *waits.reason == **reason)
            }
            Self::Block(block) => pod.ips.iter().any(|ip| block.contains(ip)),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Namespace(namespace) => write!(f, "namespace {namespace}"),
            Self::Node(node) => write!(f, "on {node}"),
            Self::Waiting(reason) => write!(f, "waiting: {reason}"),
            Self::Block(block) => write!(f, "in {block}"),
        }
    }
}
