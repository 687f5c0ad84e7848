//! The smallest sufficient ranges, and the effect of other masks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::{Demand, addresses, pods};
use crate::{
    cluster::{ClusterRange, DEFAULT_NODE_MASK_IPV6, MAX_IPV6_BLOCK_BITS, RangeConfig},
    nearest_free,
    net::{Family, overlap, widened},
};

/// A range in blocks of another length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alternative {
    /// The prefix length of a block.
    pub node_mask: u8,
    /// The number of nodes that can have a block.
    pub max_nodes: u64,
    /// The number of pods of a node that can have an address.
    pub pods_per_node: u128,
    /// The addresses in the nodes' blocks that stay unused when every node runs as many pods as it
    /// may. Saturates.
    pub addresses_wasted: u128,
    /// True if it has room for the planned nodes and for the planned pods of each, with the ranges
    /// of other families unchanged.
    pub fits: bool,
}

/// The smallest range for the numbers, in blocks of the best length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecommendedRange {
    /// The family.
    pub family: Family,
    /// The longest mask whose blocks have an address for every pod that a node may run; for IPv6,
    /// the mask of the flags if it suffices. `None` if no block is large enough.
    pub node_mask: Option<u8>,
    /// A range for that many nodes, or the one of the flags if no number was given; disjoint from
    /// the service ranges and the nodes' networks. `None` if there is no such range.
    pub cidr: Option<IpNet>,
    /// The number of nodes that it has room for.
    pub max_nodes: u64,
    /// The number of pods of a node that can have an address.
    pub pods_per_node: u128,
}

/// The longest useful mask: one pod beside the gateway.
const fn longest(family: Family) -> u8 {
    family.bits() - 2
}

pub(super) fn alternatives(
    range: &ClusterRange,
    config: &RangeConfig,
    need: Demand,
) -> Vec<Alternative> {
    let family = range.family();
    let masks = range.cidr().prefix_len()..=longest(family).max(range.node_mask());
    let ranges = masks.filter_map(|mask| ClusterRange::new(range.cidr(), mask).ok());
    ranges
        .map(|range| alternative(&range, config, need))
        .collect()
}

fn alternative(range: &ClusterRange, config: &RangeConfig, need: Demand) -> Alternative {
    let node_mask = range.node_mask();
    let blocks = |range: &ClusterRange| range.blocks() - config.reserved_blocks(range);
    let max_nodes = blocks(range);
    let pods_per_node = pods(range.cidr(), node_mask);
    // A node needs a block of each family: the other ranges stay unchanged.
    let mut others = (config.ranges.iter()).filter(|other| other.family() != range.family());
    let fits_elsewhere =
        others.all(|other| need.is_met_by(blocks(other), pods(other.cidr(), other.node_mask())));
    let used = pods_per_node.min(need.max_pods.into());
    let wasted = addresses(range.family(), node_mask).saturating_sub(used);
    Alternative {
        node_mask,
        max_nodes,
        pods_per_node,
        addresses_wasted: wasted.saturating_mul(max_nodes.into()),
        fits: need.is_met_by(max_nodes, pods_per_node) && fits_elsewhere,
    }
}

pub(super) fn smallest(
    range: &ClusterRange,
    config: &RangeConfig,
    node_networks: &[IpNet],
    need: Demand,
) -> RecommendedRange {
    let family = range.family();
    let none = RecommendedRange {
        family,
        node_mask: best_mask(range, need.max_pods),
        cidr: None,
        max_nodes: 0,
        pods_per_node: 0,
    };
    let Some(mask) = none.node_mask else {
        return none;
    };
    let none = RecommendedRange {
        pods_per_node: pods(range.cidr(), mask),
        ..none
    };
    let place = |nodes| smallest_of(mask, range, config, node_networks, nodes);
    let found = match need.nodes {
        Some(nodes) => place(nodes.max(1)),
        None => {
            let own = ClusterRange::new(range.cidr(), mask).ok();
            match own.filter(|own| config.reserved_blocks(own) == own.blocks()) {
                // Service ranges take all of it: another one of its size.
                Some(covered) => place(covered.blocks()),
                None => own,
            }
        }
    };
    found.map_or(none.clone(), |found| RecommendedRange {
        cidr: Some(found.cidr()),
        max_nodes: found.blocks() - config.reserved_blocks(&found),
        ..none
    })
}

/// The longest mask that serves `max_pods` pods. For IPv6, which has addresses to spare, customary
/// masks are preferred.
fn best_mask(range: &ClusterRange, max_pods: u64) -> Option<u8> {
    let family = range.family();
    let serves = |mask: &u8| pods(range.cidr(), *mask) >= max_pods.into();
    let usual = match family {
        Family::V4 => None,
        Family::V6 => Some(range.node_mask()).or(Some(DEFAULT_NODE_MASK_IPV6)),
    };
    usual
        .filter(serves)
        .or_else(|| (0..=longest(family)).rev().find(serves))
}

fn smallest_of(
    mask: u8,
    range: &ClusterRange,
    config: &RangeConfig,
    node_networks: &[IpNet],
    nodes: u64,
) -> Option<ClusterRange> {
    let shortest = match range.family() {
        Family::V4 => 0,
        Family::V6 => mask.saturating_sub(MAX_IPV6_BLOCK_BITS),
    };
    (shortest..=mask).rev().find_map(|length| {
        let wanted = widened(&IpNet::new(range.cidr().addr(), mask).ok()?, length);
        let here = ClusterRange::new(wanted, mask).ok()?;
        if here.blocks() < nodes {
            return None;
        }
        // The present place of the range is preferred if it suffices, so that the recommendation
        // changes no more than needed.
        let is_beside = !node_networks.iter().any(|net| overlap(net, &wanted));
        if is_beside && here.blocks() - config.reserved_blocks(&here) >= nodes {
            return Some(here);
        }
        let taken = || {
            config
                .service_ranges
                .iter()
                .chain(node_networks)
                .map(IpNet::trunc)
        };
        let place = homes(&wanted)
            .into_iter()
            .find_map(|home| nearest_free(&wanted, &home, taken()))?;
        ClusterRange::new(place, mask).ok()
    })
}

/// The networks in which ranges for pods may lie: private networks, that of `wanted` first.
pub(super) fn homes(wanted: &IpNet) -> Vec<IpNet> {
    let net = |address: IpAddr, length| IpNet::new_assert(address, length);
    let mut homes = match Family::of(wanted) {
        Family::V4 => vec![
            net(Ipv4Addr::new(10, 0, 0, 0).into(), 8),
            net(Ipv4Addr::new(172, 16, 0, 0).into(), 12),
            net(Ipv4Addr::new(192, 168, 0, 0).into(), 16),
            net(Ipv4Addr::new(100, 64, 0, 0).into(), 10),
        ],
        Family::V6 => vec![net(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0).into(), 8)],
    };
    homes.sort_by_key(|home| !home.contains(wanted));
    homes
}
