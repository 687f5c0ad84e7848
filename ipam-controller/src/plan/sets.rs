//! Sets of ranges from ClusterCIDR objects: they appear, terminate while nodes have blocks of them,
//! and are removed.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use podplane_api::selector::NodeSelector;
use podplane_ipam::{BlockSet, Claim, ClusterRange};

use super::{Allocator, PlanOutcome};

/// The fields of a ClusterCIDR object that the allocator uses.
#[derive(Clone, Debug)]
pub struct SetView {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.creationTimestamp`, in seconds.
    pub created: u64,
    /// `None` selects all nodes.
    pub selector: Option<NodeSelector>,
    /// The ranges that it is cut into, or the reason why it cannot be.
    pub ranges: Result<Vec<ClusterRange>, String>,
    /// It has our finalizer, so it cannot be removed while its blocks are in use. Without it, no
    /// block is assigned.
    pub guarded: bool,
    /// It has a deletion timestamp: no more blocks are assigned.
    pub deleting: bool,
}

/// The objects that are sets of [`podplane_ipam::NodeBlocks`], by name.
#[derive(Debug, Default)]
pub(super) struct Sets {
    known: BTreeMap<String, KnownSet>,
    terminating: BTreeSet<String>,
    /// UID and reason of unusable objects that were reported.
    unusable: BTreeMap<String, (String, String)>,
}

#[derive(Debug)]
struct KnownSet {
    uid: String,
    selector: Option<NodeSelector>,
}

impl Sets {
    /// Returns whether any set selects nodes by labels.
    pub(super) fn select_by_labels(&self) -> bool {
        self.known.values().any(|set| set.selector.is_some())
    }

    /// The number of requirements of the set's selector that the node meets.
    pub(super) fn matched(
        &self,
        node: &str,
        labels: &BTreeMap<String, String>,
    ) -> impl Fn(&str) -> Option<usize> {
        move |set| {
            let selector = self.known.get(set)?.selector.as_ref()?;
            selector.requirements_met(node, labels)
        }
    }
}

impl Allocator {
    /// Applies changes of ClusterCIDRs, by name; `None` is a deleted one. A new one is offered to
    /// waiting nodes, and to nodes whose blocks fit nowhere else.
    pub fn observe_sets(&mut self, sets: BTreeMap<String, Option<SetView>>) -> PlanOutcome {
        let mut out = PlanOutcome::default();
        for (name, view) in sets {
            let uid = view.as_ref().map(|view| view.uid.as_str());
            let known = self.sets.known.get(&name).map(|known| known.uid.as_str());
            if known.is_some() && known != uid {
                self.set_removed(&name, &mut out);
            }
            match view {
                Some(view) => self.apply_set(&name, view, &mut out),
                None => drop(self.sets.unusable.remove(&name)),
            }
        }
        self.wake(&mut out);
        self.empty_sets(&mut out);
        out
    }

    /// Stops assigning blocks of the set. Returns whether no node has a block of it, so that it can
    /// be removed.
    pub fn terminate(&mut self, set: &str) -> bool {
        if self.blocks.terminate_set(set) {
            self.sets.terminating.insert(set.to_owned());
        }
        !self.blocks.holds_any_of(set)
    }

    fn apply_set(&mut self, name: &str, view: SetView, out: &mut PlanOutcome) {
        let SetView {
            uid,
            created,
            selector,
            ranges,
            guarded,
            deleting,
        } = view;
        // A finalizer must be added, or removed.
        out.sets.push(name.to_owned());
        if !self.sets.known.contains_key(name) && guarded {
            let spec = ranges.map(|ranges| BlockSet {
                name: name.to_owned(),
                created,
                selector: selector.as_ref().map(ToString::to_string),
                ranges,
            });
            let added = spec.and_then(|spec| {
                let ranges: Vec<IpNet> = spec.ranges.iter().map(ClusterRange::cidr).collect();
                let added = self.blocks.add_set(spec).map(|_| ranges);
                added.map_err(|error| error.to_string())
            });
            match added {
                Ok(ranges) => {
                    self.sets.unusable.remove(name);
                    let known = KnownSet { uid, selector };
                    self.sets.known.insert(name.to_owned(), known);
                    if deleting {
                        self.terminate(name);
                    }
                    self.blocks_freed(&ranges, out);
                }
                Err(why) => {
                    let now = (uid.clone(), why.clone());
                    let reported = self.sets.unusable.insert(name.to_owned(), now.clone());
                    if reported != Some(now) {
                        out.unusable.push((name.to_owned(), uid, why));
                    }
                }
            }
        } else if deleting {
            self.terminate(name);
        }
    }

    /// Handles a set that was removed from the store; its nodes keep their blocks.
    fn set_removed(&mut self, name: &str, out: &mut PlanOutcome) {
        self.sets.known.remove(name);
        self.sets.terminating.remove(name);
        let left = self.blocks.remove_set(name);
        let owners = left.iter().filter_map(|block| match &block.claim {
            Claim::Assigned(owner) | Claim::Foreign(owner) => Some(owner.name()),
            Claim::Reserved | Claim::Draining(_) => None,
        });
        for owner in owners {
            self.adopt(owner, out);
            if self.has_work(owner) {
                out.reconcile.push(owner.to_owned());
            }
        }
    }

    /// Queues terminating sets without blocks in use.
    pub(super) fn empty_sets(&self, out: &mut PlanOutcome) {
        let sets = self.sets.terminating.iter();
        let empty = sets.filter(|set| !self.blocks.holds_any_of(set));
        out.sets.extend(empty.cloned());
    }
}
