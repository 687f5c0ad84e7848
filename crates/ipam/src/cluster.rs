//! The range allocator's flags, validated with the reference's texts in the reference's order
//! (kube-controller-manager, `--cluster-cidr` and related flags).

use std::{fmt, net::IpAddr};

use ipnet::IpNet;

use crate::capacity::max_nodes;
use crate::net::{Family, InvalidCidr, NOT_A_CIDR, number, overlap, parse_cidr, widened};

/// Default of `--node-cidr-mask-size-ipv4`.
pub const DEFAULT_NODE_MASK_IPV4: u8 = 24;
/// Default of `--node-cidr-mask-size-ipv6`.
pub const DEFAULT_NODE_MASK_IPV6: u8 = 64;
/// The reference refuses an IPv6 range with more than 2^16 blocks; IPv4 has no such limit.
pub const MAX_IPV6_BLOCK_BITS: u8 = 16;

/// The flags as given. A mask size of 0 means unset, as it does for the reference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeFlags {
    /// `--cluster-cidr`: a comma-separated list of at most one range for each family.
    pub cluster_cidr: String,
    /// `--node-cidr-mask-size`, for a single-stack cluster of either family.
    pub node_cidr_mask_size: Option<u8>,
    /// `--node-cidr-mask-size-ipv4`.
    pub node_cidr_mask_size_ipv4: Option<u8>,
    /// `--node-cidr-mask-size-ipv6`.
    pub node_cidr_mask_size_ipv6: Option<u8>,
    /// `--service-cluster-ip-range`: empty, one range, or one for each family, comma-separated.
    pub service_cluster_ip_range: String,
}

/// The validated flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeConfig {
    /// The ranges in the order of `--cluster-cidr`, which is the order of a node's podCIDRs.
    pub ranges: Vec<ClusterRange>,
    /// The service ranges without host bits; no block that touches one is allocated.
    pub service_ranges: Vec<IpNet>,
    /// Problems that the operator should know of although they are not errors.
    pub notices: Vec<Notice>,
}

impl RangeConfig {
    /// A configuration without ranges, for an allocator that only tracks claims.
    #[must_use]
    pub fn none() -> Self {
        Self {
            ranges: Vec::new(),
            service_ranges: Vec::new(),
            notices: Vec::new(),
        }
    }

    /// The number of nodes that can have a block in every range, service ranges subtracted. Zero is
    /// worth refusing.
    #[must_use]
    pub fn max_nodes(&self) -> u64 {
        self.ranges
            .iter()
            .map(|range| range.blocks() - self.reserved_blocks(range))
            .min()
            .unwrap_or(0)
    }

    /// The number of blocks of a range that the service ranges take.
    #[must_use]
    pub fn reserved_blocks(&self, range: &ClusterRange) -> u64 {
        // At most one service range is of the family of `range`, so no block is counted twice.
        let indices = self
            .service_ranges
            .iter()
            .filter_map(|service| range.indices(service));
        indices.map(|(first, last)| last - first + 1).sum()
    }
}

/// One cluster CIDR, divided into blocks of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClusterRange {
    cidr: IpNet,
    node_mask: u8,
}

impl ClusterRange {
    /// Divides `cidr`, whose host bits are dropped, into blocks of length `node_mask`.
    ///
    /// # Errors
    ///
    /// [`RangeConfigError::MaskShorterThanCluster`], [`RangeConfigError::MaskTooLong`] or, for
    /// IPv6, [`RangeConfigError::TooManyBlocks`].
    pub fn new(cidr: IpNet, node_mask: u8) -> Result<Self, RangeConfigError> {
        let family = Family::of(&cidr);
        if node_mask < cidr.prefix_len() {
            return Err(RangeConfigError::MaskShorterThanCluster);
        }
        if node_mask > family.bits() {
            return Err(RangeConfigError::MaskTooLong {
                family,
                mask: node_mask,
            });
        }
        if family == Family::V6 && node_mask - cidr.prefix_len() > MAX_IPV6_BLOCK_BITS {
            return Err(RangeConfigError::TooManyBlocks);
        }
        Ok(Self {
            cidr: cidr.trunc(),
            node_mask,
        })
    }

    /// The whole range, without host bits.
    #[must_use]
    pub fn cidr(&self) -> IpNet {
        self.cidr
    }

    /// The prefix length of a node's block.
    #[must_use]
    pub fn node_mask(&self) -> u8 {
        self.node_mask
    }

    /// The family of the range.
    #[must_use]
    pub fn family(&self) -> Family {
        Family::of(&self.cidr)
    }

    /// The number of blocks of the range, reserved ones included.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        max_nodes(self.cidr.prefix_len(), self.node_mask)
            .expect("`new` bounds the difference to 32 bits")
    }

    /// The block with that number, counted from the start of the range.
    #[must_use]
    pub fn block(&self, index: u64) -> Option<IpNet> {
        if index >= self.blocks() {
            return None;
        }
        let first = number(self.cidr.addr()) + (u128::from(index) << self.block_host_bits());
        let address = match self.family() {
            Family::V4 => IpAddr::V4(u32::try_from(first).expect("inside an IPv4 range").into()),
            Family::V6 => IpAddr::V6(first.into()),
        };
        IpNet::new(address, self.node_mask).ok()
    }

    /// The first and the last number of the blocks that share an address with `net`: all blocks if
    /// it contains the range, one if it is no wider than a block. `None` if it lies elsewhere.
    #[must_use]
    pub fn indices(&self, net: &IpNet) -> Option<(u64, u64)> {
        if !overlap(&self.cidr, net) {
            return None;
        }
        if net.prefix_len() <= self.cidr.prefix_len() {
            return Some((0, self.blocks() - 1));
        }
        let start = number(self.cidr.addr());
        let index =
            |address| u64::try_from((number(address) - start) >> self.block_host_bits()).ok();
        Some((index(net.network())?, index(net.broadcast())?))
    }

    /// The smallest prefix of whole blocks that contains the intersection of `net` and this range.
    pub(crate) fn whole_blocks(&self, net: &IpNet) -> Option<IpNet> {
        overlap(&self.cidr, net).then(|| {
            if net.prefix_len() <= self.cidr.prefix_len() {
                self.cidr
            } else {
                widened(net, self.node_mask)
            }
        })
    }

    fn block_host_bits(&self) -> u32 {
        u32::from(self.family().bits() - self.node_mask)
    }
}

impl fmt::Display for ClusterRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in blocks of /{}", self.cidr, self.node_mask)
    }
}

/// A property of the flags that may surprise the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A range was given with host bits; they are dropped.
    NotCanonical {
        /// The range as given.
        given: IpNet,
        /// The range as used.
        canonical: IpNet,
    },
    /// A service range that is not a valid prefix reserves nothing.
    ServiceRangeIgnored {
        /// The range as given.
        given: String,
    },
    /// A service range covers every block of a cluster range: no node can get a block.
    NoBlockLeft {
        /// The cluster range without a free block.
        cluster: IpNet,
        /// The service range that covers it.
        service: IpNet,
    },
}

impl Notice {
    /// The ranges of a flag, separated by commas, that have host bits. What is not a range is left
    /// out.
    pub fn of_host_bits(list: &str) -> impl Iterator<Item = Self> {
        let ranges = list.split(',').filter_map(|text| parse_cidr(text).ok());
        ranges.filter_map(|range| not_canonical(&range))
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotCanonical { given, canonical } => {
                write!(f, "{given} has host bits set; the range is {canonical}")
            }
            Self::ServiceRangeIgnored { given } => {
                write!(
                    f,
                    "invalid service range {given:?}: must be a CIDR; nothing is reserved for it"
                )
            }
            Self::NoBlockLeft { cluster, service } => {
                write!(
                    f,
                    "service range {service} takes every block of cluster CIDR {cluster}; no node can be given one"
                )
            }
        }
    }
}

/// An error in the flags. The texts are those of the reference, its spelling included.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeConfigError {
    /// More than two service ranges.
    #[error("--service-cluster-ip-range can not contain more than two entries")]
    TooManyServiceRanges,
    /// An element of the cluster CIDR list is not a valid prefix.
    #[error("invalid CIDR[{index}]: <nil> ({invalid})")]
    InvalidClusterCidr {
        /// Its index in the list, from 0.
        index: usize,
        /// The invalid text; part of the message, because the reference's text includes it.
        invalid: InvalidCidr,
    },
    /// Several cluster CIDRs, all of one family.
    #[error(
        "len of ClusterCIDRs=={count} and they are not configured as dual stack (at least one from each IPFamily"
    )]
    NotDualStack {
        /// The number of cluster CIDRs.
        count: usize,
    },
    /// More than one cluster CIDR for a family.
    #[error("length of clusterCIDRs is:{count} more than max allowed of 2")]
    TooManyClusterCidrs {
        /// The number of cluster CIDRs.
        count: usize,
    },
    /// Two service ranges of one family.
    #[error("serviceCIDR and secondaryServiceCIDR are not dualstack (from different IPfamiles)")]
    ServiceRangesNotDualStack,
    /// One mask cannot serve two families.
    #[error("usage of --node-cidr-mask-size is not allowed with dual-stack clusters")]
    MaskWithDualStack,
    /// Both the common mask and one for a family are set.
    #[error(
        "usage of --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6 is not allowed if --node-cidr-mask-size is set. \
         For dual-stack clusters please unset it and use IPFamily specific flags"
    )]
    MaskAndFamilyMask,
    /// An IPv4 mask is set without an IPv4 range.
    #[error("usage of --node-cidr-mask-size-ipv4 is not allowed for a single-stack IPv6 cluster")]
    Ipv4MaskWithoutIpv4,
    /// An IPv6 mask is set without an IPv6 range.
    #[error("usage of --node-cidr-mask-size-ipv6 is not allowed for a single-stack IPv4 cluster")]
    Ipv6MaskWithoutIpv6,
    /// A block would be larger than the cluster.
    #[error(
        "Controller: Invalid --cluster-cidr, mask size of cluster CIDR must be less than or equal to --node-cidr-mask-size \
         configured for CIDR family"
    )]
    MaskShorterThanCluster,
    /// The mask is longer than an address. The reference does not check it and fails later.
    #[error("node CIDR mask size {mask} is more than the {} bits of an {family} address", family.bits())]
    MaskTooLong {
        /// The family of the range.
        family: Family,
        /// The mask.
        mask: u8,
    },
    /// More than 2^16 IPv6 blocks.
    #[error("New CIDR set failed; the node CIDR size is too big")]
    TooManyBlocks,
}

impl RangeFlags {
    /// The error as a command line has it: with the flag and its value.
    #[must_use]
    pub fn refusal(&self, error: &RangeConfigError) -> String {
        let cluster = ("--cluster-cidr", self.cluster_cidr.clone());
        let services = self.service_cluster_ip_range.clone();
        let services = ("--service-cluster-ip-range", services);
        let ((flag, value), why) = match error {
            RangeConfigError::InvalidClusterCidr { .. } => (cluster, NOT_A_CIDR.to_owned()),
            RangeConfigError::NotDualStack { .. }
            | RangeConfigError::TooManyClusterCidrs { .. } => (cluster, error.to_string()),
            RangeConfigError::TooManyBlocks => (
                cluster,
                format!(
                    "{error}: an IPv6 range can have 2^16 blocks, so their mask is at most 16 bits longer than the cluster CIDR's"
                ),
            ),
            RangeConfigError::TooManyServiceRanges
            | RangeConfigError::ServiceRangesNotDualStack => (services, error.to_string()),
            RangeConfigError::MaskTooLong { mask, .. } => (
                ("--node-cidr-mask-size", mask.to_string()),
                error.to_string(),
            ),
            // They name the flags.
            RangeConfigError::MaskWithDualStack
            | RangeConfigError::MaskAndFamilyMask
            | RangeConfigError::Ipv4MaskWithoutIpv4
            | RangeConfigError::Ipv6MaskWithoutIpv6
            | RangeConfigError::MaskShorterThanCluster => return error.to_string(),
        };
        format!("invalid {flag} `{value}`: {why}")
    }

    /// Validates the flags where `--cluster-cidr` may be absent, since ranges can be added later.
    ///
    /// # Errors
    ///
    /// As [`RangeFlags::validate`].
    pub fn validate_optional(&self) -> Result<RangeConfig, RangeConfigError> {
        if !self.cluster_cidr.trim().is_empty() {
            return self.validate();
        }
        let texts: Vec<&str> = self.service_cluster_ip_range.split(',').collect();
        if texts.len() > 2 {
            return Err(RangeConfigError::TooManyServiceRanges);
        }
        let mut notices = Vec::new();
        let service_ranges = parse_service_ranges(&texts, &mut notices)?;
        Ok(RangeConfig {
            ranges: Vec::new(),
            service_ranges,
            notices,
        })
    }

    /// Validates the flags in the reference's order, so that of several mistakes the same one is
    /// reported.
    ///
    /// # Errors
    ///
    /// The first violated rule, see [`RangeConfigError`].
    pub fn validate(&self) -> Result<RangeConfig, RangeConfigError> {
        let service_texts = self.service_texts()?;
        let cluster = parse_cluster_cidrs(&self.cluster_cidr)?;
        let mut notices: Vec<Notice> = cluster.iter().filter_map(not_canonical).collect();
        let service_ranges = parse_service_ranges(&service_texts, &mut notices)?;
        let masks = self.node_masks(&cluster)?;
        // The reference compares the masks of all ranges before it builds the first set.
        if cluster
            .iter()
            .zip(&masks)
            .any(|(cidr, mask)| *mask < cidr.prefix_len())
        {
            return Err(RangeConfigError::MaskShorterThanCluster);
        }
        let ranges = cluster
            .into_iter()
            .zip(masks)
            .map(|(cidr, mask)| ClusterRange::new(cidr, mask))
            .collect::<Result<Vec<_>, _>>()?;
        let covered = |range: &ClusterRange| {
            let all = (0, range.blocks() - 1);
            let service = *service_ranges
                .iter()
                .find(|service| range.indices(service) == Some(all))?;
            Some(Notice::NoBlockLeft {
                cluster: range.cidr,
                service,
            })
        };
        notices.extend(ranges.iter().filter_map(covered));
        Ok(RangeConfig {
            ranges,
            service_ranges,
            notices,
        })
    }

    /// The service ranges alone, for an allocator without a range of its own, and notices about
    /// them.
    ///
    /// # Errors
    ///
    /// [`RangeConfigError::TooManyServiceRanges`] and
    /// [`RangeConfigError::ServiceRangesNotDualStack`].
    pub fn service_ranges(&self) -> Result<(Vec<IpNet>, Vec<Notice>), RangeConfigError> {
        let mut notices = Vec::new();
        let ranges = parse_service_ranges(&self.service_texts()?, &mut notices)?;
        Ok((ranges, notices))
    }

    fn service_texts(&self) -> Result<Vec<&str>, RangeConfigError> {
        let texts: Vec<&str> = self.service_cluster_ip_range.split(',').collect();
        if texts.len() > 2 {
            return Err(RangeConfigError::TooManyServiceRanges);
        }
        Ok(texts)
    }

    fn node_masks(&self, cluster: &[IpNet]) -> Result<Vec<u8>, RangeConfigError> {
        let set = |mask: Option<u8>| mask.filter(|mask| *mask != 0);
        let (any, v4, v6) = (
            set(self.node_cidr_mask_size),
            set(self.node_cidr_mask_size_ipv4),
            set(self.node_cidr_mask_size_ipv6),
        );
        if let [single] = cluster {
            let family = Family::of(single);
            if any.is_some() && (v4.is_some() || v6.is_some()) {
                return Err(RangeConfigError::MaskAndFamilyMask);
            }
            if v4.is_some() && family == Family::V6 {
                return Err(RangeConfigError::Ipv4MaskWithoutIpv4);
            }
            if v6.is_some() && family == Family::V4 {
                return Err(RangeConfigError::Ipv6MaskWithoutIpv6);
            }
        } else if any.is_some() {
            return Err(RangeConfigError::MaskWithDualStack);
        }
        let mask = |cidr: &IpNet| match Family::of(cidr) {
            Family::V4 => any.or(v4).unwrap_or(DEFAULT_NODE_MASK_IPV4),
            Family::V6 => any.or(v6).unwrap_or(DEFAULT_NODE_MASK_IPV6),
        };
        Ok(cluster.iter().map(mask).collect())
    }
}

fn not_canonical(given: &IpNet) -> Option<Notice> {
    let canonical = given.trunc();
    (canonical != *given).then_some(Notice::NotCanonical {
        given: *given,
        canonical,
    })
}

fn parse_cluster_cidrs(list: &str) -> Result<Vec<IpNet>, RangeConfigError> {
    let parse = |(index, text)| {
        parse_cidr(text).map_err(|invalid| RangeConfigError::InvalidClusterCidr { index, invalid })
    };
    let cidrs = list
        .trim()
        .split(',')
        .enumerate()
        .map(parse)
        .collect::<Result<Vec<_>, _>>()?;
    let count = cidrs.len();
    let one_family = cidrs
        .iter()
        .all(|cidr| Family::of(cidr) == Family::of(&cidrs[0]));
    if count > 1 && one_family {
        return Err(RangeConfigError::NotDualStack { count });
    }
    if count > 2 {
        return Err(RangeConfigError::TooManyClusterCidrs { count });
    }
    Ok(cidrs)
}

fn parse_service_ranges(
    texts: &[&str],
    notices: &mut Vec<Notice>,
) -> Result<Vec<IpNet>, RangeConfigError> {
    let mut ranges = Vec::new();
    for text in texts.iter().filter(|text| !text.trim().is_empty()) {
        match parse_cidr(text) {
            Ok(range) => {
                notices.extend(not_canonical(&range));
                ranges.push(range.trunc());
            }
            // The reference only warns, so a cluster that ran with it still starts.
            Err(invalid) => notices.push(Notice::ServiceRangeIgnored {
                given: invalid.text,
            }),
        }
    }
    if let [a, b] = ranges.as_slice()
        && Family::of(a) == Family::of(b)
    {
        return Err(RangeConfigError::ServiceRangesNotDualStack);
    }
    Ok(ranges)
}
