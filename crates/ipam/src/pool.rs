//! The number of pods that a node's addresses serve.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::net::{Family, addresses_between, number};

/// The addresses that an IPAM plugin gives to pods: `start` to `end` inclusive, without the
/// excluded ones.
///
/// ```
/// use podplane_ipam::AddressRange;
/// let node = AddressRange::of_block("10.244.1.0/24".parse()?).expect("has room");
/// assert_eq!(node.capacity(), 253);
/// # Ok::<(), ipnet::AddrParseError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressRange {
    start: IpAddr,
    end: IpAddr,
    excluded: Vec<IpAddr>,
}

impl AddressRange {
    /// Creates a range of `start` to `end` without the `excluded` addresses, for example a gateway.
    /// `None` if the two ends are of different families or in the wrong order.
    #[must_use]
    pub fn new(
        start: IpAddr,
        end: IpAddr,
        excluded: impl IntoIterator<Item = IpAddr>,
    ) -> Option<Self> {
        if Family::of_address(start) != Family::of_address(end) || start > end {
            return None;
        }
        let mut excluded: Vec<IpAddr> = excluded
            .into_iter()
            .filter(|address| (start..=end).contains(address))
            .collect();
        excluded.sort_unstable();
        excluded.dedup();
        Some(Self {
            start,
            end,
            excluded,
        })
    }

    /// The range that `host-local` uses for a block without further settings: the first address
    /// after the network is the gateway, and for IPv4 the last is the broadcast address. `None` for
    /// a block that it refuses as too small (/31, /32, /127, /128).
    #[must_use]
    pub fn of_block(block: IpNet) -> Option<Self> {
        if block.prefix_len() + 2 > Family::of(&block).bits() {
            return None;
        }
        let mut hosts = block.hosts();
        let (start, end) = match block {
            // `hosts` begins at the network address for IPv6, and after it for IPv4.
            IpNet::V6(v6) => (hosts.nth(1)?, IpAddr::V6(v6.broadcast())),
            IpNet::V4(v4) => (
                hosts.next()?,
                IpAddr::V4((v4.broadcast().to_bits() - 1).into()),
            ),
        };
        Self::new(start, end, [start])
    }

    /// The number of pods that can have an address of the range. Saturates for IPv6.
    #[must_use]
    pub fn capacity(&self) -> u128 {
        addresses_between(number(self.start), number(self.end)) - self.excluded.len() as u128
    }

    /// True if a pod can get the address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        (self.start..=self.end).contains(&address) && self.excluded.binary_search(&address).is_err()
    }

    /// The family of the range.
    #[must_use]
    pub fn family(&self) -> Family {
        Family::of_address(self.start)
    }
}

/// The number of pods that a node with these ranges can run: a pod needs an address of every family
/// of the node, so the family with the fewest decides. Zero without ranges.
#[must_use]
pub fn pod_capacity(ranges: &[AddressRange]) -> u128 {
    let of_family = |family| {
        let mut members = ranges
            .iter()
            .filter(|range| range.family() == family)
            .peekable();
        members.peek()?;
        Some(
            members
                .map(AddressRange::capacity)
                .fold(0, u128::saturating_add),
        )
    };
    [Family::V4, Family::V6]
        .into_iter()
        .filter_map(of_family)
        .min()
        .unwrap_or(0)
}

/// The workaround of the kubenet days: a node's allowed pods, bounded by the IPv4 addresses of its
/// block without network, broadcast and gateway, `min(2^(32−mask) − 3, allowed)`. The result is
/// zero for a /31 or /32; without a block, or with an IPv6 one, it is `allowed`.
#[must_use]
pub fn kubenet_allowed_pods(pod_cidr: Option<IpNet>, allowed: u64) -> u64 {
    match pod_cidr {
        Some(IpNet::V4(block)) => {
            let addresses = 1u64 << (32 - block.prefix_len());
            addresses.saturating_sub(3).min(allowed)
        }
        Some(IpNet::V6(_)) | None => allowed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(text: &str) -> Option<AddressRange> {
        AddressRange::of_block(text.parse().unwrap())
    }

    #[test]
    fn capacity_equals_that_of_host_local() {
        for (text, want) in [
            ("10.0.0.0/24", 253),
            ("10.0.0.0/29", 5),
            ("10.0.0.0/30", 1),
            ("fd00::/126", 2),
            ("fd00::/120", 254),
        ] {
            assert_eq!(block(text).unwrap().capacity(), want, "{text}");
        }
        for text in ["10.0.0.0/31", "10.0.0.0/32", "fd00::/127", "fd00::/128"] {
            assert_eq!(block(text), None, "{text}");
        }
        assert_eq!(block("::/0").unwrap().capacity(), u128::MAX - 1);
    }

    #[test]
    fn network_gateway_and_broadcast_are_not_for_pods() {
        let range = block("10.0.0.0/30").unwrap();
        let given: Vec<u8> = (0..4)
            .filter(|last| range.contains([10, 0, 0, *last].into()))
            .collect();
        assert_eq!(given, [2]);
    }

    #[test]
    fn counts_each_exclusion_once_and_only_inside_the_range() {
        let at = |last: u8| IpAddr::from([10, 0, 0, last]);
        let range = AddressRange::new(at(10), at(19), [at(10), at(10), at(1), at(19)]).unwrap();
        assert_eq!(range.capacity(), 8);
        assert_eq!(AddressRange::new(at(2), at(1), []), None);
        assert_eq!(
            AddressRange::new(at(2), "fd00::1".parse().unwrap(), []),
            None
        );
    }

    #[test]
    fn the_scarcer_family_decides() {
        let ranges = [
            block("10.0.0.0/29").unwrap(),
            block("10.0.1.0/30").unwrap(),
            block("fd00::/64").unwrap(),
        ];
        assert_eq!(pod_capacity(&ranges), 6);
        assert_eq!(pod_capacity(&ranges[2..]), (1 << 64) - 2);
        assert_eq!(pod_capacity(&[]), 0);
    }
}
