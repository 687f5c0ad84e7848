//! The facts of a dump, for pictures of it.

use ipnet::IpNet;
use podplane_ipam::invariants::World;

use crate::{
    dump::{Dump, DumpedNode},
    network::BlockPlace,
    records::System,
};

/// A block that a network has recorded, for several nodes to take addresses from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedBlock<'a> {
    /// The block.
    pub cidr: IpNet,
    /// The node that has it at present.
    pub node: Option<&'a str>,
}

/// A range that a network cuts blocks or addresses from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedRange<'a> {
    /// The name of its object.
    pub name: &'a str,
    /// The range.
    pub cidr: IpNet,
}

impl Dump {
    /// The blocks of nodes, the pods with their addresses, and former blocks that may be in use.
    /// Allocations and sandboxes are no part of a dump.
    #[must_use]
    pub const fn world(&self) -> &World {
        &self.world
    }

    /// The nodes as read, by name.
    #[must_use]
    pub fn nodes(&self) -> &[DumpedNode] {
        &self.nodes
    }

    /// Returns true if each pod has its address from a block of its node. In networks with an IPAM
    /// of their own it may be from anywhere.
    #[must_use]
    pub fn has_node_blocks(&self) -> bool {
        self.network
            .ipams()
            .all(|place| matches!(place, BlockPlace::PodCidr | BlockPlace::NodeBlocks(_)))
    }

    /// The blocks of a network whose nodes share them, such as Calico's; none in other networks.
    pub fn shared_blocks(&self) -> impl Iterator<Item = SharedBlock<'_>> {
        let is_shared = self
            .network
            .ipams()
            .any(|place| place == BlockPlace::SharedBlocks);
        let blocks = self.records.blocks.iter();
        let shared = blocks
            .filter(move |one| is_shared && one.system == System::Calico && one.scope.is_empty());
        shared.map(|one| SharedBlock {
            cidr: one.block,
            node: one.node.as_deref(),
        })
    }

    /// The ranges that objects of the cluster's network name.
    pub fn ranges_of_network(&self) -> impl Iterator<Item = NamedRange<'_>> {
        let places: Vec<BlockPlace> = self.network.ipams().collect();
        let pools = self.records.pools.iter().filter(move |pool| {
            places.iter().any(|place| match place {
                BlockPlace::SharedBlocks => pool.system == System::Calico,
                BlockPlace::NodeBlocks(system) => pool.system == *system,
                _ => false,
            })
        });
        pools.map(|pool| NamedRange {
            name: &pool.name,
            cidr: pool.cidr,
        })
    }
}
