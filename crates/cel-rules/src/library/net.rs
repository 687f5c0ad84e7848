//! IP addresses and networks. As in the reference, addresses have no zone, and no IPv4 address is
//! written as IPv6.

use std::net::IpAddr;

use ipnet::IpNet;

use super::arguments;
use crate::{
    error::Failure,
    functions::{
        Declared::{Bool, Cidr, Int, Ip, String},
        Overload, global, member,
    },
    meter::Meter,
    value::Value,
};

pub(super) static FUNCTIONS: &[Overload] = &[
    global("ip", &[String], Ip, parse_ip).counts_cost(),
    member("ip", &[Cidr], Ip, ip_of_cidr),
    global("isIP", &[String], Bool, is_ip).counts_cost(),
    global("ip.isCanonical", &[String], Bool, is_canonical).counts_cost(),
    member("family", &[Ip], Int, family),
    member("isUnspecified", &[Ip], Bool, is_unspecified),
    member("isLoopback", &[Ip], Bool, is_loopback),
    member("isLinkLocalMulticast", &[Ip], Bool, is_link_local_multicast),
    member("isLinkLocalUnicast", &[Ip], Bool, is_link_local_unicast),
    member("isGlobalUnicast", &[Ip], Bool, is_global_unicast),
    global("cidr", &[String], Cidr, parse_cidr).counts_cost(),
    global("isCIDR", &[String], Bool, is_cidr).counts_cost(),
    member("containsIP", &[Cidr, String], Bool, contains_ip).counts_cost(),
    member("containsIP", &[Cidr, Ip], Bool, contains_ip).counts_cost(),
    member("containsCIDR", &[Cidr, String], Bool, contains_cidr).counts_cost(),
    member("containsCIDR", &[Cidr, Cidr], Bool, contains_cidr).counts_cost(),
    member("prefixLength", &[Cidr], Int, prefix_length),
    member("masked", &[Cidr], Cidr, masked),
];

type Outcome<'a> = Result<Value<'a>, Failure>;

fn ip(text: &str) -> Result<IpAddr, Failure> {
    if text.contains('%') {
        return Failure::other(format!(
            "IP Address {text:?} with zone value is not allowed"
        ));
    }
    match text.parse() {
        Ok(IpAddr::V6(address)) if address.to_ipv4_mapped().is_some() => {
            Failure::other(format!("IPv4-mapped IPv6 address {text:?} is not allowed"))
        }
        Ok(address) => Ok(address),
        Err(_) => Failure::other(format!(
            "IP Address {text:?} parse error during conversion from string"
        )),
    }
}

fn cidr(text: &str) -> Result<IpNet, Failure> {
    let malformed = || {
        Failure::Other(format!(
            "network address parse error during conversion from string: {text:?}"
        ))
    };
    if text.contains('%') {
        return Failure::other(format!("CIDR {text:?} with zone value is not allowed"));
    }
    // `+8` and `08` are numbers to some parsers.
    let length = text.split_once('/').map_or("", |(_, length)| length);
    if !length.bytes().all(|byte| byte.is_ascii_digit())
        || length.len() > 1 && length.starts_with('0')
    {
        return Err(malformed());
    }
    match text.parse() {
        Ok(IpNet::V6(network)) if network.addr().to_ipv4_mapped().is_some() => {
            Failure::other(format!("IPv4-mapped IPv6 address {text:?} is not allowed"))
        }
        Ok(network) => Ok(network),
        Err(_) => Err(malformed()),
    }
}

fn parse_ip<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::String(text));
    meter.traverse(text.len(), 1)?;
    ip(text).map(Value::Ip)
}

fn is_ip<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::String(text));
    meter.traverse(text.len(), 1)?;
    Ok(Value::Bool(ip(text).is_ok()))
}

fn is_canonical<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::String(text));
    meter.traverse(text.len(), 2)?;
    Ok(Value::Bool(ip(text)?.to_string() == **text))
}

fn ip_of_cidr<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Cidr(network));
    Ok(Value::Ip(network.addr()))
}

fn family<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Ip(address));
    Ok(Value::Int(if address.is_ipv4() { 4 } else { 6 }))
}

fn is_unspecified<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Ip(address));
    Ok(Value::Bool(address.is_unspecified()))
}

fn is_loopback<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Ip(address));
    Ok(Value::Bool(address.is_loopback()))
}

fn link_local_multicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.octets().starts_with(&[224, 0, 0]),
        IpAddr::V6(address) => address.segments()[0] & 0xff0f == 0xff02,
    }
}

fn link_local_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

fn is_link_local_multicast<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Ip(address));
    Ok(Value::Bool(link_local_multicast(*address)))
}

fn is_link_local_unicast<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Ip(address));
    Ok(Value::Bool(link_local_unicast(*address)))
}

fn is_global_unicast<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Ip(address));
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    let is_special = address.is_unspecified() || address.is_loopback() || address.is_multicast();
    Ok(Value::Bool(
        !is_broadcast && !is_special && !link_local_unicast(*address),
    ))
}

fn parse_cidr<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::String(text));
    meter.traverse(text.len(), 1)?;
    cidr(text).map(Value::Cidr)
}

fn is_cidr<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::String(text));
    meter.traverse(text.len(), 1)?;
    Ok(Value::Bool(cidr(text).is_ok()))
}

fn contains_ip<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, network, other);
    meter.traverse(network.size(), 2)?;
    match (network, other) {
        (Value::Cidr(network), Value::Ip(address)) => Ok(Value::Bool(network.contains(address))),
        (Value::Cidr(network), Value::String(text)) => {
            meter.traverse(text.len(), 1)?;
            Ok(Value::Bool(network.contains(&ip(text)?)))
        }
        _ => Err(Failure::NoSuchOverload),
    }
}

fn contains_cidr<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, network, other);
    meter.traverse(network.size(), 3)?;
    meter.charge(1)?;
    match (network, other) {
        (Value::Cidr(network), Value::Cidr(other)) => {
            Ok(Value::Bool(network.contains(&other.trunc())))
        }
        (Value::Cidr(network), Value::String(text)) => {
            meter.traverse(text.len(), 1)?;
            Ok(Value::Bool(network.contains(&cidr(text)?.trunc())))
        }
        _ => Err(Failure::NoSuchOverload),
    }
}

fn prefix_length<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Cidr(network));
    Ok(Value::Int(i64::from(network.prefix_len())))
}

fn masked<'a>(_: &mut Meter, args: &[Value<'a>]) -> Outcome<'a> {
    arguments!(args, Value::Cidr(network));
    Ok(Value::Cidr(network.trunc()))
}
