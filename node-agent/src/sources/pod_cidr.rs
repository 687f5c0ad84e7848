//! Networks that give the addresses of the Node's podCIDRs: kubenet, kindnet, flannel, GKE.

use ipnet::IpNet;
use podplane_api::{
    core::Node,
    pod_ips::{self},
};
use podplane_ipam::{AddressRange, parse_cidr};

use super::{FamilyCounts, NodeIpam, SourceError};

/// The addresses of the Node's podCIDRs, counted as host-local counts.
///
/// # Errors
///
/// [`SourceError::Missing`] if the Node has no podCIDR yet; [`SourceError::Object`] if one is
/// invalid.
pub fn of_node(node: &Node) -> Result<NodeIpam, SourceError> {
    let name = node.metadata.name.clone().unwrap_or_default();
    let blocks = pod_ips::pod_cidrs(node);
    if blocks.is_empty() {
        let missing = format!("node {name:?} has no podCIDR yet");
        return Err(SourceError::Missing(missing));
    }
    let parse = |text: &String| {
        parse_cidr(text).map_err(|error| SourceError::Object {
            kind: "Node",
            name: name.clone(),
            reason: format!("spec.podCIDRs: {error}"),
        })
    };
    let blocks: Vec<_> = blocks.iter().map(parse).collect::<Result<_, _>>()?;
    Ok(NodeIpam {
        capacity: of_blocks(&blocks),
        ranges: blocks,
        allocated: None,
    })
}

fn of_blocks(blocks: &[IpNet]) -> FamilyCounts {
    let mut counts = FamilyCounts::default();
    for block in blocks {
        let capacity = AddressRange::of_block(*block).map_or(0, |range| range.capacity());
        counts.add(block, u64::try_from(capacity).unwrap_or(u64::MAX));
    }
    counts
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(spec: serde_json::Value) -> Result<u64, String> {
        let node = json!({"metadata": {"name": "n"}, "spec": spec});
        let node: Node = serde_json::from_value(node).unwrap();
        let ipam = of_node(&node).map_err(|error| error.to_string())?;
        Ok(ipam.capacity.pods())
    }

    #[test]
    fn the_fewer_addresses_of_the_families_count() {
        assert_eq!(of(json!({"podCIDR": "10.0.0.0/24"})), Ok(253));
        let both = json!({"podCIDRs": ["10.0.0.0/29", "fd00::/64"]});
        assert_eq!(of(both), Ok(5));
        assert_eq!(of(json!({"podCIDR": "10.0.0.0/32"})), Ok(0));
    }

    #[test]
    fn a_node_without_a_usable_pod_cidr_has_no_number() {
        let missing = of(json!({})).unwrap_err();
        assert_eq!(missing, "node \"n\" has no podCIDR yet");
        let invalid = of(json!({"podCIDRs": ["10.0.0.0/24", "x"]})).unwrap_err();
        assert!(invalid.starts_with("invalid Node \"n\": spec.podCIDRs: "));
    }
}
