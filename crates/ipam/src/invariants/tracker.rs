//! Duplicate addresses and overlapping blocks, kept up to date change by change.
//!
//! [`check`](super::check) examines a whole cluster. [`Tracker`] is for callers that see every
//! change, as from a watch, and need the violations after each of them: the cost of a change does
//! not depend on the size of the cluster.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;

use super::{Node, Pod, PodKey, Violation};

/// The pods and nodes of a cluster, as far as addresses go, and the invariants that they violate
/// now.
#[derive(Clone, Debug, Default)]
pub struct Tracker {
    /// The addresses of each pod.
    pods: BTreeMap<PodKey, BTreeSet<IpAddr>>,
    /// The pods that hold each address.
    holders: BTreeMap<IpAddr, BTreeSet<PodKey>>,
    /// The blocks of each node.
    nodes: BTreeMap<String, BTreeSet<IpNet>>,
    /// The nodes that have each block. Prefixes sort by address and then by length, so those inside
    /// a prefix follow it.
    owners: BTreeMap<IpNet, BTreeSet<String>>,
    violations: BTreeSet<Violation>,
}

impl Tracker {
    /// [`Violation::DuplicateAddress`], one for each address, and [`Violation::OverlappingBlocks`],
    /// one for each pair of nodes' blocks.
    #[must_use]
    pub fn violations(&self) -> &BTreeSet<Violation> {
        &self.violations
    }

    /// All pods, including those without an address.
    pub fn pods(&self) -> impl Iterator<Item = &PodKey> {
        self.pods.keys()
    }

    /// The nodes and their blocks.
    pub fn nodes(&self) -> impl Iterator<Item = (&str, &BTreeSet<IpNet>)> {
        self.nodes
            .iter()
            .map(|(name, blocks)| (name.as_str(), blocks))
    }

    /// Adds or updates a pod.
    pub fn set_pod(&mut self, pod: &Pod) {
        let holds = match pod.uses_pod_network() {
            true => pod.ips.iter().copied().collect(),
            false => BTreeSet::new(),
        };
        let before = self.pods.insert(pod.key(), holds.clone());
        self.moved(&pod.key(), &before.unwrap_or_default(), &holds);
    }

    /// Removes a pod.
    pub fn remove_pod(&mut self, pod: &PodKey) {
        let before = self.pods.remove(pod).unwrap_or_default();
        self.moved(pod, &before, &BTreeSet::new());
    }

    /// Adds or updates a node.
    pub fn set_node(&mut self, node: &Node) {
        let blocks: BTreeSet<_> = node.pod_cidrs.iter().map(IpNet::trunc).collect();
        if self.nodes.get(&node.name) != Some(&blocks) {
            self.remove_node(&node.name);
            for block in &blocks {
                let owners = self.owners.entry(*block).or_default();
                owners.insert(node.name.clone());
            }
            let overlaps = blocks
                .iter()
                .flat_map(|block| self.overlaps(&node.name, *block));
            let overlaps: Vec<_> = overlaps.collect();
            self.violations.extend(overlaps);
            self.nodes.insert(node.name.clone(), blocks);
        }
    }

    /// Removes a node.
    pub fn remove_node(&mut self, name: &str) {
        for block in self.nodes.remove(name).unwrap_or_default() {
            if let Some(owners) = self.owners.get_mut(&block) {
                owners.remove(name);
                if owners.is_empty() {
                    self.owners.remove(&block);
                }
            }
        }
        self.violations.retain(|violation| match violation {
            Violation::OverlappingBlocks { wide, narrow } => wide.0 != name && narrow.0 != name,
            _ => true,
        });
    }

    fn moved(&mut self, pod: &PodKey, before: &BTreeSet<IpAddr>, now: &BTreeSet<IpAddr>) {
        for ip in before.symmetric_difference(now) {
            let holders = self.holders.entry(*ip).or_default();
            let earlier = duplicate(*ip, holders);
            match now.contains(ip) {
                true => holders.insert(pod.clone()),
                false => holders.remove(pod),
            };
            let later = duplicate(*ip, holders);
            if holders.is_empty() {
                self.holders.remove(ip);
            }
            if let Some(earlier) = earlier {
                self.violations.remove(&earlier);
            }
            self.violations.extend(later);
        }
    }

    /// The pairs of `block` of `node` and a block of another node that share addresses. There are
    /// few wider blocks, which are looked up; all narrower ones follow it in order.
    fn overlaps(&self, node: &str, block: IpNet) -> impl Iterator<Item = Violation> {
        let wider = (0..block.prefix_len())
            .filter_map(move |length| Some(IpNet::new(block.addr(), length).ok()?.trunc()))
            .filter_map(|net| self.owners.get_key_value(&net));
        let inside = self.owners.range(block..);
        let inside = inside.take_while(move |(net, _)| block.contains(&net.addr()));
        let others = wider
            .chain(inside)
            .flat_map(|(net, owners)| owners.iter().map(move |owner| (*net, owner)));
        others
            .filter(move |(_, owner)| *owner != node)
            .map(move |(net, owner)| {
                let mut pair = [
                    (block.prefix_len(), node.to_owned(), block),
                    (net.prefix_len(), owner.clone(), net),
                ];
                pair.sort();
                let [wide, narrow] = pair.map(|(_, name, net)| (name, net));
                Violation::OverlappingBlocks { wide, narrow }
            })
    }
}

fn duplicate(ip: IpAddr, holders: &BTreeSet<PodKey>) -> Option<Violation> {
    (holders.len() > 1).then(|| Violation::DuplicateAddress {
        ip,
        pods: holders.iter().cloned().collect(),
    })
}
