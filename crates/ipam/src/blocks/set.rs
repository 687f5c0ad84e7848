//! Sets of ranges: the one that the flags name, or those of ClusterCIDRs, which come and go.

use std::cmp::Reverse;

use ipnet::IpNet;

use crate::cluster::{ClusterRange, MAX_IPV6_BLOCK_BITS, RangeConfig, RangeConfigError};
use crate::free::FreeBlocks;
use crate::net::Family;

/// Ranges that give a node one block each, and the nodes that they are for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockSet {
    /// The name of the ClusterCIDR; empty for the set of the flags.
    pub name: String,
    /// When it was made, in any unit. Of sets for all nodes the older one goes first; at the same time, the lower name.
    pub created: u64,
    /// Which nodes it is for, as text. It is not understood here, but of two sets that suit a node equally well the one whose text is lower goes
    /// first. `None`: for all nodes.
    pub selector: Option<String>,
    /// At most one of each family, in the order of a node's podCIDRs.
    pub ranges: Vec<ClusterRange>,
}

/// Why there can be no such set. The texts are the reference's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSet {
    /// No range.
    #[error("one or both of `ipv4` and `ipv6` must be specified")]
    NoRange,
    /// More than 2^16 IPv6 blocks.
    #[error(
        "Creation of New CIDR Set failed for {cidr}. PerNodeMaskSize {node_mask} is too big for CIDR Mask {}, Maximum difference allowed is {MAX_IPV6_BLOCK_BITS}",
        cidr.prefix_len()
    )]
    TooManyBlocks {
        /// The range.
        cidr: IpNet,
        /// The prefix length of a block.
        node_mask: u8,
    },
    /// A block would have more addresses than the range.
    #[error("perNodeHostBits: Invalid value: {host_bits}: must be less than or equal to {}", Family::of(cidr).bits() - cidr.prefix_len())]
    TooManyHostBits {
        /// The range.
        cidr: IpNet,
        /// The bits of a block's addresses.
        host_bits: u8,
    },
}

impl BlockSet {
    /// The set of `--cluster-cidr`, for all nodes.
    #[must_use]
    pub fn of_flags(config: &RangeConfig) -> Self {
        Self {
            name: String::new(),
            created: 0,
            selector: None,
            ranges: config.ranges.clone(),
        }
    }

    /// The ranges of a ClusterCIDR, IPv4 first: blocks of 2^`per_node_host_bits` addresses.
    ///
    /// # Errors
    ///
    /// [`InvalidSet`] if there is no range, or one cannot be cut in this way.
    pub fn ranges(
        per_node_host_bits: u8,
        ipv4: Option<IpNet>,
        ipv6: Option<IpNet>,
    ) -> Result<Vec<ClusterRange>, InvalidSet> {
        let range = |cidr: IpNet| {
            let too_many_host_bits = InvalidSet::TooManyHostBits {
                cidr,
                host_bits: per_node_host_bits,
            };
            let Some(node_mask) = Family::of(&cidr).bits().checked_sub(per_node_host_bits) else {
                return Err(too_many_host_bits);
            };
            ClusterRange::new(cidr, node_mask).map_err(|error| match error {
                RangeConfigError::TooManyBlocks => InvalidSet::TooManyBlocks { cidr, node_mask },
                _ => too_many_host_bits,
            })
        };
        let ranges: Vec<ClusterRange> = [ipv4, ipv6]
            .into_iter()
            .flatten()
            .map(range)
            .collect::<Result<_, _>>()?;
        if ranges.is_empty() {
            return Err(InvalidSet::NoRange);
        }
        Ok(ranges)
    }
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

/// One range of a set.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    pub(super) range: ClusterRange,
    pub(super) reserved: u64,
    pub(super) free: FreeBlocks,
}

impl Pool {
    pub(super) fn new(range: ClusterRange) -> Self {
        Self {
            range,
            reserved: 0,
            free: FreeBlocks::new(range.blocks()),
        }
    }

    /// Nothing of `net` can be given.
    pub(super) fn occupy(&mut self, net: &IpNet) {
        if let Some((first, last)) = self.range.indices(net) {
            self.free.occupy(first, last);
        }
    }

    fn usage(&self) -> Usage {
        Usage {
            range: self.range,
            blocks: self.range.blocks(),
            reserved: self.reserved,
            used: self.free.used(),
            free: self.free.free(),
            next_candidate: self.free.next_candidate(),
        }
    }
}

/// A set with what is left of it.
#[derive(Clone, Debug)]
pub(super) struct Set {
    pub(super) spec: BlockSet,
    pub(super) terminating: bool,
    pub(super) pools: Vec<Pool>,
}

/// The reference's order of sets that suit a node; the least one goes first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank<'a> {
    Selected(Selected<'a>),
    Everyone { created: u64, name: &'a str },
}

/// The fields are compared in this order.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Selected<'a> {
    requirements: Reverse<usize>,
    /// All blocks of its smallest range, given or not.
    blocks: u64,
    /// Bits of the addresses of a block.
    host_bits: u8,
    selector: &'a str,
    /// Texts, not numbers: 10.0.0.0/8 goes before 9.0.0.0/8.
    cidr: String,
    name: &'a str,
}

impl Set {
    /// Where the set stands for a node that meets so many requirements of its selector; `None` if the selector does not select the node.
    pub(super) fn rank(&self, matched: impl Fn(&str) -> Option<usize>) -> Option<Rank<'_>> {
        let BlockSet {
            name,
            created,
            selector,
            ranges,
        } = &self.spec;
        let Some(selector) = selector else {
            return Some(Rank::Everyone {
                created: *created,
                name,
            });
        };
        let requirements = Reverse(matched(name)?);
        let host_bits = |range: &ClusterRange| range.family().bits() - range.node_mask();
        let first = ranges.first()?;
        Some(Rank::Selected(Selected {
            requirements,
            blocks: ranges.iter().map(ClusterRange::blocks).min()?,
            host_bits: host_bits(first),
            selector,
            cidr: first.cidr().to_string(),
            name,
        }))
    }

    pub(super) fn usage(&self) -> impl Iterator<Item = Usage> {
        self.pools.iter().map(Pool::usage)
    }

    /// Whether it would have given this block: it is in a range, and of its size.
    pub(super) fn fits(&self, net: &IpNet) -> bool {
        self.pools.iter().any(|pool| {
            pool.range.cidr().contains(net) && pool.range.node_mask() == net.prefix_len()
        })
    }
}
