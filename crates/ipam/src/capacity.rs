//! How many nodes a cluster CIDR has room for.

/// Blocks of `/node_mask` in a cluster CIDR of `/cluster_mask`: 2^(`node_mask` − `cluster_mask`).
///
/// `None` if a block would be larger than the cluster, or the number needs more than 64 bits.
#[must_use]
pub fn max_nodes(cluster_mask: u8, node_mask: u8) -> Option<u64> {
    1u64.checked_shl(u32::from(node_mask.checked_sub(cluster_mask)?))
}

#[cfg(test)]
mod tests {
    use super::max_nodes;

    #[test]
    fn a_block_larger_than_the_cluster_has_no_count() {
        assert_eq!(max_nodes(16, 15), None);
        assert_eq!(max_nodes(16, 16), Some(1));
        assert_eq!(max_nodes(0, 63), Some(1 << 63));
        assert_eq!(max_nodes(0, 64), None);
    }
}
