//! Free ranges that can be added to those of a live cluster, in blocks of the same length.
//!
//! Another range leaves the blocks of existing nodes unchanged. Another block length does not:
//! Kubernetes' allocator then takes blocks that are in use for free.

use ipnet::IpNet;

use super::{pods, recommend::homes};
use crate::{
    cluster::ClusterRange,
    nearest_free,
    net::{overlap, widened},
};

/// A free range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addition {
    /// The range.
    pub cidr: IpNet,
    /// The prefix length of its blocks: that of the range that it is added to.
    pub node_mask: u8,
    /// The number of nodes that it has blocks for.
    pub nodes: u64,
    /// The number of pods of a node that can have an address.
    pub pods_per_node: u128,
    /// The union with the existing range, if both are halves of one prefix: a shorter prefix in
    /// `--cluster-cidr` then covers both.
    pub together: Option<IpNet>,
}

/// Free ranges with blocks for at least `nodes` nodes, none of which shares an address with
/// `taken`: the smallest in each private network, the other half of the next wider range, and one
/// of the size of the existing range.
#[must_use]
pub fn additions(range: &ClusterRange, taken: &[IpNet], nodes: u64) -> Vec<Addition> {
    let mask = range.node_mask();
    let own = range.cidr();
    let is_free = |net: &IpNet| !taken.iter().any(|other| overlap(other, net));
    let mut found: Vec<ClusterRange> = Vec::new();
    let mut add = |cidr: Option<IpNet>| {
        let new = cidr.and_then(|cidr| ClusterRange::new(cidr, mask).ok());
        let new = new.filter(|new| new.blocks() >= nodes && is_free(&new.cidr()));
        if let Some(new) = new
            && !found.contains(&new)
        {
            found.push(new);
        }
    };
    // The other half of a public range may belong to another organisation.
    let is_private = |net: &IpNet| homes(net).iter().any(|home| home.contains(net));
    add(other_half(&own).filter(is_private));
    let enough = (0..=mask).rev().find_map(|length| {
        let wanted = widened(&IpNet::new(own.addr(), mask).ok()?, length);
        let there = ClusterRange::new(wanted, mask).ok()?;
        (there.blocks() >= nodes).then_some(wanted)
    });
    for wanted in enough.into_iter().chain([own]) {
        for home in homes(&wanted) {
            add(nearest_free(&wanted, &home, taken.iter().copied()));
        }
    }
    let addition = |new: ClusterRange| Addition {
        cidr: new.cidr(),
        node_mask: mask,
        nodes: new.blocks(),
        pods_per_node: pods(new.cidr(), mask),
        together: (Some(new.cidr()) == other_half(&own))
            .then(|| own.supernet())
            .flatten(),
    };
    found.into_iter().map(addition).collect()
}

/// The range that is the other half of the next wider one.
fn other_half(net: &IpNet) -> Option<IpNet> {
    let wider = net.supernet()?;
    wider
        .subnets(net.prefix_len())
        .ok()?
        .find(|half| half != net)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn found(own: &str, mask: u8, taken: &[&str], nodes: u64) -> Vec<String> {
        let range = ClusterRange::new(net(own), mask).unwrap();
        let taken: Vec<IpNet> = taken
            .iter()
            .map(|text| net(text))
            .chain([net(own)])
            .collect();
        let found = additions(&range, &taken, nodes);
        for one in &found {
            assert!(one.nodes >= nodes, "{one:?}");
            assert!(
                !taken.iter().any(|other| overlap(other, &one.cidr)),
                "{one:?}"
            );
        }
        found
            .iter()
            .map(|one| format!("{} {}", one.cidr, one.nodes))
            .collect()
    }

    #[test]
    fn adds_the_other_half_and_the_smallest_in_each_private_network() {
        assert_eq!(
            found("10.244.0.0/16", 24, &["10.96.0.0/12"], 40),
            [
                "10.245.0.0/16 256",
                "10.245.0.0/18 64",
                "172.16.0.0/18 64",
                "192.168.0.0/18 64",
                "100.64.0.0/18 64",
                "172.16.0.0/16 256",
                "192.168.0.0/16 256",
                "100.64.0.0/16 256"
            ]
        );
    }

    #[test]
    fn omits_ranges_that_are_taken_or_too_small() {
        assert_eq!(
            found(
                "10.244.0.0/16",
                24,
                &["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"],
                300
            ),
            ["100.64.0.0/15 512"]
        );
        assert_eq!(
            found(
                "10.244.0.0/30",
                30,
                &[
                    "10.0.0.0/8",
                    "172.16.0.0/12",
                    "192.168.0.0/16",
                    "100.64.0.0/10"
                ],
                1
            ),
            [""; 0]
        );
    }

    #[test]
    fn adds_ipv6_ranges_of_private_networks_only() {
        let private = found("fd00:10::/56", 64, &[], 1);
        assert_eq!(private[0], "fd00:10:0:100::/56 256");
        assert!(
            private.iter().all(|one| one.starts_with("fd")),
            "{private:?}"
        );
        for own in ["2001:db8:0:0::/56", "fd00::/8"] {
            let found = found("2001:db8::/56", 64, &[own], 1);
            assert!(found.iter().all(|one| one.starts_with("fd")), "{found:?}");
        }
    }
}
