//! Links: bridges, veth pairs, and the properties common to all links.

use std::{
    fmt,
    os::fd::{AsRawFd, BorrowedFd},
};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    link::{
        AfSpecInet, AfSpecInet6, AfSpecUnspec, InetDevConf, InfoBridge, InfoBridgePort, InfoData,
        InfoKind, InfoPortData, InfoPortKind, InfoVeth, LinkAttribute, LinkExtentMask, LinkFlags,
        LinkInfo, LinkMessage, State,
    },
};

use super::{Netlink, NetlinkError, Request, VxlanTunnel};

/// The operational state of a link (`IFLA_OPERSTATE`).
pub type OperState = State;

/// A link's properties, as the kernel reports them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The link's index, unique in its namespace.
    pub index: u32,
    /// The link's name.
    pub name: String,
    /// A text for people; empty if none is set.
    pub alias: String,
    /// `bridge`, `veth`, …; empty for a physical link and for `lo`.
    pub kind: String,
    /// The hardware address.
    pub mac: Vec<u8>,
    /// The MTU in bytes.
    pub mtu: u32,
    /// Set if the link is up administratively.
    pub is_up: bool,
    /// Set if the link is in promiscuous mode administratively.
    pub is_promiscuous: bool,
    /// Set if the link accepts all multicast packets administratively.
    pub is_all_multicast: bool,
    /// The length of the transmit queue in packets.
    pub tx_queue_length: u32,
    /// The operational state.
    pub state: OperState,
    /// The bridge that has the link as a port.
    pub controller: Option<u32>,
    /// As a bridge port: frames may leave by the port they came in by.
    pub is_hairpin: bool,
    /// As a bridge port: frames are exchanged only with ports that are not isolated.
    pub is_isolated: bool,
    /// For a veth: the index of its peer, in the peer's namespace.
    pub peer: Option<u32>,
    /// The group of the link; 0 is the default group.
    pub group: u32,
    /// For a VXLAN device: its tunnel.
    pub vxlan: Option<VxlanTunnel>,
    /// The IPv6 settings; `None` if the kernel has no IPv6.
    pub ipv6: Option<Ipv6Settings>,
}

/// IPv6 settings of a link, by their names below `/proc/sys/net/ipv6/conf`.
///
/// Reading them here costs nothing. A path below `/proc/sys/net` costs a walk over the network
/// namespaces of the machine, since the kernel keeps the names of all of them in one chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv6Settings {
    /// `accept_ra`.
    pub accept_ra: i32,
    /// `accept_dad`.
    pub accept_dad: i32,
}

impl Link {
    /// The hardware address as text.
    #[must_use]
    pub fn mac_text(&self) -> String {
        mac_text(&self.mac)
    }

    fn apply_settings(&mut self, family: AfSpecUnspec) {
        let AfSpecUnspec::Inet6(items) = family else {
            return;
        };
        for item in items {
            if let AfSpecInet6::DevConf(settings) = item {
                self.ipv6 = Some(Ipv6Settings {
                    accept_ra: settings.accept_ra,
                    accept_dad: settings.accept_dad,
                });
            }
        }
    }

    fn apply(&mut self, info: LinkInfo) {
        match info {
            LinkInfo::Kind(kind) => self.kind = kind.to_string(),
            LinkInfo::Data(InfoData::Vxlan(data)) => self.vxlan = Some(VxlanTunnel::decode(data)),
            LinkInfo::PortData(InfoPortData::BridgePort(options)) => {
                self.is_hairpin = options.contains(&InfoBridgePort::HairpinMode(true));
                self.is_isolated = options.contains(&InfoBridgePort::Isolated(true));
            }
            _ => {}
        }
    }
}

/// The parameters of a new bridge.
#[derive(Debug, Clone, Default)]
pub struct Bridge<'a> {
    /// The bridge's name.
    pub name: &'a str,
    /// The MTU in bytes; the kernel's default if `None`.
    pub mtu: Option<u32>,
    /// The hardware address. If it is set, ports that come and go do not change it.
    pub mac: Option<[u8; 6]>,
    /// Enables VLAN filtering.
    pub vlan_filtering: bool,
}

/// The parameters of a new veth pair.
#[derive(Debug, Clone, Default)]
pub struct Veth<'a> {
    /// The name of the end in the socket's namespace.
    pub name: &'a str,
    /// The name of the other end.
    pub peer_name: &'a str,
    /// The namespace of the other end; the socket's if `None`.
    pub peer_netns: Option<BorrowedFd<'a>>,
    /// The MTU in bytes of both ends.
    pub mtu: Option<u32>,
    /// The hardware address of the end in the socket's namespace.
    pub mac: Option<[u8; 6]>,
    /// The hardware address of the other end.
    pub peer_mac: Option<[u8; 6]>,
    /// The bridge that gets the end in the socket's namespace as a port.
    pub controller: Option<u32>,
    /// Sets the end in the socket's namespace up at once.
    pub up: bool,
}

/// Formats a hardware address: lower case, with colons.
#[must_use]
pub fn mac_text(mac: &[u8]) -> String {
    let bytes: Vec<_> = mac.iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.join(":")
}

/// Parses an Ethernet address, with colons or hyphens.
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
    /// Makes a bridge. An existing link of that name is an error.
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

    /// Makes a veth pair with one transmit and one receive queue for each end. More queues would
    /// cost time and memory for each pair, and have no use here.
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

    /// Enables a link's promiscuous mode.
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

    /// Disables a link's promiscuous mode.
    #[must_use]
    pub fn not_promiscuous(index: u32) -> Self {
        flags(
            format_args!("end promiscuous mode of link {index}"),
            index,
            LinkFlags::empty(),
            LinkFlags::Promisc,
        )
    }

    /// Makes a link accept all multicast packets.
    #[must_use]
    pub fn all_multicast(index: u32) -> Self {
        let mode = LinkFlags::Allmulti;
        flags(
            format_args!("set link {index} all-multicast"),
            index,
            mode,
            mode,
        )
    }

    /// Disables a link's all-multicast mode.
    #[must_use]
    pub fn not_all_multicast(index: u32) -> Self {
        flags(
            format_args!("end all-multicast mode of link {index}"),
            index,
            LinkFlags::empty(),
            LinkFlags::Allmulti,
        )
    }

    /// Makes a link a port of a bridge, or with `None` of no bridge.
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

    /// Sets the length of a link's transmit queue, in packets.
    #[must_use]
    pub fn tx_queue_length(index: u32, length: u32) -> Self {
        set(
            format_args!("set transmit queue length {length} on link {index}"),
            index,
            LinkAttribute::TxQueueLen(length),
        )
    }

    /// Sets a link's hardware address.
    #[must_use]
    pub fn mac(index: u32, mac: &[u8]) -> Self {
        let attempt = format!("set hardware address {} on link {index}", mac_text(mac));
        set(attempt, index, LinkAttribute::Address(mac.to_vec()))
    }

    /// Makes a link announce its IPv4 addresses to neighbours when it comes up (`arp_notify`).
    #[must_use]
    pub fn arp_notify(index: u32) -> Self {
        let mut settings = InetDevConf::default();
        settings.arp_notify = 1;
        // Only settings other than 0 are sent, and those not sent stay as they are.
        let settings = AfSpecUnspec::Inet(vec![AfSpecInet::DevConfRequest(settings)]);
        set(
            format_args!("set arp_notify on link {index}"),
            index,
            LinkAttribute::AfSpecUnspec(vec![settings]),
        )
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

    /// Makes a bridge port send frames back where they came from.
    #[must_use]
    pub fn hairpin(index: u32) -> Self {
        port(
            format_args!("set hairpin mode on link {index}"),
            index,
            InfoBridgePort::HairpinMode(true),
        )
    }

    /// Restricts a bridge port to frames to and from ports that are not isolated.
    #[must_use]
    pub fn isolated(index: u32) -> Self {
        port(
            format_args!("isolate link {index}"),
            index,
            InfoBridgePort::Isolated(true),
        )
    }

    /// Deletes a link. The other end of a veth pair is deleted with it.
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

pub(super) fn own_attributes(
    name: &str,
    mtu: Option<u32>,
    mac: Option<[u8; 6]>,
) -> Vec<LinkAttribute> {
    let mut attributes = vec![LinkAttribute::IfName(name.to_owned())];
    attributes.extend(mtu.map(LinkAttribute::Mtu));
    attributes.extend(mac.map(|mac| LinkAttribute::Address(mac.to_vec())));
    attributes
}

pub(super) fn create(attempt: impl fmt::Display, message: LinkMessage) -> Request {
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
    // RTM_SETLINK ignores the data of ports; RTM_NEWLINK for an existing link applies it.
    Request::new(attempt, RouteNetlinkMessage::NewLink(message), 0)
}

impl Netlink {
    /// Finds a link by name.
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

    /// Finds a link by index.
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
        // Counters would be most of an answer, and are not used.
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
        alias: String::new(),
        kind: String::new(),
        mac: Vec::new(),
        mtu: 0,
        is_up: flags.contains(LinkFlags::Up),
        is_promiscuous: flags.contains(LinkFlags::Promisc),
        is_all_multicast: flags.contains(LinkFlags::Allmulti),
        tx_queue_length: 0,
        state: State::Unknown,
        controller: None,
        is_hairpin: false,
        is_isolated: false,
        peer: None,
        group: 0,
        vxlan: None,
        ipv6: None,
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::IfAlias(alias) => link.alias = alias,
            LinkAttribute::Address(mac) => link.mac = mac,
            LinkAttribute::Mtu(mtu) => link.mtu = mtu,
            LinkAttribute::TxQueueLen(length) => link.tx_queue_length = length,
            LinkAttribute::OperState(state) => link.state = state,
            LinkAttribute::Controller(index) => {
                link.controller = Some(index).filter(|index| *index != 0)
            }
            LinkAttribute::Link(index) => link.peer = Some(index),
            LinkAttribute::Group(group) => link.group = group,
            LinkAttribute::LinkInfo(info) => info.into_iter().for_each(|item| link.apply(item)),
            LinkAttribute::AfSpecUnspec(families) => families
                .into_iter()
                .for_each(|family| link.apply_settings(family)),
            _ => {}
        }
    }
    Some(link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_prints_hardware_addresses() {
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
