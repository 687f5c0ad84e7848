//! The ranges of the demo, from its flags.

use std::net::Ipv4Addr;

use ipnet::{IpNet, Ipv4Net};

/// The length of the cluster CIDR and of the wide blocks.
const CLUSTER: u8 = 16;
/// The length of the enlarged cluster CIDR.
const LARGER: u8 = 12;
const NODE: u8 = 24;
/// The length of the smallest pool: it has a block of 64 addresses for each of 300 nodes.
const LONGEST_POOL: u8 = 17;
const POOL_BLOCK: u32 = 64;
/// The number of an old block other than the first ones, which are needed later.
const OLD_BLOCK: u32 = 200;

/// The ranges of the demo.
#[derive(Clone, Copy, Debug)]
pub(super) struct DemoRanges {
    cluster: Ipv4Net,
    pool: Ipv4Net,
}

impl DemoRanges {
    /// Checks the ranges of the flags.
    ///
    /// # Errors
    ///
    /// A sentence on the flag whose range has the wrong length, or on ranges that overlap.
    pub(super) fn new(cluster: Ipv4Net, pool: Ipv4Net) -> Result<Self, String> {
        let (cluster, pool) = (cluster.trunc(), pool.trunc());
        if cluster.prefix_len() != CLUSTER {
            return Err(format!(
                "invalid --cluster-cidr {cluster}: must be a /{CLUSTER}, which becomes a /{LARGER} in the demo"
            ));
        }
        if pool.prefix_len() > LONGEST_POOL {
            return Err(format!(
                "invalid --pool-cidr {pool}: must be a /{LONGEST_POOL} or larger, for 64 addresses on each of 300 nodes"
            ));
        }
        let ranges = Self { cluster, pool };
        let larger = Ipv4Net::new_assert(cluster.addr(), LARGER).trunc();
        if larger.contains(&pool) || pool.contains(&larger) {
            return Err(format!(
                "invalid --pool-cidr {pool}: overlaps {larger}, which the cluster CIDR becomes"
            ));
        }
        Ok(ranges)
    }

    /// The first `--cluster-cidr`; later the one wide block that contains all the old blocks.
    pub(super) fn cluster(self) -> IpNet {
        self.cluster.into()
    }

    /// The enlarged `--cluster-cidr`, as an operator would write it: with the old address.
    pub(super) fn larger(self) -> String {
        format!("{}/{LARGER}", self.cluster.addr())
    }

    fn block(self, number: u32) -> IpNet {
        let first = u32::from(self.cluster.addr());
        let address = Ipv4Addr::from(first | (number << (Ipv4Addr::BITS - u32::from(NODE))));
        Ipv4Net::new_assert(address, NODE).into()
    }

    pub(super) fn first_block(self) -> IpNet {
        self.block(0)
    }

    pub(super) fn old_block(self) -> IpNet {
        self.block(OLD_BLOCK)
    }

    pub(super) fn pool(self) -> IpNet {
        self.pool.into()
    }

    /// The subnet of a node in the pool.
    pub(super) fn subnet_of(self, node: usize) -> anyhow::Result<String> {
        let first = u32::from(self.pool.addr()) + u32::try_from(node)? * POOL_BLOCK;
        Ok(format!("{}/26", Ipv4Addr::from(first)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(cluster: &str, pool: &str) -> Result<DemoRanges, String> {
        DemoRanges::new(cluster.parse().unwrap(), pool.parse().unwrap())
    }

    #[test]
    fn derives_blocks_from_the_flags() {
        let ranges = ranges("10.60.0.0/16", "172.20.0.0/17").unwrap();
        assert_eq!(ranges.larger(), "10.60.0.0/12");
        assert_eq!(ranges.first_block().to_string(), "10.60.0.0/24");
        assert_eq!(ranges.old_block().to_string(), "10.60.200.0/24");
        assert_eq!(ranges.subnet_of(299).unwrap(), "172.20.74.192/26");
    }

    #[test]
    fn refuses_ranges_that_the_demo_cannot_play_with() {
        for (cluster, pool, want) in [
            ("10.60.0.0/15", "192.168.0.0/16", "--cluster-cidr"),
            ("10.60.0.0/16", "192.168.0.0/18", "--pool-cidr"),
            ("10.60.0.0/16", "10.48.0.0/16", "overlaps 10.48.0.0/12"),
        ] {
            let error = ranges(cluster, pool).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
    }
}
