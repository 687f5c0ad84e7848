//! Free blocks of a range, computed from a list of taken prefixes.

use std::ops::RangeInclusive;

use ipnet::IpNet;

use crate::cluster::ClusterRange;

/// The numbers of the blocks of `range` that share no address with any of `taken`, as runs in
/// ascending order.
#[must_use]
pub fn free_runs(
    range: &ClusterRange,
    taken: impl IntoIterator<Item = IpNet>,
) -> Vec<RangeInclusive<u64>> {
    let taken = taken.into_iter().filter_map(|net| range.indices(&net));
    let mut taken: Vec<(u64, u64)> = taken.collect();
    taken.sort_unstable();
    let mut runs = Vec::new();
    // The first number that is not known to be taken.
    let mut next = 0;
    for (first, last) in taken {
        if next < first {
            runs.push(next..=first - 1);
        }
        next = next.max(last + 1);
    }
    if next < range.blocks() {
        runs.push(next..=range.blocks() - 1);
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(range: &str, mask: u8, taken: &[&str]) -> Vec<RangeInclusive<u64>> {
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let range = ClusterRange::new(net(range), mask).unwrap();
        free_runs(&range, taken.iter().map(|text| net(text)))
    }

    #[test]
    fn finds_the_blocks_between_taken_ones() {
        let range = "10.244.0.0/21";
        for (taken, want) in [
            (&[][..], vec![0..=7]),
            (&["10.244.3.0/24", "10.244.0.0/24"], vec![1..=2, 4..=7]),
            (&["10.244.3.128/32", "10.244.4.0/22"], vec![0..=2]),
            (&["10.244.2.0/23", "10.244.3.0/24"], vec![0..=1, 4..=7]),
            (&["10.0.0.0/8"], vec![]),
            (&["10.245.0.0/24", "fd00::/8"], vec![0..=7]),
        ] {
            assert_eq!(runs(range, 24, taken), want, "{taken:?}");
        }
        assert_eq!(runs("::/0", 16, &["ffff::/16"]), [0..=0xfffe]);
    }
}
