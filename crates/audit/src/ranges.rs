//! The ranges of a live cluster, as input for a plan of more ranges.

use std::net::IpAddr;

use ipnet::IpNet;
use podplane_ipam::{Family, invariants::pods_by_node};

use crate::{dump::Dump, expected::ExpectedBlocks, network::BlockPlace, records::System};

/// A range that nodes' blocks are cut from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveRange {
    /// The range.
    pub cidr: IpNet,
    /// Prefix length of its blocks.
    pub node_mask: u8,
    /// The flag or object that states the range, or the way it was inferred.
    pub source: String,
}

/// The ranges, blocks and addresses of a live cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveRanges {
    /// The ranges that blocks are cut from.
    pub ranges: Vec<LiveRange>,
    /// The number of nodes that need a block.
    pub nodes: u64,
    /// The blocks that are in use.
    pub blocks: Vec<IpNet>,
    /// Everything else that a new range must not overlap: addresses of pods, and the networks of
    /// nodes.
    pub taken: Vec<IpNet>,
    /// The most pods with an address of the pods' network on one node.
    pub most_pods: u64,
    /// Set if a node gets further blocks when it needs addresses.
    pub grows: bool,
    /// The way to add a range to this network.
    pub how: String,
}

/// The assumed prefix length of a node's own network: the Node object does not state it.
const NODE_NETWORK_V4: u8 = 24;
const NODE_NETWORK_V6: u8 = 64;

impl Dump {
    /// The ranges of this cluster. `None` if its network has no ranges that nodes' blocks are cut
    /// from.
    #[must_use]
    pub fn live_ranges(&self, expected: &ExpectedBlocks) -> Option<LiveRanges> {
        let how = match self.network.ipam {
            BlockPlace::PodCidr if self.network.is_of_cloud => {
                "add a secondary range of pods to the cluster's subnet, for new node pools"
            }
            BlockPlace::PodCidr => {
                "podplane and node-ipam-controller: as a ClusterCIDR (docs/cluster-cidrs.md); kube-controller-manager: only the other half, by a shorter --cluster-cidr with the same mask"
            }
            BlockPlace::NodeBlocks(System::Cilium) if self.has_pools_of(System::Cilium) => {
                "as a CIDR of the CiliumPodIPPool, or another CiliumPodIPPool"
            }
            BlockPlace::NodeBlocks(System::Cilium) => {
                "append it to cluster-pool-ipv4-cidr (or -ipv6-cidr) of Cilium's configuration, and restart its operator"
            }
            BlockPlace::NodeBlocks(System::Ovn) => {
                "append it to the cluster networks (clusterNetwork)"
            }
            BlockPlace::SharedBlocks => "as another IPPool",
            BlockPlace::NodeBlocks(_) | BlockPlace::NodeAddresses(_) | BlockPlace::Own => {
                return None;
            }
        };
        let used = pods_by_node(&self.world);
        let records = self
            .records
            .blocks
            .iter()
            .filter(|one| one.scope.is_empty());
        let nodes = self
            .world
            .nodes
            .iter()
            .flat_map(|node| node.pod_cidrs.iter().copied());
        let mut blocks: Vec<IpNet> = match self.network.ipam {
            BlockPlace::SharedBlocks => records.map(|one| one.block).collect(),
            _ => nodes.collect(),
        };
        blocks.sort_unstable();
        blocks.dedup();
        let machines = self
            .nodes
            .iter()
            .filter(|node| !node.is_virtual && node.ipam == self.network.ipam);
        Some(LiveRanges {
            ranges: self.ranges(expected, &blocks),
            nodes: machines.count() as u64,
            blocks,
            taken: self.taken_blocks(expected),
            grows: self.network.grows || self.network.ipam == BlockPlace::SharedBlocks,
            most_pods: used.values().copied().max().unwrap_or_default(),
            how: how.into(),
        })
    }

    fn has_pools_of(&self, system: System) -> bool {
        let mut pools = self.records.pools.iter();
        pools.any(|pool| pool.system == system)
    }

    fn ranges(&self, expected: &ExpectedBlocks, blocks: &[IpNet]) -> Vec<LiveRange> {
        let pools = self
            .records
            .pools
            .iter()
            .filter(|pool| match self.network.ipam {
                BlockPlace::SharedBlocks => pool.system == System::Calico,
                BlockPlace::NodeBlocks(system) => pool.system == system,
                _ => false,
            });
        let pools: Vec<LiveRange> = pools
            .filter_map(|pool| {
                Some(LiveRange {
                    cidr: pool.cidr,
                    node_mask: pool.mask?,
                    source: pool.object.clone(),
                })
            })
            .collect();
        if !pools.is_empty() {
            return pools;
        }
        let mask = |family| {
            let known = expected.masks.get(&family);
            // If sizes differ by design, the longest prefix assumes least about the others.
            let longest = || {
                let of_family = blocks.iter().filter(|block| Family::of(block) == family);
                of_family.map(IpNet::prefix_len).min()
            };
            known.map(|(mask, _)| *mask).or_else(longest)
        };
        let given = expected.ranges.iter().filter_map(|range| {
            Some(LiveRange {
                cidr: *range,
                node_mask: mask(Family::of(range))?,
                source: "--cluster-cidr".into(),
            })
        });
        let given: Vec<LiveRange> = given.collect();
        if !given.is_empty() {
            return given;
        }
        let inferred = [Family::V4, Family::V6].into_iter().filter_map(|family| {
            let of_family = blocks.iter().filter(|block| Family::of(block) == family);
            Some(LiveRange {
                cidr: around(of_family)?,
                node_mask: mask(family)?,
                source: "the smallest range around all blocks; --cluster-cidr says better".into(),
            })
        });
        inferred.collect()
    }

    fn taken_blocks(&self, expected: &ExpectedBlocks) -> Vec<IpNet> {
        let pods = self.world.pods.iter().filter(|pod| pod.uses_pod_network());
        let pods = pods.flat_map(|pod| pod.ips.iter().map(|ip| IpNet::from(*ip)));
        let nodes = self.nodes.iter().flat_map(|node| &node.addresses);
        let nodes = nodes.filter_map(|ip| {
            let length = match ip {
                IpAddr::V4(_) => NODE_NETWORK_V4,
                IpAddr::V6(_) => NODE_NETWORK_V6,
            };
            Some(IpNet::new(*ip, length).ok()?.trunc())
        });
        let pools = self.records.pools.iter().map(|pool| pool.cidr);
        let further = self.records.blocks.iter().map(|one| one.block);
        let secondary = self.records.secondary_ranges.iter().copied();
        let mut taken: Vec<IpNet> = pods
            .chain(nodes)
            .chain(pools)
            .chain(further)
            .chain(secondary)
            .chain(expected.services.as_slice().iter().copied())
            .chain(expected.ranges.iter().copied())
            .collect();
        taken.sort_unstable();
        taken.dedup();
        taken
    }
}

/// The smallest prefix that contains all prefixes.
fn around<'a>(mut blocks: impl Iterator<Item = &'a IpNet>) -> Option<IpNet> {
    let first = blocks.next()?.trunc();
    blocks.try_fold(first, |mut around, block| {
        while !around.contains(block) {
            around = around.supernet()?;
        }
        Some(around)
    })
}
