//! Overlaps between the blocks of live nodes.

use podplane_ipam::{Block, Claim, NodeBlocks};

/// Blocks of live nodes that share an address with another node's block, by address. Each comes
/// with the first block that contains it, or else with the first one that it contains.
pub(crate) fn overlaps(blocks: &NodeBlocks) -> Vec<(Block, Block)> {
    let mut found = Vec::new();
    // Prefixes nest or are disjoint, and of nested ones the widest comes first: each open prefix
    // either contains the next one or ends before it.
    let mut open: Vec<(Block, bool)> = Vec::new();
    for block in blocks.iter() {
        if !matches!(block.claim, Claim::Assigned(_) | Claim::Foreign(_)) {
            continue;
        }
        while open
            .last()
            .is_some_and(|(wider, _)| !wider.net.contains(&block.net))
        {
            open.pop();
        }
        let mut others = open
            .iter_mut()
            .filter(|(other, _)| other.claim.owner() != block.claim.owner());
        let mut seen = false;
        for (other, is_reported) in &mut others {
            if !*is_reported {
                found.push((other.clone(), block.clone()));
                *is_reported = true;
            }
            if !seen {
                found.push((block.clone(), other.clone()));
                seen = true;
            }
        }
        open.push((block, seen));
    }
    found
}

#[cfg(test)]
mod tests {
    use podplane_ipam::Owner;

    use super::*;

    #[test]
    fn reports_each_overlapping_block_once() {
        let mut blocks = NodeBlocks::without_sets(&[]);
        let held = [
            ("a", "10.0.0.0/24"),
            ("b", "10.0.0.0/24"),
            ("c", "10.0.1.0/24"),
            ("d", "10.2.0.0/16"),
            ("e", "10.2.3.0/24"),
            ("f", "10.2.4.0/24"),
            ("d", "10.2.5.0/24"),
        ];
        for (node, net) in held {
            blocks.adopt(&Owner::new(node, node), net.parse().unwrap());
        }
        let names: Vec<String> = overlaps(&blocks)
            .iter()
            .map(|(block, other)| {
                let name = |block: &Block| block.claim.owner().unwrap().name().to_owned();
                name(block) + &name(other)
            })
            .collect();
        assert_eq!(names, ["ab", "ba", "de", "ed", "fd"]);
    }
}
