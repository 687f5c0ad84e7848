//! All claims on prefixes. Claims may overlap: several owners can claim one prefix, or prefixes
//! inside it.
//!
//! A range of 2^24 blocks can be full, so a claim takes 12 bytes for IPv4 and 24 for IPv6, and
//! refers to a node by number.

mod owners;
mod paged;
mod sorted;

use std::collections::BTreeMap;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{Block, Claim, Owner, SetId};
pub(super) use owners::OwnerId;
use owners::Owners;
use paged::PagedVec;
use sorted::{Keyed, SortedMap};

/// A claim without its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClaimRecord {
    pub(super) kind: ClaimKind,
    /// The node; `None` for service ranges, and for draining blocks of unknown owner.
    pub(super) owner: Option<OwnerId>,
    /// The set that the prefix belongs to.
    pub(super) set: Option<SetId>,
}

/// The kind of a [`Claim`], without its owner. An assigned or foreign claim has an owner, a
/// reserved one has none, and a draining one may have one; [`Ledger::insert`] asserts that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimKind {
    Reserved,
    Assigned,
    Foreign,
    Draining,
}

/// The claims of both families, with an index by owner.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    owners: Owners,
    v4: FamilyClaims<Ipv4Net>,
    v6: FamilyClaims<Ipv6Net>,
}

/// The claims of one family.
#[derive(Clone, Debug)]
struct FamilyClaims<N: Prefix> {
    claims: SortedMap<ClaimEntry<N>>,
    /// The number of claims of each prefix length. [`overlapping`](Self::overlapping) looks the
    /// ancestors of a prefix up one length at a time, and skips lengths that no claim has.
    lengths: BTreeMap<u8, usize>,
    /// The first prefix of each owner, by [`OwnerId::index`]. An entry is not cleared when its
    /// claim is removed, so [`first_of`](Self::first_of) checks that the claim still exists. This
    /// saves a map entry for each owner of one claim, as most owners are.
    first: PagedVec<N>,
    /// The prefixes of owners with two claims or more, in the order of insertion. `first` is not
    /// used for these.
    multiple: BTreeMap<OwnerId, Vec<N>>,
}

/// The sort key of a claim: its prefix, then its owner. Prefixes sort by address and then by
/// length, so those inside a prefix follow it. A claim without an owner sorts before the others on
/// its prefix.
type Key<N> = (N, Option<OwnerId>);

/// A claim as it is stored: 12 bytes for IPv4. A nested [`ClaimRecord`] would pad it to 16.
#[derive(Clone, Copy, Debug)]
struct ClaimEntry<N> {
    net: N,
    kind: ClaimKind,
    set: Option<SetId>,
    owner: Option<OwnerId>,
}

impl<N: Prefix> ClaimEntry<N> {
    fn to_claim(self) -> (IpNet, ClaimRecord) {
        let Self {
            net,
            kind,
            set,
            owner,
        } = self;
        (net.into(), ClaimRecord { kind, owner, set })
    }
}

impl<N: Prefix> Keyed for ClaimEntry<N> {
    type Key = Key<N>;

    fn key(&self) -> Key<N> {
        (self.net, self.owner)
    }
}

/// A prefix of either family.
trait Prefix: Copy + Default + Ord + Into<IpNet> {
    fn length(self) -> u8;
    /// The ancestor with that length, which must not be longer than the prefix.
    fn supernet(self, length: u8) -> Self;
    fn contains(self, other: Self) -> bool;
}

macro_rules! prefix {
    ($net:ty) => {
        impl Prefix for $net {
            fn length(self) -> u8 {
                self.prefix_len()
            }

            fn supernet(self, length: u8) -> Self {
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
    /// Returns the owner's id, and assigns one to a new owner. The caller inserts a claim with it:
    /// only [`remove`](Self::remove) frees an id.
    pub(super) fn intern(&mut self, owner: &Owner) -> OwnerId {
        self.owners.intern(owner)
    }

    /// The id of the owner of that UID.
    pub(super) fn find(&self, uid: &str) -> Option<OwnerId> {
        self.owners.find(uid)
    }

    /// The name of the owner.
    pub(super) fn name(&self, id: OwnerId) -> &str {
        self.owners.name(id)
    }

    /// The public form of a claim.
    pub(super) fn block(&self, net: IpNet, claim: ClaimRecord) -> Block {
        let owner = claim.owner.map(|id| self.owners.owner(id));
        let claim = match (claim.kind, owner) {
            (ClaimKind::Assigned, Some(owner)) => Claim::Assigned(owner),
            (ClaimKind::Foreign, Some(owner)) => Claim::Foreign(owner),
            (ClaimKind::Draining, owner) => Claim::Draining(owner),
            // Only Reserved gets here: `insert` asserts that the two others have an owner. Were
            // that broken, Reserved would be the safe answer: such a prefix is never assigned.
            (ClaimKind::Reserved | ClaimKind::Assigned | ClaimKind::Foreign, _) => Claim::Reserved,
        };
        Block { net, claim }
    }

    /// Adds a claim, or replaces the owner's claim on the same prefix.
    pub(super) fn insert(&mut self, net: IpNet, claim: ClaimRecord) {
        // `block` could not show any other claim, because `Claim` has no such variant.
        debug_assert!(
            match claim.kind {
                ClaimKind::Reserved => claim.owner.is_none(),
                ClaimKind::Assigned | ClaimKind::Foreign => claim.owner.is_some(),
                ClaimKind::Draining => true,
            },
            "{claim:?} on {net}"
        );
        match net {
            IpNet::V4(net) => self.v4.insert(net, claim),
            IpNet::V6(net) => self.v6.insert(net, claim),
        }
    }

    /// Removes all claims of an owner and returns their prefixes.
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

    /// Removes the draining claim of unknown owner on a prefix. Returns false if there was none.
    pub(super) fn remove_unowned(&mut self, net: IpNet) -> bool {
        match net {
            IpNet::V4(net) => self.v4.remove_unowned(net),
            IpNet::V6(net) => self.v6.remove_unowned(net),
        }
    }

    /// Marks the claims of a deleted owner as draining. Returns their prefixes.
    pub(super) fn drain(&mut self, uid: &str) -> Vec<IpNet> {
        let Some(owner) = self.find(uid) else {
            return Vec::new();
        };
        self.v4.drain(owner);
        self.v6.drain(owner);
        self.nets(owner)
    }

    /// Removes the set from all claims inside its range `net`; assigned ones become foreign.
    pub(super) fn detach_set(&mut self, net: IpNet, set: SetId) {
        match net {
            IpNet::V4(net) => self.v4.detach_set(net, set),
            IpNet::V6(net) => self.v6.detach_set(net, set),
        }
    }

    /// The sets of the claims of an owner.
    pub(super) fn sets_of(&self, uid: &str) -> Vec<SetId> {
        let Some(owner) = self.find(uid) else {
            return Vec::new();
        };
        let v4 = self.v4.claims_of(owner).filter_map(|entry| entry.set);
        let v6 = self.v6.claims_of(owner).filter_map(|entry| entry.set);
        v4.chain(v6).collect()
    }

    /// The prefixes of the owner of that UID.
    pub(super) fn nets_of(&self, uid: &str) -> Vec<IpNet> {
        self.find(uid)
            .map_or_else(Vec::new, |owner| self.nets(owner))
    }

    /// The prefixes of an owner, IPv4 first.
    fn nets(&self, owner: OwnerId) -> Vec<IpNet> {
        let v4 = self.v4.claims_of(owner).map(|entry| entry.net.into());
        let v6 = self.v6.claims_of(owner).map(|entry| entry.net.into());
        v4.chain(v6).collect()
    }

    /// All claims, IPv4 first, each family in the order of prefixes.
    pub(super) fn iter(&self) -> impl Iterator<Item = (IpNet, ClaimRecord)> {
        self.v4.iter().chain(self.v6.iter())
    }

    /// The claims that share an address with `net`: its ancestors, widest first, then those inside
    /// it.
    pub(super) fn overlapping(&self, net: IpNet) -> impl Iterator<Item = (IpNet, ClaimRecord)> {
        let (v4, v6) = match net {
            IpNet::V4(net) => (Some(self.v4.overlapping(net)), None),
            IpNet::V6(net) => (None, Some(self.v6.overlapping(net))),
        };
        v4.into_iter().flatten().chain(v6.into_iter().flatten())
    }
}

impl<N: Prefix> Default for FamilyClaims<N> {
    fn default() -> Self {
        Self {
            claims: SortedMap::default(),
            lengths: BTreeMap::new(),
            first: PagedVec::default(),
            multiple: BTreeMap::new(),
        }
    }
}

impl<N: Prefix> FamilyClaims<N> {
    fn insert(&mut self, net: N, claim: ClaimRecord) {
        let ClaimRecord { kind, owner, set } = claim;
        // Looked up before the insertion: `first` may have a stale entry for the same prefix, which
        // the new claim would make look valid.
        let existing = owner.and_then(|owner| self.first_of(owner));
        let entry = ClaimEntry {
            net,
            kind,
            set,
            owner,
        };
        if !self.claims.insert(entry) {
            return;
        }
        *self.lengths.entry(net.length()).or_default() += 1;
        let Some(owner) = owner else { return };
        if let Some(nets) = self.multiple.get_mut(&owner) {
            nets.push(net);
        } else if let Some(existing) = existing {
            self.multiple.insert(owner, vec![existing, net]);
        } else {
            self.first.set(owner.index(), net);
        }
    }

    /// The prefix of the owner in `first`, if that claim still exists. It is the only prefix of an
    /// owner that has no entry in `multiple`.
    fn first_of(&self, owner: OwnerId) -> Option<N> {
        let net = self.first.get(owner.index())?;
        self.claims.get((net, Some(owner))).map(|entry| entry.net)
    }

    fn nets(&self, owner: OwnerId) -> Vec<N> {
        match self.multiple.get(&owner) {
            Some(nets) => nets.clone(),
            None => self.first_of(owner).into_iter().collect(),
        }
    }

    fn claims_of(&self, owner: OwnerId) -> impl Iterator<Item = &ClaimEntry<N>> {
        let nets = self.nets(owner).into_iter();
        nets.filter_map(move |net| self.claims.get((net, Some(owner))))
    }

    fn remove(&mut self, owner: OwnerId) {
        for net in self.nets(owner) {
            self.remove_claim((net, Some(owner)));
        }
        self.multiple.remove(&owner);
    }

    fn remove_claim(&mut self, key: Key<N>) {
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

    fn remove_unowned(&mut self, net: N) -> bool {
        let found = self.claims.get((net, None));
        let is_draining = found.is_some_and(|entry| entry.kind == ClaimKind::Draining);
        if is_draining {
            self.remove_claim((net, None));
        }
        is_draining
    }

    fn drain(&mut self, owner: OwnerId) {
        for net in self.nets(owner) {
            if let Some(entry) = self.claims.get_mut((net, Some(owner))) {
                entry.kind = ClaimKind::Draining;
            }
        }
    }

    fn detach_set(&mut self, net: N, set: SetId) {
        let in_set = |entry: &&ClaimEntry<N>| entry.set == Some(set);
        let keys: Vec<Key<N>> = self
            .inside(net)
            .filter(in_set)
            .map(ClaimEntry::key)
            .collect();
        for key in keys {
            if let Some(entry) = self.claims.get_mut(key) {
                entry.set = None;
                if entry.kind == ClaimKind::Assigned {
                    entry.kind = ClaimKind::Foreign;
                }
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = (IpNet, ClaimRecord)> {
        self.claims.iter().map(|entry| entry.to_claim())
    }

    fn overlapping(&self, net: N) -> impl Iterator<Item = (IpNet, ClaimRecord)> {
        let wider = self.lengths.range(..net.length());
        let ancestors = wider.flat_map(move |(length, _)| {
            let ancestor = net.supernet(*length);
            let claims_at = self.claims.from((ancestor, None));
            claims_at.take_while(move |entry| entry.net == ancestor)
        });
        let all = ancestors.chain(self.inside(net));
        all.map(|entry| entry.to_claim())
    }

    fn inside(&self, net: N) -> impl Iterator<Item = &ClaimEntry<N>> {
        let from = self.claims.from((net, None));
        from.take_while(move |entry| net.contains(entry.net))
    }
}
