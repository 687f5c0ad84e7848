//! Capacities: the number of nodes that a cluster CIDR has room for, and the number of pods that a
//! node has addresses for.

use ipnet::IpNet;

use crate::pool::{AddressRange, pod_capacity};

/// The number of blocks of `/node_mask` in a cluster CIDR of `/cluster_mask`: 2^(`node_mask` −
/// `cluster_mask`).
///
/// `None` if a block would be larger than the cluster, or the number needs more than 64 bits.
#[must_use]
pub fn max_nodes(cluster_mask: u8, node_mask: u8) -> Option<u64> {
    1u64.checked_shl(u32::from(node_mask.checked_sub(cluster_mask)?))
}

/// The number of pods that can have an address of each family of these blocks, counted as
/// host-local does: without the network and gateway addresses and, for IPv4, without the broadcast
/// address. A block that is too small to give any address leaves room for no pod.
#[must_use]
pub fn of_blocks(blocks: &[IpNet]) -> u64 {
    let ranges: Option<Vec<_>> = blocks.iter().copied().map(AddressRange::of_block).collect();
    let pods = ranges.map_or(0, |ranges| pod_capacity(&ranges));
    u64::try_from(pods).unwrap_or(u64::MAX)
}

/// The facts that determine the address capacity of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// The number of pods that the IPAM plugin of the node's network reports to have addresses for.
    pub reported: Option<u64>,
    /// The allocatable amount of the resource of pod addresses, if set by something other than the
    /// IPAM plugin.
    pub allocatable: Option<u64>,
    /// True if the node has blocks.
    pub has_blocks: bool,
    /// The node's blocks, except those that are not valid CIDRs.
    pub blocks: Vec<IpNet>,
    /// Allocatable `pods`.
    pub pods: u64,
    /// True if pods can have a network on the node now. A node without blocks and without a network
    /// waits for its blocks; one with a network does not need them.
    pub is_network_ready: bool,
}

/// The number of pods that a node has addresses for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeCapacity {
    /// The node waits for its block and takes no pod that needs an address.
    AwaitsBlock,
    /// The node takes this many pods.
    Pods {
        /// The number of pods that need an address.
        count: u64,
        /// The fact that determined the number.
        basis: Basis,
    },
}

/// The fact that determines a node's capacity, the strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Basis {
    /// The report of the IPAM plugin.
    Report,
    /// The allocatable amount of the resource of pod addresses.
    Allocatable,
    /// The size of the node's blocks.
    Blocks,
    /// Allocatable `pods`.
    Pods,
}

impl NodeCapacity {
    /// The number of pods that need an address; 0 while the node waits for its block.
    #[must_use]
    pub fn count(self) -> u64 {
        match self {
            Self::AwaitsBlock => 0,
            Self::Pods { count, .. } => count,
        }
    }
}

/// The capacity of a node. The scheduler, the kubelet's admission, the invariant checker and the
/// tables of `get nodes` all use this function.
///
/// The report of the IPAM plugin decides; else the allocatable amount of the resource of pod
/// addresses, if it is set; else the size of the node's blocks; else, on a node whose network works
/// without a block, allocatable `pods`.
#[must_use]
pub fn of_node(node: &NodeFacts) -> NodeCapacity {
    if !node.has_blocks && !node.is_network_ready {
        return NodeCapacity::AwaitsBlock;
    }
    let (count, basis) = match (node.reported, node.allocatable) {
        (Some(count), _) => (count, Basis::Report),
        (None, Some(count)) => (count, Basis::Allocatable),
        (None, None) if node.has_blocks => (of_blocks(&node.blocks), Basis::Blocks),
        (None, None) => (node.pods, Basis::Pods),
    };
    NodeCapacity::Pods { count, basis }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strongest_known_fact_determines_the_capacity() {
        let all = NodeFacts {
            reported: Some(7),
            allocatable: Some(6),
            has_blocks: true,
            blocks: vec!["10.0.0.0/29".parse().unwrap()],
            pods: 110,
            is_network_ready: true,
        };
        let pods = |count, basis| NodeCapacity::Pods { count, basis };
        let mut node = all.clone();
        assert_eq!(of_node(&node), pods(7, Basis::Report));
        node.reported = None;
        assert_eq!(of_node(&node), pods(6, Basis::Allocatable));
        node.allocatable = None;
        assert_eq!(of_node(&node), pods(5, Basis::Blocks));
        // A NotReady node with a block keeps its capacity: taints keep pods away.
        node.is_network_ready = false;
        assert_eq!(of_node(&node), pods(5, Basis::Blocks));
        // A block that cannot be parsed provides no address.
        node.blocks.clear();
        assert_eq!(of_node(&node), pods(0, Basis::Blocks));
        (node.has_blocks, node.is_network_ready) = (false, true);
        assert_eq!(of_node(&node), pods(110, Basis::Pods));
    }

    #[test]
    fn a_node_that_awaits_its_block_has_no_capacity() {
        let node = NodeFacts {
            reported: Some(7),
            allocatable: Some(6),
            pods: 110,
            ..NodeFacts::default()
        };
        assert_eq!(of_node(&node), NodeCapacity::AwaitsBlock);
        assert_eq!(of_node(&node).count(), 0);
        let own_ranges = NodeFacts {
            is_network_ready: true,
            ..node
        };
        assert_eq!(of_node(&own_ranges).count(), 7);
    }

    #[test]
    fn the_smaller_family_limits_the_capacity_of_blocks() {
        let of = |texts: &[&str]| {
            let blocks: Vec<_> = texts.iter().map(|text| text.parse().unwrap()).collect();
            of_blocks(&blocks)
        };
        assert_eq!(of(&["10.0.0.0/24"]), 253);
        assert_eq!(of(&["10.0.0.0/30"]), 1);
        assert_eq!(of(&["10.0.0.0/31"]), 0);
        assert_eq!(of(&["10.0.0.0/29", "fd00::/64"]), 5);
        assert_eq!(of(&["fd00::/48"]), u64::MAX);
        assert_eq!(of(&[]), 0);
    }

    #[test]
    fn a_block_larger_than_the_cluster_has_no_count() {
        assert_eq!(max_nodes(16, 15), None);
        assert_eq!(max_nodes(16, 16), Some(1));
        assert_eq!(max_nodes(0, 63), Some(1 << 63));
        assert_eq!(max_nodes(0, 64), None);
    }
}
