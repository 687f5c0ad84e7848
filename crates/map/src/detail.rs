//! All facts about one address.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;
use serde::Serialize;

use crate::{
    parts::{AddressClaim, BlockState, Holder, Network, NetworkRole, NodeBlock},
    space::AddressSpace,
    state::AddressState,
    words,
};

/// An address, its holders, and the blocks and networks around it.
///
/// `Display` is printable ASCII for people, without a line feed at the end.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AddressDetail<'a> {
    /// The address.
    pub ip: IpAddr,
    /// Its state in the narrowest network around it; of none, as an address of pods.
    pub state: AddressState,
    /// Its holders, sorted.
    pub holders: Vec<&'a Holder>,
    /// The blocks around it, the wider first.
    pub blocks: Vec<BlockDetail<'a>>,
    /// The networks around it, the wider first.
    pub networks: Vec<&'a Network>,
}

/// A block around an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BlockDetail<'a> {
    /// The prefix.
    pub cidr: IpNet,
    /// The state.
    pub state: BlockState,
    /// The node, or the former one; `None` if there is none, or it is unknown.
    pub node: Option<&'a str>,
    /// A line for people; may be empty.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub details: &'a str,
}

impl<'a> BlockDetail<'a> {
    fn of(block: &'a NodeBlock) -> Self {
        Self {
            cidr: block.cidr(),
            state: block.state(),
            node: block.node(),
            details: block.details(),
        }
    }
}

impl<'a> AddressDetail<'a> {
    /// Collects the facts about an address. An IPv4 address that is mapped into IPv6 is IPv4.
    #[must_use]
    pub fn new(space: &'a AddressSpace, ip: IpAddr) -> Self {
        let ip = ip.to_canonical();
        let blocks = space.blocks().iter();
        let networks = space.networks().iter();
        let mut networks: Vec<_> = networks
            .filter(|network| network.cidr().contains(&ip))
            .collect();
        networks.sort_by_key(|network| network.cidr().prefix_len());
        let role = networks.last().map_or(NetworkRole::Pods, |one| one.role());
        let record = space.record(ip);
        let claims = record.map_or(&[][..], |record| record.claims);
        Self {
            ip,
            state: space.state(role, ip),
            holders: claims.iter().map(AddressClaim::holder).collect(),
            blocks: blocks
                .filter(|block| block.cidr().contains(&ip))
                .map(BlockDetail::of)
                .collect(),
            networks,
        }
    }
}

impl fmt::Display for AddressDetail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            ip,
            state,
            holders,
            blocks,
            networks,
        } = self;
        write!(f, "{ip}: {state}, {}", state.meaning())?;
        for holder in holders {
            write!(f, "\n  {}", words::ascii(&holder.to_string()))?;
        }
        for block in blocks {
            let BlockDetail {
                cidr,
                state,
                node,
                details,
            } = block;
            let mut text = format!("in block {cidr}, {state}");
            if let Some(node) = node {
                text = format!("in block {cidr} of {node}, {state}");
            }
            if !details.is_empty() {
                text = format!("{text}, {details}");
            }
            write!(f, "\n{}", words::ascii(&text))?;
        }
        for network in networks {
            let name = words::named_network(network);
            write!(f, "\nin {}", words::ascii(&name))?;
        }
        if networks.is_empty() {
            f.write_str("\nin no network of the cluster")?;
        }
        Ok(())
    }
}
