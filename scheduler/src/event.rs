//! What happened in the cluster that a waiting pod may have waited for.

use std::sync::Arc;

use crate::{
    node::{NodeChange, NodeInfo},
    pod::PodInfo,
};

/// A change, with the node as it is after it.
#[derive(Clone, Debug)]
pub enum Event {
    /// A pod left the node: deleted, ended, or its binding failed.
    PodFreed {
        /// The pod that left.
        pod: Arc<PodInfo>,
        /// Where it was.
        node: Arc<NodeInfo>,
    },
    /// The node came, or changed.
    NodeChanged {
        /// The node.
        node: Arc<NodeInfo>,
        /// What is new about it.
        changes: Vec<NodeChange>,
    },
}
