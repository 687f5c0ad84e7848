//! The words of the ledger: nodes, what they hold, and what is wrong with it.

use std::fmt;
use std::sync::Arc;

use ipnet::IpNet;

/// A node as a holder of blocks. Only the UID identifies it: a node that was deleted and created again under its
/// name is another owner.
#[derive(Clone, Debug)]
pub struct Owner {
    pub(super) uid: Arc<str>,
    pub(super) name: Arc<str>,
}

impl Owner {
    /// The node with that UID, shown to people under `name`.
    #[must_use]
    pub fn new(uid: &str, name: &str) -> Self {
        Self {
            uid: uid.into(),
            name: name.into(),
        }
    }

    /// The UID of the node.
    #[must_use]
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// The name of the node.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        self.uid == other.uid
    }
}

impl Eq for Owner {}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.name)
    }
}

/// How a block is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It belongs to a service range.
    Reserved,
    /// It fits the configuration and is the node's alone.
    Assigned(Owner),
    /// A node has it although it does not fit the configuration, or another holds it too. It is kept: nothing else is given there.
    Foreign(Owner),
    /// The node is gone, but live pods have addresses of the block. Without an owner, nobody knows whose it was.
    Draining(Option<Owner>),
}

impl Claim {
    /// The node that holds the block, or held it; none for a service range, or if it is not known.
    #[must_use]
    pub fn owner(&self) -> Option<&Owner> {
        match self {
            Self::Reserved => None,
            Self::Assigned(owner) | Self::Foreign(owner) => Some(owner),
            Self::Draining(owner) => owner.as_ref(),
        }
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reserved => f.write_str("the service range"),
            Self::Assigned(owner) | Self::Foreign(owner) => owner.fmt(f),
            Self::Draining(Some(owner)) => write!(f, "pods of the former {owner}"),
            Self::Draining(None) => f.write_str("pods of an unknown node"),
        }
    }
}

/// A prefix and who holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Without host bits.
    pub net: IpNet,
    /// Its holder.
    pub claim: Claim,
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.net, self.claim)
    }
}

/// What became of a block that a node already has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Adoption {
    /// It is as the allocator would have given it.
    Assigned,
    /// It is kept as foreign.
    Foreign(Misfit),
}

/// Why a block is foreign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// It shares addresses with the block of another holder.
    Overlaps(Overlap),
    /// No cluster CIDR contains it.
    OutOfRange {
        /// The block.
        net: IpNet,
        /// The cluster CIDR of its family, or the first one if the family has none.
        cluster: Option<IpNet>,
    },
    /// It is not of the configured size.
    WrongSize {
        /// The block.
        net: IpNet,
        /// The configured prefix length.
        node_mask: u8,
    },
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overlaps(overlap) => overlap.fmt(f),
            // The reference's text.
            Self::OutOfRange {
                net,
                cluster: Some(cluster),
            } => {
                write!(f, "cidr {net} is out the range of cluster cidr {cluster}")
            }
            Self::OutOfRange { net, cluster: None } => {
                write!(f, "cidr {net} is in no cluster cidr")
            }
            Self::WrongSize { net, node_mask } => {
                write!(
                    f,
                    "cidr {net} is a /{}, the configured node mask is /{node_mask}",
                    net.prefix_len()
                )
            }
        }
    }
}

/// A block shares addresses with one that somebody else holds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cidr {net} overlaps {held}")]
pub struct Overlap {
    /// The block that was asked for.
    pub net: IpNet,
    /// The first one in its way, and who holds it.
    pub held: Block,
}
