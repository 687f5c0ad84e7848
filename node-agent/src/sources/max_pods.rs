//! Networks whose number of addresses is the node's number of pods: AWS VPC CNI and Azure CNI.
//!
//! EKS starts the kubelet with `--max-pods` of `ENIs × (addresses of each − 1) + 2`: the two are the
//! pods with hostNetwork, aws-node and kube-proxy, that run on every node. Azure CNI reserves as
//! many addresses as the kubelet may have pods, and pods with hostNetwork use none of them.

use podplane_api::{core::Node, quantity};

use super::{FamilyCounts, NodeIpam, SourceError};

/// The addresses of a node: its capacity of `pods`, less `host_network_pods`, the pods with
/// hostNetwork that the number includes.
///
/// # Errors
///
/// [`SourceError::Missing`] if the kubelet has not written the capacity yet.
pub fn of_node(node: &Node, host_network_pods: u32) -> Result<NodeIpam, SourceError> {
    let capacity = node.status.as_ref().and_then(|it| it.capacity.as_ref());
    let pods = capacity.and_then(|capacity| capacity.get("pods"));
    let pods = pods.and_then(|pods| u64::try_from(quantity::units(pods).ok()?).ok());
    let Some(pods) = pods else {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let missing = format!("node {name:?} has no capacity of pods yet");
        return Err(SourceError::Missing(missing));
    };
    Ok(NodeIpam {
        capacity: FamilyCounts {
            ipv4: Some(pods.saturating_sub(host_network_pods.into())),
            ipv6: None,
        },
        ..NodeIpam::default()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_pods_with_host_network_that_max_pods_includes_have_no_address() {
        let of = |status: serde_json::Value, host_network_pods| {
            let node = json!({"metadata": {"name": "n"}, "status": status});
            let node: Node = serde_json::from_value(node).unwrap();
            of_node(&node, host_network_pods).map(|ipam| ipam.capacity.pods())
        };
        // m5.large: 3 ENIs of 10 addresses.
        let m5 = json!({"capacity": {"pods": "29"}});
        assert_eq!(of(m5.clone(), 2), Ok(27));
        assert_eq!(of(m5, 0), Ok(29));
        assert_eq!(of(json!({"capacity": {"pods": "1"}}), 2), Ok(0));
        assert!(of(json!({}), 2).is_err());
        assert!(of(json!({"capacity": {"pods": "-3"}}), 2).is_err());
    }
}
