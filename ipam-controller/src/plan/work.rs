//! The work for one node, and the events to report.

use std::{fmt, time::Duration};

use ipnet::IpNet;
use podplane_api::jiff::Timestamp;
use podplane_ipam::{AllocateError, Claim, InvalidCidr, Misfit, Owner};

use super::{Allocator, NodeEntry, NodeState, ReleasePhase};

/// The results of an observation: the nodes to reconcile, in order, and the events to report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanOutcome {
    /// The names of nodes with work, the longest waiting first.
    pub reconcile: Vec<String>,
    /// Blocks of nodes that do not fit the configuration.
    pub foreign: Vec<ForeignBlock>,
    /// Name and UID of nodes whose foreign blocks fit now.
    pub resolved: Vec<(String, String)>,
    /// Blocks of deleted nodes that began to drain.
    pub draining: Vec<FormerBlocks>,
    /// Blocks of deleted nodes that are held for their sandboxes.
    pub held: Vec<FormerBlocks>,
    /// Blocks of deleted nodes that are free now.
    pub released: Vec<FormerBlocks>,
    /// The names of ClusterCIDRs to reconcile.
    pub sets: Vec<String>,
    /// Name and UID of unusable ClusterCIDRs, and the reason.
    pub unusable: Vec<(String, String, String)>,
}

/// The calls to make for a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeWork {
    /// Blocks to write into the node.
    pub assign: Option<Assignment>,
    /// No block is left for the node; reported once while it waits.
    pub starved: Option<StarvedNode>,
    /// Record updates, for the node's blocks or those of former nodes of its name.
    pub updates: Vec<RecordUpdate>,
    /// The condition to write, with the node's UID.
    pub condition: Option<(String, Option<NodeVerdict>)>,
    /// The time to reconcile again, even if nothing has changed.
    pub again: Option<Timestamp>,
}

/// A write of blocks into a node, guarded by its UID and revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The node's name.
    pub node: String,
    /// Its UID.
    pub uid: String,
    /// The revision that the assignment is based on.
    pub resource_version: String,
    /// One block for each range, in the order of `--cluster-cidr`.
    pub pod_cidrs: Vec<IpNet>,
}

/// A node for which no block is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StarvedNode {
    /// The node's name.
    pub node: String,
    /// Its UID.
    pub uid: String,
    /// The range that is exhausted.
    pub error: AllocateError,
}

/// An update of a stored record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordUpdate {
    /// The prefix.
    pub net: IpNet,
    /// The node's name.
    pub node: String,
    /// Its UID; the update fails if the record has another.
    pub uid: String,
    /// The change to make.
    pub change: BlockChange,
}

/// A change of a stored record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockChange {
    /// The node exists, and the status of its block has changed.
    Mark(RecordStatus),
    /// The node is deleted, and the block is kept back for this long.
    Quarantine(Duration),
    /// The node is deleted, and the record is removed.
    Release,
}

/// A block record as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockRecord {
    /// The prefix.
    pub net: IpNet,
    /// The name of the node.
    pub node: String,
    /// Its UID.
    pub uid: String,
    /// The stored status.
    pub status: RecordStatus,
}

/// The status of a block according to its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordStatus {
    /// The node exists, and its block fits.
    Assigned,
    /// The node exists, and its block does not fit.
    Foreign,
    /// The node is deleted.
    Deleted(ReleasePhase),
}

/// A block that is kept although it does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignBlock {
    /// The node's name.
    pub node: String,
    /// Its UID.
    pub uid: String,
    /// The problem of the block.
    pub problem: BlockProblem,
}

/// A problem of a node's block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockProblem {
    /// The allocator would not have assigned the block.
    Misfit {
        /// The block.
        net: IpNet,
        /// The reason.
        misfit: Misfit,
    },
    /// It cannot be parsed as a prefix, so nothing can be recorded.
    Unreadable(InvalidCidr),
}

impl BlockProblem {
    /// The reason as one word, for a condition.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Misfit { misfit, .. } => match misfit {
                Misfit::Overlaps(_) => "Overlaps",
                Misfit::OutOfRange { .. } => "OutOfRange",
                Misfit::WrongSize { .. } => "WrongSize",
            },
            Self::Unreadable(_) => "Unreadable",
        }
    }
}

impl fmt::Display for BlockProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misfit { misfit, .. } => misfit.fmt(f),
            Self::Unreadable(invalid) => invalid.fmt(f),
        }
    }
}

/// The content of a node's condition about its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeVerdict {
    /// The [`BlockProblem::reason`] of the first problem.
    pub reason: &'static str,
    /// The messages of all problems.
    pub message: String,
}

/// The blocks of a deleted node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormerBlocks {
    /// The node's name; empty if it was deleted before it was known.
    pub node: String,
    /// Its UID; empty if the name is.
    pub uid: String,
    /// The blocks that it held.
    pub pod_cidrs: Vec<IpNet>,
}

impl FormerBlocks {
    /// A block that is in use although no node owns it.
    pub(super) fn unknown(net: IpNet) -> Self {
        Self {
            node: String::new(),
            uid: String::new(),
            pod_cidrs: vec![net],
        }
    }

    /// Name and UID of the node, unless it was deleted before it was known.
    pub fn owner(&self) -> Option<(&str, &str)> {
        (!self.uid.is_empty()).then_some((&*self.node, &*self.uid))
    }
}

impl PlanOutcome {
    /// Drops draining blocks of unknown owner that one of these records explains. For the first
    /// observation, in which pods are observed before the records.
    pub fn attribute(&mut self, records: &[super::BlockRecord]) {
        let is_recorded = |net: &IpNet| {
            let mut nets = records.iter().map(|record| record.net);
            nets.any(|recorded| recorded.contains(net) || net.contains(&recorded))
        };
        self.draining
            .retain(|blocks| blocks.owner().is_some() || !blocks.pod_cidrs.iter().any(is_recorded));
    }
}

impl Allocator {
    /// The work for the node of that name, and for blocks that former nodes of that name left.
    /// Planned blocks stay planned: another call returns the same until the results of the calls
    /// are reported.
    pub fn work(&mut self, name: &str, now: Timestamp) -> (NodeWork, PlanOutcome) {
        let (mut work, mut out) = (NodeWork::default(), PlanOutcome::default());
        self.plan_releases(name, now, &mut work, &mut out);
        self.plan_status_updates(name, &mut work);
        self.plan_assignment(name, &mut work);
        self.wake(&mut out);
        // The caller reconciles this node now.
        out.reconcile.retain(|other| other != name);
        (work, out)
    }

    pub(super) fn has_work(&self, name: &str) -> bool {
        self.nodes.get(name).is_some_and(|entry| {
            let status = self.allocates && entry.needs_status_update();
            status || self.wants_blocks(entry) && !self.waiting.sleeps(name)
        })
    }

    /// Returns whether former nodes of that name left blocks that are out of use.
    pub(super) fn has_unused_former_blocks(&self, name: &str) -> bool {
        let former_nodes = self.former_nodes.named(name);
        former_nodes.iter().any(|(uid, _)| !self.in_use(name, uid))
    }

    fn wants_blocks(&self, entry: &NodeEntry) -> bool {
        self.allocates && !entry.deleting && !matches!(entry.state, NodeState::Assigned(_))
    }

    /// Returns whether live pods have, or may have, addresses of the deleted node's blocks.
    fn in_use(&self, node: &str, uid: &str) -> bool {
        // If the node exists again, a pod without an address gets one of its new block.
        if !self.nodes.contains_key(node) && self.occupancy.any_unreported(node) {
            return true;
        }
        self.blocks
            .blocks_of(uid)
            .iter()
            .any(|net| self.occupancy.any_in(net) && !self.has_old_block_back(node, net))
    }

    /// Returns whether the node was recreated with its old block, and so owns its pods and its
    /// record.
    fn has_old_block_back(&self, node: &str, net: &IpNet) -> bool {
        let blocks = self.blocks.overlapping(*net);
        blocks.iter().any(|block| {
            let owner = match &block.claim {
                Claim::Assigned(owner) | Claim::Foreign(owner) => Some(owner),
                _ => None,
            };
            block.net.contains(net) && owner.map(Owner::name) == Some(node)
        })
    }

    /// Releases the blocks that former nodes of that name left.
    fn plan_releases(
        &mut self,
        name: &str,
        now: Timestamp,
        work: &mut NodeWork,
        out: &mut PlanOutcome,
    ) {
        for (uid, nets) in self.former_nodes.named(name) {
            if self.in_use(name, &uid) {
                continue;
            }
            for (net, phase) in nets {
                // A record's key is prefix and name, so the record is the new node's now.
                if self.records_again(name, &net) {
                    self.record_removed(name, &uid, net, out);
                    continue;
                }
                let change = match phase {
                    // The end of the hold is in its record, when that is read next.
                    ReleasePhase::Held(None) => continue,
                    ReleasePhase::Held(Some(until)) | ReleasePhase::Quarantined(until)
                        if until > now =>
                    {
                        work.again = Some(work.again.map_or(until, |again| again.min(until)));
                        continue;
                    }
                    ReleasePhase::Draining | ReleasePhase::Held(_)
                        if !self.release_delay.is_zero() =>
                    {
                        BlockChange::Quarantine(self.release_delay)
                    }
                    ReleasePhase::Draining
                    | ReleasePhase::Held(_)
                    | ReleasePhase::Quarantined(_) => BlockChange::Release,
                };
                work.updates.push(RecordUpdate {
                    net,
                    node: name.to_owned(),
                    uid: uid.clone(),
                    change,
                });
            }
        }
    }

    /// Returns whether the present node of that name has this prefix.
    fn records_again(&self, name: &str, net: &IpNet) -> bool {
        let entry = self.nodes.get(name);
        entry.is_some_and(|entry| {
            matches!(entry.state, NodeState::Assigned(_))
                && self.blocks.blocks_of(&entry.uid).contains(net)
        })
    }

    /// Updates the records and the condition of the node to the present judgement of its blocks.
    fn plan_status_updates(&self, name: &str, work: &mut NodeWork) {
        let entry = self
            .nodes
            .get(name)
            .filter(|entry| entry.needs_status_update());
        let Some(entry) = entry.filter(|_| self.allocates) else {
            return;
        };
        for (net, status) in entry.wrong_statuses(&self.blocks.blocks_of(&entry.uid)) {
            work.updates.push(RecordUpdate {
                net,
                node: name.to_owned(),
                uid: entry.uid.clone(),
                change: BlockChange::Mark(status),
            });
        }
        let verdict = entry.verdict();
        if entry.condition != verdict.as_ref().map(|verdict| verdict.message.clone()) {
            work.condition = Some((entry.uid.clone(), verdict));
        }
    }

    /// Plans blocks for the node if it has none, or repeats the ones that are planned.
    fn plan_assignment(&mut self, name: &str, work: &mut NodeWork) {
        let Some(entry) = self.nodes.get(name) else {
            return;
        };
        // A node that waited may have blocks by now, or be in deletion.
        if !self.wants_blocks(entry) {
            self.waiting.remove(name);
            return;
        }
        if self.waiting.sleeps(name) {
            return;
        }
        let Some(entry) = self.nodes.get_mut(name) else {
            return;
        };
        if let NodeState::Unassigned = entry.state {
            let owner = Owner::new(&entry.uid, name);
            let matched = self.sets.matched(name, &entry.labels);
            match self.blocks.allocate_from(&owner, matched) {
                Ok(pod_cidrs) => entry.state = NodeState::Reserved(pod_cidrs),
                Err(error) => {
                    let uid = entry.uid.clone();
                    if self.waiting.refuse(name) {
                        work.starved = Some(StarvedNode {
                            node: name.to_owned(),
                            uid,
                            error,
                        });
                    }
                    return;
                }
            }
        }
        self.waiting.remove(name);
        if let NodeState::Reserved(pod_cidrs) = &entry.state {
            work.assign = Some(Assignment {
                node: name.to_owned(),
                uid: entry.uid.clone(),
                resource_version: entry.resource_version.clone(),
                pod_cidrs: pod_cidrs.clone(),
            });
        }
    }
}

impl NodeEntry {
    pub(super) fn needs_status_update(&self) -> bool {
        let foreign = self.misfits();
        let unmarked = foreign
            .clone()
            .any(|net| self.recorded.get(net) != Some(&RecordStatus::Foreign));
        let fits = |(net, status): (&IpNet, &RecordStatus)| {
            *status == RecordStatus::Foreign && !foreign.clone().any(|foreign| foreign == net)
        };
        let message = self.verdict().map(|verdict| verdict.message);
        unmarked || self.recorded.iter().any(fits) || self.condition != message
    }

    fn wrong_statuses(&self, held: &[IpNet]) -> Vec<(IpNet, RecordStatus)> {
        let mut wrong = Vec::new();
        for net in held {
            let recorded = self.recorded.get(net).copied();
            if self.misfits().any(|foreign| foreign == net) {
                if recorded != Some(RecordStatus::Foreign) {
                    wrong.push((*net, RecordStatus::Foreign));
                }
            } else if recorded == Some(RecordStatus::Foreign) {
                wrong.push((*net, RecordStatus::Assigned));
            }
        }
        wrong
    }

    fn misfits(&self) -> impl Iterator<Item = &IpNet> + Clone {
        self.problems.iter().filter_map(|problem| match problem {
            BlockProblem::Misfit { net, .. } => Some(net),
            BlockProblem::Unreadable(_) => None,
        })
    }

    fn verdict(&self) -> Option<NodeVerdict> {
        let first = self.problems.first()?;
        let messages: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
        Some(NodeVerdict {
            reason: first.reason(),
            message: messages.join("; "),
        })
    }
}
