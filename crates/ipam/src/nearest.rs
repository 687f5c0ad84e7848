//! Search for a free block among taken blocks of any size.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::net::{Family, number, overlap};

/// The first prefix of the length of `wanted` in `within` that shares no address with any of
/// `taken`, at or after `wanted`, or else from the start of `within`. `None` if there is none.
#[must_use]
pub fn nearest_free(
    wanted: &IpNet,
    within: &IpNet,
    taken: impl IntoIterator<Item = IpNet>,
) -> Option<IpNet> {
    let family = Family::of(within);
    if Family::of(wanted) != family || wanted.prefix_len() < within.prefix_len() {
        return None;
    }
    let mut taken: Vec<(u128, u128)> = taken
        .into_iter()
        .filter(|net| Family::of(net) == family && overlap(net, within))
        .map(|net| (number(net.network()), number(net.broadcast())))
        .collect();
    taken.sort_unstable();
    let (first, last) = (number(within.network()), number(within.broadcast()));
    let host_bits = u32::from(family.bits() - wanted.prefix_len());
    let start = number(wanted.network()).clamp(first, last);
    let found = gap(start, last, host_bits, &taken).or_else(|| gap(first, last, host_bits, &taken));
    let address = match family {
        Family::V4 => IpAddr::V4(u32::try_from(found?).ok()?.into()),
        Family::V6 => IpAddr::V6(found?.into()),
    };
    IpNet::new(address, wanted.prefix_len()).ok()
}

/// The start of the first whole block from `start` to `last` that lies in none of the sorted
/// intervals.
fn gap(start: u128, last: u128, host_bits: u32, taken: &[(u128, u128)]) -> Option<u128> {
    // The host part of a block, all ones.
    let ones = u128::MAX
        .checked_shr(u128::BITS - host_bits)
        .unwrap_or_default();
    let aligned = |address: u128| address.checked_add(ones).map(|address| address & !ones);
    let mut candidate = aligned(start)?;
    for (from, to) in taken {
        if *to < candidate {
            continue;
        }
        if *from > (candidate | ones) {
            break;
        }
        candidate = aligned(to.checked_add(1)?)?;
    }
    ((candidate | ones) <= last).then_some(candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nearest(wanted: &str, within: &str, taken: &[&str]) -> Option<String> {
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let taken = taken.iter().map(|text| net(text));
        nearest_free(&net(wanted), &net(within), taken).map(|net| net.to_string())
    }

    #[test]
    fn finds_the_next_free_block() {
        let range = "10.244.0.0/22";
        for (wanted, taken, want) in [
            ("10.244.1.0/24", &[][..], Some("10.244.1.0/24")),
            ("10.244.1.0/24", &["10.244.1.0/24"], Some("10.244.2.0/24")),
            (
                "10.244.1.0/24",
                &["10.244.1.128/32", "10.244.2.0/30"],
                Some("10.244.3.0/24"),
            ),
            ("10.244.1.0/24", &["10.244.0.0/16"], None),
            ("10.244.2.0/24", &["10.244.2.0/23"], Some("10.244.0.0/24")),
            (
                "10.244.1.0/25",
                &["10.244.1.0/25", "10.244.1.128/26"],
                Some("10.244.2.0/25"),
            ),
            // A wanted block elsewhere starts the search at the start of the range; another family
            // takes nothing.
            (
                "10.0.0.0/24",
                &["10.244.0.0/24", "fd00::/8"],
                Some("10.244.1.0/24"),
            ),
            ("192.168.0.0/24", &["10.244.3.0/24"], Some("10.244.0.0/24")),
            // The range has no room for a block that is larger, or of another family.
            ("10.244.0.0/21", &[], None),
            ("fd00::/64", &[], None),
        ] {
            assert_eq!(
                nearest(wanted, range, taken).as_deref(),
                want,
                "{wanted} {taken:?}"
            );
        }
    }

    #[test]
    fn the_ends_of_the_families_do_not_overflow() {
        assert_eq!(
            nearest("255.255.255.255/32", "0.0.0.0/0", &["255.255.255.255/32"]).as_deref(),
            Some("0.0.0.0/32")
        );
        let top = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128";
        assert_eq!(nearest(top, "::/0", &[top]).as_deref(), Some("::/128"));
        assert_eq!(nearest("::/0", "::/0", &[]).as_deref(), Some("::/0"));
        assert_eq!(nearest("::/0", "::/0", &["::1/128"]), None);
    }
}
