//! Events in the cluster that waiting pods may wait for.

use crate::{
    framework::PluginEvent,
    node::{NodeChange, NodeInfo},
    pod::PodInfo,
};

/// A change, with the node in its new state.
#[derive(Clone, Copy, Debug)]
pub enum ClusterEvent<'a> {
    /// A pod left the node: it was deleted, ended, or its binding failed.
    PodFreed {
        /// The pod that left.
        pod: &'a PodInfo,
        /// The node that it was on.
        node: &'a NodeInfo,
    },
    /// A pod was placed on a node, which may attract others.
    PodPlaced {
        /// The pod.
        pod: &'a PodInfo,
    },
    /// The node was added, or changed.
    NodeChanged {
        /// The node.
        node: &'a NodeInfo,
        /// The changes.
        changes: &'a [NodeChange],
    },
    /// A namespace is new or has other labels.
    NamespaceChanged,
}

impl<'a> ClusterEvent<'a> {
    /// The node that the event happened on.
    pub fn node(&self) -> Option<&'a NodeInfo> {
        match self {
            Self::PodFreed { node, .. } | Self::NodeChanged { node, .. } => Some(node),
            Self::PodPlaced { .. } | Self::NamespaceChanged => None,
        }
    }

    /// Returns whether the reasons of waiting pods may be outdated: the node itself changed, and
    /// not only what is in use of it.
    pub fn changes_reasons(&self) -> bool {
        let is_static = |change: &NodeChange| *change != NodeChange::PodIps;
        matches!(self, Self::NodeChanged { changes, .. } if changes.iter().any(is_static))
    }

    /// Returns true if the node is new.
    pub fn is_new_node(&self) -> bool {
        matches!(self, Self::NodeChanged { changes, .. } if changes.contains(&NodeChange::Added))
    }

    /// The event as plugins judge it, one part at a time.
    pub fn parts(&self) -> impl Iterator<Item = PluginEvent<'a>> {
        let (changes, other): (&'a [NodeChange], _) = match *self {
            Self::PodFreed { pod, .. } => (&[], Some(PluginEvent::PodFreed(pod))),
            Self::PodPlaced { pod } => (&[], Some(PluginEvent::PodPlaced(pod))),
            Self::NodeChanged { changes, .. } => (changes, None),
            Self::NamespaceChanged => (&[], Some(PluginEvent::NamespaceChanged)),
        };
        let changes = changes
            .iter()
            .map(|change| PluginEvent::NodeChanged(*change));
        changes.chain(other)
    }
}
