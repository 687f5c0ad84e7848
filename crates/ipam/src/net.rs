//! Address families and prefixes, as needed by all other modules.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// 32 bits.
    V4,
    /// 128 bits.
    V6,
}

impl Family {
    /// The family of a prefix.
    #[must_use]
    pub fn of(net: &IpNet) -> Self {
        Self::of_address(net.addr())
    }

    /// The family of an address.
    #[must_use]
    pub fn of_address(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// The number of bits of an address.
    #[must_use]
    pub const fn bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// A text that is not a valid prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid CIDR address: {text}")]
pub struct InvalidCidr {
    /// The text as given.
    pub text: String,
}

/// Parses a prefix by the legacy rules that Kubernetes keeps for `--cluster-cidr` and
/// `spec.podCIDRs`: host bits are kept, leading zeros are decimal (`010.0.0.0/8` is `10.0.0.0/8`),
/// and an IPv4-mapped prefix is IPv4.
///
/// # Errors
///
/// [`InvalidCidr`] if the text is not a prefix by those rules.
pub fn parse_cidr(text: &str) -> Result<IpNet, InvalidCidr> {
    let invalid = || InvalidCidr {
        text: text.to_owned(),
    };
    let (address, length) = text.split_once('/').ok_or_else(invalid)?;
    // `u8::from_str` would also accept a sign.
    if !length.bytes().all(|b| b.is_ascii_digit()) {
        return Err(invalid());
    }
    let length: u8 = length.parse().map_err(|_| invalid())?;
    let address: IpAddr = address
        .parse()
        .or_else(|_| without_leading_zeros(address).parse())
        .map_err(|_| invalid())?;
    let (address, length) = match address {
        IpAddr::V6(v6) => match (v6.to_ipv4_mapped(), length.checked_sub(96)) {
            (Some(v4), Some(length)) => (IpAddr::V4(v4), length),
            _ => (address, length),
        },
        IpAddr::V4(_) => (address, length),
    };
    IpNet::new(address, length).map_err(|_| invalid())
}

/// Parses the prefix of a flag, by the rules of [`parse_cidr`].
///
/// # Errors
///
/// A text for people.
pub fn cidr_of_flag(text: &str) -> Result<IpNet, String> {
    parse_cidr(text).map_err(|_| NOT_A_CIDR.to_owned())
}

/// Checks that the prefixes of a flag, separated by commas, are some. The text may be empty.
///
/// # Errors
///
/// A text for people.
pub fn cidrs_of_flag(text: &str) -> Result<String, String> {
    let is_cidr = |part: &str| parse_cidr(part).is_ok();
    let trimmed = text.trim();
    match trimmed.is_empty() || trimmed.split(',').all(is_cidr) {
        true => Ok(text.to_owned()),
        false => Err(NOT_A_CIDR.to_owned()),
    }
}

/// Parses the prefix length of a flag. Whether it suits a range is known with that range.
///
/// # Errors
///
/// A text for people.
pub fn mask_size_of_flag(text: &str) -> Result<u8, String> {
    let bits = text.parse().ok();
    bits.filter(|bits| *bits <= Family::V6.bits())
        .ok_or_else(|| "want a prefix length: 0 to 32 for IPv4, 0 to 128 for IPv6".into())
}

pub(crate) const NOT_A_CIDR: &str = "not a CIDR such as 10.244.0.0/16";

fn without_leading_zeros(dotted: &str) -> String {
    let octets = dotted
        .split('.')
        .map(|octet| match octet.trim_start_matches('0') {
            "" if !octet.is_empty() => "0",
            stripped => stripped,
        });
    octets.collect::<Vec<_>>().join(".")
}

/// An address as a number.
pub(crate) fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// The number of addresses from `first` to `last` inclusive; saturates for the whole of IPv6.
pub(crate) fn addresses_between(first: u128, last: u128) -> u128 {
    last.checked_sub(first)
        .map_or(0, |distance| distance.saturating_add(1))
}

/// The prefix of `length` that contains the start of `net`; `net` itself, without host bits, if
/// that is shorter.
pub(crate) fn widened(net: &IpNet, length: u8) -> IpNet {
    IpNet::new(net.addr(), length.min(net.prefix_len()))
        .expect("a shorter length is valid in the same family")
        .trunc()
}

/// True if two prefixes share an address, which is exactly if one contains the other.
pub(crate) fn overlap(a: &IpNet, b: &IpNet) -> bool {
    a.contains(b) || b.contains(a)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_legacy_forms() {
        for (text, want) in [
            ("10.244.0.0/16", "10.244.0.0/16"),
            ("10.244.1.7/24", "10.244.1.7/24"),
            ("010.00.0.0/08", "10.0.0.0/8"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("fd00::/48", "fd00::/48"),
        ] {
            assert_eq!(parse_cidr(text).unwrap().to_string(), want, "{text}");
        }
    }

    #[test]
    fn refuses_invalid_prefixes_with_their_text() {
        for text in [
            "",
            "10.0.0.0",
            "10.0.0/16",
            "10.0.0.0/33",
            "10.0.0.0/+8",
            "10.0.0.0/",
            "256.0.0.0/8",
            "fd00::/129",
            "1..2.3/8",
            " 10.0.0.0/8",
        ] {
            let error = parse_cidr(text).unwrap_err();
            assert_eq!(error.to_string(), format!("invalid CIDR address: {text}"));
        }
    }
}
