//! Addresses in Go's notation.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net};
use serde::{Deserialize, Deserializer, de::Error as _};

/// Parses an address as `net.ParseIP` does: no zone, no leading zeros; an IPv4-mapped IPv6 address
/// is IPv4.
///
/// # Errors
/// Go's text.
pub fn parse_ip(text: &str) -> Result<IpAddr, String> {
    match text.parse::<IpAddr>() {
        Ok(ip) => Ok(ip.to_canonical()),
        Err(_) => Err(format!("invalid IP address: {text}")),
    }
}

/// Parses a prefix as `net.ParseCIDR` does. Host bits are kept.
///
/// # Errors
/// Go's text.
pub fn parse_cidr(text: &str) -> Result<IpNet, String> {
    let parse = || {
        let (ip, length) = text.split_once('/')?;
        // The length may have leading zeros, but no sign.
        if !length.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        IpNet::new(ip.parse().ok()?, length.parse().ok()?).ok()
    };
    parse().ok_or_else(|| format!("invalid CIDR address: {text}"))
}

/// Converts a network of IPv4-mapped IPv6 addresses to IPv4, as Go prints it.
pub fn canonical_net(net: IpNet) -> IpNet {
    let mapped = match (net, net.addr().to_canonical()) {
        (IpNet::V6(net), IpAddr::V4(ip)) => {
            Ipv4Net::new(ip, net.prefix_len().saturating_sub(96)).ok()
        }
        _ => None,
    };
    mapped.map_or(net, IpNet::V4)
}

/// The next address. It wraps at the end of its family, which is no host of any subnet.
pub fn next_ip(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits().wrapping_add(1)).into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits().wrapping_add(1)).into(),
    }
}

/// An address in a configuration; `None` for the empty string.
#[derive(Debug, Clone, Copy, Default)]
pub struct GoIp(pub Option<IpAddr>);

impl<'de> Deserialize<'de> for GoIp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() {
            return Ok(Self(None));
        }
        parse_ip(&text)
            .map(Some)
            .map(Self)
            .map_err(D::Error::custom)
    }
}

/// A prefix in a configuration.
#[derive(Debug, Clone, Copy)]
pub struct GoCidr(pub IpNet);

impl<'de> Deserialize<'de> for GoCidr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_cidr(&text).map(Self).map_err(D::Error::custom)
    }
}
