//! Who holds which block of the cluster CIDRs.
//!
//! A block is an interval with an owner, never a bit: two holders of one block are two records, a release takes back
//! what its owner holds and nothing else, and a block number is free only when no record of any size touches it. That is what
//! keeps blocks of several sizes apart when the mask of a live cluster changes.

mod ledger;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::cluster::{ClusterRange, RangeConfig};
use crate::free::FreeBlocks;
use crate::net::{Family, widened};
use ledger::Ledger;

/// A node as a holder of blocks. Only the UID identifies it: a node that was deleted and created again under its
/// name is another owner.
#[derive(Clone, Debug)]
pub struct Owner {
    uid: Arc<str>,
    name: Arc<str>,
}

impl Owner {
    /// The node with that UID, shown to people under `name`.
    #[must_use]
    pub fn new(uid: &str, name: &str) -> Self {
        Self {
            uid: uid.into(),
            name: name.into(),
        }
    }

    /// The UID of the node.
    #[must_use]
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// The name of the node.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        self.uid == other.uid
    }
}

impl Eq for Owner {}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.name)
    }
}

/// How a block is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It belongs to a service range.
    Reserved,
    /// It fits the configuration and is the node's alone.
    Assigned(Owner),
    /// A node has it although it does not fit the configuration, or another holds it too. It is kept: nothing else is given there.
    Foreign(Owner),
    /// The node is gone, but live pods have addresses of the block. Without an owner, nobody knows whose it was.
    Draining(Option<Owner>),
}

impl Claim {
    /// The node that holds the block, or held it; none for a service range, or if it is not known.
    #[must_use]
    pub fn owner(&self) -> Option<&Owner> {
        match self {
            Self::Reserved => None,
            Self::Assigned(owner) | Self::Foreign(owner) => Some(owner),
            Self::Draining(owner) => owner.as_ref(),
        }
    }

    /// Whether the claim keeps addresses from a node: a draining block is no harm to one that has it already, if it is
    /// the old node made again or if nobody knows who had it.
    fn bars(&self, node: &Owner) -> bool {
        match self {
            Self::Draining(former) => former
                .as_ref()
                .is_some_and(|former| former.name != node.name),
            _ => self.owner() != Some(node),
        }
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reserved => f.write_str("the service range"),
            Self::Assigned(owner) | Self::Foreign(owner) => owner.fmt(f),
            Self::Draining(Some(owner)) => write!(f, "pods of the former {owner}"),
            Self::Draining(None) => f.write_str("pods of an unknown node"),
        }
    }
}

/// A prefix and who holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Without host bits.
    pub net: IpNet,
    /// Its holder.
    pub claim: Claim,
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.net, self.claim)
    }
}

/// What became of a block that a node already has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Adoption {
    /// It is as the allocator would have given it.
    Assigned,
    /// It is kept as foreign.
    Foreign(Misfit),
}

/// Why a block is foreign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// It shares addresses with the block of another holder.
    Overlaps(Overlap),
    /// No cluster CIDR contains it.
    OutOfRange {
        /// The block.
        net: IpNet,
        /// The cluster CIDR of its family, or the first one if the family has none.
        cluster: Option<IpNet>,
    },
    /// It is not of the configured size.
    WrongSize {
        /// The block.
        net: IpNet,
        /// The configured prefix length.
        node_mask: u8,
    },
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overlaps(overlap) => overlap.fmt(f),
            // The reference's text.
            Self::OutOfRange {
                net,
                cluster: Some(cluster),
            } => {
                write!(f, "cidr {net} is out the range of cluster cidr {cluster}")
            }
            Self::OutOfRange { net, cluster: None } => {
                write!(f, "cidr {net} is in no cluster cidr")
            }
            Self::WrongSize { net, node_mask } => {
                write!(
                    f,
                    "cidr {net} is a /{}, the configured node mask is /{node_mask}",
                    net.prefix_len()
                )
            }
        }
    }
}

/// A block shares addresses with one that somebody else holds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cidr {net} overlaps {held}")]
pub struct Overlap {
    /// The block that was asked for.
    pub net: IpNet,
    /// The first one in its way, and who holds it.
    pub held: Block,
}

/// Why a node was given no block.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    /// A range has no free block; try again when one is released. The text is the reference's.
    #[error(
        "CIDR allocation failed; there are no remaining CIDRs left to allocate in the accepted range"
    )]
    Exhausted {
        /// Place of the range in `--cluster-cidr`, from 0.
        index: usize,
        /// The range.
        cluster: IpNet,
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

/// How full a range is, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The range.
    pub range: ClusterRange,
    /// All blocks of it.
    pub blocks: u64,
    /// Those that a service range touches.
    pub reserved: u64,
    /// Those that anything touches, reserved ones included.
    pub used: u64,
    /// Those that can be given.
    pub free: u64,
    /// The number of the block at which the next search starts.
    pub next_candidate: u64,
}

impl Usage {
    /// How many nodes the range has room for: its blocks without the reserved ones.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.blocks - self.reserved
    }
}

#[derive(Clone, Debug)]
struct Pool {
    range: ClusterRange,
    reserved: u64,
    free: FreeBlocks,
}

/// All blocks of a cluster: one range for each family, in the order of `--cluster-cidr`.
#[derive(Clone, Debug)]
pub struct NodeBlocks {
    pools: Vec<Pool>,
    ledger: Ledger,
}

impl NodeBlocks {
    /// An empty cluster with its service ranges reserved.
    #[must_use]
    pub fn new(config: &RangeConfig) -> Self {
        let pool = |range: &ClusterRange| Pool {
            range: *range,
            reserved: 0,
            free: FreeBlocks::new(range.blocks()),
        };
        let mut blocks = Self {
            pools: config.ranges.iter().map(pool).collect(),
            ledger: Ledger::default(),
        };
        for service in &config.service_ranges {
            blocks.record(*service, Claim::Reserved);
        }
        for pool in &mut blocks.pools {
            pool.reserved = pool.free.used();
        }
        blocks
    }

    /// Gives `owner` one block of each range, round robin as the reference does, or nothing.
    ///
    /// # Errors
    ///
    /// [`AllocateError::Exhausted`] if any range is full; no range is changed then, nor its place in the round.
    /// [`AllocateError::AlreadyHolds`] if the owner has blocks.
    pub fn allocate(&mut self, owner: &Owner) -> Result<Vec<IpNet>, AllocateError> {
        if let Some(net) = self.ledger.held_by(owner.uid()).first() {
            return Err(AllocateError::AlreadyHolds {
                owner: owner.clone(),
                net: *net,
            });
        }
        if let Some((index, pool)) = self
            .pools
            .iter()
            .enumerate()
            .find(|(_, pool)| pool.free.free() == 0)
        {
            return Err(AllocateError::Exhausted {
                index,
                cluster: pool.range.cidr(),
            });
        }
        let taken: Vec<IpNet> = self
            .pools
            .iter_mut()
            .filter_map(|pool| {
                pool.free
                    .take_next()
                    .and_then(|index| pool.range.block(index))
            })
            .collect();
        for net in &taken {
            self.record(*net, Claim::Assigned(owner.clone()));
        }
        Ok(taken)
    }

    /// Records a block that somebody wants `owner` to have. Outside of the configuration it becomes foreign.
    ///
    /// # Errors
    ///
    /// [`Overlap`] if another holder has any address of it; nothing is recorded then.
    pub fn occupy(&mut self, owner: &Owner, net: IpNet) -> Result<Adoption, Overlap> {
        match self.examine(owner, net.trunc()) {
            Some(Misfit::Overlaps(overlap)) => Err(overlap),
            _ => Ok(self.adopt(owner, net)),
        }
    }

    /// Records a block that `owner` *has*, as found in its spec: never refused, since it is in use. What does not fit,
    /// overlaps included, becomes foreign. Repeating it is harmless, and a foreign block whose reason is gone
    /// becomes an assigned one.
    pub fn adopt(&mut self, owner: &Owner, net: IpNet) -> Adoption {
        let net = net.trunc();
        if let Some(Claim::Assigned(_)) = self.ledger.claim(net, owner) {
            return Adoption::Assigned;
        }
        let misfit = self.examine(owner, net);
        let found: Vec<IpNet> = self
            .ledger
            .overlapping(net)
            .filter(|(held, claim)| **claim == Claim::Draining(None) && net.contains(held))
            .map(|(held, _)| held)
            .collect();
        found.into_iter().for_each(|held| self.unhold(held));
        let claim = match misfit {
            None => Claim::Assigned(owner.clone()),
            Some(_) => Claim::Foreign(owner.clone()),
        };
        self.record(net, claim);
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
        let nets = self.ledger.held_by(uid).to_vec();
        for net in &nets {
            self.ledger.drain(*net, uid);
        }
        nets
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
            .pools
            .iter()
            .map(|pool| pool.range)
            .find(|range| range.cidr().contains(&address))?;
        let net = widened(&address, range.node_mask());
        self.record(net, Claim::Draining(None));
        Some(net)
    }

    /// Undoes [`NodeBlocks::hold`] for the block that it returned.
    pub fn unhold(&mut self, net: IpNet) {
        if self.ledger.remove_held(net) {
            self.vacate(&net);
        }
    }

    /// What the node of this UID holds, in the order in which it was recorded.
    #[must_use]
    pub fn held_by(&self, uid: &str) -> &[IpNet] {
        self.ledger.held_by(uid)
    }

    /// Every block that shares an address with `net`, widest first where they nest.
    #[must_use]
    pub fn overlapping(&self, net: IpNet) -> Vec<Block> {
        self.ledger
            .overlapping(net.trunc())
            .map(|(net, claim)| Block {
                net,
                claim: claim.clone(),
            })
            .collect()
    }

    /// Every block that contains the address.
    #[must_use]
    pub fn holders(&self, address: IpAddr) -> Vec<Block> {
        self.overlapping(IpNet::from(address))
    }

    /// All blocks in the order of their addresses.
    pub fn iter(&self) -> impl Iterator<Item = Block> {
        self.ledger.iter().map(|(net, claim)| Block {
            net,
            claim: claim.clone(),
        })
    }

    /// How full each range is, in the order of `--cluster-cidr`.
    pub fn usage(&self) -> impl Iterator<Item = Usage> {
        self.pools.iter().map(|pool| Usage {
            range: pool.range,
            blocks: pool.range.blocks(),
            reserved: pool.reserved,
            used: pool.free.used(),
            free: pool.free.free(),
            next_candidate: pool.free.next_candidate(),
        })
    }

    /// Frees the block numbers that `net` touches and no claim does.
    fn vacate(&mut self, net: &IpNet) {
        for pool in &mut self.pools {
            let Some(whole) = pool.range.whole_blocks(net) else {
                continue;
            };
            let Some((first, last)) = pool.range.indices(&whole) else {
                continue;
            };
            pool.free.vacate(first, last);
            for (other, _) in self.ledger.overlapping(whole) {
                if let Some((first, last)) = pool.range.indices(&other) {
                    pool.free.occupy(first, last);
                }
            }
        }
    }

    fn record(&mut self, net: IpNet, claim: Claim) {
        for pool in &mut self.pools {
            if let Some((first, last)) = pool.range.indices(&net) {
                pool.free.occupy(first, last);
            }
        }
        self.ledger.insert(net, claim);
    }

    fn examine(&self, owner: &Owner, net: IpNet) -> Option<Misfit> {
        let other = self
            .ledger
            .overlapping(net)
            .find(|(_, claim)| claim.bars(owner));
        if let Some((held, claim)) = other {
            return Some(Misfit::Overlaps(Overlap {
                net,
                held: Block {
                    net: held,
                    claim: claim.clone(),
                },
            }));
        }
        let family = self
            .pools
            .iter()
            .map(|pool| pool.range)
            .filter(|range| range.family() == Family::of(&net));
        match family.clone().find(|range| range.cidr().contains(&net)) {
            Some(range) if range.node_mask() == net.prefix_len() => None,
            Some(range) => Some(Misfit::WrongSize {
                net,
                node_mask: range.node_mask(),
            }),
            None => {
                let cluster = family
                    .chain(self.pools.iter().map(|pool| pool.range))
                    .next()
                    .map(|range| range.cidr());
                Some(Misfit::OutOfRange { net, cluster })
            }
        }
    }
}
