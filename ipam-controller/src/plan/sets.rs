//! Sets of ranges that are objects: they come, they terminate while nodes have blocks of them, and they go.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use podplane_api::selector::NodeSelector;
use podplane_ipam::{BlockSet, Claim, ClusterRange};

use super::{Allocator, Outcome};

/// What of a ClusterCIDR object matters here.
#[derive(Clone, Debug)]
pub struct SetView {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.creationTimestamp`, in seconds.
    pub created: u64,
    /// Absent: for all nodes.
    pub selector: Option<NodeSelector>,
    /// What it is cut into, or why it cannot be.
    pub ranges: Result<Vec<ClusterRange>, String>,
    /// It has our finalizer, so it cannot go while its blocks are in use. Nothing is given without.
    pub guarded: bool,
    /// It has a deletion timestamp: nothing more is given.
    pub deleting: bool,
}

/// The objects that are sets of [`podplane_ipam::NodeBlocks`], by name.
#[derive(Debug, Default)]
pub(super) struct Sets {
    known: BTreeMap<String, Known>,
    terminating: BTreeSet<String>,
    /// UID of those that cannot be used, and why; it has been told.
    unusable: BTreeMap<String, (String, String)>,
}

#[derive(Debug)]
struct Known {
    uid: String,
    selector: Option<NodeSelector>,
}

impl Sets {
    /// Whether labels of nodes matter.
    pub(super) fn select(&self) -> bool {
        self.known.values().any(|set| set.selector.is_some())
    }

    /// How many requirements of a set's selector the node meets.
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
    /// Takes in ClusterCIDRs by name; `None` is one that does not exist. A new one is for nodes that wait, and for those whose blocks fit nowhere else.
    pub fn observe_sets(&mut self, sets: BTreeMap<String, Option<SetView>>) -> Outcome {
        let mut out = Outcome::default();
        for (name, view) in sets {
            let uid = view.as_ref().map(|view| view.uid.as_str());
            let known = self.sets.known.get(&name).map(|known| known.uid.as_str());
            if known.is_some() && known != uid {
                self.set_gone(&name, &mut out);
            }
            match view {
                Some(view) => self.take_set(&name, view, &mut out),
                None => drop(self.sets.unusable.remove(&name)),
            }
        }
        self.wake(&mut out);
        self.empty_sets(&mut out);
        out
    }

    /// Gives nothing more of the set. Returns whether no node has a block of it, so that it can go.
    pub fn terminate(&mut self, set: &str) -> bool {
        if self.blocks.terminate_set(set) {
            self.sets.terminating.insert(set.to_owned());
        }
        !self.blocks.holds_any_of(set)
    }

    fn take_set(&mut self, name: &str, view: SetView, out: &mut Outcome) {
        let SetView {
            uid,
            created,
            selector,
            ranges,
            guarded,
            deleting,
        } = view;
        // It needs a finalizer, or none any more.
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
                    let known = Known { uid, selector };
                    self.sets.known.insert(name.to_owned(), known);
                    if deleting {
                        self.terminate(name);
                    }
                    self.freed(&ranges, out);
                }
                Err(why) => {
                    let now = (uid.clone(), why.clone());
                    let told = self.sets.unusable.insert(name.to_owned(), now.clone());
                    if told != Some(now) {
                        out.unusable.push((name.to_owned(), uid, why));
                    }
                }
            }
        } else if deleting {
            self.terminate(name);
        }
    }

    /// It was taken out of the store, whoever did that; what nodes have of it stays theirs.
    fn set_gone(&mut self, name: &str, out: &mut Outcome) {
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
                out.look.push(owner.to_owned());
            }
        }
    }

    /// Terminating ones that no node holds any more.
    pub(super) fn empty_sets(&self, out: &mut Outcome) {
        let sets = self.sets.terminating.iter();
        let empty = sets.filter(|set| !self.blocks.holds_any_of(set));
        out.sets.extend(empty.cloned());
    }
}
