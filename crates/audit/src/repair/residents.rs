//! The addresses of each node's pods: the best block for a node is the one that they are in.

use std::{cmp::Reverse, collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;

use super::FreeBlocks;
use crate::{
    dump::{Dump, DumpedNode},
    expected::ExpectedBlocks,
};

/// The addresses of live pods by node. A pod without a node is on the node with no name.
pub(super) struct Residents<'a>(BTreeMap<&'a str, Vec<IpAddr>>);

impl<'a> Residents<'a> {
    pub(super) fn new(dump: &'a Dump) -> Self {
        let mut residents = BTreeMap::<&str, Vec<IpAddr>>::new();
        let pods = dump.world.pods.iter().filter(|pod| pod.uses_pod_network());
        for pod in pods {
            let node = pod.node.as_deref().unwrap_or_default();
            residents.entry(node).or_default().extend(&pod.ips);
        }
        Self(residents)
    }

    fn of(&self, node: &str) -> &[IpAddr] {
        self.0.get(node).map(Vec::as_slice).unwrap_or_default()
    }

    /// The number of addresses of the node's pods in the block.
    pub(super) fn inside(&self, node: &str, block: &IpNet) -> u64 {
        let inside = self.of(node).iter().filter(|ip| block.contains(*ip));
        inside.count() as u64
    }

    /// True if the node has pods, and all of them have addresses of these blocks.
    pub(super) fn are_all_in(&self, node: &str, blocks: &[IpNet]) -> bool {
        let addresses = self.of(node);
        let is_in = |ip: &IpAddr| blocks.iter().any(|block| block.contains(ip));
        !addresses.is_empty() && addresses.iter().all(is_in)
    }

    /// Blocks that contain addresses of the node's pods and that no other node has or uses, the one
    /// with most pods first.
    pub(super) fn free_blocks(
        &self,
        node: &DumpedNode,
        dump: &Dump,
        expected: &ExpectedBlocks,
        free: &FreeBlocks,
    ) -> Vec<IpNet> {
        let mut counts = BTreeMap::<IpNet, u64>::new();
        for ip in self.of(&node.name) {
            let ranges = expected.blocks().filter(|range| range.cidr().contains(ip));
            for range in ranges {
                let block = IpNet::new(*ip, range.node_mask()).map(|block| block.trunc());
                if let Ok(block) = block {
                    *counts.entry(block).or_default() += 1;
                }
            }
        }
        let overlaps = |a: &IpNet, b: &IpNet| a.contains(b) || b.contains(a);
        let is_free = |block: &IpNet| {
            let mut others = dump
                .world
                .nodes
                .iter()
                .filter(|other| other.name != node.name);
            let mut draining = dump.world.draining.iter();
            let mut elsewhere = self.0.iter().filter(|(other, _)| **other != node.name);
            expected.services.overlapping(block).is_none()
                && !free.given.iter().any(|given| overlaps(given, block))
                && !others.any(|other| other.pod_cidrs.iter().any(|has| overlaps(has, block)))
                && !draining.any(|old| old.node != node.name && overlaps(&old.block, block))
                && !elsewhere.any(|(_, ips)| ips.iter().any(|ip| block.contains(ip)))
        };
        let mut blocks: Vec<(IpNet, u64)> = counts.into_iter().collect();
        blocks.retain(|(block, _)| is_free(block));
        blocks.sort_by_key(|(block, count)| (Reverse(*count), *block));
        blocks.into_iter().map(|(block, _)| block).collect()
    }
}
