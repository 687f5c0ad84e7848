//! The documents of `/summary/v1alpha1`, as serde writes them.

use std::{collections::BTreeMap, sync::Arc};

use ipnet::IpNet;
use podplane_map::{AddressSpace, BlockState, Network, NetworkRole, NodeBlock, StateCounts};
use serde::{Serialize, Serializer};

use crate::{
    findings::FindingReport,
    scene::{CellChanges, MapScene},
    waiting::WaitingGroup,
};

/// A line of a stream.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "SCREAMING_SNAKE_CASE")]
pub enum StreamDocument<'a> {
    /// The whole summary.
    Cluster(&'a ClusterSummary),
    /// The members of the summary that changed.
    Changes(ClusterChanges<'a>),
    /// A whole map.
    Scene(&'a MapScene),
    /// The cells of the map that changed.
    Cells(CellChanges<'a>),
    /// Nothing changed for a while.
    Bookmark,
}

/// The summary of a cluster at a revision, as a page shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterSummary {
    /// The revision of the objects. Opaque.
    pub revision: String,
    /// The networks, in the order of the map.
    pub networks: Vec<NetworkRow>,
    /// The nodes by name.
    #[serde(serialize_with = "rows")]
    pub nodes: BTreeMap<Arc<str>, Arc<NodeRow>>,
    /// The numbers of pods.
    pub pods: PodCounts,
    /// The waiting pods by reason, the largest group first.
    pub waiting: Vec<WaitingGroup>,
    /// The findings and the checks; `None` before the first audit.
    #[serde(flatten, serialize_with = "shared")]
    pub report: Option<Arc<FindingReport>>,
}

#[expect(
    clippy::ref_option,
    reason = "the type of the field, as serde gives it"
)]
fn shared<S: Serializer>(
    report: &Option<Arc<FindingReport>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    report.as_deref().serialize(serializer)
}

fn rows<S: Serializer>(
    nodes: &BTreeMap<Arc<str>, Arc<NodeRow>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(nodes.values().map(|row| &**row))
}

impl ClusterSummary {
    /// The difference to an earlier summary; `None` if there is none but the revision.
    #[must_use]
    pub fn changes_since<'a>(&'a self, old: &Self) -> Option<ClusterChanges<'a>> {
        let is_same = |old: &Arc<NodeRow>, new: &Arc<NodeRow>| Arc::ptr_eq(old, new) || old == new;
        let nodes: Vec<&NodeRow> = self
            .nodes
            .iter()
            .filter(|(name, new)| !old.nodes.get(*name).is_some_and(|old| is_same(old, new)))
            .map(|(_, new)| &**new)
            .collect();
        let gone = old
            .nodes
            .keys()
            .filter(|name| !self.nodes.contains_key(*name));
        let gone: Vec<String> = gone.map(|name| name.to_string()).collect();
        let changes = ClusterChanges {
            revision: &self.revision,
            networks: (self.networks != old.networks).then_some(&self.networks),
            nodes: Some(nodes).filter(|nodes| !nodes.is_empty()),
            gone_nodes: Some(gone).filter(|gone| !gone.is_empty()),
            pods: (self.pods != old.pods).then_some(self.pods),
            waiting: (self.waiting != old.waiting).then_some(&self.waiting),
            report: self.report.as_deref().filter(|_| self.report != old.report),
        };
        changes.is_any().then_some(changes)
    }
}

/// The members of a [`ClusterSummary`] that changed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterChanges<'a> {
    /// The revision of the objects. Opaque.
    pub revision: &'a str,
    /// All networks, if any changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub networks: Option<&'a Vec<NetworkRow>>,
    /// The nodes that are new or changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Vec<&'a NodeRow>>,
    /// The names of the nodes that are gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gone_nodes: Option<Vec<String>>,
    /// The numbers of pods, if any changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pods: Option<PodCounts>,
    /// All waiting pods, if any changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<&'a Vec<WaitingGroup>>,
    /// All findings and checks, if any changed.
    #[serde(flatten)]
    pub report: Option<&'a FindingReport>,
}

impl ClusterChanges<'_> {
    fn is_any(&self) -> bool {
        let Self {
            revision: _,
            networks,
            nodes,
            gone_nodes,
            pods,
            waiting,
            report,
        } = self;
        networks.is_some()
            || nodes.is_some()
            || gone_nodes.is_some()
            || pods.is_some()
            || waiting.is_some()
            || report.is_some()
    }
}

/// A network.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkRow {
    /// The name of its object, or how it is known; for that of a flag, the purpose.
    pub name: String,
    /// The purpose.
    pub role: NetworkRole,
    /// The prefix.
    pub cidr: IpNet,
    /// The number of its addresses in each state.
    pub counts: StateCounts,
}

impl NetworkRow {
    /// The row of a network of the space.
    #[must_use]
    pub fn of(space: &AddressSpace, network: &Network) -> Self {
        let name = match (network.name(), network.role()) {
            ("", NetworkRole::Pods) => "pods",
            ("", NetworkRole::Services) => "services",
            ("", NetworkRole::Nodes) => "nodes",
            (name, _) => name,
        };
        Self {
            name: name.to_owned(),
            role: network.role(),
            cidr: network.cidr(),
            counts: space.counts(network.role(), &network.cidr()),
        }
    }
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeRow {
    /// The name.
    pub name: String,
    /// Its blocks, former ones included.
    pub blocks: Vec<BlockRow>,
    /// True if the kubelet says that it is ready.
    pub ready: bool,
    /// True if it takes no new pods.
    pub unschedulable: bool,
    /// The number of addresses of its blocks that are in use, as the map counts them. A block that
    /// several nodes have counts for each.
    pub used: u64,
    /// The number of pods that it has addresses for.
    pub capacity: u64,
    /// The number of addresses that are not free and that no pod owns.
    pub orphaned: u64,
    /// The number of pods that are bound to it and have not ended.
    pub pods: u64,
    /// The number of those that have no address yet.
    pub waiting: u64,
}

/// A block of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockRow {
    /// The prefix.
    pub cidr: IpNet,
    /// The state.
    pub state: BlockState,
}

impl BlockRow {
    pub(crate) fn of(block: &NodeBlock) -> Self {
        Self {
            cidr: block.cidr(),
            state: block.state(),
        }
    }
}

/// The numbers of pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodCounts {
    /// All pods.
    pub total: u64,
    /// Those that run.
    pub running: u64,
    /// Pods that wait for a node, or for an address there.
    pub waiting: u64,
}
