//! VLANs of bridge ports.

use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    link::{
        AfSpecBridge, BridgeFlag, BridgeVlanInfo, BridgeVlanInfoFlags, LinkAttribute,
        LinkExtentMask, LinkMessage,
    },
};

use super::{Netlink, NetlinkError, Request};

impl Request {
    /// Adds a bridge port to a VLAN. With `is_untagged`, frames leave the port without a tag, and
    /// frames that arrive without a tag belong to this VLAN; otherwise its frames carry a tag.
    #[must_use]
    pub fn add_port_vlan(port: u32, vlan: u16, is_untagged: bool) -> Self {
        let flags = if is_untagged {
            BridgeVlanInfoFlags::Pvid | BridgeVlanInfoFlags::Untagged
        } else {
            BridgeVlanInfoFlags::empty()
        };
        let message = RouteNetlinkMessage::SetLink(message(port, vlan, flags));
        Self::new(format_args!("add vlan {vlan} to link {port}"), message, 0)
    }

    /// Removes a bridge port from a VLAN.
    #[must_use]
    pub fn delete_port_vlan(port: u32, vlan: u16) -> Self {
        let flags = BridgeVlanInfoFlags::empty();
        let message = RouteNetlinkMessage::DelLink(message(port, vlan, flags));
        Self::new(
            format_args!("delete vlan {vlan} of link {port}"),
            message,
            0,
        )
    }
}

fn message(port: u32, vid: u16, flags: BridgeVlanInfoFlags) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.interface_family = AddressFamily::Bridge;
    message.header.index = port;
    message.attributes.push(LinkAttribute::AfSpecBridge(vec![
        AfSpecBridge::Flags(BridgeFlag::Controller),
        AfSpecBridge::VlanInfo(BridgeVlanInfo { flags, vid }),
    ]));
    message
}

impl Netlink {
    /// The VLANs of a bridge port.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn port_vlans(&mut self, port: u32) -> Result<Vec<u16>, NetlinkError> {
        let mut query = LinkMessage::default();
        query.header.interface_family = AddressFamily::Bridge;
        let mask = LinkAttribute::ExtMask(vec![LinkExtentMask::Brvlan]);
        query.attributes.push(mask);
        let query = RouteNetlinkMessage::GetLink(query);
        let found = self.dump(&format!("list vlans of link {port}"), &query)?;
        let of_port = found.into_iter().filter_map(|message| match message {
            RouteNetlinkMessage::NewLink(link) if link.header.index == port => {
                Some(link.attributes)
            }
            _ => None,
        });
        let specs = of_port.flatten().filter_map(|attribute| match attribute {
            LinkAttribute::AfSpecBridge(spec) => Some(spec),
            _ => None,
        });
        let vlans = specs.flatten().filter_map(|spec| match spec {
            AfSpecBridge::VlanInfo(info) => Some(info.vid),
            _ => None,
        });
        Ok(vlans.collect())
    }
}
