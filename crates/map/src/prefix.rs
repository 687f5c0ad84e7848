//! Prefixes as intervals of numbers.

use std::net::IpAddr;

use ipnet::IpNet;
use podplane_ipam::Family;

/// An address as a number.
pub(crate) fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// The address of a number, which must be one of the family; of a larger one the last bits.
pub(crate) fn address(family: Family, number: u128) -> IpAddr {
    match family {
        // The remainder fits.
        Family::V4 => IpAddr::V4(
            u32::try_from(number & u128::from(u32::MAX))
                .unwrap_or(0)
                .into(),
        ),
        Family::V6 => IpAddr::V6(number.into()),
    }
}

/// The first and the last address of a prefix.
pub(crate) fn bounds(net: &IpNet) -> (u128, u128) {
    (number(net.network()), number(net.broadcast()))
}

/// The prefix of `length` around the address; the whole address if there is no such length.
pub(crate) fn around(family: Family, number: u128, length: u8) -> IpNet {
    let address = address(family, number);
    let net = IpNet::new(address, length).map(|net| net.trunc());
    net.unwrap_or_else(|_| IpNet::from(address))
}

/// The number of addresses from `first` to `last`; saturates for all of IPv6.
pub(crate) fn size(first: u128, last: u128) -> u128 {
    last.saturating_sub(first).saturating_add(1)
}

/// The number of bits of a prefix's host part.
pub(crate) fn host_bits(net: &IpNet) -> u8 {
    net.max_prefix_len() - net.prefix_len()
}
