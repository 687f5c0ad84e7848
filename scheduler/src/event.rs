//! Events in the cluster that waiting pods may wait for.

use std::sync::Arc;

use crate::{
    node::{NodeChange, NodeInfo},
    pod::PodInfo,
};

/// A change, with the node in its new state.
#[derive(Clone, Debug)]
pub enum ClusterEvent {
    /// A pod left the node: it was deleted, ended, or its binding failed.
    PodFreed {
        /// The pod that left.
        pod: Arc<PodInfo>,
        /// The node that it was on.
        node: Arc<NodeInfo>,
    },
    /// The node was added, or changed.
    NodeChanged {
        /// The node.
        node: Arc<NodeInfo>,
        /// The changes.
        changes: Vec<NodeChange>,
    },
}

impl ClusterEvent {
    /// The node that the event is about.
    pub fn node(&self) -> &Arc<NodeInfo> {
        match self {
            Self::PodFreed { node, .. } | Self::NodeChanged { node, .. } => node,
        }
    }

    /// Returns whether the reasons of waiting pods may be outdated: the node itself changed, and
    /// not only what is in use of it.
    pub fn changes_reasons(&self) -> bool {
        match self {
            Self::PodFreed { .. } => false,
            Self::NodeChanged { changes, .. } => {
                changes.iter().any(|change| *change != NodeChange::PodIps)
            }
        }
    }
}
