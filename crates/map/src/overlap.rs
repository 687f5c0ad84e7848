//! Networks and blocks that share addresses although they should not.

use std::fmt;

use ipnet::IpNet;
use serde::Serialize;

use crate::{
    parts::{BlockState, Network, NetworkRole, NodeBlock},
    prefix::bounds,
};

/// A network or block that overlaps another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum OverlapPart {
    /// A network.
    Network {
        /// Its purpose.
        role: NetworkRole,
        /// Its prefix.
        cidr: IpNet,
    },
    /// A block.
    Block {
        /// Its prefix.
        cidr: IpNet,
        /// Its state.
        state: BlockState,
        /// Its node, if it is known.
        node: Option<String>,
    },
}

impl OverlapPart {
    /// The prefix.
    #[must_use]
    pub const fn cidr(&self) -> IpNet {
        match self {
            Self::Network { cidr, .. } | Self::Block { cidr, .. } => *cidr,
        }
    }
}

impl fmt::Display for OverlapPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network { role, cidr } => write!(f, "{role} {cidr}"),
            Self::Block { cidr, state, node } => {
                if *state != BlockState::Assigned {
                    write!(f, "{state} ")?;
                }
                write!(f, "block {cidr}")?;
                node.iter().try_for_each(|node| write!(f, " of {node}"))
            }
        }
    }
}

/// Two prefixes that share addresses. One contains the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Overlap {
    /// The wider one, or the first of two equal ones.
    pub wide: OverlapPart,
    /// The narrower one.
    pub narrow: OverlapPart,
}

impl Overlap {
    /// The part that the block overlaps; `None` if it is not one of the two.
    #[must_use]
    pub(crate) fn other_than(&self, block: &NodeBlock) -> Option<&OverlapPart> {
        let is_block = |part: &OverlapPart| {
            matches!(part, OverlapPart::Block { cidr, node, .. }
                if *cidr == block.cidr() && node.as_deref() == block.node())
        };
        match (is_block(&self.narrow), is_block(&self.wide)) {
            (true, _) => Some(&self.wide),
            (false, true) => Some(&self.narrow),
            (false, false) => None,
        }
    }

    /// The prefixes at fault: the narrower one, and the wider one unless it is a network.
    pub fn prefixes(&self) -> impl Iterator<Item = IpNet> + use<> {
        let wide = match &self.wide {
            OverlapPart::Block { cidr, .. } => Some(*cidr),
            OverlapPart::Network { .. } => None,
        };
        wide.into_iter().chain([self.narrow.cidr()])
    }
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} overlaps {}", self.narrow, self.wide)
    }
}

/// A network or block of the input.
#[derive(Clone, Copy)]
enum OverlapPartRef<'a> {
    Network(&'a Network),
    Block(&'a NodeBlock),
}

impl OverlapPartRef<'_> {
    fn cidr(self) -> IpNet {
        match self {
            Self::Network(network) => network.cidr(),
            Self::Block(block) => block.cidr(),
        }
    }

    fn owned(self) -> OverlapPart {
        match self {
            Self::Network(network) => OverlapPart::Network {
                role: network.role(),
                cidr: network.cidr(),
            },
            Self::Block(block) => OverlapPart::Block {
                cidr: block.cidr(),
                state: block.state(),
                node: block.node().map(str::to_owned),
            },
        }
    }

    /// Returns true if two prefixes that share addresses should not.
    fn conflicts(self, other: Self) -> bool {
        match (self, other) {
            (Self::Network(_), Self::Network(_)) => true,
            (Self::Network(network), Self::Block(block))
            | (Self::Block(block), Self::Network(network)) => match network.role() {
                // A block that is wider than its network takes addresses of others.
                NetworkRole::Pods => block.cidr().prefix_len() < network.cidr().prefix_len(),
                NetworkRole::Services => block.state() != BlockState::Reserved,
                NetworkRole::Nodes => true,
            },
            (Self::Block(a), Self::Block(b)) => {
                // A node may get its own former block again, and two former blocks may overlap.
                // A reserved block is reported as its service range.
                let is_old = |block: &NodeBlock| block.state().is_withheld();
                let is_reserved = |block: &NodeBlock| block.state() == BlockState::Reserved;
                let is_same = a.node().is_some() && a.node() == b.node();
                !(is_same || is_old(a) && is_old(b) || is_reserved(a) && is_reserved(b))
            }
        }
    }
}

/// Finds the overlaps: for each prefix that conflicts with prefixes around it, or equal ones, the
/// widest of those.
///
/// Prefixes nest or are disjoint, so those around a prefix are a stack when all are in order.
pub(crate) fn overlaps(networks: &[Network], blocks: &[NodeBlock]) -> Vec<Overlap> {
    let mut parts: Vec<OverlapPartRef<'_>> = networks.iter().map(OverlapPartRef::Network).collect();
    parts.extend(blocks.iter().map(OverlapPartRef::Block));
    parts.sort_by_key(|part| (part.cidr().network(), part.cidr().prefix_len()));
    let mut around: Vec<OverlapPartRef<'_>> = Vec::new();
    let mut found = Vec::new();
    for part in parts {
        let is_apart =
            |outer: &OverlapPartRef<'_>| bounds(&outer.cidr()).1 < bounds(&part.cidr()).0;
        let is_other_family = |outer: &OverlapPartRef<'_>| {
            outer.cidr().max_prefix_len() != part.cidr().max_prefix_len()
        };
        while around
            .last()
            .is_some_and(|outer| is_other_family(outer) || is_apart(outer))
        {
            around.pop();
        }
        if let Some(wide) = around.iter().find(|outer| part.conflicts(**outer)) {
            found.push(Overlap {
                wide: wide.owned(),
                narrow: part.owned(),
            });
        }
        around.push(part);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(networks: &[(NetworkRole, &str)], blocks: &[(&str, BlockState, &str)]) -> Vec<String> {
        let networks: Vec<_> = networks
            .iter()
            .map(|(role, cidr)| Network::parse(*role, cidr, "").unwrap())
            .collect();
        let blocks: Vec<_> = blocks
            .iter()
            .map(|(cidr, state, node)| {
                let node = (!node.is_empty()).then_some(*node);
                NodeBlock::parse(cidr, *state, node).unwrap()
            })
            .collect();
        let found = overlaps(&networks, &blocks);
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn names_networks_and_blocks_that_share_addresses() {
        use BlockState::{Assigned, Draining, Held, Reserved};
        use NetworkRole::{Nodes, Pods, Services};
        assert_eq!(
            texts(
                &[
                    (Pods, "10.0.0.0/8"),
                    (Services, "10.96.0.0/12"),
                    (Nodes, "192.168.0.0/24"),
                    (Pods, "fd00::/48"),
                ],
                &[
                    ("10.1.0.0/24", Assigned, "a"),
                    ("10.1.0.0/24", Assigned, "b"),
                    ("10.1.0.128/25", Assigned, "a"),
                    ("10.2.0.0/24", Draining, "c"),
                    ("10.2.0.0/24", Held, "d"),
                    ("10.3.0.0/24", Draining, "c"),
                    ("10.3.0.0/24", Assigned, "c"),
                    ("10.96.0.0/12", Reserved, ""),
                    ("10.96.7.0/24", Assigned, "e"),
                    ("192.168.0.0/26", Assigned, "f"),
                ],
            ),
            [
                "block 10.1.0.0/24 of b overlaps block 10.1.0.0/24 of a",
                "block 10.1.0.128/25 of a overlaps block 10.1.0.0/24 of b",
                "service range 10.96.0.0/12 overlaps cluster CIDR 10.0.0.0/8",
                "block 10.96.7.0/24 of e overlaps service range 10.96.0.0/12",
                "block 192.168.0.0/26 of f overlaps node network 192.168.0.0/24",
            ]
        );
    }
}
