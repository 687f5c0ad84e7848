//! The reference's set of blocks: one bit for each, without owners.

use std::net::IpAddr;

use ipnet::IpNet;

use super::bits::Bits;
use crate::cluster::{ClusterRange, RangeConfigError};
use crate::net::{overlap, widened};

/// The blocks of one cluster CIDR.
///
/// Occupying an occupied block and releasing a free one succeed; a prefix of any length stands for
/// every block that it touches, so releasing it may free the blocks of other nodes.
#[derive(Clone, Debug)]
pub struct CidrSet {
    cluster: IpNet,
    node_mask: u8,
    /// `None` where the mask is shorter than the cluster's: then there is no block.
    range: Option<ClusterRange>,
    bits: Bits,
    used: u64,
    next_candidate: u64,
    allocations: u64,
    releases: u64,
}

/// An allocated block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocatedBlock {
    /// The block.
    pub cidr: IpNet,
    /// The number of used blocks that were skipped.
    pub tries: u64,
}

/// An error of a set. The texts are those of the reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CidrSetError {
    /// Every block is used.
    #[error(
        "CIDR allocation failed; there are no remaining CIDRs left to allocate in the accepted range"
    )]
    NoneRemaining,
    /// There are more than 2^16 IPv6 blocks, or the family does not have the mask.
    #[error(transparent)]
    Range(RangeConfigError),
}

/// A prefix outside of the set. The texts are those of the reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutOfRange {
    /// The prefix lies elsewhere, or is of the other family.
    #[error("cidr {cidr} is out the range of cluster cidr {cluster}")]
    Elsewhere {
        /// The prefix.
        cidr: IpNet,
        /// The set's range.
        cluster: IpNet,
    },
    /// The prefix lies in the range, which has no such block.
    #[error("CIDR: {address}/{mask} is out of the range of CIDR allocator")]
    NoSuchBlock {
        /// The block's first address.
        address: IpAddr,
        /// The prefix length of a block.
        mask: u8,
    },
}

impl CidrSet {
    /// Creates a set of the blocks of length `node_mask` in `cluster`, all of them free.
    ///
    /// # Errors
    ///
    /// [`CidrSetError::Range`].
    pub fn new(cluster: IpNet, node_mask: u8) -> Result<Self, CidrSetError> {
        let range = match ClusterRange::new(cluster, node_mask) {
            Ok(range) => Some(range),
            Err(RangeConfigError::MaskShorterThanCluster) => None,
            Err(error) => return Err(CidrSetError::Range(error)),
        };
        Ok(Self {
            cluster: cluster.trunc(),
            node_mask,
            range,
            bits: Bits::default(),
            used: 0,
            next_candidate: 0,
            allocations: 0,
            releases: 0,
        })
    }

    /// Allocates the first free block after the last allocated one, wrapping around.
    ///
    /// # Errors
    ///
    /// [`CidrSetError::NoneRemaining`].
    pub fn allocate_next(&mut self) -> Result<AllocatedBlock, CidrSetError> {
        let max = self.max_cidrs();
        let next = self.next_candidate;
        let candidate = self
            .bits
            .first_clear(next..max)
            .or_else(|| self.bits.first_clear(0..next))
            .ok_or(CidrSetError::NoneRemaining)?;
        let cidr = self.range.and_then(|range| range.block(candidate));
        let cidr = cidr.ok_or(CidrSetError::NoneRemaining)?;
        self.write(candidate..candidate + 1, true);
        self.next_candidate = (candidate + 1) % max;
        Ok(AllocatedBlock {
            cidr,
            tries: (candidate + max - next) % max,
        })
    }

    /// Marks every block that `cidr` touches as used.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`]; an occupied block is not an error.
    pub fn occupy(&mut self, cidr: &IpNet) -> Result<(), OutOfRange> {
        let blocks = self.blocks(cidr)?;
        self.write(blocks, true);
        Ok(())
    }

    /// Marks every block that `cidr` touches as free.
    ///
    /// # Errors
    ///
    /// [`OutOfRange`]; a free block is not an error.
    pub fn release(&mut self, cidr: &IpNet) -> Result<(), OutOfRange> {
        let blocks = self.blocks(cidr)?;
        self.write(blocks, false);
        Ok(())
    }

    fn write(&mut self, blocks: std::ops::Range<u64>, used: bool) {
        let changed = self.bits.write(blocks, used);
        if used {
            self.used += changed;
            self.allocations += changed;
        } else {
            self.used -= changed;
            self.releases += changed;
        }
    }

    fn blocks(&self, cidr: &IpNet) -> Result<std::ops::Range<u64>, OutOfRange> {
        let cidr = cidr.trunc();
        if !overlap(&self.cluster, &cidr) {
            let cluster = self.cluster;
            return Err(OutOfRange::Elsewhere { cidr, cluster });
        }
        if cidr.prefix_len() <= self.cluster.prefix_len() {
            return Ok(0..self.max_cidrs());
        }
        let indices = self.range.and_then(|range| range.indices(&cidr));
        let (first, last) = indices.ok_or_else(|| OutOfRange::NoSuchBlock {
            address: widened(&cidr, self.node_mask).addr(),
            mask: self.node_mask,
        })?;
        Ok(first..last + 1)
    }

    /// The range, without host bits.
    #[must_use]
    pub fn cluster(&self) -> IpNet {
        self.cluster
    }

    /// The number of blocks.
    #[must_use]
    pub fn max_cidrs(&self) -> u64 {
        self.range.map_or(0, |range| range.blocks())
    }

    /// The number of used blocks.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used
    }

    /// The number of the block that is tried next.
    #[must_use]
    pub fn next_candidate(&self) -> u64 {
        self.next_candidate
    }

    /// The number of times that a free block became used, by any operation:
    /// `cidrset_cidrs_allocations_total`.
    #[must_use]
    pub fn allocations(&self) -> u64 {
        self.allocations
    }

    /// The number of times that a used block became free: `cidrset_cidrs_releases_total`.
    #[must_use]
    pub fn releases(&self) -> u64 {
        self.releases
    }
}
