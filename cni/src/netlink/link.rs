//! Links: bridges and veth pairs.

use std::{
    fmt,
    os::fd::{AsRawFd, BorrowedFd},
};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    link::{
        InfoBridge, InfoBridgePort, InfoData, InfoKind, InfoPortData, InfoPortKind, InfoVeth,
        LinkAttribute, LinkExtentMask, LinkFlags, LinkInfo, LinkMessage, State,
    },
};

use super::{Netlink, NetlinkError, Request};

/// The kernel's view of whether a link works (`IFLA_OPERSTATE`).
pub type OperState = State;

/// A link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its number in its namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// `bridge`, `veth`, …; empty for a physical one and for `lo`.
    pub kind: String,
    /// Hardware address.
    pub mac: Vec<u8>,
    /// MTU in bytes.
    pub mtu: u32,
    /// Whether it is up administratively.
    pub is_up: bool,
    /// Whether it is in promiscuous mode by administration.
    pub is_promiscuous: bool,
    /// Whether it works.
    pub state: OperState,
    /// The bridge that it is a port of.
    pub controller: Option<u32>,
    /// As a bridge port: whether frames may go back where they came from.
    pub is_hairpin: bool,
    /// As a bridge port: whether it talks to ports that are not isolated only.
    pub is_isolated: bool,
    /// For a veth: the index of its peer, in the peer's namespace.
    pub peer: Option<u32>,
}

impl Link {
    /// The hardware address as text.
    #[must_use]
    pub fn mac_text(&self) -> String {
        mac_text(&self.mac)
    }

    fn apply(&mut self, info: LinkInfo) {
        match info {
            LinkInfo::Kind(kind) => self.kind = kind.to_string(),
            LinkInfo::PortData(InfoPortData::BridgePort(options)) => {
                self.is_hairpin = options.contains(&InfoBridgePort::HairpinMode(true));
                self.is_isolated = options.contains(&InfoBridgePort::Isolated(true));
            }
            _ => {}
        }
    }
}

/// A bridge to be made.
#[derive(Debug, Clone, Default)]
pub struct Bridge<'a> {
    /// Its name.
    pub name: &'a str,
    /// MTU in bytes; the kernel's default when absent.
    pub mtu: Option<u32>,
    /// Hardware address; one that is set is not changed by ports that come and go.
    pub mac: Option<[u8; 6]>,
    /// Whether ports may be told apart by VLAN.
    pub vlan_filtering: bool,
}

/// A veth pair to be made.
#[derive(Debug, Clone, Default)]
pub struct Veth<'a> {
    /// Name of the end in the socket's namespace.
    pub name: &'a str,
    /// Name of the other end.
    pub peer_name: &'a str,
    /// Namespace of the other end; the socket's when absent.
    pub peer_netns: Option<BorrowedFd<'a>>,
    /// MTU in bytes of both ends.
    pub mtu: Option<u32>,
    /// Hardware address of the end here.
    pub mac: Option<[u8; 6]>,
    /// Hardware address of the other end.
    pub peer_mac: Option<[u8; 6]>,
    /// The bridge that the end here becomes a port of.
    pub controller: Option<u32>,
    /// Whether the end here is made up at once.
    pub up: bool,
}

/// A hardware address as text: lower case, with colons.
#[must_use]
pub fn mac_text(mac: &[u8]) -> String {
    let bytes: Vec<_> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.join(":")
}

/// Reads an Ethernet address.
#[must_use]
pub fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split([':', '-']);
    for byte in &mut mac {
        let is_octet = |part: &&str| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
        let part = parts.next().filter(is_octet)?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

impl Request {
    /// Makes a bridge; one of that name there already is an error.
    #[must_use]
    pub fn create_bridge(bridge: &Bridge<'_>) -> Self {
        let Bridge {
            name,
            mtu,
            mac,
            vlan_filtering,
        } = bridge;
        let mut info = vec![LinkInfo::Kind(InfoKind::Bridge)];
        if *vlan_filtering {
            info.push(LinkInfo::Data(InfoData::Bridge(vec![
                InfoBridge::VlanFiltering(true),
            ])));
        }
        let mut message = LinkMessage::default();
        message.attributes = own_attributes(name, *mtu, *mac);
        message.attributes.push(LinkAttribute::LinkInfo(info));
        create(format_args!("create bridge {name}"), message)
    }

    /// Makes a veth pair, with one transmit and one receive queue for each end: more cost time and memory
    /// per pair, and serve nobody here.
    #[must_use]
    pub fn create_veth(veth: &Veth<'_>) -> Self {
        let Veth {
            name,
            peer_name,
            peer_netns,
            mtu,
            mac,
            peer_mac,
            controller,
            up,
        } = veth;
        let single_queue = [LinkAttribute::NumTxQueues(1), LinkAttribute::NumRxQueues(1)];
        let mut peer = LinkMessage::default();
        peer.attributes = own_attributes(peer_name, *mtu, *peer_mac);
        peer.attributes.extend(single_queue.clone());
        peer.attributes
            .extend(peer_netns.map(|netns| LinkAttribute::NetNsFd(netns.as_raw_fd())));
        let mut message = LinkMessage::default();
        if *up {
            message.header.flags = LinkFlags::Up;
            message.header.change_mask = LinkFlags::Up;
        }
        message.attributes = own_attributes(name, *mtu, *mac);
        message.attributes.extend(single_queue);
        message
            .attributes
            .extend(controller.map(LinkAttribute::Controller));
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]));
        create(
            format_args!("create veth pair {name} and {peer_name}"),
            message,
        )
    }

    /// Sets a link up.
    #[must_use]
    pub fn up(index: u32) -> Self {
        flags(
            format_args!("set link {index} up"),
            index,
            LinkFlags::Up,
            LinkFlags::Up,
        )
    }

    /// Sets a link down.
    #[must_use]
    pub fn down(index: u32) -> Self {
        flags(
            format_args!("set link {index} down"),
            index,
            LinkFlags::empty(),
            LinkFlags::Up,
        )
    }

    /// Sets a link's promiscuous mode.
    #[must_use]
    pub fn promiscuous(index: u32) -> Self {
        let mode = LinkFlags::Promisc;
        flags(
            format_args!("set link {index} promiscuous"),
            index,
            mode,
            mode,
        )
    }

    /// Makes a link a port of a bridge, or of none.
    #[must_use]
    pub fn controller(index: u32, controller: Option<u32>) -> Self {
        let attempt = match controller {
            Some(controller) => format!("make link {index} a port of link {controller}"),
            None => format!("make link {index} a port of none"),
        };
        set(
            attempt,
            index,
            LinkAttribute::Controller(controller.unwrap_or(0)),
        )
    }

    /// Sets a link's MTU, in bytes.
    #[must_use]
    pub fn mtu(index: u32, mtu: u32) -> Self {
        set(
            format_args!("set mtu {mtu} on link {index}"),
            index,
            LinkAttribute::Mtu(mtu),
        )
    }

    /// Sets a link's hardware address.
    #[must_use]
    pub fn mac(index: u32, mac: &[u8]) -> Self {
        let attempt = format!("set hardware address {} on link {index}", mac_text(mac));
        set(attempt, index, LinkAttribute::Address(mac.to_vec()))
    }

    /// Renames a link, which must be down.
    #[must_use]
    pub fn rename(index: u32, name: &str) -> Self {
        set(
            format_args!("rename link {index} to {name}"),
            index,
            LinkAttribute::IfName(name.to_owned()),
        )
    }

    /// Moves a link into another namespace.
    #[must_use]
    pub fn move_to(index: u32, netns: BorrowedFd<'_>) -> Self {
        let attempt = format!("move link {index} to another namespace");
        set(attempt, index, LinkAttribute::NetNsFd(netns.as_raw_fd()))
    }

    /// Lets a bridge port send frames back where they came from.
    #[must_use]
    pub fn hairpin(index: u32) -> Self {
        port(
            format_args!("set hairpin mode on link {index}"),
            index,
            InfoBridgePort::HairpinMode(true),
        )
    }

    /// Lets a bridge port talk to ports that are not isolated only.
    #[must_use]
    pub fn isolated(index: u32) -> Self {
        port(
            format_args!("isolate link {index}"),
            index,
            InfoBridgePort::Isolated(true),
        )
    }

    /// Deletes a link; the other end of a veth pair goes with it.
    #[must_use]
    pub fn delete_link(index: u32) -> Self {
        let mut message = LinkMessage::default();
        message.header.index = index;
        Self::new(
            format_args!("delete link {index}"),
            RouteNetlinkMessage::DelLink(message),
            0,
        )
    }
}

fn own_attributes(name: &str, mtu: Option<u32>, mac: Option<[u8; 6]>) -> Vec<LinkAttribute> {
    let mut attributes = vec![LinkAttribute::IfName(name.to_owned())];
    attributes.extend(mtu.map(LinkAttribute::Mtu));
    attributes.extend(mac.map(|mac| LinkAttribute::Address(mac.to_vec())));
    attributes
}

fn create(attempt: impl fmt::Display, message: LinkMessage) -> Request {
    Request::new(
        attempt,
        RouteNetlinkMessage::NewLink(message),
        NLM_F_CREATE | NLM_F_EXCL,
    )
}

fn flags(attempt: impl fmt::Display, index: u32, flags: LinkFlags, mask: LinkFlags) -> Request {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.header.flags = flags;
    message.header.change_mask = mask;
    Request::new(attempt, RouteNetlinkMessage::SetLink(message), 0)
}

fn set(attempt: impl fmt::Display, index: u32, attribute: LinkAttribute) -> Request {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes.push(attribute);
    Request::new(attempt, RouteNetlinkMessage::SetLink(message), 0)
}

fn port(attempt: impl fmt::Display, index: u32, option: InfoBridgePort) -> Request {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::PortKind(InfoPortKind::Bridge),
        LinkInfo::PortData(InfoPortData::BridgePort(vec![option])),
    ]));
    // RTM_SETLINK does not look at the data of ports; RTM_NEWLINK of a link that exists does.
    Request::new(attempt, RouteNetlinkMessage::NewLink(message), 0)
}

impl Netlink {
    /// The link of that name, or none.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn link(&mut self, name: &str) -> Result<Option<Link>, NetlinkError> {
        let mut message = LinkMessage::default();
        message
            .attributes
            .push(LinkAttribute::IfName(name.to_owned()));
        self.get_link(&format!("look up link {name}"), message)
    }

    /// The link of that index, or none.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn link_by_index(&mut self, index: u32) -> Result<Option<Link>, NetlinkError> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        self.get_link(&format!("look up link {index}"), message)
    }

    /// All links of the namespace, by index.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn links(&mut self) -> Result<Vec<Link>, NetlinkError> {
        let query = RouteNetlinkMessage::GetLink(LinkMessage::default());
        let found = self.dump("list links", &query)?;
        let mut links: Vec<_> = found.into_iter().filter_map(decode).collect();
        links.sort_by_key(|link| link.index);
        Ok(links)
    }

    fn get_link(
        &mut self,
        attempt: &str,
        mut message: LinkMessage,
    ) -> Result<Option<Link>, NetlinkError> {
        // Counters are most of an answer, and nobody looks at them.
        message
            .attributes
            .push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
        match self.get(attempt, RouteNetlinkMessage::GetLink(message)) {
            Ok(found) => Ok(decode(found)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

pub(super) fn decode(message: RouteNetlinkMessage) -> Option<Link> {
    let RouteNetlinkMessage::NewLink(message) = message else {
        return None;
    };
    if message.header.interface_family != AddressFamily::Unspec {
        return None;
    }
    let flags = message.header.flags;
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        kind: String::new(),
        mac: Vec::new(),
        mtu: 0,
        is_up: flags.contains(LinkFlags::Up),
        is_promiscuous: flags.contains(LinkFlags::Promisc),
        state: State::Unknown,
        controller: None,
        is_hairpin: false,
        is_isolated: false,
        peer: None,
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::Address(mac) => link.mac = mac,
            LinkAttribute::Mtu(mtu) => link.mtu = mtu,
            LinkAttribute::OperState(state) => link.state = state,
            LinkAttribute::Controller(index) => {
                link.controller = Some(index).filter(|index| *index != 0)
            }
            LinkAttribute::Link(index) => link.peer = Some(index),
            LinkAttribute::LinkInfo(info) => info.into_iter().for_each(|item| link.apply(item)),
            _ => {}
        }
    }
    Some(link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_addresses() {
        assert_eq!(
            parse_mac("0A:58:0a-f4-01-02"),
            Some([0x0a, 0x58, 0x0a, 0xf4, 1, 2])
        );
        assert_eq!(
            mac_text(&[0x0a, 0x58, 0x0a, 0xf4, 1, 2]),
            "0a:58:0a:f4:01:02"
        );
        for bad in [
            "",
            "0a:58:0a:f4:01",
            "0a:58:0a:f4:01:02:03",
            "0a:58:0a:f4:01:2",
            "+a:58:0a:f4:01:02",
        ] {
            assert_eq!(parse_mac(bad), None, "{bad}");
        }
    }
}
