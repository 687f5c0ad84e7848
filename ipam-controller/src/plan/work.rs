//! What there is to do for one node, and to tell.

use std::fmt;
use std::time::Duration;

use ipnet::IpNet;
use podplane_api::jiff::Timestamp;
use podplane_ipam::{AllocateError, Claim, InvalidCidr, Misfit, Owner};

use super::{Allocator, Known, Phase, State};

/// What was learned: whom to look at, in this order, and what to tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Names of nodes for which there is something to do, those that have waited first.
    pub look: Vec<String>,
    /// Blocks found in nodes that are not as the configuration would have them.
    pub foreign: Vec<Foreign>,
    /// Name and UID of nodes whose blocks were foreign and fit now.
    pub fits: Vec<(String, String)>,
    /// What nodes that are gone have left.
    pub draining: Vec<Remains>,
    /// What nodes that are gone have left, and instances of them hold.
    pub held: Vec<Remains>,
    /// What nodes that are gone have left, and anybody may have now.
    pub released: Vec<Remains>,
    /// Names of ClusterCIDRs to look at.
    pub sets: Vec<String>,
    /// Name and UID of ClusterCIDRs that give no blocks, and why.
    pub unusable: Vec<(String, String, String)>,
}

/// What to do for a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Blocks to write into it.
    pub assign: Option<Assignment>,
    /// There is no block for it; told once while it waits.
    pub starved: Option<Starved>,
    /// Records to move on, its own or of former nodes of its name.
    pub updates: Vec<Update>,
    /// What its condition should say; the UID is that of the node.
    pub condition: Option<(String, Option<Verdict>)>,
    /// When to look again, though nothing has changed.
    pub again: Option<Timestamp>,
}

/// A write of blocks into a node, under the guard of its UID and revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The node's name.
    pub node: String,
    /// Its UID.
    pub uid: String,
    /// The revision that it is based on.
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

/// A change of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// The prefix.
    pub net: IpNet,
    /// The node's name.
    pub node: String,
    /// Its UID; the record must have it.
    pub uid: String,
    /// What becomes of it.
    pub change: Change,
}

/// What becomes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Its node lives.
    Mark(Standing),
    /// Its node is gone, and it is kept back for so long.
    Quarantine(Duration),
    /// Its node is gone.
    Release,
}

/// A record as the store has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The prefix.
    pub net: IpNet,
    /// The name of the node.
    pub node: String,
    /// Its UID.
    pub uid: String,
    /// What it says.
    pub standing: Standing,
}

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The node's, and it fits.
    Assigned,
    /// The node's, and it does not fit.
    Foreign,
    /// The node is gone.
    Gone(Phase),
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
    Misfit {
        /// The block.
        net: IpNet,
        /// Why.
        misfit: Misfit,
    },
    /// It is no prefix, so nothing can be recorded.
    Unreadable(InvalidCidr),
}

impl Problem {
    /// In one word, for a condition.
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

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misfit { misfit, .. } => misfit.fmt(f),
            Self::Unreadable(invalid) => invalid.fmt(f),
        }
    }
}

/// What a node's condition says of its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// [`Problem::reason`] of the first.
    pub reason: &'static str,
    /// All of it.
    pub message: String,
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
    pub(super) fn unknown(net: IpNet) -> Self {
        Self {
            node: String::new(),
            uid: String::new(),
            pod_cidrs: vec![net],
        }
    }
}

impl Allocator {
    /// What there is to do for the node of that name, or for what former nodes of it have left. Blocks that it plans are set aside; asked again, it says the same
    /// until it is told how the calls ended.
    pub fn work(&mut self, name: &str, now: Timestamp) -> (Work, Outcome) {
        let (mut work, mut out) = (Work::default(), Outcome::default());
        self.close(name, now, &mut work, &mut out);
        self.mark(name, &mut work);
        self.give(name, &mut work);
        self.wake(&mut out);
        // It is being looked at.
        out.look.retain(|looked| looked != name);
        (work, out)
    }

    pub(super) fn has_work(&self, name: &str) -> bool {
        self.nodes.get(name).is_some_and(|known| {
            let marks = self.allocates && known.wants_marks();
            marks || self.wants_blocks(known) && !self.waiting.sleeps(name)
        })
    }

    /// Whether former nodes of that name have left something that nobody uses any more.
    pub(super) fn has_leftovers(&self, name: &str) -> bool {
        let formers = self.formers.named(name);
        formers.iter().any(|(uid, _)| !self.in_use(name, uid))
    }

    fn wants_blocks(&self, known: &Known) -> bool {
        self.allocates && !known.deleting && !matches!(known.state, State::Assigned(_))
    }

    /// Whether live pods have, or may have, addresses of what the gone node had.
    fn in_use(&self, node: &str, uid: &str) -> bool {
        // A pod without an address gets one of the block of the node that is there now.
        if !self.nodes.contains_key(node) && self.occupancy.any_unreported(node) {
            return true;
        }
        self.blocks
            .held_by(uid)
            .iter()
            .any(|net| self.occupancy.any_in(net) && !self.has_it_back(node, net))
    }

    /// Whether the node was made again with its old block. It has the pods in it then, and the record too.
    fn has_it_back(&self, node: &str, net: &IpNet) -> bool {
        let blocks = self.blocks.overlapping(*net);
        blocks.iter().any(|block| {
            let owner = match &block.claim {
                Claim::Assigned(owner) | Claim::Foreign(owner) => Some(owner),
                _ => None,
            };
            block.net.contains(net) && owner.map(Owner::name) == Some(node)
        })
    }

    /// Brings back what former nodes of that name have left.
    fn close(&mut self, name: &str, now: Timestamp, work: &mut Work, out: &mut super::Outcome) {
        for (uid, nets) in self.formers.named(name) {
            if self.in_use(name, &uid) {
                continue;
            }
            for (net, phase) in nets {
                // A record is keyed by prefix and name: it is the new node's now.
                if self.records_again(name, &net) {
                    self.gone(name, &uid, net, out);
                    continue;
                }
                let change = match phase {
                    // What ends it is in its record, when that is read next.
                    Phase::Held(None) => continue,
                    Phase::Held(Some(until)) | Phase::Quarantined(until) if until > now => {
                        work.again = Some(work.again.map_or(until, |again| again.min(until)));
                        continue;
                    }
                    Phase::Draining | Phase::Held(_) if !self.release_delay.is_zero() => {
                        Change::Quarantine(self.release_delay)
                    }
                    Phase::Draining | Phase::Held(_) | Phase::Quarantined(_) => Change::Release,
                };
                work.updates.push(Update {
                    net,
                    node: name.to_owned(),
                    uid: uid.clone(),
                    change,
                });
            }
        }
    }

    /// Whether the node of that name has the very prefix.
    fn records_again(&self, name: &str, net: &IpNet) -> bool {
        let known = self.nodes.get(name);
        known.is_some_and(|known| {
            matches!(known.state, State::Assigned(_))
                && self.blocks.held_by(&known.uid).contains(net)
        })
    }

    /// Has the records and the condition of the node say what is thought of its blocks.
    fn mark(&self, name: &str, work: &mut Work) {
        let known = self.nodes.get(name).filter(|known| known.wants_marks());
        let Some(known) = known.filter(|_| self.allocates) else {
            return;
        };
        for (net, standing) in known.wrong_marks(&self.blocks.held_by(&known.uid)) {
            work.updates.push(Update {
                net,
                node: name.to_owned(),
                uid: known.uid.clone(),
                change: Change::Mark(standing),
            });
        }
        let verdict = known.verdict();
        if known.condition != verdict.as_ref().map(|verdict| verdict.message.clone()) {
            work.condition = Some((known.uid.clone(), verdict));
        }
    }

    fn give(&mut self, name: &str, work: &mut Work) {
        let Some(known) = self.nodes.get(name) else {
            return;
        };
        // A node that waited may have blocks by now, or be on its way out.
        if !self.wants_blocks(known) {
            self.waiting.remove(name);
            return;
        }
        if self.waiting.sleeps(name) {
            return;
        }
        let Some(known) = self.nodes.get_mut(name) else {
            return;
        };
        if let State::Bare = known.state {
            let owner = Owner::new(&known.uid, name);
            let matched = self.sets.matched(name, &known.labels);
            match self.blocks.allocate_from(&owner, matched) {
                Ok(pod_cidrs) => known.state = State::Reserved(pod_cidrs),
                Err(error) => {
                    let uid = known.uid.clone();
                    if self.waiting.refuse(name) {
                        work.starved = Some(Starved {
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
        if let State::Reserved(pod_cidrs) = &known.state {
            work.assign = Some(Assignment {
                node: name.to_owned(),
                uid: known.uid.clone(),
                resource_version: known.resource_version.clone(),
                pod_cidrs: pod_cidrs.clone(),
            });
        }
    }
}

impl Known {
    pub(super) fn wants_marks(&self) -> bool {
        let foreign = self.misfits();
        let unmarked = foreign
            .clone()
            .any(|net| self.recorded.get(net) != Some(&Standing::Foreign));
        let fits = |(net, standing): (&IpNet, &Standing)| {
            *standing == Standing::Foreign && !foreign.clone().any(|foreign| foreign == net)
        };
        let message = self.verdict().map(|verdict| verdict.message);
        unmarked || self.recorded.iter().any(fits) || self.condition != message
    }

    fn wrong_marks(&self, held: &[IpNet]) -> Vec<(IpNet, Standing)> {
        let mut wrong = Vec::new();
        for net in held {
            let recorded = self.recorded.get(net).copied();
            if self.misfits().any(|foreign| foreign == net) {
                if recorded != Some(Standing::Foreign) {
                    wrong.push((*net, Standing::Foreign));
                }
            } else if recorded == Some(Standing::Foreign) {
                wrong.push((*net, Standing::Assigned));
            }
        }
        wrong
    }

    fn misfits(&self) -> impl Iterator<Item = &IpNet> + Clone {
        self.problems.iter().filter_map(|problem| match problem {
            Problem::Misfit { net, .. } => Some(net),
            Problem::Unreadable(_) => None,
        })
    }

    fn verdict(&self) -> Option<Verdict> {
        let first = self.problems.first()?;
        let messages: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
        Some(Verdict {
            reason: first.reason(),
            message: messages.join("; "),
        })
    }
}
