//! Sets of ranges: the one of the flags, or those of ClusterCIDRs, which can be added and removed.

use std::cmp::Reverse;

use ipnet::IpNet;

use crate::cluster::{ClusterRange, MAX_IPV6_BLOCK_BITS, RangeConfig, RangeConfigError};
use crate::free::FreeBlocks;
use crate::net::Family;

/// Ranges that give one block each to a node, and a selector of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockSet {
    /// The name of the ClusterCIDR; empty for the set of the flags.
    pub name: String,
    /// The creation time in any unit. Of sets for all nodes the oldest is preferred; at the same
    /// time, the lower name.
    pub created: u64,
    /// The text form of the node selector. It is not parsed here; but of two sets that suit a node
    /// equally well, the one with the lower text is preferred. `None` selects all nodes.
    pub selector: Option<String>,
    /// At most one range of each family, in the order of a node's podCIDRs.
    pub ranges: Vec<ClusterRange>,
}

/// An error in the ranges of a set. The texts are those of the reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSet {
    /// There is no range.
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
        /// The host bits of a block.
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
    /// [`InvalidSet`] if there is no range, or one cannot be divided like this.
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

/// The usage of a range, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The range.
    pub range: ClusterRange,
    /// All blocks of the range.
    pub blocks: u64,
    /// Blocks that a service range touches.
    pub reserved: u64,
    /// Blocks that any claim touches, reserved ones included.
    pub used: u64,
    /// Blocks that can be allocated.
    pub free: u64,
    /// The number of the block at which the next search starts.
    pub next_candidate: u64,
}

impl Usage {
    /// The number of nodes that the range has room for: its blocks without the reserved ones.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.blocks - self.reserved
    }
}

/// One range of a set.
#[derive(Clone, Debug)]
pub(super) struct RangePool {
    pub(super) range: ClusterRange,
    pub(super) reserved: u64,
    pub(super) free: FreeBlocks,
}

impl RangePool {
    pub(super) fn new(range: ClusterRange) -> Self {
        Self {
            range,
            reserved: 0,
            free: FreeBlocks::new(range.blocks()),
        }
    }

    /// Marks all blocks that `net` touches as used.
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

/// A set and the free blocks of its ranges.
#[derive(Clone, Debug)]
pub(super) struct RangeSet {
    pub(super) spec: BlockSet,
    pub(super) terminating: bool,
    pub(super) pools: Vec<RangePool>,
}

/// The reference's order of preference among sets that select a node; the lowest comes first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SetRank<'a> {
    SelectorRank(SelectorRank<'a>),
    Everyone { created: u64, name: &'a str },
}

/// The rank of a set with a selector. The fields are compared in this order.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SelectorRank<'a> {
    requirements: Reverse<usize>,
    /// The number of blocks of the smallest range, free or not.
    blocks: u64,
    /// The host bits of a block.
    host_bits: u8,
    selector: &'a str,
    /// Compared as text, not as numbers: 10.0.0.0/8 comes before 9.0.0.0/8.
    cidr: String,
    name: &'a str,
}

impl RangeSet {
    /// The rank of the set for a node; `matched` returns how many requirements of the selector the
    /// node meets. `None` if the selector does not select the node.
    pub(super) fn rank(&self, matched: impl Fn(&str) -> Option<usize>) -> Option<SetRank<'_>> {
        let BlockSet {
            name,
            created,
            selector,
            ranges,
        } = &self.spec;
        let Some(selector) = selector else {
            return Some(SetRank::Everyone {
                created: *created,
                name,
            });
        };
        let requirements = Reverse(matched(name)?);
        let host_bits = |range: &ClusterRange| range.family().bits() - range.node_mask();
        let first = ranges.first()?;
        Some(SetRank::SelectorRank(SelectorRank {
            requirements,
            blocks: ranges.iter().map(ClusterRange::blocks).min()?,
            host_bits: host_bits(first),
            selector,
            cidr: first.cidr().to_string(),
            name,
        }))
    }

    pub(super) fn usage(&self) -> impl Iterator<Item = Usage> {
        self.pools.iter().map(RangePool::usage)
    }

    /// True if the set would have allocated this block: it is in a range, and of its block size.
    pub(super) fn fits(&self, net: &IpNet) -> bool {
        self.pools.iter().any(|pool| {
            pool.range.cidr().contains(net) && pool.range.node_mask() == net.prefix_len()
        })
    }
}
