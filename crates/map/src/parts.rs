//! The facts about an address space, as their source gives them.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;
use podplane_ipam::{AddressRange, Claim, Family, ServiceRange, parse_cidr};
use serde::{Deserialize, Serialize};

use crate::{
    name::Name,
    prefix::{number, size},
};

/// An invalid fact. The text names the field and its value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpaceError {
    /// A text is not a prefix.
    #[error("invalid {field} `{value}`: not a CIDR such as 10.244.0.0/16")]
    NotACidr {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
    },
    /// A prefix has bits behind its length.
    #[error("invalid {field} `{value}`: it has host bits; did you mean {canonical}?")]
    HostBits {
        /// The field.
        field: &'static str,
        /// Its value.
        value: IpNet,
        /// The prefix without them.
        canonical: IpNet,
    },
    /// A name is empty.
    #[error("missing {field} of {owner}: it must not be empty")]
    EmptyName {
        /// The field.
        field: &'static str,
        /// The block or address.
        owner: String,
    },
    /// A block needs a node by its state.
    #[error("missing node of block {cidr}: a block that is {state} has a node")]
    MissingNode {
        /// The block.
        cidr: IpNet,
        /// Its state.
        state: BlockState,
    },
    /// A block cannot have a node by its state.
    #[error("invalid node `{node}` of block {cidr}: a block that is {state} has no node")]
    UnexpectedNode {
        /// The block.
        cidr: IpNet,
        /// The node.
        node: String,
        /// Its state.
        state: BlockState,
    },
    /// The gateway or the range of a block is not in it.
    #[error("invalid {field} `{value}` of block {cidr}: it is not in the block")]
    NotInBlock {
        /// The field.
        field: &'static str,
        /// Its value.
        value: IpAddr,
        /// The block.
        cidr: IpNet,
    },
    /// The range of a block ends before it begins.
    #[error("invalid last address `{last}` of block {cidr}: it is before the first, {first}")]
    EmptyRange {
        /// The first address.
        first: IpAddr,
        /// The last address.
        last: IpAddr,
        /// The block.
        cidr: IpNet,
    },
}

fn canonical(field: &'static str, net: IpNet) -> Result<IpNet, SpaceError> {
    let canonical = net.trunc();
    match canonical == net {
        true => Ok(net),
        false => Err(SpaceError::HostBits {
            field,
            value: net,
            canonical,
        }),
    }
}

fn parsed(field: &'static str, text: &str) -> Result<IpNet, SpaceError> {
    parse_cidr(text).map_err(|_| SpaceError::NotACidr {
        field,
        value: text.to_owned(),
    })
}

/// The purpose of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum NetworkRole {
    /// Addresses of pods: a cluster CIDR, or a pool of a network with an IPAM of its own.
    Pods,
    /// Addresses of Services.
    Services,
    /// Addresses of the nodes themselves.
    Nodes,
}

impl NetworkRole {
    /// The name in pictures.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pods => "cluster CIDR",
            Self::Services => "service range",
            Self::Nodes => "node network",
        }
    }
}

impl fmt::Display for NetworkRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A network of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    role: NetworkRole,
    cidr: IpNet,
    name: String,
}

impl Network {
    /// Creates a network. `name` is that of its object, or of its flag; it may be empty.
    ///
    /// # Errors
    ///
    /// [`SpaceError::HostBits`].
    pub fn new(role: NetworkRole, cidr: IpNet, name: &str) -> Result<Self, SpaceError> {
        Ok(Self {
            role,
            cidr: canonical(role.as_str(), cidr)?,
            name: name.to_owned(),
        })
    }

    /// Creates a network of a text such as `10.244.0.0/16`.
    ///
    /// # Errors
    ///
    /// [`SpaceError::NotACidr`] or [`SpaceError::HostBits`].
    pub fn parse(role: NetworkRole, cidr: &str, name: &str) -> Result<Self, SpaceError> {
        Self::new(role, parsed(role.as_str(), cidr)?, name)
    }

    /// The purpose.
    #[must_use]
    pub const fn role(&self) -> NetworkRole {
        self.role
    }

    /// The prefix, without host bits.
    #[must_use]
    pub const fn cidr(&self) -> IpNet {
        self.cidr
    }

    /// The addresses that are never given: of a service range the first, and for IPv4 the last.
    pub(crate) fn reserved(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let ends = (self.role == NetworkRole::Services)
            .then(|| [self.cidr.network(), self.cidr.broadcast()]);
        let given = ServiceRange::new(self.cidr);
        let is_given = move |ip: &IpAddr| given.is_some_and(|range| range.contains(*ip));
        let ends = ends.into_iter().flatten();
        ends.filter(move |ip| !is_given(ip))
    }

    /// The name of its object or flag; may be empty.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes the name of another one that is the same network: a flag, which gives it no name, may
    /// state the range of an object. Returns false if it is not the same.
    pub(crate) fn absorbs(&mut self, other: &Self) -> bool {
        let is_range = (self.role, self.cidr) == (other.role, other.cidr);
        let is_same = is_range && (self.name.is_empty() || self.name == other.name);
        if is_same {
            other.name.clone_into(&mut self.name);
        }
        is_same
    }
}

/// The state of a block, as the block service and `podplane get blocks` have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum BlockState {
    /// A node has it, and it fits the configuration.
    Assigned,
    /// A node has it, although it does not fit the configuration or overlaps another.
    Foreign,
    /// It is recorded, and no node has it at present.
    Unowned,
    /// Its node no longer has it, and pods may still have addresses of it.
    Draining,
    /// As draining, and an instance of the former node holds it for its sandboxes.
    Held,
    /// It is no longer used, and not assigned again for a while.
    Quarantined,
    /// It is part of a service range.
    Reserved,
}

impl BlockState {
    /// The name in pictures.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Assigned => "assigned",
            Self::Foreign => "foreign",
            Self::Unowned => "unowned",
            Self::Draining => "draining",
            Self::Held => "held",
            Self::Quarantined => "quarantined",
            Self::Reserved => "reserved",
        }
    }

    /// Returns true if addresses of the block are not given, but the block is not for services.
    #[must_use]
    pub const fn is_withheld(self) -> bool {
        matches!(self, Self::Draining | Self::Held | Self::Quarantined)
    }

    /// Returns true if addresses of the block are given to pods.
    pub(crate) const fn is_live(self) -> bool {
        matches!(self, Self::Assigned | Self::Foreign | Self::Unowned)
    }
}

impl fmt::Display for BlockState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The addresses of a block that no pod gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BlockLayout {
    /// As host-local uses a block without further settings: the second address is the gateway; the
    /// first, and for IPv4 the last, are reserved.
    #[default]
    HostLocal,
    /// Pods can have every address.
    Whole,
    /// Pods get the addresses of a range alone.
    Range {
        /// The gateway, if it is in the block.
        gateway: Option<IpAddr>,
        /// The first address for pods.
        first: IpAddr,
        /// The last address for pods.
        last: IpAddr,
    },
}

/// A block of addresses, and the node that has or had it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeBlock {
    cidr: IpNet,
    state: BlockState,
    node: Option<String>,
    layout: BlockLayout,
    details: String,
}

impl NodeBlock {
    /// Creates a block with host-local's layout. `node` is the former node where the block drains.
    ///
    /// # Errors
    ///
    /// [`SpaceError::HostBits`]; [`SpaceError::MissingNode`] of an assigned or foreign block;
    /// [`SpaceError::UnexpectedNode`] of an unowned or reserved one; [`SpaceError::EmptyName`].
    pub fn new(cidr: IpNet, state: BlockState, node: Option<&str>) -> Result<Self, SpaceError> {
        let cidr = canonical("block", cidr)?;
        match (state, node) {
            (_, Some("")) => Err(SpaceError::EmptyName {
                field: "node",
                owner: format!("block {cidr}"),
            }),
            (BlockState::Assigned | BlockState::Foreign, None) => {
                Err(SpaceError::MissingNode { cidr, state })
            }
            (BlockState::Unowned | BlockState::Reserved, Some(node)) => {
                Err(SpaceError::UnexpectedNode {
                    cidr,
                    node: node.to_owned(),
                    state,
                })
            }
            _ => Ok(Self {
                cidr,
                state,
                node: node.map(str::to_owned),
                layout: BlockLayout::default(),
                details: String::new(),
            }),
        }
    }

    /// Creates a block of a text such as `10.244.1.0/24`.
    ///
    /// # Errors
    ///
    /// [`SpaceError::NotACidr`], and as [`NodeBlock::new`].
    pub fn parse(cidr: &str, state: BlockState, node: Option<&str>) -> Result<Self, SpaceError> {
        Self::new(parsed("block", cidr)?, state, node)
    }

    /// Changes the addresses that no pod gets.
    ///
    /// # Errors
    ///
    /// [`SpaceError::NotInBlock`] or [`SpaceError::EmptyRange`].
    pub fn with_layout(mut self, layout: BlockLayout) -> Result<Self, SpaceError> {
        if let BlockLayout::Range {
            gateway,
            first,
            last,
        } = &layout
        {
            let ends = [("first address", *first), ("last address", *last)];
            let gateway = gateway.map(|gateway| ("gateway", gateway));
            let mut each = ends.into_iter().chain(gateway);
            if let Some((field, value)) = each.find(|(_, ip)| !self.cidr.contains(ip)) {
                let cidr = self.cidr;
                return Err(SpaceError::NotInBlock { field, value, cidr });
            }
            if last < first {
                return Err(SpaceError::EmptyRange {
                    first: *first,
                    last: *last,
                    cidr: self.cidr,
                });
            }
        }
        self.layout = layout;
        Ok(self)
    }

    /// Adds a line for people, such as "held by instance 0f2c9d1e since 2026-11-01T10:00:00Z".
    #[must_use]
    pub fn with_details(mut self, details: &str) -> Self {
        details.clone_into(&mut self.details);
        self
    }

    /// The prefix, without host bits.
    #[must_use]
    pub const fn cidr(&self) -> IpNet {
        self.cidr
    }

    /// The state.
    #[must_use]
    pub const fn state(&self) -> BlockState {
        self.state
    }

    /// The node, or the former one of a block that drains. `None` if it is unknown, and for unowned
    /// and reserved blocks.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        self.node.as_deref()
    }

    /// The line for people; may be empty.
    #[must_use]
    pub fn details(&self) -> &str {
        &self.details
    }

    /// The gateway, if the layout has one.
    pub(crate) fn gateway(&self) -> Option<IpAddr> {
        match &self.layout {
            BlockLayout::HostLocal => {
                // Blocks of one or two addresses have none.
                AddressRange::of_block(self.cidr)?;
                self.cidr.hosts().nth(match Family::of(&self.cidr) {
                    Family::V4 => 0,
                    // Here `hosts` begins with the first address.
                    Family::V6 => 1,
                })
            }
            BlockLayout::Whole => None,
            BlockLayout::Range { gateway, .. } => *gateway,
        }
    }

    /// The number of addresses that pods can get of the block alone; saturates for IPv6.
    #[must_use]
    pub fn capacity(&self) -> u128 {
        let sizes = self.given().map(|(first, last)| size(first, last));
        sizes.fold(0, u128::saturating_add)
    }

    /// The addresses that pods can get, as runs of numbers: without the gateway.
    pub(crate) fn given(&self) -> impl Iterator<Item = (u128, u128)> + use<> {
        let ends = self
            .ends()
            .map(|(first, last)| (number(first), number(last)));
        let gateway = self.gateway().map(number);
        let runs = ends.map(|(first, last)| match gateway {
            Some(gateway) if (first..=last).contains(&gateway) => [
                gateway.checked_sub(1).map(|before| (first, before)),
                gateway.checked_add(1).map(|after| (after, last)),
            ],
            _ => [Some((first, last)), None],
        });
        let runs = runs.into_iter().flatten().flatten();
        runs.filter(|(first, last)| first <= last)
    }

    /// The first and last address for pods, the gateway possibly among them; `None` if pods get
    /// none, as of host-local's blocks of one or two addresses.
    fn ends(&self) -> Option<(IpAddr, IpAddr)> {
        match &self.layout {
            BlockLayout::HostLocal => {
                let gateway = self.gateway()?;
                let last = match self.cidr {
                    IpNet::V4(v4) => IpAddr::V4((v4.broadcast().to_bits() - 1).into()),
                    IpNet::V6(v6) => IpAddr::V6(v6.broadcast()),
                };
                Some((gateway, last))
            }
            BlockLayout::Whole => Some((self.cidr.network(), self.cidr.broadcast())),
            BlockLayout::Range { first, last, .. } => Some((*first, *last)),
        }
    }
}

/// A block as an allocator has it.
impl TryFrom<&podplane_ipam::Block> for NodeBlock {
    type Error = SpaceError;

    fn try_from(block: &podplane_ipam::Block) -> Result<Self, SpaceError> {
        let (state, owner) = match &block.claim {
            Claim::Reserved => (BlockState::Reserved, None),
            Claim::Assigned(owner) => (BlockState::Assigned, Some(owner)),
            Claim::Foreign(owner) => (BlockState::Foreign, Some(owner)),
            Claim::Draining(owner) => (BlockState::Draining, owner.as_ref()),
        };
        Self::new(block.net, state, owner.map(podplane_ipam::Owner::name))
    }
}

/// The holder of an address. The order is that of listings.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum Holder {
    /// A live pod that is not on its node's network.
    Pod {
        /// `NAMESPACE/NAME`.
        name: Name,
        /// The node, if it is known.
        node: Option<Name>,
    },
    /// A sandbox that exists; its pod may not be known. Of a pod on the same node it is the same
    /// holder.
    Sandbox {
        /// Its id, or the pod that it was last known for.
        name: Name,
        /// The node, or the former one.
        node: Option<Name>,
    },
    /// An owner that does not exist, of an allocation that does.
    Orphan {
        /// The owner as the allocation names it.
        name: Name,
        /// The node, if it is known.
        node: Option<Name>,
    },
    /// A node.
    Node {
        /// Its name.
        name: Name,
    },
    /// A Service.
    Service {
        /// `NAMESPACE/NAME`.
        name: Name,
    },
    /// The bridge of a node, or another device of the network. The gateways of blocks need no
    /// claim: see [`BlockLayout`].
    Gateway {
        /// The node.
        name: Name,
    },
    /// Nobody: the network keeps the address for itself.
    Reserved {
        /// The purpose; may be empty.
        name: Name,
    },
}

impl Holder {
    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Pod { name, .. }
            | Self::Sandbox { name, .. }
            | Self::Orphan { name, .. }
            | Self::Node { name }
            | Self::Service { name }
            | Self::Gateway { name }
            | Self::Reserved { name } => name,
        }
    }

    /// The node on which it is, as far as that is known.
    #[must_use]
    pub fn node(&self) -> Option<&str> {
        match self {
            Self::Pod { node, .. } | Self::Sandbox { node, .. } | Self::Orphan { node, .. } => {
                node.as_deref()
            }
            Self::Node { name } | Self::Gateway { name } => Some(name),
            Self::Service { .. } | Self::Reserved { .. } => None,
        }
    }

    /// The kind, as a word.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Pod { .. } => "pod",
            Self::Sandbox { .. } => "sandbox",
            Self::Orphan { .. } => "orphan",
            Self::Node { .. } => "node",
            Self::Service { .. } => "service",
            Self::Gateway { .. } => "gateway of",
            Self::Reserved { .. } => "reserved",
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind())?;
        if !self.name().is_empty() {
            write!(f, " {}", self.name())?;
        }
        match self {
            Self::Pod { node, .. } | Self::Sandbox { node, .. } | Self::Orphan { node, .. } => {
                node.iter().try_for_each(|node| write!(f, " on {node}"))
            }
            _ => Ok(()),
        }
    }
}

/// The fact that a holder has an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressClaim {
    ip: IpAddr,
    holder: Holder,
}

impl AddressClaim {
    /// Creates a claim. An IPv4 address that is mapped into IPv6 is IPv4.
    ///
    /// # Errors
    ///
    /// [`SpaceError::EmptyName`], unless the address is reserved.
    pub fn new(ip: IpAddr, holder: Holder) -> Result<Self, SpaceError> {
        let ip = ip.to_canonical();
        let missing = |field| SpaceError::EmptyName {
            field,
            owner: format!("address {ip}"),
        };
        if holder.name().is_empty() && !matches!(holder, Holder::Reserved { .. }) {
            return Err(missing(holder.kind()));
        }
        if holder.node() == Some("") {
            return Err(missing("node"));
        }
        Ok(Self { ip, holder })
    }

    /// The address.
    #[must_use]
    pub const fn ip(&self) -> IpAddr {
        self.ip
    }

    /// The holder.
    #[must_use]
    pub const fn holder(&self) -> &Holder {
        &self.holder
    }
}

#[cfg(test)]
mod tests;
