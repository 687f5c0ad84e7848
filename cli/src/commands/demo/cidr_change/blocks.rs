//! The blocks of nodes, and their overlaps.

use std::collections::BTreeMap;

use ipnet::IpNet;
use podplane_api::{Object as _, core::Node, pod_ips};
use podplane_ipam::parse_cidr;

/// The IPv4 blocks of nodes by name; `None` for a node without one.
#[derive(Clone, Debug, Default)]
pub(super) struct ObservedBlocks(pub(super) BTreeMap<String, Option<IpNet>>);

impl ObservedBlocks {
    pub(super) fn of<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> Self {
        let block = |node: &Node| parse_cidr(pod_ips::pod_cidrs(node).first()?).ok();
        let nodes = nodes.into_iter();
        Self(
            nodes
                .map(|node| (node.name().to_owned(), block(node)))
                .collect(),
        )
    }

    pub(super) fn of_node(&self, name: &str) -> Option<IpNet> {
        self.0.get(name).copied().flatten()
    }

    /// The nodes with a block, and the blocks.
    pub(super) fn assigned(&self) -> impl Iterator<Item = (&str, IpNet)> {
        let nodes = self.0.iter();
        nodes.filter_map(|(name, block)| Some((name.as_str(), (*block)?)))
    }

    /// The number of nodes with a block.
    pub(super) fn count(&self) -> usize {
        self.assigned().count()
    }

    /// The nodes without a block.
    pub(super) fn waiting(&self) -> Vec<String> {
        let nodes = self.0.iter().filter(|(_, block)| block.is_none());
        nodes.map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn holder(&self, block: IpNet) -> Option<&str> {
        self.assigned()
            .find(|(_, own)| *own == block)
            .map(|(name, _)| name)
    }

    /// The nodes with blocks of that length.
    pub(super) fn of_length(&self, length: u8) -> Vec<(&str, IpNet)> {
        self.assigned()
            .filter(|(_, block)| block.prefix_len() == length)
            .collect()
    }

    /// The blocks that several nodes have, with those nodes.
    pub(super) fn duplicates(&self) -> Vec<(IpNet, Vec<String>)> {
        let mut by_block: BTreeMap<IpNet, Vec<String>> = BTreeMap::new();
        for (name, block) in self.assigned() {
            by_block.entry(block).or_default().push(name.to_owned());
        }
        let shared = by_block.into_iter().filter(|(_, nodes)| nodes.len() > 1);
        shared.collect()
    }

    /// The pairs of nodes whose blocks overlap, by name.
    pub(super) fn overlaps(&self) -> Vec<(&str, &str)> {
        let mut sorted: Vec<_> = self.assigned().collect();
        // A prefix comes before those inside it, so an overlapping block follows its container
        // without a gap.
        sorted.sort_by_key(|(_, block)| (block.network(), block.prefix_len()));
        let mut pairs = Vec::new();
        for (index, (outer, block)) in sorted.iter().enumerate() {
            let inside = sorted[index + 1..]
                .iter()
                .take_while(|(_, other)| block.contains(other));
            pairs.extend(inside.map(|(inner, _)| (*outer, *inner)));
        }
        pairs
    }

    /// The /24 blocks inside `within` that overlap no node's block.
    pub(super) fn unused(&self, within: IpNet) -> Vec<IpNet> {
        let free = |block: &IpNet| {
            self.assigned()
                .all(|(_, own)| !own.contains(block) && !block.contains(&own))
        };
        within
            .subnets(24)
            .into_iter()
            .flatten()
            .filter(free)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(list: &[(&str, &str)]) -> ObservedBlocks {
        let each = list.iter();
        ObservedBlocks(
            each.map(|(name, block)| ((*name).to_owned(), block.parse().ok()))
                .collect(),
        )
    }

    #[test]
    fn finds_duplicates_overlaps_and_unused_blocks() {
        let blocks = blocks(&[
            ("a", "10.0.0.0/24"),
            ("b", "10.0.1.0/24"),
            ("c", "10.0.1.0/24"),
            ("wide", "10.0.0.0/16"),
            ("far", "10.1.0.0/24"),
            ("none", ""),
        ]);
        assert_eq!(
            blocks.duplicates(),
            [(
                "10.0.1.0/24".parse().unwrap(),
                vec!["b".to_owned(), "c".into()]
            )]
        );
        let pairs = blocks.overlaps();
        assert_eq!(
            pairs,
            [("wide", "a"), ("wide", "b"), ("wide", "c"), ("b", "c")]
        );
        assert_eq!(blocks.waiting(), ["none"]);
        assert_eq!(blocks.count(), 5);
        let free = blocks.unused("10.1.0.0/23".parse().unwrap());
        assert_eq!(free, ["10.1.1.0/24".parse().unwrap()]);
    }
}
