//! Who holds which block of the cluster CIDRs.
//!
//! A block is an interval with an owner, never a bit: two holders of one block are two records, a release takes back
//! what its owner holds and nothing else, and a block number is free only when no record of any size touches it. That is what
//! keeps blocks of several sizes apart when the mask of a live cluster changes.

mod claim;
mod ledger;
mod set;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU16;

use ipnet::IpNet;

use crate::cluster::{ClusterRange, RangeConfig};
use crate::net::{Family, widened};
pub use claim::{Adoption, Block, Claim, Misfit, Overlap, Owner};
use ledger::{Held, Kind, Ledger, OwnerId};
pub use set::{BlockSet, InvalidSet, Usage};
use set::{Pool, Set};

/// Why a node was given no block. The texts are the reference's, where it has one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    /// A range of `--cluster-cidr` has no free block; try again when one is released.
    #[error(
        "CIDR allocation failed; there are no remaining CIDRs left to allocate in the accepted range"
    )]
    Exhausted {
        /// Place of the range in `--cluster-cidr`, from 0.
        index: usize,
        /// The range.
        cluster: IpNet,
    },
    /// Each set that is for the node has a range without a free block; try again when one is released, or with another set.
    #[error("unable to get a clusterCIDR for node {}, no available CIDRs", owner.name())]
    NoneLeft {
        /// The node.
        owner: Owner,
        /// The full range of each set, in the order in which the sets were asked.
        full: Vec<IpNet>,
    },
    /// No set is for the node; try again with another set, or when the labels of the node have changed.
    #[error("no cidrSets with matching labels found for node {}", owner.name())]
    NoMatch {
        /// The node.
        owner: Owner,
    },
    /// The node holds blocks already; it would lose track of them.
    #[error("{owner} already holds {net}")]
    AlreadyHolds {
        /// The node.
        owner: Owner,
        /// One of its blocks.
        net: IpNet,
    },
}

/// A set cannot be added: there are as many as can be numbered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there are {} sets of node blocks already; remove one first",
    NonZeroU16::MAX
)]
pub struct TooManySets;

/// Names a set as long as it is there; its claims carry it.
type SetId = NonZeroU16;

/// All blocks of a cluster: sets of ranges, and who holds what of them or elsewhere.
#[derive(Clone, Debug, Default)]
pub struct NodeBlocks {
    sets: BTreeMap<SetId, Set>,
    ledger: Ledger,
}

impl NodeBlocks {
    /// An empty cluster with the one set of the flags, and the service ranges reserved.
    #[must_use]
    pub fn new(config: &RangeConfig) -> Self {
        let mut blocks = Self::without_sets(&config.service_ranges);
        let added = blocks.add_set(BlockSet::of_flags(config));
        debug_assert_eq!(added, Ok(true));
        blocks
    }

    /// An empty cluster that has no set yet. What is reserved stays so in every set that comes.
    #[must_use]
    pub fn without_sets(service_ranges: &[IpNet]) -> Self {
        let mut blocks = Self::default();
        for service in service_ranges {
            blocks.record(*service, Kind::Reserved, None, None);
        }
        blocks
    }

    /// Adds a set. Blocks that nodes have already are not given again; they are of the set from their next [`NodeBlocks::adopt`] on. Returns whether
    /// it was added: not if there is one of its name.
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
        let mut pools: Vec<Pool> = spec.ranges.iter().copied().map(Pool::new).collect();
        for pool in &mut pools {
            let cidr = pool.range.cidr();
            let claims = || self.ledger.overlapping(cidr);
            for (net, _) in claims().filter(|(_, held)| held.kind == Kind::Reserved) {
                pool.occupy(&net);
            }
            pool.reserved = pool.free.used();
            for (net, _) in claims() {
                pool.occupy(&net);
            }
        }
        let set = Set {
            spec,
            terminating: false,
            pools,
        };
        self.sets.insert(id, set);
        Ok(true)
    }

    /// Gives nothing more of the set. Returns whether there is one of that name.
    pub fn terminate_set(&mut self, name: &str) -> bool {
        let set = self.sets.values_mut().find(|set| set.spec.name == name);
        set.map(|set| set.terminating = true).is_some()
    }

    /// Forgets the set. What nodes still hold of it is returned, and stays theirs, as foreign until they are adopted again.
    pub fn remove_set(&mut self, name: &str) -> Vec<Block> {
        let Some(id) = self.find(name) else {
            return Vec::new();
        };
        let left = self.of_set(id).collect();
        let gone = self.sets.remove(&id);
        for pool in gone.iter().flat_map(|set| &set.pools) {
            self.ledger.forget_set(pool.range.cidr(), id);
        }
        left
    }

    /// The sets, in no order that means anything, and whether each is terminating.
    pub fn sets(&self) -> impl Iterator<Item = (&BlockSet, bool)> {
        self.sets.values().map(|set| (&set.spec, set.terminating))
    }

    /// What nodes hold of the set of that name; it should not be removed before this is empty. Draining blocks are of no node any more.
    #[must_use]
    pub fn held_of(&self, set: &str) -> Vec<Block> {
        let id = self.find(set).into_iter();
        id.flat_map(|id| self.of_set(id)).collect()
    }

    /// Whether nodes hold anything of the set of that name.
    #[must_use]
    pub fn holds_any_of(&self, set: &str) -> bool {
        let mut id = self.find(set).into_iter();
        id.any(|id| self.claims_of(id).next().is_some())
    }

    /// The names of the sets of which the node of this UID holds a block.
    #[must_use]
    pub fn sets_of(&self, uid: &str) -> Vec<&str> {
        let mut ids: Vec<SetId> = self.ledger.sets_of(uid);
        ids.sort_unstable();
        ids.dedup();
        let sets = ids.iter().filter_map(|id| self.sets.get(id));
        sets.map(|set| set.spec.name.as_str()).collect()
    }

    /// Gives `owner` one block of each range of a set that is for all nodes, round robin as the reference does, or nothing.
    ///
    /// # Errors
    ///
    /// As [`NodeBlocks::allocate_from`].
    pub fn allocate(&mut self, owner: &Owner) -> Result<Vec<IpNet>, AllocateError> {
        self.allocate_from(owner, |_| None)
    }

    /// Gives `owner` one block of each range of a set, round robin as the reference does, or nothing. `matched` says how many requirements
    /// of the selector of the set of that name the node meets, or `None` if the selector does not select it; it is not asked about sets for all
    /// nodes. The reference's order of preference decides among the sets that have a free block in every range.
    ///
    /// # Errors
    ///
    /// [`AllocateError::Exhausted`] or [`AllocateError::NoneLeft`] if a range of each set is full; no range is changed then, nor its place
    /// in the round. [`AllocateError::NoMatch`] if there is no set. [`AllocateError::AlreadyHolds`] if the owner has blocks.
    pub fn allocate_from(
        &mut self,
        owner: &Owner,
        matched: impl Fn(&str) -> Option<usize>,
    ) -> Result<Vec<IpNet>, AllocateError> {
        if let Some(net) = self.ledger.held_by(owner.uid()).first() {
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
        let next = |pool: &mut Pool| {
            pool.free
                .take_next()
                .and_then(|index| pool.range.block(index))
        };
        let taken: Vec<IpNet> = pools.filter_map(next).collect();
        for net in &taken {
            let owner = self.ledger.intern(owner);
            self.record(*net, Kind::Assigned, Some(owner), Some(id));
        }
        taken
    }

    /// Records a block that somebody wants `owner` to have. Outside of the configuration it becomes foreign.
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

    /// Records a block that `owner` *has*, as found in its spec: never refused, since it is in use. What does not fit,
    /// overlaps included, becomes foreign. Repeating it is harmless, and a foreign block whose reason is gone
    /// becomes an assigned one.
    pub fn adopt(&mut self, owner: &Owner, net: IpNet) -> Adoption {
        // By far the most common is one set, and there are many nodes at the start.
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

    /// The same of all blocks of a node, whose labels say which of several sets they are of: the first one that all of them fit, in the order of
    /// [`NodeBlocks::allocate_from`], then in that of their making. Blocks that no single set fits are looked at one by one.
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
            if (other, held.owner, held.kind) == (net, Some(id), Kind::Assigned)
                && held.set.is_some()
            {
                return Adoption::Assigned;
            }
            if overlap.is_none() && self.bars(held, Some(id), owner) {
                overlap = Some(self.overlap(net, other, held));
            }
            if held.kind == Kind::Draining && held.owner.is_none() && net.contains(&other) {
                found.push(other);
            }
        }
        let misfit = overlap.map(Misfit::Overlaps);
        let misfit = misfit.or_else(|| home.is_none().then(|| self.misfit(net)));
        found.into_iter().for_each(|inner| self.unhold(inner));
        let kind = match misfit {
            None => Kind::Assigned,
            Some(_) => Kind::Foreign,
        };
        self.record(net, kind, Some(id), home);
        misfit.map_or(Adoption::Assigned, Adoption::Foreign)
    }

    /// Takes back everything that the node of this UID holds. A block number becomes free when nobody else touches it.
    /// Returns what was held, which is nothing if the UID is not known.
    pub fn release(&mut self, uid: &str) -> Vec<IpNet> {
        let released = self.ledger.remove(uid);
        for net in &released {
            self.vacate(net);
        }
        released
    }

    /// Marks everything that the node of this UID holds as draining: the node is gone, but its addresses may be in use.
    /// Nothing becomes free. Returns what is held.
    pub fn drain(&mut self, uid: &str) -> Vec<IpNet> {
        self.ledger.drain(uid)
    }

    /// Keeps the block that contains `address` from being given, as draining, although nobody is known to have held it.
    /// Nothing is done if a claim contains the address already, or if no range does.
    pub fn hold(&mut self, address: IpAddr) -> Option<IpNet> {
        let address = IpNet::from(address);
        // Only an ancestor, or the address itself, overlaps a single address.
        if self.ledger.overlapping(address).next().is_some() {
            return None;
        }
        let range = self
            .ranges()
            .find(|range| range.cidr().contains(&address))?;
        let net = widened(&address, range.node_mask());
        self.record(net, Kind::Draining, None, None);
        Some(net)
    }

    /// Undoes [`NodeBlocks::hold`] for the block that it returned.
    pub fn unhold(&mut self, net: IpNet) {
        if self.ledger.remove_held(net) {
            self.vacate(&net);
        }
    }

    /// What the node of this UID holds, IPv4 first, and of each family in the order in which it was recorded.
    #[must_use]
    pub fn held_by(&self, uid: &str) -> Vec<IpNet> {
        self.ledger.held_by(uid)
    }

    /// Every block that shares an address with `net`, widest first where they nest.
    #[must_use]
    pub fn overlapping(&self, net: IpNet) -> Vec<Block> {
        self.each_overlapping(net).collect()
    }

    /// The same one by one, for whoever does not want all.
    pub fn each_overlapping(&self, net: IpNet) -> impl Iterator<Item = Block> {
        let claims = self.ledger.overlapping(net.trunc());
        claims.map(|(net, held)| self.ledger.block(net, held))
    }

    /// Every block that contains the address.
    #[must_use]
    pub fn holders(&self, address: IpAddr) -> Vec<Block> {
        self.overlapping(IpNet::from(address))
    }

    /// All blocks in the order of their addresses.
    pub fn iter(&self) -> impl Iterator<Item = Block> {
        self.ledger
            .iter()
            .map(|(net, held)| self.ledger.block(net, held))
    }

    /// How full each range is; those of one set are together, in the order of their set.
    pub fn usage(&self) -> impl Iterator<Item = Usage> {
        self.sets.values().flat_map(Set::usage)
    }

    /// How full each range is, by the name of its set.
    pub fn usage_by_set(&self) -> impl Iterator<Item = (&str, Usage)> {
        let sets = self.sets.values();
        sets.flat_map(|set| set.usage().map(|usage| (set.spec.name.as_str(), usage)))
    }

    /// How full each range of the set of that name is.
    pub fn usage_of(&self, set: &str) -> impl Iterator<Item = Usage> {
        let set = self.find(set).and_then(|id| self.sets.get(&id));
        set.into_iter().flat_map(Set::usage)
    }

    fn find(&self, name: &str) -> Option<SetId> {
        let of_name = |(_, set): &(&SetId, &Set)| set.spec.name == name;
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

    fn claims_of(&self, id: SetId) -> impl Iterator<Item = (IpNet, Held)> {
        let ranges = self.sets.get(&id).into_iter().flat_map(|set| &set.pools);
        let claims = ranges.flat_map(|pool| self.ledger.overlapping(pool.range.cidr()));
        claims.filter(move |(_, held)| {
            held.set == Some(id) && matches!(held.kind, Kind::Assigned | Kind::Foreign)
        })
    }

    /// The sets that are for a node, the preferred one first.
    fn ranked(&self, matched: impl Fn(&str) -> Option<usize>) -> Vec<SetId> {
        let ranks = self.sets.iter();
        let mut ranks: Vec<_> = ranks
            .filter_map(|(id, set)| Some((set.rank(&matched)?, *id)))
            .collect();
        ranks.sort_unstable();
        ranks.into_iter().map(|(_, id)| id).collect()
    }

    /// The set that each of a node's blocks is of.
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
            |fit: &dyn Fn(&Set) -> bool| order.iter().find(|id| fit(&self.sets[id])).copied();
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

    fn record(&mut self, net: IpNet, kind: Kind, owner: Option<OwnerId>, set: Option<SetId>) {
        for pool in self.sets.values_mut().flat_map(|set| &mut set.pools) {
            pool.occupy(&net);
        }
        self.ledger.insert(net, Held { kind, owner, set });
    }

    fn in_the_way(&self, owner: &Owner, net: IpNet) -> Option<Overlap> {
        let id = self.ledger.find(owner.uid());
        let mut claims = self.ledger.overlapping(net);
        let (other, held) = claims.find(|(_, held)| self.bars(*held, id, owner))?;
        Some(self.overlap(net, other, held))
    }

    /// Whether the claim keeps addresses from a node: a draining block is no harm to one that has it already, if it is
    /// the old node made again or if nobody knows who had it.
    fn bars(&self, held: Held, id: Option<OwnerId>, owner: &Owner) -> bool {
        match (held.kind, held.owner) {
            (Kind::Draining, former) => {
                former.is_some_and(|former| self.ledger.name(former) != owner.name())
            }
            (_, holder) => holder.is_none() || holder != id,
        }
    }

    fn overlap(&self, net: IpNet, other: IpNet, held: Held) -> Overlap {
        Overlap {
            net,
            held: self.ledger.block(other, held),
        }
    }

    /// What is wrong with a block that is of no set.
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
