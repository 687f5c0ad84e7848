//! Ranges of addresses, and sets of ranges that are used as one pool.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr},
};

use ipnet::IpNet;
use podplane_cni::types::next_ip;

/// The addresses of a subnet that may be given out: `start` to `end`, without the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    subnet: IpNet,
    start: IpAddr,
    end: IpAddr,
    gateway: IpAddr,
}

/// A range as configured.
#[derive(Debug, Clone, Copy)]
pub(super) struct RangeSpec {
    pub(super) subnet: Option<IpNet>,
    pub(super) start: Option<IpAddr>,
    pub(super) end: Option<IpAddr>,
    pub(super) gateway: Option<IpAddr>,
}

impl RangeSpec {
    /// Checks the range and fills in defaults; the error texts are the reference's.
    pub(super) fn canonicalise(self) -> Result<Range, String> {
        let subnet = self.subnet.ok_or("IP <nil> not v4 nor v6")?;
        if subnet.prefix_len() > subnet.max_prefix_len() - 2 {
            return Err(format!("Network {subnet} too small to allocate from"));
        }
        if subnet.addr().to_canonical() != subnet.addr() {
            return Err("IPNet IP and Mask version mismatch".to_owned());
        }
        if subnet.addr() != subnet.network() {
            return Err(format!(
                "Network has host bits set. For a subnet mask of length {} the network address is {}",
                subnet.prefix_len(),
                subnet.network()
            ));
        }
        let first = next_ip(subnet.network());
        let last = match subnet {
            IpNet::V4(net) => Ipv4Addr::from_bits(net.broadcast().to_bits() - 1).into(),
            // IPv6 has no broadcast address; the reference gives out the all-ones address too.
            IpNet::V6(net) => net.broadcast().into(),
        };
        let outside = |what: &str, ip: IpAddr| format!("{what} {ip} not in network {subnet}");
        let start = self.start.unwrap_or(first);
        // The reference does not compare with a default end, and walks out of the subnet from a
        // start at the broadcast address. That is refused here.
        let past_end = self.start.is_some() && is_after(start, self.end.unwrap_or(last));
        if !subnet.contains(&start) || past_end {
            return Err(outside("RangeStart", start));
        }
        let end = self.end.unwrap_or(last);
        if !subnet.contains(&end) || is_after(start, end) {
            return Err(outside("RangeEnd", end));
        }
        Ok(Range {
            subnet,
            start,
            end,
            gateway: self.gateway.unwrap_or(first),
        })
    }
}

impl Range {
    /// The subnet. Its prefix length is that of the addresses given out.
    #[must_use]
    pub fn subnet(&self) -> IpNet {
        self.subnet
    }

    /// The subnet's gateway. It may be any address, and is not given out.
    #[must_use]
    pub fn gateway(&self) -> IpAddr {
        self.gateway
    }

    /// The first address of the range.
    pub fn start(&self) -> IpAddr {
        self.start
    }

    /// The last address of the range.
    pub fn end(&self) -> IpAddr {
        self.end
    }

    /// Returns true if the address is between start and end, inclusive.
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.start.is_ipv4() && self.start <= ip && ip <= self.end
    }

    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let same_family = self.start.is_ipv4() == other.start.is_ipv4();
        same_family && self.start <= other.end && other.start <= self.end
    }

    /// The number of addresses that the range can give.
    #[must_use]
    pub fn capacity(&self) -> u128 {
        let all = (bits(self.end) - bits(self.start)).saturating_add(1);
        all - u128::from(self.contains(self.gateway))
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.start, self.end)
    }
}

/// Ranges of one family that do not overlap; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeSet(pub(super) Vec<Range>);

impl RangeSet {
    pub(super) fn canonicalise(specs: Vec<RangeSpec>) -> Result<Self, String> {
        let mut ranges: Vec<Range> = Vec::with_capacity(specs.len());
        for spec in specs {
            let range = spec.canonicalise()?;
            if ranges
                .first()
                .is_some_and(|first| first.start.is_ipv4() != range.start.is_ipv4())
            {
                return Err("mixed address families".to_owned());
            }
            ranges.push(range);
        }
        for (index, a) in ranges.iter().enumerate() {
            if let Some(b) = ranges[index + 1..].iter().find(|b| a.overlaps(b)) {
                return Err(format!("subnets {a} and {b} overlap"));
            }
        }
        if ranges.is_empty() {
            Err("empty range set".to_owned())
        } else {
            Ok(Self(ranges))
        }
    }

    /// The ranges, in the order in which they are used.
    #[must_use]
    pub fn ranges(&self) -> &[Range] {
        &self.0
    }

    /// Returns true if the addresses are IPv4.
    #[must_use]
    pub fn is_ipv4(&self) -> bool {
        self.0.iter().all(|range| range.start.is_ipv4())
    }

    /// The range that contains the address.
    #[must_use]
    pub(crate) fn range_of(&self, ip: IpAddr) -> Option<&Range> {
        self.0.iter().find(|range| range.contains(ip))
    }

    /// The number of addresses that the set can give.
    #[must_use]
    pub fn capacity(&self) -> u128 {
        self.0
            .iter()
            .fold(0, |sum, range| sum.saturating_add(range.capacity()))
    }

    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.0.iter().any(|a| other.0.iter().any(|b| a.overlaps(b)))
    }
}

impl fmt::Display for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges: Vec<_> = self.0.iter().map(Range::to_string).collect();
        f.write_str(&ranges.join(","))
    }
}

fn is_after(a: IpAddr, b: IpAddr) -> bool {
    a.is_ipv4() == b.is_ipv4() && a > b
}

fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}
