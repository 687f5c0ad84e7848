//! The blocks of the cluster CIDRs and their holders.
//!
//! A block is an interval with an owner, never a bit: two holders of one block are two records, a
//! release takes back only what its owner holds, and a block number is free only when no record of
//! any size touches it. This keeps blocks of several sizes apart when the mask of a live cluster
//! changes.

mod claim;
mod ledger;
mod set;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, net::IpAddr, num::NonZeroU16};

use ipnet::IpNet;

use crate::cluster::{ClusterRange, RangeConfig};
use crate::net::{Family, widened};
pub use claim::{Adoption, Block, Claim, Misfit, Overlap, Owner};
use ledger::{ClaimKind, ClaimRecord, Ledger, OwnerId};
pub use set::{BlockSet, InvalidSet, Usage};
use set::{RangePool, RangeSet};

/// An error of allocating blocks for a node. The texts are those of the reference, where it has
/// one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    /// A range of `--cluster-cidr` has no free block; try again when one is released.
    #[error(
        "CIDR allocation failed; there are no remaining CIDRs left to allocate in the accepted range"
    )]
    Exhausted {
        /// The index of the range in `--cluster-cidr`, from 0.
        index: usize,
        /// The range.
        cluster: IpNet,
    },
    /// Each set that selects the node has a range without a free block; try again when one is
    /// released, or with another set.
    #[error("unable to get a clusterCIDR for node {}, no available CIDRs", owner.name())]
    NoneLeft {
        /// The node.
        owner: Owner,
        /// The full range of each set, in the order in which the sets were tried.
        full: Vec<IpNet>,
    },
    /// No set selects the node; try again with another set, or when the labels of the node have
    /// changed.
    #[error("no cidrSets with matching labels found for node {}", owner.name())]
    NoMatch {
        /// The node.
        owner: Owner,
    },
    /// The node already holds blocks, which it would lose.
    #[error("{owner} already holds {net}")]
    AlreadyHolds {
        /// The node.
        owner: Owner,
        /// One of its blocks.
        net: IpNet,
    },
}

/// A set cannot be added because all numbers for sets are in use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there are {} sets of node blocks already; remove one first",
    NonZeroU16::MAX
)]
pub struct TooManySets;

/// The id of a set while it exists; its claims carry it.
type SetId = NonZeroU16;

/// All blocks of a cluster: the sets of ranges, and the claims on blocks in them or elsewhere.
#[derive(Clone, Debug, Default)]
pub struct NodeBlocks {
    sets: BTreeMap<SetId, RangeSet>,
    ledger: Ledger,
}

impl NodeBlocks {
    /// An empty cluster with the single set of the flags, and the service ranges reserved.
    #[must_use]
    pub fn new(config: &RangeConfig) -> Self {
        let mut blocks = Self::without_sets(&config.service_ranges);
        let added = blocks.add_set(BlockSet::of_flags(config));
        debug_assert_eq!(added, Ok(true));
        blocks
    }

    /// An empty cluster without sets. Service ranges stay reserved in every set that is added.
    #[must_use]
    pub fn without_sets(service_ranges: &[IpNet]) -> Self {
        let mut blocks = Self::default();
        for service in service_ranges {
            blocks.record(*service, ClaimKind::Reserved, None, None);
        }
        blocks
    }

    /// Adds a set. Blocks that nodes already have are not allocated again; they belong to the set
    /// from their next [`NodeBlocks::adopt`] on. Returns false if a set of that name exists.
    ///
    /// # Errors
    ///
    /// [`TooManySets`] if there are 65,535.
    pub fn add_set(&mut self, spec: BlockSet) -> Result<bool, TooManySets> {
        if self.find(&spec.name).is_some() {
            return Ok(false);
        }
        let id = (1..=u16::MAX)
            .filter_map(SetId::new)
            .find(|id| !self.sets.contains_key(id))
            .ok_or(TooManySets)?;
        let mut pools: Vec<RangePool> = spec.ranges.iter().copied().map(RangePool::new).collect();
        for pool in &mut pools {
            let cidr = pool.range.cidr();
            let claims = || self.ledger.overlapping(cidr);
            for (net, _) in claims().filter(|(_, held)| held.kind == ClaimKind::Reserved) {
                pool.occupy(&net);
            }
            pool.reserved = pool.free.used();
            for (net, _) in claims() {
                pool.occupy(&net);
            }
        }
        let set = RangeSet {
            spec,
            terminating: false,
            pools,
        };
        self.sets.insert(id, set);
        Ok(true)
    }

    /// Stops allocation from the set. Returns false if there is no set of that name.
    pub fn terminate_set(&mut self, name: &str) -> bool {
        let set = self.sets.values_mut().find(|set| set.spec.name == name);
        set.map(|set| set.terminating = true).is_some()
    }

    /// Removes the set. Blocks that nodes still hold of it are returned, and stay claimed, as
    /// foreign until they are adopted again.
    pub fn remove_set(&mut self, name: &str) -> Vec<Block> {
        let Some(id) = self.find(name) else {
            return Vec::new();
        };
        let left = self.of_set(id).collect();
        let gone = self.sets.remove(&id);
        for pool in gone.iter().flat_map(|set| &set.pools) {
            self.ledger.detach_set(pool.range.cidr(), id);
        }
        left
    }

    /// The sets, in unspecified order, each with true if it is terminating.
    pub fn sets(&self) -> impl Iterator<Item = (&BlockSet, bool)> {
        self.sets.values().map(|set| (&set.spec, set.terminating))
    }

    /// The blocks that nodes hold of the named set; it should not be removed while there are any.
    /// Draining blocks are not counted, since their node is gone.
    #[must_use]
    pub fn held_of(&self, set: &str) -> Vec<Block> {
        let id = self.find(set).into_iter();
        id.flat_map(|id| self.of_set(id)).collect()
    }

    /// True if nodes hold any block of the named set.
    #[must_use]
    pub fn holds_any_of(&self, set: &str) -> bool {
        let mut id = self.find(set).into_iter();
        id.any(|id| self.claims_of(id).next().is_some())
    }

    /// The names of the sets of which the node with this UID holds a block.
    #[must_use]
    pub fn sets_of(&self, uid: &str) -> Vec<&str> {
        let mut ids: Vec<SetId> = self.ledger.sets_of(uid);
        ids.sort_unstable();
        ids.dedup();
        let sets = ids.iter().filter_map(|id| self.sets.get(id));
        sets.map(|set| set.spec.name.as_str()).collect()
    }

    /// Allocates one block of each range of a set that is for all nodes to `owner`, round robin as
    /// the reference does, or none.
    ///
    /// # Errors
    ///
    /// As [`NodeBlocks::allocate_from`].
    pub fn allocate(&mut self, owner: &Owner) -> Result<Vec<IpNet>, AllocateError> {
        self.allocate_from(owner, |_| None)
    }

    /// Allocates one block of each range of a set to `owner`, round robin as the reference does, or
    /// none. `matched` returns how many requirements of the selector of the named set the node
    /// meets, or `None` if it is not selected; it is not called for sets for all nodes. Among the
    /// sets with a free block in every range, the reference's order of preference decides.
    ///
    /// # Errors
    ///
    /// [`AllocateError::Exhausted`] or [`AllocateError::NoneLeft`] if a range of each set is full;
    /// then no range is changed, nor its round-robin position. [`AllocateError::NoMatch`] if there
    /// is no set. [`AllocateError::AlreadyHolds`] if the owner has blocks.
    pub fn allocate_from(
        &mut self,
        owner: &Owner,
        matched: impl Fn(&str) -> Option<usize>,
    ) -> Result<Vec<IpNet>, AllocateError> {
        if let Some(net) = self.ledger.nets_of(owner.uid()).first() {
            return Err(AllocateError::AlreadyHolds {
                owner: owner.clone(),
                net: *net,
            });
        }
        let ranked = self.ranked(matched);
        let usable = |id: &&SetId| !self.sets[id].terminating;
        let candidates = ranked.iter().filter(usable);
        let mut full = Vec::new();
        for id in candidates {
            let set = &self.sets[id];
            let exhausted = set.pools.iter().position(|pool| pool.free.free() == 0);
            let Some(index) = exhausted else {
                return Ok(self.take(*id, owner));
            };
            let cluster = set.pools[index].range.cidr();
            if set.spec.name.is_empty() {
                return Err(AllocateError::Exhausted { index, cluster });
            }
            full.push(cluster);
        }
        let owner = owner.clone();
        if full.is_empty() {
            return Err(AllocateError::NoMatch { owner });
        }
        Err(AllocateError::NoneLeft { owner, full })
    }

    fn take(&mut self, id: SetId, owner: &Owner) -> Vec<IpNet> {
        let pools = self
            .sets
            .get_mut(&id)
            .into_iter()
            .flat_map(|set| &mut set.pools);
        let next = |pool: &mut RangePool| {
            pool.free
                .take_next()
                .and_then(|index| pool.range.block(index))
        };
        let taken: Vec<IpNet> = pools.filter_map(next).collect();
        for net in &taken {
            let owner = self.ledger.intern(owner);
            self.record(*net, ClaimKind::Assigned, Some(owner), Some(id));
        }
        taken
    }

    /// Claims a block for `owner` on request. Outside of the configured ranges it becomes foreign.
    ///
    /// # Errors
    ///
    /// [`Overlap`] if another holder has any address of it; nothing is recorded then.
    pub fn occupy(&mut self, owner: &Owner, net: IpNet) -> Result<Adoption, Overlap> {
        match self.in_the_way(owner, net.trunc()) {
            Some(overlap) => Err(overlap),
            None => Ok(self.adopt(owner, net)),
        }
    }

    /// Records a block that `owner` already has in its spec: never refused, since it is in use. A
    /// block that does not fit, overlaps included, becomes foreign. Repeating the call is harmless;
    /// a foreign block that fits by now becomes an assigned one.
    pub fn adopt(&mut self, owner: &Owner, net: IpNet) -> Adoption {
        // A fast path for the most common case of one set, since there are many nodes at the start.
        let home = match self.sets.len() {
            1 => self
                .sets
                .iter()
                .find(|(_, set)| set.fits(&net))
                .map(|(id, _)| *id),
            _ => self.home(&[net], |_| None).into_iter().next().flatten(),
        };
        self.adopt_into(owner, net.trunc(), home)
    }

    /// Adopts all blocks of a node. With several sets, `matched` decides which one they belong to:
    /// the first that all blocks fit, in the order of [`NodeBlocks::allocate_from`], then by
    /// creation. If no single set fits, each block is adopted by itself.
    pub fn adopt_from(
        &mut self,
        owner: &Owner,
        nets: &[IpNet],
        matched: impl Fn(&str) -> Option<usize>,
    ) -> Vec<Adoption> {
        let homes = self.home(nets, matched);
        let each = nets.iter().zip(homes);
        each.map(|(net, home)| self.adopt_into(owner, net.trunc(), home))
            .collect()
    }

    fn adopt_into(&mut self, owner: &Owner, net: IpNet, home: Option<SetId>) -> Adoption {
        let id = self.ledger.intern(owner);
        let (mut overlap, mut found) = (None, Vec::new());
        for (other, held) in self.ledger.overlapping(net) {
            if (other, held.owner, held.kind) == (net, Some(id), ClaimKind::Assigned)
                && held.set.is_some()
            {
                return Adoption::Assigned;
            }
            if overlap.is_none() && self.bars(held, Some(id), owner) {
                overlap = Some(self.overlap(net, other, held));
            }
            if held.kind == ClaimKind::Draining && held.owner.is_none() && net.contains(&other) {
                found.push(other);
            }
        }
        let misfit = overlap.map(Misfit::Overlaps);
        let misfit = misfit.or_else(|| home.is_none().then(|| self.misfit(net)));
        found
            .into_iter()
            .for_each(|inner| self.release_unowned(inner));
        let kind = match misfit {
            None => ClaimKind::Assigned,
            Some(_) => ClaimKind::Foreign,
        };
        self.record(net, kind, Some(id), home);
        misfit.map_or(Adoption::Assigned, Adoption::Foreign)
    }

    /// Releases all blocks of the node with this UID. A block number becomes free when no other
    /// claim touches it. Returns the released blocks; none if the UID is unknown.
    pub fn release(&mut self, uid: &str) -> Vec<IpNet> {
        let released = self.ledger.remove(uid);
        for net in &released {
            self.vacate(net);
        }
        released
    }

    /// Marks all blocks of the node with this UID as draining: the node is gone, but its addresses
    /// may be in use. No block becomes free. Returns the blocks.
    pub fn drain(&mut self, uid: &str) -> Vec<IpNet> {
        self.ledger.drain(uid)
    }

    /// Claims the block that contains `address` as draining, without an owner, so that it is not
    /// allocated. Does nothing if a claim contains the address already, or if no range does.
    pub fn drain_unowned(&mut self, address: IpAddr) -> Option<IpNet> {
        let address = IpNet::from(address);
        // Only an ancestor, or the address itself, overlaps a single address.
        if self.ledger.overlapping(address).next().is_some() {
            return None;
        }
        let range = self
            .ranges()
            .find(|range| range.cidr().contains(&address))?;
        let net = widened(&address, range.node_mask());
        self.record(net, ClaimKind::Draining, None, None);
        Some(net)
    }

    /// Undoes [`NodeBlocks::drain_unowned`] for the block that it returned.
    pub fn release_unowned(&mut self, net: IpNet) {
        if self.ledger.remove_unowned(net) {
            self.vacate(&net);
        }
    }

    /// The blocks of the node with this UID, IPv4 first, and within a family in the order in which
    /// they were recorded.
    #[must_use]
    pub fn blocks_of(&self, uid: &str) -> Vec<IpNet> {
        self.ledger.nets_of(uid)
    }

    /// All blocks that share an address with `net`, widest first where they nest.
    #[must_use]
    pub fn overlapping(&self, net: IpNet) -> Vec<Block> {
        self.each_overlapping(net).collect()
    }

    /// The blocks that share an address with `net`, as an iterator.
    pub fn each_overlapping(&self, net: IpNet) -> impl Iterator<Item = Block> {
        let claims = self.ledger.overlapping(net.trunc());
        claims.map(|(net, held)| self.ledger.block(net, held))
    }

    /// All blocks that contain the address.
    #[must_use]
    pub fn holders(&self, address: IpAddr) -> Vec<Block> {
        self.overlapping(IpNet::from(address))
    }

    /// All blocks in address order.
    pub fn iter(&self) -> impl Iterator<Item = Block> {
        self.ledger
            .iter()
            .map(|(net, held)| self.ledger.block(net, held))
    }

    /// The usage of each range; the ranges of one set are together, in the order of the set.
    pub fn usage(&self) -> impl Iterator<Item = Usage> {
        self.sets.values().flat_map(RangeSet::usage)
    }

    /// The usage of each range, with the name of its set.
    pub fn usage_by_set(&self) -> impl Iterator<Item = (&str, Usage)> {
        let sets = self.sets.values();
        sets.flat_map(|set| set.usage().map(|usage| (set.spec.name.as_str(), usage)))
    }

    /// The usage of each range of the named set.
    pub fn usage_of(&self, set: &str) -> impl Iterator<Item = Usage> {
        let set = self.find(set).and_then(|id| self.sets.get(&id));
        set.into_iter().flat_map(RangeSet::usage)
    }

    fn find(&self, name: &str) -> Option<SetId> {
        let of_name = |(_, set): &(&SetId, &RangeSet)| set.spec.name == name;
        self.sets.iter().find(of_name).map(|(id, _)| *id)
    }

    fn ranges(&self) -> impl Iterator<Item = ClusterRange> {
        let pools = self.sets.values().flat_map(|set| &set.pools);
        pools.map(|pool| pool.range)
    }

    fn of_set(&self, id: SetId) -> impl Iterator<Item = Block> {
        let claims = self.claims_of(id);
        claims.map(|(net, held)| self.ledger.block(net, held))
    }

    fn claims_of(&self, id: SetId) -> impl Iterator<Item = (IpNet, ClaimRecord)> {
        let ranges = self.sets.get(&id).into_iter().flat_map(|set| &set.pools);
        let claims = ranges.flat_map(|pool| self.ledger.overlapping(pool.range.cidr()));
        claims.filter(move |(_, held)| {
            held.set == Some(id) && matches!(held.kind, ClaimKind::Assigned | ClaimKind::Foreign)
        })
    }

    /// The sets that select a node, the preferred one first.
    fn ranked(&self, matched: impl Fn(&str) -> Option<usize>) -> Vec<SetId> {
        let ranks = self.sets.iter();
        let mut ranks: Vec<_> = ranks
            .filter_map(|(id, set)| Some((set.rank(&matched)?, *id)))
            .collect();
        ranks.sort_unstable();
        ranks.into_iter().map(|(_, id)| id).collect()
    }

    /// For each block of a node, the set that it belongs to.
    fn home(&self, nets: &[IpNet], matched: impl Fn(&str) -> Option<usize>) -> Vec<Option<SetId>> {
        let mut order = self.ranked(matched);
        let mut others: Vec<&SetId> = self.sets.keys().filter(|id| !order.contains(id)).collect();
        others.sort_by_key(|id| {
            let BlockSet { created, name, .. } = &self.sets[id].spec;
            (created, name)
        });
        let others: Vec<SetId> = others.into_iter().copied().collect();
        order.extend(others);
        let first =
            |fit: &dyn Fn(&RangeSet) -> bool| order.iter().find(|id| fit(&self.sets[id])).copied();
        let of_all = first(&|set| nets.iter().all(|net| set.fits(net)));
        nets.iter()
            .map(|net| of_all.or_else(|| first(&|set| set.fits(net))))
            .collect()
    }

    /// Frees the block numbers that `net` touches and no claim does.
    fn vacate(&mut self, net: &IpNet) {
        for pool in self.sets.values_mut().flat_map(|set| &mut set.pools) {
            let Some(whole) = pool.range.whole_blocks(net) else {
                continue;
            };
            let Some((first, last)) = pool.range.indices(&whole) else {
                continue;
            };
            pool.free.vacate(first, last);
            for (other, _) in self.ledger.overlapping(whole) {
                pool.occupy(&other);
            }
        }
    }

    fn record(&mut self, net: IpNet, kind: ClaimKind, owner: Option<OwnerId>, set: Option<SetId>) {
        for pool in self.sets.values_mut().flat_map(|set| &mut set.pools) {
            pool.occupy(&net);
        }
        self.ledger.insert(net, ClaimRecord { kind, owner, set });
    }

    fn in_the_way(&self, owner: &Owner, net: IpNet) -> Option<Overlap> {
        let id = self.ledger.find(owner.uid());
        let mut claims = self.ledger.overlapping(net);
        let (other, held) = claims.find(|(_, held)| self.bars(*held, id, owner))?;
        Some(self.overlap(net, other, held))
    }

    /// True if the claim keeps addresses from a node that asks for them. A draining block does not
    /// if the node is the former owner, created again under its name, or the former owner is
    /// unknown.
    fn bars(&self, held: ClaimRecord, id: Option<OwnerId>, owner: &Owner) -> bool {
        match (held.kind, held.owner) {
            (ClaimKind::Draining, former) => {
                former.is_some_and(|former| self.ledger.name(former) != owner.name())
            }
            (_, holder) => holder.is_none() || holder != id,
        }
    }

    fn overlap(&self, net: IpNet, other: IpNet, held: ClaimRecord) -> Overlap {
        Overlap {
            net,
            held: self.ledger.block(other, held),
        }
    }

    /// The reason why a block belongs to no set.
    fn misfit(&self, net: IpNet) -> Misfit {
        let family = || {
            self.ranges()
                .filter(|range| range.family() == Family::of(&net))
        };
        match family().find(|range| range.cidr().contains(&net)) {
            Some(range) => Misfit::WrongSize {
                net,
                node_mask: range.node_mask(),
            },
            None => Misfit::OutOfRange {
                net,
                cluster: family()
                    .chain(self.ranges())
                    .next()
                    .map(|range| range.cidr()),
            },
        }
    }
}
