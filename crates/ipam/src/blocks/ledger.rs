//! The records: which prefix is claimed by whom. Several claims on one prefix, and claims inside others, are possible.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnet::IpNet;

use super::{Block, Claim, Owner, SetId};
use crate::net::{Family, widened};

/// Prefixes sort by address and then by length, so those inside a prefix follow it, and a claim of no node comes first.
type Key = (IpNet, Option<Arc<str>>);

/// A claim, and the set that its prefix is of.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) claim: Claim,
    pub(super) set: Option<SetId>,
}

impl Held {
    pub(super) fn block(&self, net: IpNet) -> Block {
        Block {
            net,
            claim: self.claim.clone(),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    claims: BTreeMap<Key, Held>,
    by_owner: BTreeMap<Arc<str>, Vec<IpNet>>,
    /// How many claims have each length. A prefix's ancestors are looked up one by one, and only of these lengths.
    lengths: BTreeMap<(Family, u8), usize>,
}

impl Ledger {
    /// Adds a claim, or replaces the one that the same owner has on the same prefix.
    pub(super) fn insert(&mut self, net: IpNet, claim: Claim, set: Option<SetId>) {
        let uid = claim.owner().map(|owner| Arc::clone(&owner.uid));
        let held = Held { claim, set };
        if self.claims.insert((net, uid.clone()), held).is_some() {
            return;
        }
        *self
            .lengths
            .entry((Family::of(&net), net.prefix_len()))
            .or_default() += 1;
        if let Some(uid) = uid {
            self.by_owner.entry(uid).or_default().push(net);
        }
    }

    /// Removes the claims of an owner and returns their prefixes.
    pub(super) fn remove(&mut self, uid: &str) -> Vec<IpNet> {
        let Some((uid, nets)) = self.by_owner.remove_entry(uid) else {
            return Vec::new();
        };
        for net in &nets {
            self.claims.remove(&(*net, Some(Arc::clone(&uid))));
            self.forget_length(net);
        }
        nets
    }

    /// Removes the claim on a prefix that drains without a known owner, and says whether there was one.
    pub(super) fn remove_held(&mut self, net: IpNet) -> bool {
        let found = self.claims.get(&(net, None));
        let held = found.is_some_and(|held| held.claim == Claim::Draining(None));
        if held {
            self.claims.remove(&(net, None));
            self.forget_length(&net);
        }
        held
    }

    /// The owner of the claim is gone.
    pub(super) fn drain(&mut self, net: IpNet, uid: &str) {
        if let Some(held) = self.claims.get_mut(&(net, Some(uid.into()))) {
            held.claim = Claim::Draining(held.claim.owner().cloned());
        }
    }

    /// The set is gone: what is of it inside of `net` is of none, and foreign if a node has it.
    pub(super) fn forget_set(&mut self, net: IpNet, set: SetId) {
        let inside = self.claims.range_mut((net, None)..);
        let inside = inside.take_while(|((other, _), _)| net.contains(other));
        for (_, held) in inside.filter(|(_, held)| held.set == Some(set)) {
            held.set = None;
            if let Claim::Assigned(owner) = &held.claim {
                held.claim = Claim::Foreign(owner.clone());
            }
        }
    }

    /// The sets of what an owner holds.
    pub(super) fn sets_of(&self, uid: &str) -> Vec<SetId> {
        let uid: Arc<str> = uid.into();
        let held = self.held_by(&uid).into_iter();
        held.filter_map(|net| self.claims.get(&(net, Some(Arc::clone(&uid))))?.set)
            .collect()
    }

    fn forget_length(&mut self, net: &IpNet) {
        let length = (Family::of(net), net.prefix_len());
        if let Some(count) = self.lengths.get_mut(&length) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&length);
            }
        }
    }

    pub(super) fn held_by(&self, uid: &str) -> Vec<IpNet> {
        self.by_owner.get(uid).cloned().unwrap_or_default()
    }

    pub(super) fn held(&self, net: IpNet, owner: &Owner) -> Option<&Held> {
        self.claims.get(&(net, Some(Arc::clone(&owner.uid))))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (IpNet, &Held)> {
        self.claims.iter().map(|((net, _), held)| (*net, held))
    }

    /// The claims that share an address with `net`: its ancestors, widest first, then what lies inside it.
    pub(super) fn overlapping(&self, net: IpNet) -> impl Iterator<Item = (IpNet, &Held)> {
        let family = Family::of(&net);
        let wider = self
            .lengths
            .range((family, 0)..(family, net.prefix_len()))
            .map(|((_, length), _)| *length);
        let ancestors = wider.flat_map(move |length| self.of_prefix(widened(&net, length)));
        let inside = self
            .from(net)
            .take_while(move |(other, _)| net.contains(other));
        ancestors.chain(inside)
    }

    fn of_prefix(&self, net: IpNet) -> impl Iterator<Item = (IpNet, &Held)> {
        self.from(net).take_while(move |(other, _)| *other == net)
    }

    fn from(&self, net: IpNet) -> impl Iterator<Item = (IpNet, &Held)> {
        self.claims
            .range((net, None)..)
            .map(|((net, _), held)| (*net, held))
    }
}
