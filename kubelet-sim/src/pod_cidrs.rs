//! The blocks of a node, as CRI's `NetworkConfig.pod_cidr` carries them.

use std::{fmt, str::FromStr};

use ipnet::{AddrParseError, IpNet};

/// One block, or one of each address family, the primary one first. Displayed with a comma between.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodCidrs(Vec<IpNet>);

/// The reason why a node cannot have these blocks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PodCidrsError {
    /// Neither one nor two.
    #[error("a node has one podCIDR, or one of each address family, not {0}")]
    Count(usize),
    /// Not a prefix.
    #[error("invalid CIDR {text:?}")]
    Syntax {
        /// The text.
        text: String,
        /// The parser's error.
        source: AddrParseError,
    },
    /// An address inside a network in place of the network.
    #[error("{net} has host bits set: the network is {}", net.trunc())]
    HostBits {
        /// As given.
        net: IpNet,
    },
    /// Two of one address family.
    #[error("podCIDRs {0} and {1} are of one address family")]
    SameFamily(IpNet, IpNet),
}

impl PodCidrs {
    /// The blocks of `texts`, in that order.
    ///
    /// # Errors
    ///
    /// [`PodCidrsError`] by variant.
    pub fn new<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, PodCidrsError> {
        let nets: Vec<IpNet> = texts.into_iter().map(parse).collect::<Result<_, _>>()?;
        match nets[..] {
            [_] => {}
            [a, b] if a.addr().is_ipv4() != b.addr().is_ipv4() => {}
            [a, b] => return Err(PodCidrsError::SameFamily(a, b)),
            _ => return Err(PodCidrsError::Count(nets.len())),
        }
        Ok(Self(nets))
    }

    /// The primary block.
    pub fn first(&self) -> IpNet {
        self.0[0]
    }

    /// The primary block, then that of the other family.
    pub fn iter(&self) -> std::slice::Iter<'_, IpNet> {
        self.0.iter()
    }
}

fn parse(text: &str) -> Result<IpNet, PodCidrsError> {
    let net: IpNet = text
        .trim()
        .parse()
        .map_err(|source| PodCidrsError::Syntax {
            text: text.to_owned(),
            source,
        })?;
    if net != net.trunc() {
        return Err(PodCidrsError::HostBits { net });
    }
    Ok(net)
}

impl FromStr for PodCidrs {
    type Err = PodCidrsError;

    fn from_str(text: &str) -> Result<Self, PodCidrsError> {
        Self::new(text.split(','))
    }
}

impl fmt::Display for PodCidrs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, net) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            write!(f, "{separator}{net}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_one_block_or_one_per_family() {
        for text in ["10.0.0.0/24", "fd00::/64", "fd00::/64,10.0.0.0/24"] {
            assert_eq!(text.parse::<PodCidrs>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn refuses_other_blocks_with_the_reason() {
        let cases = [
            ("", "invalid CIDR \"\""),
            ("10.0.0.0", "invalid CIDR \"10.0.0.0\""),
            (
                "10.0.0.1/24",
                "10.0.0.1/24 has host bits set: the network is 10.0.0.0/24",
            ),
            (
                "10.0.0.0/24,10.0.1.0/24",
                "podCIDRs 10.0.0.0/24 and 10.0.1.0/24 are of one address family",
            ),
            (
                "10.0.0.0/24,fd00::/64,10.0.1.0/24",
                "a node has one podCIDR, or one of each address family, not 3",
            ),
        ];
        for (text, want) in cases {
            assert_eq!(text.parse::<PodCidrs>().unwrap_err().to_string(), want);
        }
    }
}
