//! The blocks of a cluster as a document, for clients that draw the map themselves.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use podplane_map::{
    AddressClaim, AddressSpace, BlockState, Holder, Name, Network, NetworkRole, NodeBlock,
};
use podplane_proto::ipam::Block;
use serde::{Deserialize, Serialize};

use crate::blocks::node_block;

/// The facts about the blocks of a cluster that its objects do not have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockListing {
    /// The ranges of pods of the API server's flag.
    #[serde(rename = "clusterCIDRs")]
    pub cluster_cidrs: Vec<IpNet>,
    /// The blocks, in the order of the map.
    pub blocks: Vec<ListedBlock>,
    /// The last known addresses of the sandboxes in held blocks.
    pub held: Vec<HeldAddress>,
}

/// A block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedBlock {
    /// Its prefix.
    pub cidr: IpNet,
    /// Its state.
    pub state: BlockState,
    /// The node, or the former one of a block that drains.
    pub node: Option<String>,
    /// A line for people about its hold; may be empty.
    pub details: String,
}

/// The address of a sandbox whose node is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldAddress {
    /// The address.
    pub ip: IpAddr,
    /// The pod, `NAMESPACE/NAME`.
    pub pod: String,
    /// The former node, if it is known.
    pub node: Option<String>,
}

impl ListedBlock {
    fn of(block: &NodeBlock) -> Self {
        Self {
            cidr: block.cidr(),
            state: block.state(),
            node: block.node().map(str::to_owned),
            details: block.details().to_owned(),
        }
    }
}

impl BlockListing {
    /// The listing of a space.
    #[must_use]
    pub fn of(space: &AddressSpace) -> Self {
        // The ranges of objects have their names, and inferred ones say so.
        let is_flag = |one: &&Network| one.role() == NetworkRole::Pods && one.name().is_empty();
        let networks = space.networks().iter().filter(is_flag);
        let everywhere = [
            IpNet::from(Ipv4Net::default()),
            IpNet::from(Ipv6Net::default()),
        ];
        let records = everywhere.iter().flat_map(|all| space.records(all));
        let claims = records.flat_map(|record| record.claims);
        let held = claims.filter_map(|claim| match claim.holder() {
            Holder::Sandbox { name, node } => Some(HeldAddress {
                ip: claim.ip(),
                pod: name.to_string(),
                node: node.as_deref().map(str::to_owned),
            }),
            _ => None,
        });
        Self {
            cluster_cidrs: networks.map(Network::cidr).collect(),
            blocks: space.blocks().iter().map(ListedBlock::of).collect(),
            held: held.collect(),
        }
    }

    /// The listing of records as `ListBlocks` gives them, without ranges. A record that cannot be
    /// read is left out.
    #[must_use]
    pub fn of_records(records: &[Block]) -> Self {
        let blocks = records.iter().filter_map(node_block);
        let holds = records.iter().filter_map(|record| record.hold.as_ref());
        let held = holds.flat_map(|hold| &hold.addresses).filter_map(|known| {
            Some(HeldAddress {
                ip: known.address.parse().ok()?,
                pod: format!("{}/{}", known.namespace, known.name),
                node: Some(known.node_name.clone()).filter(|node| !node.is_empty()),
            })
        });
        Self {
            cluster_cidrs: Vec::new(),
            blocks: blocks.map(|block| ListedBlock::of(&block)).collect(),
            held: held.collect(),
        }
    }

    /// The blocks. One that cannot be is left out.
    pub fn node_blocks(&self) -> impl Iterator<Item = NodeBlock> {
        self.blocks.iter().filter_map(|block| {
            let read = NodeBlock::new(block.cidr, block.state, block.node.as_deref());
            Some(read.ok()?.with_details(&block.details))
        })
    }

    /// The blocks of which Node objects do not say everything.
    pub fn records(&self) -> impl Iterator<Item = NodeBlock> {
        let is_of_node =
            |block: &NodeBlock| block.state() == BlockState::Assigned && block.details().is_empty();
        self.node_blocks().filter(move |block| !is_of_node(block))
    }

    pub(crate) fn claims(&self) -> impl Iterator<Item = AddressClaim> {
        self.held.iter().filter_map(|held| {
            let holder = Holder::Sandbox {
                name: held.pod.as_str().into(),
                node: held.node.as_deref().map(Name::from),
            };
            AddressClaim::new(held.ip, holder).ok()
        })
    }
}
