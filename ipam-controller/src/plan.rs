//! What the range allocator decides: which node gets which block, which block is free again, and what is wrong.
//!
//! Pure: it is told what changed and answers with a [`Plan`]; the shell applies and reports it. A block that was planned for a node
//! stays that node's until the node is known to be gone, whatever became of the call that assigns it. So an answer that
//! never arrived cannot free a block that the server gave away. And then it drains: it is free only when no live pod has an address of it.

mod occupancy;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use podplane_api::ObjectKey;
use podplane_ipam::{
    Adoption, AllocateError, Claim, InvalidCidr, Misfit, NodeBlocks, Owner, RangeConfig, parse_cidr,
};

use occupancy::Occupancy;
pub use occupancy::PodView;

/// What of a Node object matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeView {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`; an assignment is guarded by it.
    pub resource_version: String,
    /// `spec.podCIDRs`, as it is written there.
    pub pod_cidrs: Vec<String>,
    /// It has a deletion timestamp: it keeps what it has and is given nothing.
    pub deleting: bool,
}

/// What to do, and what to tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Blocks to write into nodes.
    pub assign: Vec<Assignment>,
    /// Nodes that want blocks and, since this plan, wait for one.
    pub starved: Vec<Starved>,
    /// Blocks found in nodes that are not as the configuration would have them.
    pub foreign: Vec<Foreign>,
    /// What nodes that are gone have left, and pods still use.
    pub draining: Vec<Remains>,
    /// What nodes that are gone have left, and nobody uses.
    pub released: Vec<Remains>,
}

/// A write of blocks into a node, under the guard of its UID and revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The node's name.
    pub node: String,
    /// Its UID.
    pub uid: String,
    /// The revision that the plan is based on.
    pub resource_version: String,
    /// One block for each range, in the order of `--cluster-cidr`.
    pub pod_cidrs: Vec<IpNet>,
}

/// A node for which there is no block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Starved {
    /// The node's name.
    pub node: String,
    /// Its UID.
    pub uid: String,
    /// Which range is used up.
    pub error: AllocateError,
}

/// A block that is kept although it does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// The node's name.
    pub node: String,
    /// Its UID.
    pub uid: String,
    /// What is wrong with the block.
    pub problem: Problem,
}

/// What is wrong with a node's block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// It is not one that the allocator would have given.
    Misfit(Misfit),
    /// It is no prefix, so nothing can be recorded.
    Unreadable(InvalidCidr),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misfit(misfit) => misfit.fmt(f),
            Self::Unreadable(invalid) => invalid.fmt(f),
        }
    }
}

/// What a node has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remains {
    /// The node's name; empty if it was gone before it could be known.
    pub node: String,
    /// Its UID; empty like its name.
    pub uid: String,
    /// The blocks that it held.
    pub pod_cidrs: Vec<IpNet>,
}

impl Remains {
    fn unknown(net: IpNet) -> Self {
        Self {
            node: String::new(),
            uid: String::new(),
            pod_cidrs: vec![net],
        }
    }
}

/// What may be in use no longer.
#[derive(Debug, Default)]
struct Left {
    addresses: Vec<IpAddr>,
    nodes: BTreeSet<String>,
}

/// The range allocator's memory: who holds what, and how far each node is.
#[derive(Debug)]
pub struct Allocator {
    blocks: NodeBlocks,
    /// Without a range nothing is given and nothing is judged; blocks are only known.
    allocates: bool,
    nodes: BTreeMap<String, Known>,
    starved: BTreeSet<String>,
    /// Name and UID of each node that is gone and whose blocks are kept.
    draining: BTreeSet<(String, String)>,
    occupancy: Occupancy,
}

#[derive(Debug)]
struct Known {
    uid: String,
    resource_version: String,
    deleting: bool,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// Has no block.
    Bare,
    /// Blocks are set aside for it. The server may or may not have written them.
    Reserved(Vec<IpNet>),
    /// The node has these, as it writes them. They can never change while it lives.
    Assigned(Vec<String>),
}

impl Allocator {
    /// Nothing is known yet but the configuration. The first call of [`Allocator::plan`] must bring all nodes and pods,
    /// else a block in use is given again.
    #[must_use]
    pub fn new(config: &RangeConfig) -> Self {
        Self {
            blocks: NodeBlocks::new(config),
            allocates: !config.ranges.is_empty(),
            nodes: BTreeMap::new(),
            starved: BTreeSet::new(),
            draining: BTreeSet::new(),
            occupancy: Occupancy::default(),
        }
    }

    /// Who holds what.
    #[must_use]
    pub fn blocks(&self) -> &NodeBlocks {
        &self.blocks
    }

    /// Takes in what changed, nodes by name; `None` is a node that does not exist, or a pod that is not a live one. Blocks of gone
    /// nodes drain first, then blocks found in nodes are recorded, then pods, and only then are blocks freed and given.
    pub fn plan(
        &mut self,
        nodes: BTreeMap<String, Option<NodeView>>,
        pods: BTreeMap<ObjectKey, Option<PodView>>,
    ) -> Plan {
        let mut plan = Plan::default();
        let mut left = Left::default();
        let only_pods = nodes.is_empty();
        for (name, view) in &nodes {
            self.forget_unless(name, view.as_ref(), &mut plan);
        }
        let mut wanting = Vec::new();
        for (name, view) in nodes {
            left.nodes.insert(name.clone());
            let Some(view) = view else { continue };
            if view.pod_cidrs.is_empty() {
                if self.wants_blocks(&name, view) && !self.starved.contains(&name) {
                    wanting.push(name);
                }
            } else {
                self.adopt(name, view, &mut plan);
            }
        }
        for (key, pod) in pods {
            self.pod_changed(key, pod, &mut left, &mut plan);
        }
        self.free(left, &mut plan);
        if only_pods && plan.released.is_empty() {
            return plan;
        }
        // Those that have waited go first.
        let waited = std::mem::take(&mut self.starved);
        for name in waited.iter().cloned().chain(wanting) {
            self.give(name, &mut plan);
        }
        plan.starved
            .retain(|starved| !waited.contains(&starved.node));
        plan
    }

    /// Plans again for nodes whose assignment did not come through, from what the server says of them now.
    ///
    /// Such a read is ahead of the changes that [`Allocator::plan`] takes, so it must not say which nodes exist: a later, older
    /// change would undo it, and free what a live node has. Nodes that are not the one known are left out.
    pub fn retry(&mut self, live: BTreeMap<String, NodeView>) -> Plan {
        let current = |(name, view): &(String, NodeView)| {
            self.nodes
                .get(name)
                .is_some_and(|known| known.uid == view.uid)
        };
        let changes = live
            .into_iter()
            .filter(current)
            .map(|(name, view)| (name, Some(view)))
            .collect();
        self.plan(changes, BTreeMap::new())
    }

    /// The server has written the blocks that were planned for the node of this UID.
    pub fn confirm(&mut self, assignment: &Assignment) {
        if let Some(known) = self.nodes.get_mut(&assignment.node)
            && known.uid == assignment.uid
        {
            known.state = State::Assigned(
                assignment
                    .pod_cidrs
                    .iter()
                    .map(ToString::to_string)
                    .collect(),
            );
        }
    }

    /// The server refuses the blocks that were planned for the node of this UID: something is there that is not known here, or not yet. They are
    /// given up, and the next plan gives others. A call that was never answered cannot bring them back beside those: the node takes
    /// blocks once, and the server compares them with what is there then.
    pub fn refused(&mut self, assignment: &Assignment) {
        if let Some(known) = self.nodes.get_mut(&assignment.node)
            && known.uid == assignment.uid
            && known.state == State::Reserved(assignment.pod_cidrs.clone())
        {
            self.blocks.release(&known.uid);
            known.state = State::Bare;
        }
    }

    fn forget_unless(&mut self, name: &str, view: Option<&NodeView>, plan: &mut Plan) {
        let same = |known: &Known| view.is_some_and(|view| view.uid == known.uid);
        if self.nodes.get(name).is_none_or(same) {
            return;
        }
        self.starved.remove(name);
        if let Some(known) = self.nodes.remove(name) {
            let pod_cidrs = self.blocks.drain(&known.uid);
            if !pod_cidrs.is_empty() {
                self.draining.insert((name.to_owned(), known.uid.clone()));
                plan.draining.push(Remains {
                    node: name.to_owned(),
                    uid: known.uid,
                    pod_cidrs,
                });
            }
        }
    }

    fn pod_changed(
        &mut self,
        key: ObjectKey,
        pod: Option<PodView>,
        left: &mut Left,
        plan: &mut Plan,
    ) {
        // Its node may have been gone before this process began, and its block with it.
        for address in pod.iter().flat_map(|pod| &pod.addresses) {
            if let Some(net) = self.blocks.hold(*address) {
                plan.draining.push(Remains::unknown(net));
            }
        }
        if let Some(old) = self.occupancy.update(key, pod) {
            left.addresses.extend(old.addresses);
            left.nodes.insert(old.node);
        }
    }

    /// Frees those draining blocks that were touched and that nobody uses any more.
    fn free(&mut self, left: Left, plan: &mut Plan) {
        let mut former = BTreeSet::new();
        for name in left.nodes {
            let of_name = self.draining.range((name.clone(), String::new())..);
            former.extend(of_name.take_while(|(node, _)| *node == name).cloned());
        }
        for address in left.addresses {
            for block in self.blocks.holders(address) {
                match block.claim {
                    Claim::Draining(Some(owner)) => {
                        former.insert((owner.name().to_owned(), owner.uid().to_owned()));
                    }
                    Claim::Draining(None) if !self.occupancy.any_in(&block.net) => {
                        self.blocks.unhold(block.net);
                        plan.draining
                            .retain(|remains| *remains != Remains::unknown(block.net));
                        plan.released.push(Remains::unknown(block.net));
                    }
                    _ => {}
                }
            }
        }
        for (node, uid) in former {
            if self.in_use(&node, &uid) {
                continue;
            }
            let pod_cidrs = self.blocks.release(&uid);
            plan.draining.retain(|remains| remains.uid != uid);
            self.draining.remove(&(node.clone(), uid.clone()));
            plan.released.push(Remains {
                node,
                uid,
                pod_cidrs,
            });
        }
    }

    /// Whether live pods have, or may have, addresses of what the gone node had.
    fn in_use(&self, node: &str, uid: &str) -> bool {
        // A pod without an address gets one of the block of the node that is there now.
        if !self.nodes.contains_key(node) && self.occupancy.any_unreported(node) {
            return true;
        }
        // A node that was made again with its old block has the pods in it, too.
        let has_it_back = |net: &IpNet| {
            self.blocks.overlapping(*net).iter().any(|block| {
                block.net.contains(net)
                    && matches!(&block.claim, Claim::Assigned(owner) if owner.name() == node)
            })
        };
        self.blocks
            .held_by(uid)
            .iter()
            .any(|net| self.occupancy.any_in(net) && !has_it_back(net))
    }

    /// Takes in a node whose spec has no blocks, and says whether it should be given some.
    fn wants_blocks(&mut self, name: &str, view: NodeView) -> bool {
        let known = self.nodes.entry(name.to_owned()).or_insert_with(|| Known {
            uid: view.uid,
            resource_version: String::new(),
            deleting: false,
            state: State::Bare,
        });
        known.resource_version = view.resource_version;
        known.deleting = view.deleting;
        // Blocks are never taken out of a spec, so a view without those that were written is an old one.
        self.allocates && !matches!(known.state, State::Assigned(_))
    }

    fn adopt(&mut self, name: String, view: NodeView, plan: &mut Plan) {
        let NodeView {
            uid,
            resource_version,
            pod_cidrs,
            deleting,
        } = view;
        let state = self.nodes.get(&name).map(|known| &known.state);
        if state.is_some_and(|state| *state == State::Assigned(pod_cidrs.clone())) {
            return;
        }
        // What was set aside for it is not what it has; and only now is it certain that it never will have it.
        self.blocks.release(&uid);
        let owner = Owner::new(&uid, &name);
        for text in &pod_cidrs {
            let adoption = parse_cidr(text).map(|net| self.blocks.adopt(&owner, net));
            let problem = match adoption {
                Ok(Adoption::Assigned) => continue,
                Ok(Adoption::Foreign(misfit)) => Problem::Misfit(misfit),
                Err(invalid) => Problem::Unreadable(invalid),
            };
            if self.allocates {
                plan.foreign.push(Foreign {
                    node: name.clone(),
                    uid: uid.clone(),
                    problem,
                });
            }
        }
        self.nodes.insert(
            name,
            Known {
                uid,
                resource_version,
                deleting,
                state: State::Assigned(pod_cidrs),
            },
        );
    }

    fn give(&mut self, name: String, plan: &mut Plan) {
        let Some(known) = self.nodes.get_mut(&name) else {
            return;
        };
        // A node that waited may have blocks by now, or be on its way out.
        if known.deleting {
            return;
        }
        if let State::Bare = known.state {
            match self.blocks.allocate(&Owner::new(&known.uid, &name)) {
                Ok(pod_cidrs) => known.state = State::Reserved(pod_cidrs),
                Err(error) => {
                    plan.starved.push(Starved {
                        node: name.clone(),
                        uid: known.uid.clone(),
                        error,
                    });
                    self.starved.insert(name);
                    return;
                }
            }
        }
        if let State::Reserved(pod_cidrs) = &known.state {
            plan.assign.push(Assignment {
                node: name,
                uid: known.uid.clone(),
                resource_version: known.resource_version.clone(),
                pod_cidrs: pod_cidrs.clone(),
            });
        }
    }
}
