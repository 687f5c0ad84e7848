//! Addresses of links.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope},
};

use super::{Netlink, NetlinkError, Request};

/// An address of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The index of the link.
    pub index: u32,
    /// The address with its prefix length.
    pub net: IpNet,
    /// The address has global scope; otherwise it is valid on the link or on this machine only.
    pub is_global: bool,
    /// Duplicate address detection has not finished.
    pub is_tentative: bool,
    /// Duplicate address detection has found another owner.
    pub is_duplicate: bool,
}

impl Request {
    /// Adds an address to a link; for IPv4 with the subnet's broadcast address. An address that the
    /// link has already is an error.
    #[must_use]
    pub fn add_address(index: u32, net: IpNet) -> Self {
        let mut message = message(index, net);
        if let IpNet::V4(net) = net
            && net.prefix_len() < 31
        {
            message
                .attributes
                .push(AddressAttribute::Broadcast(net.broadcast()));
        }
        let attempt = format_args!("add address {net} to link {index}");
        Self::new(
            attempt,
            RouteNetlinkMessage::NewAddress(message),
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    /// [`add_address`](Self::add_address) without duplicate address detection: an IPv6 address can
    /// be used at once.
    #[must_use]
    pub fn add_address_unasked(index: u32, net: IpNet) -> Self {
        let mut request = Self::add_address(index, net);
        if let (RouteNetlinkMessage::NewAddress(message), IpNet::V6(_)) =
            (&mut request.0.message, net)
        {
            message.header.flags = AddressHeaderFlags::Nodad;
        }
        request
    }

    /// Removes an address from a link.
    #[must_use]
    pub fn delete_address(index: u32, net: IpNet) -> Self {
        let attempt = format_args!("delete address {net} of link {index}");
        Self::new(
            attempt,
            RouteNetlinkMessage::DelAddress(message(index, net)),
            0,
        )
    }
}

fn message(index: u32, net: IpNet) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = family(net.addr());
    message.header.prefix_len = net.prefix_len();
    message.header.index = index;
    message.attributes.push(AddressAttribute::Local(net.addr()));
    message
        .attributes
        .push(AddressAttribute::Address(net.addr()));
    message
}

pub(super) fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    }
}

impl Netlink {
    /// The addresses of a link, in the kernel's order.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn addresses(&mut self, index: u32) -> Result<Vec<Address>, NetlinkError> {
        let mut query = AddressMessage::default();
        query.header.index = index;
        let attempt = format!("list addresses of link {index}");
        let found = match self.dump(&attempt, &RouteNetlinkMessage::GetAddress(query)) {
            Err(error) if error.is_not_found() => Vec::new(),
            other => other?,
        };
        let addresses = found.into_iter().filter_map(decode);
        Ok(addresses.filter(|address| address.index == index).collect())
    }

    /// The index of the link that has an address.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn link_with(&mut self, address: IpAddr) -> Result<Option<u32>, NetlinkError> {
        let query = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        let found = self.dump("list addresses", &query)?;
        let mut addresses = found.into_iter().filter_map(decode);
        let found = addresses.find(|found| found.net.addr() == address);
        Ok(found.map(|found| found.index))
    }
}

fn decode(message: RouteNetlinkMessage) -> Option<Address> {
    let RouteNetlinkMessage::NewAddress(message) = message else {
        return None;
    };
    let (mut address, mut local) = (None, None);
    let mut flags = AddressFlags::from_bits_retain(u32::from(message.header.flags.bits()));
    for attribute in message.attributes {
        match attribute {
            AddressAttribute::Address(ip) => address = Some(ip),
            AddressAttribute::Local(ip) => local = Some(ip),
            AddressAttribute::Flags(all) => flags = all,
            _ => {}
        }
    }
    Some(Address {
        index: message.header.index,
        // On a point-to-point link the other attribute is the peer's address.
        net: IpNet::new(local.or(address)?, message.header.prefix_len).ok()?,
        is_global: message.header.scope == AddressScope::Universe,
        is_tentative: flags.contains(AddressFlags::Tentative),
        is_duplicate: flags.contains(AddressFlags::Dadfailed),
    })
}
