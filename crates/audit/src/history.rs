//! The invariants of pods and nodes at every revision of a cluster's history.
//!
//! [`HistoryJudge`] gets the state at one revision, then the changes of each later revision in
//! order, and judges the pods and nodes that changed. The cost of a revision does not depend on the
//! size of the cluster.

mod judge;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fmt, net::IpAddr};

use podplane_ipam::{
    addresses::{AddressReport, NodeAddresses},
    invariants::{self, PodKey},
};
use serde::Serialize;

use crate::Severity;
pub use judge::HistoryJudge;

/// A pod at a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodState {
    /// Namespace and name.
    pub key: PodKey,
    /// `metadata.uid`.
    pub uid: String,
    /// `spec.nodeName`.
    pub node: Option<String>,
    /// True for a mirror pod, which a kubelet creates for a pod of its own: it is on its node
    /// whether there is room or not.
    pub is_mirror: bool,
    /// The number of addresses that it holds on its node.
    pub held: u64,
    /// `status.podIPs`.
    pub ips: Vec<IpAddr>,
}

/// A node at a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    /// The name and the blocks.
    pub node: invariants::Node,
    /// Its addresses, as its kubelet reports them.
    pub report: AddressReport,
}

impl NodeState {
    fn addresses(&self, held: u64) -> NodeAddresses {
        NodeAddresses::of(&self.report, held)
    }
}

/// A change of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateChange {
    /// The pod was created or changed.
    Pod(PodState),
    /// The pod was deleted.
    PodGone(PodKey),
    /// The node was created or changed.
    Node(NodeState),
    /// The node of this name was deleted.
    NodeGone(String),
}

/// The rule that a revision violates. The names are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum HistoryRule {
    /// A pod was bound to a node that had no free address for it.
    BindOverCapacity,
    /// A pod that was bound to a node was bound to another one.
    PodRebound,
    /// Several pods held one address.
    DuplicatePodIp,
    /// The blocks of two nodes shared addresses.
    OverlappingPodCidr,
    /// A pod was bound to a node that did not exist.
    MissingNode,
    /// A node had fewer addresses than were taken, and not because a pod was bound to it.
    NodeOverCapacity,
}

impl HistoryRule {
    /// All rules, in the order of reports.
    pub const ALL: [Self; 6] = [
        Self::BindOverCapacity,
        Self::PodRebound,
        Self::DuplicatePodIp,
        Self::OverlappingPodCidr,
        Self::MissingNode,
        Self::NodeOverCapacity,
    ];

    /// The name in reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BindOverCapacity => "bind-over-capacity",
            Self::PodRebound => "pod-rebound",
            Self::DuplicatePodIp => "duplicate-pod-ip",
            Self::OverlappingPodCidr => "overlapping-pod-cidr",
            Self::MissingNode => "missing-node",
            Self::NodeOverCapacity => "node-over-capacity",
        }
    }

    /// The severity of its findings. Nobody who binds a pod can prevent what is `info`.
    #[must_use]
    pub const fn severity(self) -> Severity {
        match self {
            Self::BindOverCapacity
            | Self::PodRebound
            | Self::DuplicatePodIp
            | Self::OverlappingPodCidr => Severity::Error,
            Self::MissingNode | Self::NodeOverCapacity => Severity::Info,
        }
    }
}

impl fmt::Display for HistoryRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A violation of a rule, at the first revision that has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HistoryFinding {
    /// The rule.
    pub code: HistoryRule,
    /// The severity of the rule.
    pub severity: Severity,
    /// The revision.
    pub revision: u64,
    /// The objects that it is about: `Node/NAME`, `Pod/NAMESPACE/NAME`.
    pub objects: Vec<String>,
    /// The violation, in one sentence.
    pub message: String,
    /// The addresses of the node, for rules about capacity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub addresses: Option<AddressCount>,
}

/// The addresses of a node at a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct AddressCount {
    /// The number of pods that the node has addresses for; 0 if it waits for its block.
    pub capacity: u64,
    /// The number of addresses that its pods hold.
    pub held: u64,
    /// The number of addresses that are not free and that no pod of the node owns.
    pub orphaned: u64,
}

impl From<NodeAddresses> for AddressCount {
    fn from(addresses: NodeAddresses) -> Self {
        Self {
            capacity: addresses.capacity.count(),
            held: addresses.held,
            orphaned: addresses.orphaned,
        }
    }
}

/// The number of revisions, changes and bindings that were judged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HistoryCounts {
    /// The revisions with changes of pods or nodes.
    pub revisions: u64,
    /// The changes of pods and nodes.
    pub changes: u64,
    /// The bindings.
    pub binds: BindCounts,
    /// The number of findings for each rule.
    pub findings: BTreeMap<HistoryRule, u64>,
}

/// The number of pods that got a node, by a binding or by their creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BindCounts {
    /// Pods that needed an address of their node.
    pub with_address: u64,
    /// The revisions at which such a pod took the last free address of its node.
    pub of_last_address: u64,
    /// Pods on the network of their node, and pods that had ended.
    pub without_address: u64,
    /// Mirror pods.
    pub mirror: u64,
}
