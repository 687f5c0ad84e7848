//! Routes.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::{
    RouteNetlinkMessage,
    route::{RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteType},
};

use super::{Netlink, NetlinkError, Request, address::family};

/// Origins of routes (`rtm_protocol`). Numbers from 4 on have no meaning to the kernel.
pub mod protocol {
    /// The kernel, as it adds an address.
    pub const KERNEL: u8 = 2;
    /// An administrator, or a program that does not say.
    pub const BOOT: u8 = 3;
    /// An administrator, on purpose.
    pub const STATIC: u8 = 4;
}

/// A unicast route with one next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// The destination; its prefix length is 0 for a default route.
    pub destination: IpNet,
    /// The next hop; `None` if the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// The index of the link.
    pub index: Option<u32>,
    /// The origin of the route; see [`protocol`].
    pub protocol: u8,
    /// The scope (`RT_SCOPE_…`). `None` takes the fitting one: link without a gateway, else
    /// universe.
    pub scope: Option<u8>,
    /// The metric; the kernel's default if `None`.
    pub priority: Option<u32>,
    /// The table; the main one is [`Route::MAIN`].
    pub table: u32,
    /// The gateway is on the link even if no address of the link covers it.
    pub onlink: bool,
    /// The preferred source address of packets.
    pub source: Option<IpAddr>,
}

impl Route {
    /// The main routing table.
    pub const MAIN: u32 = RouteHeader::RT_TABLE_MAIN as u32;
    /// The scope of destinations on a link.
    pub const SCOPE_LINK: u8 = 253;
    /// The scope of this machine's own addresses.
    pub const SCOPE_HOST: u8 = 254;

    /// A route through a gateway, in the main table, of protocol [`protocol::STATIC`].
    #[must_use]
    pub fn via(destination: IpNet, gateway: IpAddr) -> Self {
        Self {
            destination: destination.trunc(),
            gateway: Some(gateway),
            index: None,
            protocol: protocol::STATIC,
            scope: None,
            priority: None,
            table: Self::MAIN,
            onlink: false,
            source: None,
        }
    }

    /// A route to a destination on the link itself, in the main table, of protocol
    /// [`protocol::STATIC`].
    #[must_use]
    pub fn on_link(destination: IpNet, index: u32) -> Self {
        Self {
            destination: destination.trunc(),
            gateway: None,
            index: Some(index),
            protocol: protocol::STATIC,
            scope: None,
            priority: None,
            table: Self::MAIN,
            onlink: false,
            source: None,
        }
    }

    fn message(&self) -> RouteMessage {
        let Self {
            destination,
            gateway,
            index,
            protocol,
            scope,
            priority,
            table,
            onlink,
            source,
        } = *self;
        let mut message = RouteMessage::default();
        let header = &mut message.header;
        header.address_family = family(destination.addr());
        header.destination_prefix_length = destination.prefix_len();
        header.protocol = protocol.into();
        // IPv4 routes without a gateway have scope `link`; IPv6 routes have no scopes.
        let on_link = gateway.is_none() && destination.addr().is_ipv4();
        header.scope = scope
            .unwrap_or(if on_link { Self::SCOPE_LINK } else { 0 })
            .into();
        header.kind = RouteType::Unicast;
        header.table = u8::try_from(table).unwrap_or(RouteHeader::RT_TABLE_UNSPEC);
        if onlink {
            header.flags = RouteFlags::Onlink;
        }
        let attributes = &mut message.attributes;
        if destination.prefix_len() > 0 {
            attributes.push(RouteAttribute::Destination(destination.network().into()));
        }
        attributes.extend(gateway.map(|gateway| RouteAttribute::Gateway(gateway.into())));
        attributes.extend(index.map(RouteAttribute::Oif));
        attributes.extend(source.map(|source| RouteAttribute::PrefSource(source.into())));
        attributes.extend(priority.map(RouteAttribute::Priority));
        if u8::try_from(table).is_err() {
            attributes.push(RouteAttribute::Table(table));
        }
        message
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.destination)?;
        if let Some(gateway) = self.gateway {
            write!(f, " via {gateway}")?;
        }
        self.index
            .map_or(Ok(()), |index| write!(f, " on link {index}"))
    }
}

impl Request {
    /// Adds a route. An existing route with the same destination and priority is an error.
    #[must_use]
    pub fn add_route(route: &Route) -> Self {
        let message = RouteNetlinkMessage::NewRoute(route.message());
        Self::new(
            format_args!("add route {route}"),
            message,
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    /// Adds a route, replacing one with the same destination and priority.
    #[must_use]
    pub fn replace_route(route: &Route) -> Self {
        let message = RouteNetlinkMessage::NewRoute(route.message());
        Self::new(
            format_args!("replace route {route}"),
            message,
            NLM_F_CREATE | NLM_F_REPLACE,
        )
    }

    /// Deletes a route.
    #[must_use]
    pub fn delete_route(route: &Route) -> Self {
        let message = RouteNetlinkMessage::DelRoute(route.message());
        Self::new(format_args!("delete route {route}"), message, 0)
    }
}

impl Netlink {
    /// The unicast routes of all tables and both families, except those with several next hops.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn routes(&mut self) -> Result<Vec<Route>, NetlinkError> {
        let query = RouteNetlinkMessage::GetRoute(RouteMessage::default());
        let found = self.dump("list routes", &query)?;
        Ok(found.into_iter().filter_map(decode).collect())
    }
}

impl Netlink {
    /// The link by which packets to an address leave; `None` if there is no route.
    ///
    /// # Errors
    /// [`NetlinkError::Socket`].
    pub fn link_towards(&mut self, address: IpAddr) -> Result<Option<u32>, NetlinkError> {
        let mut query = RouteMessage::default();
        query.header.address_family = family(address);
        query.header.destination_prefix_length = IpNet::from(address).prefix_len();
        query
            .attributes
            .push(RouteAttribute::Destination(address.into()));
        let attempt = format!("look up the route to {address}");
        match self.get(&attempt, RouteNetlinkMessage::GetRoute(query)) {
            Ok(RouteNetlinkMessage::NewRoute(route)) => {
                let mut attributes = route.attributes.into_iter();
                Ok(attributes.find_map(|attribute| match attribute {
                    RouteAttribute::Oif(index) => Some(index),
                    _ => None,
                }))
            }
            // The kernel has several errors for this: unreachable, prohibited, blackholed.
            Ok(_) | Err(NetlinkError::Refused { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn decode(message: RouteNetlinkMessage) -> Option<Route> {
    let RouteNetlinkMessage::NewRoute(message) = message else {
        return None;
    };
    let header = message.header;
    // Entries that the kernel learned for one destination, such as path MTUs, are not routes.
    if header.kind != RouteType::Unicast || header.flags.contains(RouteFlags::Cloned) {
        return None;
    }
    let unspecified = match header.address_family {
        netlink_packet_route::AddressFamily::Inet => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        netlink_packet_route::AddressFamily::Inet6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    let mut route = Route {
        destination: IpNet::new(unspecified, header.destination_prefix_length).ok()?,
        gateway: None,
        index: None,
        protocol: header.protocol.into(),
        scope: Some(header.scope.into()),
        priority: None,
        table: header.table.into(),
        onlink: header.flags.contains(RouteFlags::Onlink),
        source: None,
    };
    for attribute in message.attributes {
        match attribute {
            RouteAttribute::Destination(address) => {
                route.destination =
                    IpNet::new(ip(&address)?, header.destination_prefix_length).ok()?;
            }
            RouteAttribute::Gateway(address) => route.gateway = ip(&address),
            RouteAttribute::Oif(index) => route.index = Some(index),
            RouteAttribute::PrefSource(address) => route.source = ip(&address),
            RouteAttribute::Priority(priority) => route.priority = Some(priority),
            RouteAttribute::Table(table) => route.table = table,
            RouteAttribute::MultiPath(_) => return None,
            _ => {}
        }
    }
    Some(route)
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some((*ip).into()),
        RouteAddress::Inet6(ip) => Some((*ip).into()),
        _ => None,
    }
}
