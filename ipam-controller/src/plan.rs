//! Decides which block each node gets, when the block of a deleted node is free again, and which
//! blocks do not fit.
//!
//! No I/O. The controller calls [`observe`](Allocator::observe),
//! [`observe_sets`](Allocator::observe_sets) and [`apply_records`](Allocator::apply_records) with
//! changes, and gets the names of the nodes to reconcile. For each of these it calls
//! [`work`](Allocator::work), makes the calls of the returned [`NodeWork`], and reports their
//! results with [`assignment_confirmed`](Allocator::assignment_confirmed),
//! [`assignment_refused`](Allocator::assignment_refused),
//! [`record_updated`](Allocator::record_updated) and
//! [`condition_written`](Allocator::condition_written).
//!
//! Invariant: a block that is planned for a node is not planned for another node while the first
//! may still get it. A call can fail here and still succeed on the server, so an error or a lost
//! answer keeps the reservation. The reservation ends in one of three ways:
//! - the node's spec has other blocks, which is final;
//! - the server refuses the block; see [`assignment_refused`](Allocator::assignment_refused) for
//!   the reason why it may be planned for another node then;
//! - the node is deleted. Its block drains: it is free only when no live pod has an address of it
//!   and the server has removed its record from the store.

mod former;
#[cfg(test)]
mod model;
mod occupancy;
mod sets;
#[cfg(test)]
mod tests;
mod waiting;
mod work;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use ipnet::IpNet;
use podplane_api::ObjectKey;
use podplane_ipam::{Adoption, Claim, NodeBlocks, Owner, RangeConfig, parse_cidr};

use former::FormerNodes;
pub use former::ReleasePhase;
use occupancy::Occupancy;
pub use occupancy::PodView;
pub use sets::SetView;
use sets::Sets;
use waiting::WaitQueue;
pub use work::{
    Assignment, BlockChange, BlockProblem, BlockRecord, ForeignBlock, FormerBlocks, NodeVerdict,
    NodeWork, PlanOutcome, RecordStatus, RecordUpdate, StarvedNode,
};

/// The fields of a Node object that the allocator uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`; an assignment is guarded by it.
    pub resource_version: String,
    /// `spec.podCIDRs`, as it is written there.
    pub pod_cidrs: Vec<String>,
    /// `metadata.labels`; ClusterCIDRs may select it by them.
    pub labels: BTreeMap<String, String>,
    /// The node has a deletion timestamp: it keeps its blocks and is assigned none.
    pub deleting: bool,
    /// The message of the node's `PodCIDRForeign` condition, if that is True.
    pub condition: Option<String>,
}

/// Addresses that lost a pod and names of nodes that changed: their blocks may be out of use.
#[derive(Debug, Default)]
struct ReleaseCandidates {
    addresses: Vec<IpAddr>,
    nodes: BTreeSet<String>,
}

/// The allocator's state: the owners of blocks, and the `NodeState` of each node.
#[derive(Debug)]
pub struct Allocator {
    blocks: NodeBlocks,
    sets: Sets,
    /// False if blocks are only recorded, because there are neither ranges nor ClusterCIDRs:
    /// nothing is assigned, and no block is reported as foreign. Blocks of deleted nodes are
    /// released nevertheless.
    allocates: bool,
    release_delay: Duration,
    nodes: BTreeMap<String, NodeEntry>,
    waiting: WaitQueue,
    former_nodes: FormerNodes,
    occupancy: Occupancy,
}

/// A node that exists, as far as the watch has reported.
#[derive(Debug)]
struct NodeEntry {
    uid: String,
    resource_version: String,
    labels: BTreeMap<String, String>,
    deleting: bool,
    state: NodeState,
    /// The problems of its blocks.
    problems: Vec<BlockProblem>,
    /// The stored status of its blocks, where known.
    recorded: BTreeMap<IpNet, RecordStatus>,
    /// The message of the node's `PodCIDRForeign` condition.
    condition: Option<String>,
}

/// The progress of a node's assignment. Transitions:
///
/// | from | to | by |
/// |---|---|---|
/// | (no entry) | `Unassigned` | `apply_node`: the node is new |
/// | `Unassigned` | `Reserved` | `work` plans blocks |
/// | `Reserved` | `Assigned` | `assignment_confirmed`: the server has written them |
/// | `Reserved` | `Unassigned` | `assignment_refused`: the server rejects them |
/// | any | `Assigned` | `apply_node`: the spec has blocks, planned here or not |
/// | any | (no entry) | `start_draining_if_replaced`: deleted, or recreated with another UID |
///
/// Entries that are removed leave their blocks to [`FormerNodes`].
#[derive(Debug, PartialEq, Eq)]
enum NodeState {
    /// The node has no block, and none is planned for it.
    Unassigned,
    /// Blocks are planned for the node. The server may or may not have written them.
    Reserved(Vec<IpNet>),
    /// The blocks in the node's spec, as they are written there. The API server does not let a
    /// client change them.
    Assigned(Vec<String>),
}

impl Allocator {
    /// Creates an allocator without nodes. Before the first [`Allocator::work`], call
    /// [`Allocator::observe`] with all nodes and pods and [`Allocator::apply_records`] with all
    /// stored records. Blocks of deleted nodes are kept back for `release_delay` after their last
    /// use.
    #[must_use]
    pub fn new(config: &RangeConfig, release_delay: Duration) -> Self {
        Self {
            blocks: NodeBlocks::new(config),
            sets: Sets::default(),
            allocates: !config.ranges.is_empty(),
            release_delay,
            nodes: BTreeMap::new(),
            waiting: WaitQueue::default(),
            former_nodes: FormerNodes::default(),
            occupancy: Occupancy::default(),
        }
    }

    /// Creates an allocator whose ranges come from ClusterCIDR objects:
    /// [`Allocator::observe_sets`].
    #[must_use]
    pub fn for_cluster_cidrs(service_ranges: &[IpNet], release_delay: Duration) -> Self {
        Self {
            blocks: NodeBlocks::without_sets(service_ranges),
            allocates: true,
            ..Self::new(&RangeConfig::none(), release_delay)
        }
    }

    /// The blocks and their owners.
    #[must_use]
    pub fn blocks(&self) -> &NodeBlocks {
        &self.blocks
    }

    /// The blocks of deleted nodes, with the name of the node.
    pub fn former_blocks(&self) -> impl Iterator<Item = (&str, IpNet, ReleasePhase)> {
        self.former_nodes.iter()
    }

    /// The phase of a deleted node's block.
    #[must_use]
    pub fn phase(&self, owner: &Owner, net: IpNet) -> Option<ReleasePhase> {
        self.former_nodes.phase(owner.name(), owner.uid(), net)
    }

    /// The names of nodes that should have a block and have none.
    pub fn without_blocks(&self) -> impl Iterator<Item = &str> {
        let unassigned = self
            .nodes
            .iter()
            .filter(|(_, entry)| self.allocates && !matches!(entry.state, NodeState::Assigned(_)));
        unassigned.map(|(name, _)| name.as_str())
    }

    /// The names and UIDs of nodes that wait for a block, the longest wait first.
    pub fn waiting(&self) -> impl Iterator<Item = (&str, &str)> {
        let entry = |name| self.nodes.get(name).map(|entry| (name, entry.uid.as_str()));
        self.waiting.names().filter_map(entry)
    }

    /// The problems of nodes' blocks, with the node's name.
    pub fn problems(&self) -> impl Iterator<Item = (&str, &BlockProblem)> {
        self.nodes.iter().flat_map(|(name, entry)| {
            entry
                .problems
                .iter()
                .map(move |problem| (name.as_str(), problem))
        })
    }

    /// The number of addresses that several live pods have.
    #[must_use]
    pub fn duplicate_addresses(&self) -> usize {
        self.occupancy.duplicates()
    }

    /// Returns true if a node waits for a block while blocks are held for the sandboxes of deleted
    /// nodes.
    #[must_use]
    pub fn is_starved_by_holds(&self) -> bool {
        !self.waiting.is_empty() && self.former_nodes.any_held()
    }

    /// The blocks of deleted nodes that are held for their sandboxes.
    pub fn held_blocks(&self) -> impl Iterator<Item = FormerBlocks> {
        self.former_nodes.held_blocks()
    }

    /// Applies changes of nodes, by name, and of pods; `None` is a deleted node, or a pod that is
    /// not live.
    ///
    /// The order matters. Blocks of deleted nodes begin to drain before the blocks of present nodes
    /// are recorded, so that a recreated node can have its old block. Pods come last, so that a
    /// block is queued for release only if no pod of these changes has an address of it.
    pub fn observe(
        &mut self,
        nodes: BTreeMap<String, Option<NodeView>>,
        pods: BTreeMap<ObjectKey, Option<PodView>>,
    ) -> PlanOutcome {
        let mut out = PlanOutcome::default();
        let mut candidates = ReleaseCandidates::default();
        for (name, view) in &nodes {
            self.start_draining_if_replaced(name, view.as_ref(), &mut out);
        }
        for (name, view) in nodes {
            if let Some(view) = view {
                self.apply_node(&name, view, &mut out);
            }
            candidates.nodes.insert(name);
        }
        for (key, pod) in pods {
            self.pod_changed(key, pod, &mut candidates, &mut out);
        }
        self.queue_releases(candidates, &mut out);
        self.wake(&mut out);
        self.empty_sets(&mut out);
        out
    }

    /// Applies the server's state of a node whose assignment failed. Returns `None`, and changes
    /// nothing, if the node is not known under this UID.
    ///
    /// The read may be newer than the watch, so it must not add or remove a node: an older watch
    /// event that arrives afterwards would undo that, and could free the block of a live node.
    pub fn reread(&mut self, name: &str, live: NodeView) -> Option<PlanOutcome> {
        if self
            .nodes
            .get(name)
            .is_none_or(|entry| entry.uid != live.uid)
        {
            return None;
        }
        let mut out = PlanOutcome::default();
        self.apply_node(name, live, &mut out);
        // The caller reconciles the node now.
        out.reconcile.retain(|other| other != name);
        Some(out)
    }

    /// Applies all stored records: blocks of deleted nodes are in use until they are released, and
    /// the status of live nodes' blocks is noted. The record of a node that the watch has not
    /// delivered, or that it still reports as existing after its deletion, is skipped until the
    /// records are read again.
    pub fn apply_records(&mut self, records: Vec<BlockRecord>) -> PlanOutcome {
        let mut out = PlanOutcome::default();
        let stored = records.iter().map(|record| (&*record.uid, record.net));
        let stored = stored.collect();
        out.reconcile
            .extend(self.former_nodes.end_holds_not_in(&stored));
        for record in records {
            let BlockRecord {
                net,
                node,
                uid,
                status,
            } = record;
            match status {
                RecordStatus::Deleted(phase) => {
                    if self.nodes.get(&node).is_some_and(|entry| entry.uid == uid) {
                        // The watch has not reported the deletion yet.
                        continue;
                    }
                    let previous = self.former_nodes.set_phase(&node, &uid, net, phase);
                    if previous.is_none() {
                        self.blocks.adopt(&Owner::new(&uid, &node), net);
                        self.blocks.drain(&uid);
                    }
                    let is_held = |phase: &ReleasePhase| matches!(phase, ReleasePhase::Held(_));
                    if is_held(&phase) && !previous.as_ref().is_some_and(is_held) {
                        out.held.push(FormerBlocks {
                            node: node.clone(),
                            uid,
                            pod_cidrs: vec![net],
                        });
                    }
                    out.reconcile.push(node);
                }
                RecordStatus::Assigned | RecordStatus::Foreign => {
                    if let Some(entry) = self.nodes.get_mut(&node)
                        && entry.uid == uid
                    {
                        entry.recorded.insert(net, status);
                        if self.allocates && entry.needs_status_update() {
                            out.reconcile.push(node);
                        }
                    }
                }
            }
        }
        out
    }

    /// Records that the server has written the blocks planned for the node of this UID.
    pub fn assignment_confirmed(&mut self, assignment: &Assignment) {
        if let Some(entry) = self.nodes.get_mut(&assignment.node)
            && entry.uid == assignment.uid
        {
            let texts = assignment.pod_cidrs.iter().map(ToString::to_string);
            entry.state = NodeState::Assigned(texts.collect());
            let recorded = assignment.pod_cidrs.iter();
            entry.recorded = recorded.map(|net| (*net, RecordStatus::Assigned)).collect();
        }
    }

    /// Records that the server refused the blocks planned for the node of this UID: a claim that is
    /// not known here is in the way. They are given up, and the next reconciliation plans others.
    ///
    /// This is safe although an earlier, unanswered call with the refused blocks may still arrive.
    /// For this node: the server writes a node's blocks once and rejects different ones as a
    /// conflict, so the node gets either the old or the new blocks, and the watch reports which.
    /// For another node that the refused blocks are planned for in the meantime: the server admits
    /// no block that overlaps another node's, so the later of the two calls is refused. (With
    /// `--compat` it may admit overlapping blocks, as Kubernetes does.)
    pub fn assignment_refused(&mut self, assignment: &Assignment) {
        if let Some(entry) = self.nodes.get_mut(&assignment.node)
            && entry.uid == assignment.uid
            && entry.state == NodeState::Reserved(assignment.pod_cidrs.clone())
        {
            self.blocks.release(&entry.uid);
            entry.state = NodeState::Unassigned;
        }
    }

    /// Records that the server has carried out the update.
    pub fn record_updated(
        &mut self,
        update: &RecordUpdate,
        record: Option<BlockRecord>,
    ) -> PlanOutcome {
        let mut out = PlanOutcome::default();
        let RecordUpdate {
            net,
            node,
            uid,
            change,
        } = update;
        match change {
            BlockChange::Mark(status) => {
                if let Some(entry) = self.nodes.get_mut(node)
                    && entry.uid == *uid
                {
                    entry.recorded.insert(*net, *status);
                }
            }
            BlockChange::Quarantine(_) if record.is_some() => {
                if let Some(BlockRecord {
                    status: RecordStatus::Deleted(phase),
                    ..
                }) = record
                {
                    self.former_nodes.set_phase(node, uid, *net, phase);
                    out.reconcile.push(node.clone());
                }
            }
            // A released block; or a block that had no stored record to quarantine.
            BlockChange::Quarantine(_) | BlockChange::Release => {
                self.record_removed(node, uid, *net, &mut out)
            }
        }
        self.wake(&mut out);
        self.empty_sets(&mut out);
        out
    }

    /// Records that the node's condition has been written.
    pub fn condition_written(&mut self, node: &str, uid: &str, verdict: Option<&NodeVerdict>) {
        if let Some(entry) = self.nodes.get_mut(node)
            && entry.uid == uid
        {
            entry.condition = verdict.map(|verdict| verdict.message.clone());
        }
    }

    /// Removes the node, and lets its blocks drain, if it is deleted or another node has its name.
    fn start_draining_if_replaced(
        &mut self,
        name: &str,
        view: Option<&NodeView>,
        out: &mut PlanOutcome,
    ) {
        let same = |entry: &NodeEntry| view.is_some_and(|view| view.uid == entry.uid);
        if self.nodes.get(name).is_none_or(same) {
            return;
        }
        self.waiting.remove(name);
        if let Some(entry) = self.nodes.remove(name) {
            let pod_cidrs = self.blocks.drain(&entry.uid);
            if !pod_cidrs.is_empty() {
                self.former_nodes.add(name, &entry.uid, &pod_cidrs);
                out.draining.push(FormerBlocks {
                    node: name.to_owned(),
                    uid: entry.uid,
                    pod_cidrs,
                });
            }
        }
    }

    /// Applies the state of a node that exists, and queues it if it needs work.
    fn apply_node(&mut self, name: &str, view: NodeView, out: &mut PlanOutcome) {
        let entry = self
            .nodes
            .entry(name.to_owned())
            .or_insert_with(|| NodeEntry::new(&view.uid));
        entry.resource_version = view.resource_version;
        entry.deleting = view.deleting;
        if entry.labels != view.labels {
            entry.labels = view.labels;
            if self.sets.select_by_labels() {
                // Other sets may match the new labels: end the wait, so that `has_work` queues it.
                self.waiting.remove(name);
            }
        }
        entry.condition = view.condition;
        // `podCIDRs` is never cleared, so a view without them is older than an assignment; ignore
        // its blocks.
        if !view.pod_cidrs.is_empty() && entry.state != NodeState::Assigned(view.pod_cidrs.clone())
        {
            entry.state = NodeState::Assigned(view.pod_cidrs);
            // The spec is final. If other blocks were planned, the node can no longer get those,
            // and they become free here.
            let uid = entry.uid.clone();
            let before = self.blocks.release(&uid);
            self.waiting.remove(name);
            self.adopt(name, out);
            if !before.is_empty() && before != self.blocks.blocks_of(&uid) {
                self.blocks_freed(&before, out);
            }
        }
        if self.has_work(name) {
            out.reconcile.push(name.to_owned());
        }
    }

    /// Claims the blocks of the node's spec for it, and updates the list of their problems.
    fn adopt(&mut self, name: &str, out: &mut PlanOutcome) {
        let Some(NodeEntry {
            uid,
            state: NodeState::Assigned(pod_cidrs),
            problems,
            labels,
            ..
        }) = self.nodes.get_mut(name)
        else {
            return;
        };
        let owner = Owner::new(uid, name);
        let before = std::mem::take(problems);
        let mut nets = Vec::new();
        for text in pod_cidrs {
            match parse_cidr(text) {
                Ok(net) => nets.push(net.trunc()),
                Err(invalid) => problems.push(BlockProblem::Unreadable(invalid)),
            }
        }
        let matched = self.sets.matched(name, labels);
        let adopted = self.blocks.adopt_from(&owner, &nets, matched);
        for (net, adoption) in nets.into_iter().zip(adopted) {
            if let Adoption::Foreign(misfit) = adoption {
                problems.push(BlockProblem::Misfit { net, misfit });
            }
        }
        if !self.allocates {
            problems.clear();
        }
        let new = problems.iter().filter(|problem| !before.contains(problem));
        out.foreign.extend(new.map(|problem| ForeignBlock {
            node: name.to_owned(),
            uid: uid.clone(),
            problem: problem.clone(),
        }));
        if problems.is_empty() && !before.is_empty() {
            out.resolved.push((name.to_owned(), uid.clone()));
        }
    }

    fn pod_changed(
        &mut self,
        key: ObjectKey,
        pod: Option<PodView>,
        candidates: &mut ReleaseCandidates,
        out: &mut PlanOutcome,
    ) {
        // The pod's node may have been deleted before this process began. If no claim has the
        // address then, its block must not be assigned while the pod lives.
        for address in pod.iter().flat_map(|pod| &pod.addresses) {
            if let Some(net) = self.blocks.drain_unowned(*address) {
                out.draining.push(FormerBlocks::unknown(net));
            }
        }
        if let Some(old) = self.occupancy.update(key, pod) {
            candidates.addresses.extend(old.addresses);
            candidates.nodes.insert(old.node);
        }
    }

    /// Frees blocks that were claimed only because a pod had an address of them, and queues the
    /// names of deleted nodes whose blocks are out of use.
    fn queue_releases(&mut self, candidates: ReleaseCandidates, out: &mut PlanOutcome) {
        let mut former = candidates.nodes;
        for address in candidates.addresses {
            for block in self.blocks.holders(address) {
                match block.claim {
                    Claim::Draining(Some(owner)) => {
                        former.insert(owner.name().to_owned());
                    }
                    Claim::Draining(None) if !self.occupancy.any_in(&block.net) => {
                        self.blocks.release_unowned(block.net);
                        let unowned = FormerBlocks::unknown(block.net);
                        out.draining.retain(|blocks| *blocks != unowned);
                        out.released.push(unowned);
                        self.blocks_freed(&[block.net], out);
                    }
                    _ => {}
                }
            }
        }
        let due = former
            .into_iter()
            .filter(|name| self.has_unused_former_blocks(name));
        out.reconcile.extend(due.collect::<Vec<_>>());
    }

    /// Handles the removal of the record of a deleted node's block.
    fn record_removed(&mut self, name: &str, uid: &str, net: IpNet, out: &mut PlanOutcome) {
        if self.former_nodes.remove(name, uid, net) {
            let pod_cidrs = self.blocks.release(uid);
            self.blocks_freed(&pod_cidrs, out);
            out.draining.retain(|blocks| blocks.uid != uid);
            out.released.push(FormerBlocks {
                node: name.to_owned(),
                uid: uid.to_owned(),
                pod_cidrs,
            });
        }
    }

    /// Handles blocks that have become free: waiting nodes may be served, and overlapping blocks
    /// may fit.
    fn blocks_freed(&mut self, nets: &[IpNet], out: &mut PlanOutcome) {
        self.waiting.freed();
        let foreign: BTreeSet<String> = nets
            .iter()
            .flat_map(|net| self.blocks.overlapping(*net))
            .filter_map(|block| match block.claim {
                Claim::Foreign(owner) => Some(owner.name().to_owned()),
                _ => None,
            })
            .collect();
        for name in foreign {
            self.adopt(&name, out);
            if self.has_work(&name) {
                out.reconcile.push(name);
            }
        }
    }

    /// Queues as many waiting nodes as there are free blocks.
    fn wake(&mut self, out: &mut PlanOutcome) {
        let free = self.blocks.usage().map(|usage| usage.free).sum();
        out.reconcile.extend(self.waiting.wake(free));
    }
}

impl NodeEntry {
    fn new(uid: &str) -> Self {
        Self {
            uid: uid.to_owned(),
            resource_version: String::new(),
            labels: BTreeMap::new(),
            deleting: false,
            state: NodeState::Unassigned,
            problems: Vec::new(),
            recorded: BTreeMap::new(),
            condition: None,
        }
    }
}
