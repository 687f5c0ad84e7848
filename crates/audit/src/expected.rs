//! What the cluster's flags say, and what the nodes tell of it where they were not given.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use podplane_ipam::{
    ClusterRange, Family, RangeConfigError, RangeFlags, ServiceRangeError, ServiceRanges,
    parse_cidr,
};

use crate::{dump::Dump, network::IpamChoice};

/// The flags of the cluster's controller, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
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
    /// Source of pods' addresses. `None`: [`Network`](crate::Network) is detected.
    pub ipam: Option<IpamChoice>,
}

/// Where a piece of knowledge is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// A flag.
    Given,
    /// What most nodes have.
    Inferred,
}

/// Flags that contradict each other, or are none.
#[derive(Debug, thiserror::Error)]
pub enum FlagsError {
    /// The ranges of nodes.
    #[error(transparent)]
    Ranges(#[from] RangeConfigError),
    /// The ranges of services.
    #[error(transparent)]
    Services(#[from] ServiceRangeError),
}

/// What the nodes of the cluster should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The cluster CIDRs without host bits, in the order of the flag. None: it was not given, and cannot be told.
    pub ranges: Vec<IpNet>,
    /// The length of a block of each family, if it is known.
    pub masks: BTreeMap<Family, (u8, Known)>,
    /// The families of which each node has one block, if they are known.
    pub families: Option<(BTreeSet<Family>, Known)>,
    /// The ranges of services. None: they were not given.
    pub services: ServiceRanges,
}

impl Expected {
    /// Checks the flags by the rules of the reference, and fills what was not given with what most nodes of `dump` have.
    ///
    /// # Errors
    ///
    /// [`FlagsError`] if the controller would not start with these flags.
    pub fn new(flags: &Flags, dump: &Dump) -> Result<Self, FlagsError> {
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
            // `--node-cidr-mask-size` says nothing of a family that the cluster does not have.
            let applies =
                ranges.is_empty() || ranges.iter().any(|range| Family::of(range) == family);
            let length = given(family).filter(|mask| applies && *mask <= family.bits());
            let mask = match length {
                Some(mask) => Some((mask, Known::Given)),
                None => inferred_mask(dump, family).map(|mask| (mask, Known::Inferred)),
            };
            masks.extend(mask.map(|mask| (family, mask)));
        }
        let families = if ranges.is_empty() {
            inferred_families(dump).map(|families| (families, Known::Inferred))
        } else {
            Some((ranges.iter().map(Family::of).collect(), Known::Given))
        };
        Ok(Self {
            ranges,
            masks,
            families,
            services,
        })
    }

    /// The cluster CIDRs in blocks, those whose size of block is known and possible.
    pub fn blocks(&self) -> impl Iterator<Item = ClusterRange> {
        self.ranges.iter().filter_map(|range| {
            let (mask, _) = self.masks.get(&Family::of(range))?;
            ClusterRange::new(*range, *mask).ok()
        })
    }
}

/// The ranges of the flag. All flags of nodes are checked, with a size that is possible where none was given.
fn ranges(cluster_cidr: &str, flags: &Flags) -> Result<Vec<IpNet>, RangeConfigError> {
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
    let config = checked.validate()?;
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

/// What there is most of; `None` if that is not one thing.
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
