//! What the range allocator decides: which node gets which block, which block is free again, and what is wrong.
//!
//! Pure: it is told what changed and answers with a [`Plan`]; the shell applies and reports it. A block that was planned for a node
//! stays that node's until the node is known to be gone, whatever became of the call that assigns it. So an answer that
//! never arrived cannot free a block that the server gave away.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use ipnet::IpNet;
use podplane_ipam::{
    Adoption, AllocateError, InvalidCidr, Misfit, NodeBlocks, Owner, RangeConfig, parse_cidr,
};

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
    /// What nodes that are gone have left.
    pub released: Vec<Released>,
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
pub struct Released {
    /// The node's name.
    pub node: String,
    /// Its UID.
    pub uid: String,
    /// The blocks that it held.
    pub pod_cidrs: Vec<IpNet>,
}

/// The range allocator's memory: who holds what, and how far each node is.
#[derive(Debug)]
pub struct Allocator {
    blocks: NodeBlocks,
    /// Without a range nothing is given and nothing is judged; blocks are only known.
    allocates: bool,
    nodes: BTreeMap<String, Known>,
    starved: BTreeSet<String>,
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
    /// Nothing is known yet but the configuration. The first call of [`Allocator::plan`] must bring all nodes, else a
    /// block in use is given again.
    #[must_use]
    pub fn new(config: &RangeConfig) -> Self {
        Self {
            blocks: NodeBlocks::new(config),
            allocates: !config.ranges.is_empty(),
            nodes: BTreeMap::new(),
            starved: BTreeSet::new(),
        }
    }

    /// Who holds what.
    #[must_use]
    pub fn blocks(&self) -> &NodeBlocks {
        &self.blocks
    }

    /// Takes in what changed, by node name; `None` is a node that does not exist. Gone nodes free their blocks first, then
    /// blocks found in nodes are recorded, and only then are blocks given.
    pub fn plan(&mut self, changes: BTreeMap<String, Option<NodeView>>) -> Plan {
        let mut plan = Plan::default();
        for (name, view) in &changes {
            self.forget_unless(name, view.as_ref(), &mut plan);
        }
        // Those that have waited go first.
        let waited = std::mem::take(&mut self.starved);
        let mut wanting = Vec::from_iter(waited.iter().cloned());
        for (name, view) in changes {
            let Some(view) = view else { continue };
            if view.pod_cidrs.is_empty() {
                if self.wants_blocks(&name, view) && !waited.contains(&name) {
                    wanting.push(name);
                }
            } else {
                self.adopt(name, view, &mut plan);
            }
        }
        for name in wanting {
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
        self.plan(changes)
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

    fn forget_unless(&mut self, name: &str, view: Option<&NodeView>, plan: &mut Plan) {
        let same = |known: &Known| view.is_some_and(|view| view.uid == known.uid);
        if self.nodes.get(name).is_none_or(same) {
            return;
        }
        self.starved.remove(name);
        if let Some(known) = self.nodes.remove(name) {
            let pod_cidrs = self.blocks.release(&known.uid);
            if !pod_cidrs.is_empty() {
                plan.released.push(Released {
                    node: name.to_owned(),
                    uid: known.uid,
                    pod_cidrs,
                });
            }
        }
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
