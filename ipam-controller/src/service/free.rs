//! Free address space, as prefixes.

use std::net::IpAddr;

use ipnet::{IpNet, IpSubnets, Ipv4Subnets, Ipv6Subnets};
use podplane_ipam::{ClusterRange, NodeBlocks};
use podplane_proto::ipam::FreePrefix;

/// The free prefixes of every range, or of one, as wide as possible; at most `limit`.
pub(super) fn prefixes(blocks: &NodeBlocks, only: Option<IpNet>, limit: usize) -> Vec<FreePrefix> {
    let ranges = blocks.sets().flat_map(|(set, _)| &set.ranges);
    let ranges = ranges.filter(|range| only.is_none_or(|only| only == range.cidr()));
    let prefixes = ranges.flat_map(|range| {
        let shown = move |prefix: IpNet| FreePrefix {
            cidr: prefix.to_string(),
            pool: range.cidr().to_string(),
            blocks: 1 << (range.node_mask() - prefix.prefix_len()),
        };
        let gaps = gaps(blocks, range).into_iter();
        gaps.filter_map(|(first, last)| span(range, first, last))
            .flatten()
            .map(shown)
    });
    prefixes.take(limit).collect()
}

/// The first and last numbers of runs of blocks that nothing overlaps.
fn gaps(blocks: &NodeBlocks, range: &ClusterRange) -> Vec<(u64, u64)> {
    let mut gaps = Vec::new();
    let mut next = 0;
    // Prefixes nest or are disjoint, so their first numbers ascend.
    for block in blocks.overlapping(range.cidr()) {
        let Some((first, last)) = range.indices(&block.net) else {
            continue;
        };
        if first > next {
            gaps.push((next, first - 1));
        }
        next = next.max(last + 1);
    }
    if next < range.blocks() {
        gaps.push((next, range.blocks() - 1));
    }
    gaps
}

fn span(range: &ClusterRange, first: u64, last: u64) -> Option<IpSubnets> {
    let (start, end) = (
        range.block(first)?.network(),
        range.block(last)?.broadcast(),
    );
    match (start, end) {
        (IpAddr::V4(start), IpAddr::V4(end)) => {
            Some(IpSubnets::V4(Ipv4Subnets::new(start, end, 0)))
        }
        (IpAddr::V6(start), IpAddr::V6(end)) => {
            Some(IpSubnets::V6(Ipv6Subnets::new(start, end, 0)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use podplane_ipam::{Owner, RangeFlags};

    use super::*;

    #[test]
    fn describes_gaps_by_the_widest_prefixes() {
        let flags = RangeFlags {
            cluster_cidr: "10.0.0.0/20,fd00::/60".to_owned(),
            ..RangeFlags::default()
        };
        let mut blocks = NodeBlocks::new(&flags.validate().unwrap());
        for net in ["10.0.3.0/24", "10.0.4.128/25", "fd00::/61"] {
            blocks.adopt(&Owner::new(net, net), net.parse().unwrap());
        }
        let free = |only: Option<&str>, limit| {
            let only = only.map(|only| only.parse().unwrap());
            let found = prefixes(&blocks, only, limit).into_iter();
            found.map(|free| (free.cidr, free.blocks)).collect()
        };
        let found: Vec<(String, u64)> = free(None, 99);
        let found: Vec<(&str, u64)> = found.iter().map(|(c, n)| (c.as_str(), *n)).collect();
        let want = [
            ("10.0.0.0/23", 2),
            ("10.0.2.0/24", 1),
            ("10.0.5.0/24", 1),
            ("10.0.6.0/23", 2),
            ("10.0.8.0/21", 8),
            ("fd00:0:0:8::/61", 8),
        ];
        assert_eq!(found, want);
        let few: Vec<_> = free(Some("10.0.0.0/20"), 2);
        assert_eq!(few.len(), 2);
    }
}
