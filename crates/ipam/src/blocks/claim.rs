//! The public types of the ledger: nodes, claims, and the reasons for foreign blocks.

use std::{fmt, sync::Arc};

use ipnet::IpNet;

/// A node as a holder of blocks. Only the UID identifies it: a node that was deleted and created
/// again under the same name is another owner.
#[derive(Clone, Debug)]
pub struct Owner {
    pub(super) uid: Arc<str>,
    pub(super) name: Arc<str>,
}

impl Owner {
    /// Creates an owner; `name` is only for messages.
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

/// The state of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Part of a service range.
    Reserved,
    /// Fits the configuration and belongs to this node alone.
    Assigned(Owner),
    /// Belongs to a node although it does not fit the configuration, or another node holds it too.
    /// It is kept, and no block that overlaps it is allocated.
    Foreign(Owner),
    /// The node is gone, but live pods have addresses of the block. `None` if the former owner is
    /// unknown.
    Draining(Option<Owner>),
}

impl Claim {
    /// The node that holds or held the block; `None` for service ranges, and for draining blocks of
    /// unknown owner.
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

/// A prefix and its claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The prefix, without host bits.
    pub net: IpNet,
    /// The claim on it.
    pub claim: Claim,
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.net, self.claim)
    }
}

/// The result of adopting a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Adoption {
    /// The block is as the allocator would have allocated it.
    Assigned,
    /// The block is kept as foreign.
    Foreign(Misfit),
}

/// The reason why a block is foreign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// It shares addresses with a block of another holder.
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

/// A conflict with a block of another holder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cidr {net} overlaps {held}")]
pub struct Overlap {
    /// The requested block.
    pub net: IpNet,
    /// The first block that overlaps it, and its holder.
    pub held: Block,
}
