//! Neighbours of a link, and the forwarding entries of VXLAN devices.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    neighbour::{
        NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
    },
    route::RouteType,
};

use super::{Netlink, NetlinkError, Request, address::family, mac_text};

/// The hardware address of a neighbour.
type Mac = [u8; 6];

impl Request {
    /// Sets the hardware address of a neighbour on a link permanently: the kernel does not ask the
    /// neighbour.
    #[must_use]
    pub fn set_neighbour(index: u32, address: IpAddr, mac: Mac) -> Self {
        Self::new(
            format_args!(
                "set neighbour {address} of link {index} to {}",
                mac_text(&mac)
            ),
            RouteNetlinkMessage::NewNeighbour(neighbour(index, address, Some(mac))),
            NLM_F_CREATE | NLM_F_REPLACE,
        )
    }

    /// Deletes a neighbour.
    #[must_use]
    pub fn delete_neighbour(index: u32, address: IpAddr) -> Self {
        Self::new(
            format_args!("delete neighbour {address} of link {index}"),
            RouteNetlinkMessage::DelNeighbour(neighbour(index, address, None)),
            0,
        )
    }

    /// Makes a VXLAN device send the frames for a hardware address to `remote`.
    #[must_use]
    pub fn set_forwarding(index: u32, mac: Mac, remote: IpAddr) -> Self {
        Self::new(
            format_args!(
                "forward frames of link {index} for {} to {remote}",
                mac_text(&mac)
            ),
            RouteNetlinkMessage::NewNeighbour(forwarding(index, mac, remote)),
            NLM_F_CREATE | NLM_F_REPLACE,
        )
    }

    /// Removes a forwarding entry from a VXLAN device.
    #[must_use]
    pub fn delete_forwarding(index: u32, mac: Mac, remote: IpAddr) -> Self {
        Self::new(
            format_args!(
                "forward no frames of link {index} for {} to {remote}",
                mac_text(&mac)
            ),
            RouteNetlinkMessage::DelNeighbour(forwarding(index, mac, remote)),
            0,
        )
    }
}

fn neighbour(index: u32, address: IpAddr, mac: Option<Mac>) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = family(address);
    message.header.ifindex = index;
    message.header.state = NeighbourState::Permanent;
    message.header.kind = RouteType::Unicast;
    let destination = NeighbourAttribute::Destination(address.into());
    message.attributes.push(destination);
    message
        .attributes
        .extend(mac.map(|mac| NeighbourAttribute::LinkLayerAddress(mac.to_vec())));
    message
}

fn forwarding(index: u32, mac: Mac, remote: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Bridge;
    message.header.ifindex = index;
    message.header.state = NeighbourState::Permanent;
    // The device's own table, not that of a bridge that has it as a port.
    message.header.flags = NeighbourFlags::Own;
    message.attributes = vec![
        NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
        NeighbourAttribute::Destination(remote.into()),
    ];
    message
}

impl Netlink {
    /// The permanent neighbours of a link, of both address families.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn permanent_neighbours(
        &mut self,
        index: u32,
    ) -> Result<BTreeMap<IpAddr, Mac>, NetlinkError> {
        let mut found = BTreeMap::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let entries = self.neighbours(index, family)?;
            found.extend(entries.iter().filter_map(|entry| {
                let (mac, destination) = decode(&entry.attributes);
                match destination? {
                    NeighbourAddress::Inet(ip) => Some(((*ip).into(), mac?)),
                    NeighbourAddress::Inet6(ip) => Some(((*ip).into(), mac?)),
                    _ => None,
                }
            }));
        }
        Ok(found)
    }

    /// The permanent forwarding entries of a VXLAN device.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn forwarding(&mut self, index: u32) -> Result<BTreeSet<(Mac, IpAddr)>, NetlinkError> {
        let entries = self.neighbours(index, AddressFamily::Bridge)?;
        let entries = entries.iter().filter_map(|entry| {
            let (mac, destination) = decode(&entry.attributes);
            // A message about frames does not tell the family of this address.
            let NeighbourAddress::Other(bytes) = destination? else {
                return None;
            };
            let remote = match bytes.len() {
                4 => IpAddr::from(<[u8; 4]>::try_from(bytes.as_slice()).ok()?),
                _ => IpAddr::from(<[u8; 16]>::try_from(bytes.as_slice()).ok()?),
            };
            Some((mac?, remote))
        });
        Ok(entries.collect())
    }

    fn neighbours(
        &mut self,
        index: u32,
        family: AddressFamily,
    ) -> Result<Vec<NeighbourMessage>, NetlinkError> {
        let mut query = NeighbourMessage::default();
        query.header.family = family;
        match family {
            AddressFamily::Bridge => query.header.ifindex = index,
            _ => query.attributes.push(NeighbourAttribute::IfIndex(index)),
        }
        let attempt = format!("list neighbours of link {index}");
        let found = self.dump(&attempt, &RouteNetlinkMessage::GetNeighbour(query))?;
        let found = found.into_iter().filter_map(|message| match message {
            RouteNetlinkMessage::NewNeighbour(neighbour) => Some(neighbour),
            _ => None,
        });
        let is_meant = |entry: &NeighbourMessage| {
            entry.header.ifindex == index
                && entry.header.family == family
                && entry.header.state == NeighbourState::Permanent
        };
        Ok(found.filter(is_meant).collect())
    }
}

fn decode(attributes: &[NeighbourAttribute]) -> (Option<Mac>, Option<&NeighbourAddress>) {
    let (mut mac, mut destination) = (None, None);
    for attribute in attributes {
        match attribute {
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = bytes.as_slice().try_into().ok(),
            NeighbourAttribute::Destination(address) => destination = Some(address),
            _ => {}
        }
    }
    (mac, destination)
}
