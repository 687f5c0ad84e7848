//! The addresses and node ports of services (sources: Kubernetes' `ipallocator` and
//! `portallocator`).

use std::{fmt, net::IpAddr, str::FromStr};

use ipnet::IpNet;

use crate::{
    net::{Family, number},
    number_set::{BandedRange, NumberSet, band},
};

/// The addresses of a prefix that services may have: all but the first, and for IPv4 but the last.
///
/// ```
/// use podplane_ipam::ServiceRange;
/// let range = ServiceRange::new("10.96.0.0/28".parse()?).expect("has addresses");
/// assert_eq!(range.first().to_string(), "10.96.0.1");
/// assert!(!range.contains("10.96.0.15".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceRange {
    net: IpNet,
    numbers: BandedRange,
}

impl ServiceRange {
    /// The range of a prefix; `None` if it has no address for a service.
    #[must_use]
    pub fn new(net: IpNet) -> Option<Self> {
        let net = net.trunc();
        let (network, broadcast) = (number(net.network()), number(net.broadcast()));
        let last = match net {
            IpNet::V4(_) => broadcast.checked_sub(1)?,
            IpNet::V6(_) => broadcast,
        };
        let size = (broadcast - network).saturating_add(1);
        let band = band(size, 16, 256);
        let numbers = BandedRange::new(network.checked_add(1)?, last, band)?;
        Some(Self { net, numbers })
    }

    /// The prefix.
    #[must_use]
    pub fn net(&self) -> IpNet {
        self.net
    }

    /// The family.
    #[must_use]
    pub fn family(&self) -> Family {
        Family::of(&self.net)
    }

    /// The first address, that of the API server.
    #[must_use]
    pub fn first(&self) -> IpAddr {
        address(self.family(), self.numbers.first())
    }

    /// True if a service may have the address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        Family::of_address(address) == self.family() && self.numbers.contains(number(address))
    }

    /// True if a service may have each address of `other` by this range too.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.net.contains(&other.net)
    }

    /// Chooses a free address by a random number; `None` if all are taken.
    #[must_use]
    pub fn pick(&self, taken: &ServiceAddresses, drawn: u128) -> Option<IpAddr> {
        let picked = self.numbers.pick(taken.of(self.family()), drawn)?;
        Some(address(self.family(), picked))
    }
}

/// A set of addresses of services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceAddresses {
    v4: NumberSet,
    v6: NumberSet,
}

impl ServiceAddresses {
    fn of(&self, family: Family) -> &NumberSet {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }

    fn of_mut(&mut self, address: IpAddr) -> &mut NumberSet {
        match address {
            IpAddr::V4(_) => &mut self.v4,
            IpAddr::V6(_) => &mut self.v6,
        }
    }

    /// Adds an address; returns true if it is new.
    pub fn insert(&mut self, address: IpAddr) -> bool {
        self.of_mut(address).insert(number(address))
    }

    /// Removes an address; returns true if it was a member.
    pub fn remove(&mut self, address: IpAddr) -> bool {
        self.of_mut(address).remove(number(address))
    }

    /// The lowest address of the range that no other range of `others` has.
    #[must_use]
    pub fn only_in(&self, range: &ServiceRange, others: &[ServiceRange]) -> Option<IpAddr> {
        let family = range.family();
        let others = others.iter().filter(|other| other.family() == family);
        let mut others: Vec<_> = others.map(|other| other.numbers).collect();
        others.sort_unstable_by_key(BandedRange::first);
        let runs = self
            .of(family)
            .runs_within(range.numbers.first(), range.numbers.last());
        for (mut first, last) in runs {
            for other in &others {
                if other.contains(first) {
                    match other.last().checked_add(1) {
                        Some(next) => first = next,
                        None => return None,
                    }
                }
            }
            if first <= last {
                return Some(address(family, first));
            }
        }
        None
    }
}

fn address(family: Family, number: u128) -> IpAddr {
    match family {
        // The number is that of an address of the range.
        Family::V4 => IpAddr::V4(u32::try_from(number).unwrap_or(u32::MAX).into()),
        Family::V6 => IpAddr::V6(number.into()),
    }
}

/// The ports of nodes by which services are reached: 30000 to 32767 unless a flag says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePortRange {
    first: u16,
    last: u16,
}

impl Default for NodePortRange {
    fn default() -> Self {
        Self {
            first: 30_000,
            last: 32_767,
        }
    }
}

impl NodePortRange {
    /// True if a service may have the port.
    #[must_use]
    pub fn contains(&self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    /// Chooses a free port by a random number; `None` if all are taken.
    #[must_use]
    pub fn pick(&self, taken: &NumberSet, drawn: u128) -> Option<u16> {
        let (first, last) = (u128::from(self.first), u128::from(self.last));
        let band = band(last - first + 1, 32, 128);
        let picked = BandedRange::new(first, last, band)?.pick(taken, drawn)?;
        u16::try_from(picked).ok()
    }
}

impl fmt::Display for NodePortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// A text that is not a range of ports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a range of ports, such as 30000-32767, and is {text:?}")]
pub struct InvalidPortRange {
    text: String,
}

impl FromStr for NodePortRange {
    type Err = InvalidPortRange;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port != 0);
        let ends = || {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            Some((port(first)?, port(last)?)).filter(|(first, last)| first <= last)
        };
        match ends() {
            Some((first, last)) => Ok(Self { first, last }),
            None => Err(InvalidPortRange {
                text: text.to_owned(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> Option<ServiceRange> {
        ServiceRange::new(text.parse().unwrap())
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_range_has_the_addresses_and_the_band_of_the_reference() {
        for (text, want) in [
            ("10.96.0.0/16", Some(("10.96.0.1", "10.96.255.254", 256))),
            ("10.96.0.0/24", Some(("10.96.0.1", "10.96.0.254", 16))),
            ("10.96.0.0/22", Some(("10.96.0.1", "10.96.3.254", 64))),
            ("10.96.0.0/28", Some(("10.96.0.1", "10.96.0.14", 0))),
            ("10.96.0.0/30", Some(("10.96.0.1", "10.96.0.2", 0))),
            ("10.96.0.0/31", None),
            ("10.96.0.1/32", None),
            ("0.0.0.0/32", None),
            ("fd00::/112", Some(("fd00::1", "fd00::ffff", 256))),
            (
                "fd00::/64",
                Some(("fd00::1", "fd00::ffff:ffff:ffff:ffff", 256)),
            ),
            ("fd00::/127", Some(("fd00::1", "fd00::1", 0))),
            ("fd00::/128", None),
        ] {
            let found = range(text).map(|range| {
                let last = address(range.family(), range.numbers.last());
                assert!(range.contains(range.first()) && range.contains(last));
                assert!(!range.contains(range.net().network()));
                let band = range.numbers == {
                    let (first, last) = (range.numbers.first(), range.numbers.last());
                    BandedRange::new(first, last, want.unwrap().2).unwrap()
                };
                (range.first().to_string(), last.to_string(), band)
            });
            let want = want.map(|(first, last, _)| (first.to_owned(), last.to_owned(), true));
            assert_eq!(found, want, "{text}");
        }
    }

    #[test]
    fn addresses_that_only_one_range_has() {
        let of = |text: &str| range(text).unwrap();
        let mut taken = ServiceAddresses::default();
        for address in ["10.0.0.5", "10.0.0.200", "fd00::1"] {
            assert!(taken.insert(ip(address)));
        }
        for (one, others, want) in [
            ("10.0.0.0/24", &[][..], Some("10.0.0.5")),
            ("10.0.0.0/24", &["10.0.0.0/25"], Some("10.0.0.200")),
            ("10.0.0.0/24", &["10.0.0.128/25", "10.0.0.0/25"], None),
            ("10.0.0.0/24", &["10.0.0.0/16"], None),
            ("10.0.0.0/24", &["fd00::/112"], Some("10.0.0.5")),
            ("10.1.0.0/24", &[], None),
            ("fd00::/112", &[], Some("fd00::1")),
        ] {
            let others: Vec<_> = others.iter().map(|text| of(text)).collect();
            let found = taken.only_in(&of(one), &others);
            assert_eq!(found, want.map(ip), "{one} {others:?}");
        }
        // The addresses between two ranges, in one run with those of both.
        for last in 0..=255 {
            taken.insert(IpAddr::from([10, 0, 0, last]));
        }
        let halves = [of("10.0.0.0/25"), of("10.0.0.128/25")];
        let found = taken.only_in(&of("10.0.0.0/24"), &halves);
        assert_eq!(found, Some(ip("10.0.0.127")));
    }

    #[test]
    fn parses_ranges_of_ports() {
        for (text, want) in [
            ("30000-32767", Some("30000-32767")),
            ("80", Some("80-80")),
            ("1-65535", Some("1-65535")),
            ("0-10", None),
            ("2-1", None),
            ("1-65536", None),
            ("", None),
            ("a-b", None),
        ] {
            let parsed = text.parse::<NodePortRange>();
            assert_eq!(parsed.ok().map(|range| range.to_string()).as_deref(), want);
        }
        let range = NodePortRange::default();
        assert_eq!(range.pick(&NumberSet::new(), 0), Some(30_086));
        assert!(range.contains(32_767) && !range.contains(32_768));
    }
}
