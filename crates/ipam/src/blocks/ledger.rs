//! The records: which prefix is claimed by whom. Several claims on one prefix, and claims inside others, are possible.
//!
//! A range of 2^24 blocks can be full, so a claim takes 12 bytes for IPv4 and 24 for IPv6, and a node is a number in it.

mod owners;
mod paged;
mod sorted;

use std::collections::BTreeMap;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{Block, Claim, Owner, SetId};
pub(super) use owners::OwnerId;
use owners::Owners;
use paged::Paged;
use sorted::{Keyed, Sorted};

/// A claim without its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) kind: Kind,
    /// The node; none has a service range, or what drains and nobody knows whose it was.
    pub(super) owner: Option<OwnerId>,
    /// The set that the prefix is of.
    pub(super) set: Option<SetId>,
}

/// As those of [`Claim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Reserved,
    Assigned,
    Foreign,
    Draining,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    owners: Owners,
    v4: Side<Ipv4Net>,
    v6: Side<Ipv6Net>,
}

/// The claims of one family.
#[derive(Clone, Debug)]
struct Side<N: Prefix> {
    claims: Sorted<Entry<N>>,
    /// How many claims have each length. A prefix's ancestors are looked up one by one, and only of these lengths.
    lengths: BTreeMap<u8, usize>,
    /// What each owner has claimed, by its number: it is there if the claim is.
    first: Paged<N>,
    /// All that those owners have claimed that have more than one.
    more: BTreeMap<OwnerId, Vec<N>>,
}

/// Prefixes sort by address and then by length, so those inside a prefix follow it, and a claim of no node comes first.
type Key<N> = (N, Option<OwnerId>);

/// Not a prefix and a [`Held`]: that would be 16 bytes.
#[derive(Clone, Copy, Debug)]
struct Entry<N> {
    net: N,
    kind: Kind,
    set: Option<SetId>,
    owner: Option<OwnerId>,
}

impl<N: Prefix> Entry<N> {
    fn seen(&self) -> (IpNet, Held) {
        let Self {
            net,
            kind,
            set,
            owner,
        } = *self;
        (net.into(), Held { kind, owner, set })
    }
}

impl<N: Prefix> Keyed for Entry<N> {
    type Key = Key<N>;

    fn key(&self) -> Key<N> {
        (self.net, self.owner)
    }
}

trait Prefix: Copy + Default + Ord + Into<IpNet> {
    fn length(self) -> u8;
    /// The prefix of that length, which is not more than its own, that contains it.
    fn widened(self, length: u8) -> Self;
    fn contains(self, other: Self) -> bool;
}

macro_rules! prefix {
    ($net:ty) => {
        impl Prefix for $net {
            fn length(self) -> u8 {
                self.prefix_len()
            }

            fn widened(self, length: u8) -> Self {
                Self::new(self.addr(), length).map_or(self, |net| net.trunc())
            }

            fn contains(self, other: Self) -> bool {
                <$net>::contains(&self, &other)
            }
        }
    };
}

prefix!(Ipv4Net);
prefix!(Ipv6Net);

impl Ledger {
    /// The number of the owner, for claims that are about to be inserted.
    pub(super) fn intern(&mut self, owner: &Owner) -> OwnerId {
        self.owners.intern(owner)
    }

    pub(super) fn find(&self, uid: &str) -> Option<OwnerId> {
        self.owners.find(uid)
    }

    pub(super) fn name(&self, id: OwnerId) -> &str {
        self.owners.name(id)
    }

    /// The claim as others see it.
    pub(super) fn block(&self, net: IpNet, held: Held) -> Block {
        let owner = held.owner.map(|id| self.owners.owner(id));
        let claim = match (held.kind, owner) {
            (Kind::Assigned, Some(owner)) => Claim::Assigned(owner),
            (Kind::Foreign, Some(owner)) => Claim::Foreign(owner),
            (Kind::Draining, owner) => Claim::Draining(owner),
            (Kind::Reserved | Kind::Assigned | Kind::Foreign, _) => Claim::Reserved,
        };
        Block { net, claim }
    }

    /// Adds a claim, or replaces the one that the same owner has on the same prefix.
    pub(super) fn insert(&mut self, net: IpNet, held: Held) {
        match net {
            IpNet::V4(net) => self.v4.insert(net, held),
            IpNet::V6(net) => self.v6.insert(net, held),
        }
    }

    /// Removes the claims of an owner and returns their prefixes.
    pub(super) fn remove(&mut self, uid: &str) -> Vec<IpNet> {
        let Some(owner) = self.find(uid) else {
            return Vec::new();
        };
        let nets = self.nets(owner);
        self.v4.remove(owner);
        self.v6.remove(owner);
        self.owners.remove(owner);
        nets
    }

    /// Removes the claim on a prefix that drains without a known owner, and says whether there was one.
    pub(super) fn remove_held(&mut self, net: IpNet) -> bool {
        match net {
            IpNet::V4(net) => self.v4.remove_held(net),
            IpNet::V6(net) => self.v6.remove_held(net),
        }
    }

    /// The owner is gone. Returns what it has claimed.
    pub(super) fn drain(&mut self, uid: &str) -> Vec<IpNet> {
        let Some(owner) = self.find(uid) else {
            return Vec::new();
        };
        self.v4.drain(owner);
        self.v6.drain(owner);
        self.nets(owner)
    }

    /// The set is gone: what is of it inside of `net` is of none, and foreign if a node has it.
    pub(super) fn forget_set(&mut self, net: IpNet, set: SetId) {
        match net {
            IpNet::V4(net) => self.v4.forget_set(net, set),
            IpNet::V6(net) => self.v6.forget_set(net, set),
        }
    }

    /// The sets of what an owner has claimed.
    pub(super) fn sets_of(&self, uid: &str) -> Vec<SetId> {
        let Some(owner) = self.find(uid) else {
            return Vec::new();
        };
        let v4 = self.v4.claims_of(owner).filter_map(|entry| entry.set);
        let v6 = self.v6.claims_of(owner).filter_map(|entry| entry.set);
        v4.chain(v6).collect()
    }

    pub(super) fn held_by(&self, uid: &str) -> Vec<IpNet> {
        self.find(uid)
            .map_or_else(Vec::new, |owner| self.nets(owner))
    }

    fn nets(&self, owner: OwnerId) -> Vec<IpNet> {
        let v4 = self.v4.claims_of(owner).map(|entry| entry.net.into());
        let v6 = self.v6.claims_of(owner).map(|entry| entry.net.into());
        v4.chain(v6).collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (IpNet, Held)> {
        self.v4.iter().chain(self.v6.iter())
    }

    /// The claims that share an address with `net`: its ancestors, widest first, then what lies inside it.
    pub(super) fn overlapping(&self, net: IpNet) -> impl Iterator<Item = (IpNet, Held)> {
        let (v4, v6) = match net {
            IpNet::V4(net) => (Some(self.v4.overlapping(net)), None),
            IpNet::V6(net) => (None, Some(self.v6.overlapping(net))),
        };
        v4.into_iter().flatten().chain(v6.into_iter().flatten())
    }
}

impl<N: Prefix> Default for Side<N> {
    fn default() -> Self {
        Self {
            claims: Sorted::default(),
            lengths: BTreeMap::new(),
            first: Paged::default(),
            more: BTreeMap::new(),
        }
    }
}

impl<N: Prefix> Side<N> {
    fn insert(&mut self, net: N, held: Held) {
        let former = held.owner.and_then(|owner| self.only(owner));
        let Held { kind, owner, set } = held;
        let entry = Entry {
            net,
            kind,
            set,
            owner,
        };
        if !self.claims.insert(entry) {
            return;
        }
        *self.lengths.entry(net.length()).or_default() += 1;
        let Some(owner) = held.owner else { return };
        if let Some(nets) = self.more.get_mut(&owner) {
            nets.push(net);
        } else if let Some(former) = former {
            self.more.insert(owner, vec![former, net]);
        } else {
            self.first.set(owner.index(), net);
        }
    }

    /// The claim of an owner that has one.
    fn only(&self, owner: OwnerId) -> Option<N> {
        let net = self.first.get(owner.index())?;
        self.claims.get((net, Some(owner))).map(|entry| entry.net)
    }

    fn nets(&self, owner: OwnerId) -> Vec<N> {
        match self.more.get(&owner) {
            Some(nets) => nets.clone(),
            None => self.only(owner).into_iter().collect(),
        }
    }

    fn claims_of(&self, owner: OwnerId) -> impl Iterator<Item = &Entry<N>> {
        let nets = self.nets(owner).into_iter();
        nets.filter_map(move |net| self.claims.get((net, Some(owner))))
    }

    fn remove(&mut self, owner: OwnerId) {
        for net in self.nets(owner) {
            self.take_out((net, Some(owner)));
        }
        self.more.remove(&owner);
    }

    fn take_out(&mut self, key: Key<N>) {
        let length = key.0.length();
        if self.claims.remove(key)
            && let Some(count) = self.lengths.get_mut(&length)
        {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&length);
            }
        }
    }

    fn remove_held(&mut self, net: N) -> bool {
        let found = self.claims.get((net, None));
        let held = found.is_some_and(|entry| entry.kind == Kind::Draining);
        if held {
            self.take_out((net, None));
        }
        held
    }

    fn drain(&mut self, owner: OwnerId) {
        for net in self.nets(owner) {
            if let Some(entry) = self.claims.get_mut((net, Some(owner))) {
                entry.kind = Kind::Draining;
            }
        }
    }

    fn forget_set(&mut self, net: N, set: SetId) {
        let of_it = |entry: &&Entry<N>| entry.set == Some(set);
        let keys: Vec<Key<N>> = self.inside(net).filter(of_it).map(Entry::key).collect();
        for key in keys {
            if let Some(entry) = self.claims.get_mut(key) {
                entry.set = None;
                if entry.kind == Kind::Assigned {
                    entry.kind = Kind::Foreign;
                }
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = (IpNet, Held)> {
        self.claims.iter().map(Entry::seen)
    }

    fn overlapping(&self, net: N) -> impl Iterator<Item = (IpNet, Held)> {
        let wider = self.lengths.range(..net.length());
        let ancestors = wider.flat_map(move |(length, _)| {
            let ancestor = net.widened(*length);
            let of_prefix = self.claims.from((ancestor, None));
            of_prefix.take_while(move |entry| entry.net == ancestor)
        });
        let all = ancestors.chain(self.inside(net));
        all.map(Entry::seen)
    }

    fn inside(&self, net: N) -> impl Iterator<Item = &Entry<N>> {
        let from = self.claims.from((net, None));
        from.take_while(move |entry| net.contains(entry.net))
    }
}
