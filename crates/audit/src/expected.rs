//! The blocks that nodes should have: from the flags, or inferred from the nodes where a flag was
//! not given.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use podplane_ipam::{
    ClusterRange, Family, RangeConfigError, RangeFlags, ServiceRangeError, ServiceRanges,
    parse_cidr,
};

use crate::{dump::Dump, network::IpamChoice};

/// The flags of the cluster's controller, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControllerFlags {
    /// `--cluster-cidr`: a range, or one for each family, comma separated.
    pub cluster_cidr: Option<String>,
    /// `--node-cidr-mask-size`.
    pub node_cidr_mask_size: Option<u8>,
    /// `--node-cidr-mask-size-ipv4`.
    pub node_cidr_mask_size_ipv4: Option<u8>,
    /// `--node-cidr-mask-size-ipv6`.
    pub node_cidr_mask_size_ipv6: Option<u8>,
    /// `--service-cluster-ip-range`: a range, or one for each family, comma separated.
    pub service_cidr: Option<String>,
    /// `--pod-ip-resource`; `None`: what a node names, else `podplane.io/pod-ips`.
    pub pod_ip_resource: Option<String>,
    /// Source of pods' addresses. `None`: [`NetworkKind`](crate::NetworkKind) is detected.
    pub ipam: Option<IpamChoice>,
}

/// The source of an expectation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectationSource {
    /// A flag.
    Given,
    /// The value of most nodes.
    Inferred,
}

/// The flags are invalid, or contradict each other.
#[derive(Debug, thiserror::Error)]
pub enum FlagsError {
    /// The ranges of nodes, and the error with the flag.
    #[error("{flag}")]
    Ranges {
        /// The error with the flag and its value.
        flag: String,
        /// The error.
        error: RangeConfigError,
    },
    /// The ranges of services.
    #[error(transparent)]
    Services(#[from] ServiceRangeError),
}

/// The expected blocks of the cluster's nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedBlocks {
    /// The cluster CIDRs without host bits, in the order of the flag. Empty if the flag was not
    /// given, since they cannot be inferred.
    pub ranges: Vec<IpNet>,
    /// The length of a block of each family, if it is known.
    pub masks: BTreeMap<Family, (u8, ExpectationSource)>,
    /// The families of which each node has one block, if they are known.
    pub families: Option<(BTreeSet<Family>, ExpectationSource)>,
    /// The ranges of services; empty if the flag was not given.
    pub services: ServiceRanges,
}

impl ExpectedBlocks {
    /// Validates the flags by the reference's rules, and infers what was not given from most nodes
    /// of `dump`.
    ///
    /// # Errors
    ///
    /// [`FlagsError`] if the controller would not start with these flags.
    pub fn new(flags: &ControllerFlags, dump: &Dump) -> Result<Self, FlagsError> {
        let given = |family| {
            let of_family = match family {
                Family::V4 => flags.node_cidr_mask_size_ipv4,
                Family::V6 => flags.node_cidr_mask_size_ipv6,
            };
            flags
                .node_cidr_mask_size
                .or(of_family)
                .filter(|mask| *mask != 0)
        };
        let services: ServiceRanges = flags
            .service_cidr
            .as_deref()
            .unwrap_or_default()
            .trim()
            .parse()?;
        let ranges = match &flags.cluster_cidr {
            Some(cluster_cidr) => ranges(cluster_cidr, flags)?,
            None => Vec::new(),
        };
        let mut masks = BTreeMap::new();
        for family in [Family::V4, Family::V6] {
            // `--node-cidr-mask-size` does not apply to a family that the cluster does not have.
            let applies =
                ranges.is_empty() || ranges.iter().any(|range| Family::of(range) == family);
            let length = given(family).filter(|mask| applies && *mask <= family.bits());
            let mask = match length {
                Some(mask) => Some((mask, ExpectationSource::Given)),
                None => inferred_mask(dump, family).map(|mask| (mask, ExpectationSource::Inferred)),
            };
            masks.extend(mask.map(|mask| (family, mask)));
        }
        let families = if ranges.is_empty() {
            inferred_families(dump).map(|families| (families, ExpectationSource::Inferred))
        } else {
            Some((
                ranges.iter().map(Family::of).collect(),
                ExpectationSource::Given,
            ))
        };
        Ok(Self {
            ranges,
            masks,
            families,
            services,
        })
    }

    /// The cluster CIDRs with a known and possible size of block.
    pub fn blocks(&self) -> impl Iterator<Item = ClusterRange> {
        self.ranges.iter().filter_map(|range| {
            let (mask, _) = self.masks.get(&Family::of(range))?;
            ClusterRange::new(*range, *mask).ok()
        })
    }
}

/// The ranges of the flag. All flags of nodes are validated, with a possible size where none was
/// given.
fn ranges(cluster_cidr: &str, flags: &ControllerFlags) -> Result<Vec<IpNet>, FlagsError> {
    let mut checked = RangeFlags {
        cluster_cidr: cluster_cidr.into(),
        node_cidr_mask_size: flags.node_cidr_mask_size,
        node_cidr_mask_size_ipv4: flags.node_cidr_mask_size_ipv4,
        node_cidr_mask_size_ipv6: flags.node_cidr_mask_size_ipv6,
        service_cluster_ip_range: String::new(),
    };
    if flags.node_cidr_mask_size.is_none() {
        for range in cluster_cidr
            .trim()
            .split(',')
            .filter_map(|text| parse_cidr(text).ok())
        {
            let mask = match Family::of(&range) {
                Family::V4 => &mut checked.node_cidr_mask_size_ipv4,
                Family::V6 => &mut checked.node_cidr_mask_size_ipv6,
            };
            mask.get_or_insert(range.prefix_len());
        }
    }
    let config = checked.validate().map_err(|error| FlagsError::Ranges {
        flag: checked.refusal(&error),
        error,
    })?;
    Ok(config.ranges.iter().map(ClusterRange::cidr).collect())
}

fn inferred_mask(dump: &Dump, family: Family) -> Option<u8> {
    // Each node pool of GKE has blocks of its own size.
    if dump.network.is_of_cloud || dump.network.grows {
        return None;
    }
    let blocks = dump.nodes.iter().flat_map(|node| node.blocks());
    let of_family = blocks.filter(|block| Family::of(block) == family);
    most(of_family.map(|block| block.prefix_len()))
}

fn inferred_families(dump: &Dump) -> Option<BTreeSet<Family>> {
    let families = dump.nodes.iter().map(|node| {
        let families: BTreeSet<_> = node.blocks().iter().map(Family::of).collect();
        families
    });
    most(families.filter(|families| !families.is_empty()))
}

/// The most frequent value; `None` if there is a tie.
fn most<T: Ord>(each: impl Iterator<Item = T>) -> Option<T> {
    let mut counts = BTreeMap::<T, usize>::new();
    for one in each {
        *counts.entry(one).or_default() += 1;
    }
    let mut counts: Vec<_> = counts
        .into_iter()
        .map(|(value, count)| (count, value))
        .collect();
    counts.sort_unstable();
    let (count, value) = counts.pop()?;
    counts
        .last()
        .is_none_or(|(second, _)| *second < count)
        .then_some(value)
}
