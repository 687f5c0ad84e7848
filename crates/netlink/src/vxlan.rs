//! VXLAN devices, which carry Ethernet frames in UDP.

use std::net::IpAddr;

use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVxlan, LinkAttribute, LinkInfo, LinkMessage,
};

use super::{
    Request,
    link::{create, own_attributes},
};

/// The parameters of a new VXLAN device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vxlan<'a> {
    /// The device's name.
    pub name: &'a str,
    /// The MTU in bytes.
    pub mtu: u32,
    /// The hardware address.
    pub mac: [u8; 6],
    /// The group of the link (`ip link … group`); 0 is the default group.
    pub group: u32,
    /// The tunnel.
    pub tunnel: VxlanTunnel,
}

/// The settings of a VXLAN device that cannot change while it exists.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VxlanTunnel {
    /// The network's identifier, of 24 bits.
    pub vni: u32,
    /// The UDP port, for sending and listening.
    pub port: u16,
    /// The source address. It decides the address family of the tunnel.
    pub local: Option<IpAddr>,
    /// The link that packets are sent through.
    pub link: Option<u32>,
    /// Learn forwarding entries from the frames that arrive.
    pub learning: bool,
}

impl VxlanTunnel {
    pub(super) fn decode(data: Vec<InfoVxlan>) -> Self {
        let mut tunnel = Self::default();
        for item in data {
            match item {
                InfoVxlan::Id(vni) => tunnel.vni = vni,
                InfoVxlan::Port(port) => tunnel.port = port,
                InfoVxlan::Local(ip) => tunnel.local = Some(ip.into()),
                InfoVxlan::Local6(ip) => tunnel.local = Some(ip.into()),
                InfoVxlan::Link(index) => tunnel.link = Some(index).filter(|index| *index != 0),
                InfoVxlan::Learning(learning) => tunnel.learning = learning,
                _ => {}
            }
        }
        tunnel
    }

    fn encode(self) -> Vec<InfoVxlan> {
        let Self {
            vni,
            port,
            local,
            link,
            learning,
        } = self;
        let mut data = vec![
            InfoVxlan::Id(vni),
            InfoVxlan::Port(port),
            InfoVxlan::Learning(learning),
        ];
        data.extend(link.map(InfoVxlan::Link));
        data.extend(local.map(|local| match local {
            IpAddr::V4(ip) => InfoVxlan::Local(ip),
            IpAddr::V6(ip) => InfoVxlan::Local6(ip),
        }));
        data
    }
}

impl Request {
    /// Makes a VXLAN device. An existing link of that name is an error, and so is a kernel without
    /// the module `vxlan` (`EOPNOTSUPP`).
    #[must_use]
    pub fn create_vxlan(vxlan: &Vxlan<'_>) -> Self {
        let Vxlan {
            name,
            mtu,
            mac,
            group,
            tunnel,
        } = vxlan;
        let mut message = LinkMessage::default();
        message.attributes = own_attributes(name, Some(*mtu), Some(*mac));
        message.attributes.push(LinkAttribute::Group(*group));
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Vxlan),
            LinkInfo::Data(InfoData::Vxlan(tunnel.encode())),
        ]));
        create(format_args!("create vxlan device {name}"), message)
    }
}
