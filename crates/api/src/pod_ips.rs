//! Pod IPs as a resource of nodes: the names under which the processes speak of it, and what counts (ADR 0004).

use crate::core::{Node, Pod};

/// The resource: how many pod IPs the ranges of a node hold.
pub const POD_IPS: &str = "podplane.io/pod-ips";
/// The annotation in which the kubelet says how many of them are allocated.
pub const POD_IPS_ALLOCATED: &str = "podplane.io/pod-ips-allocated";
/// The annotation in which the kubelet says what its pods' addresses come from, where that is not the node's podCIDR: ranges, separated by commas.
pub const POD_RANGES: &str = "podplane.io/pod-ranges";
/// The reason of a pod that the kubelet turned away, since no address was left: the reference's form, `OutOf` and the resource.
pub const OUT_OF_POD_IPS: &str = "OutOfpodIPs";

/// The blocks of a node, the primary family's first; none if it has none yet. The list is the truth; an object that has only the older field has one
/// block, or none if that is empty.
pub fn pod_cidrs(node: &Node) -> &[String] {
    let Some(spec) = &node.spec else {
        return &[];
    };
    match &spec.pod_cidrs {
        Some(cidrs) if !cidrs.is_empty() => cidrs,
        _ => match &spec.pod_cidr {
            Some(cidr) if !cidr.is_empty() => std::slice::from_ref(cidr),
            _ => &[],
        },
    }
}

/// How many pod IPs its kubelet says are allocated, if it says so. What is not a number is no report.
pub fn allocated(node: &Node) -> Option<u64> {
    let annotations = node.metadata.annotations.as_ref()?;
    annotations.get(POD_IPS_ALLOCATED)?.parse().ok()
}

/// Whether the pod shares its node's network, and so takes no pod IP.
pub fn is_host_network(pod: &Pod) -> bool {
    let host_network = pod.spec.as_ref().and_then(|spec| spec.host_network);
    host_network.unwrap_or_default()
}

/// Whether the pod runs no more and never will again, so that its address is free: it Succeeded or Failed.
pub fn is_terminal(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

#[cfg(test)]
mod tests {
    use crate::core::NodeSpec;

    use super::*;

    #[test]
    fn an_empty_field_is_no_block() {
        let node = |single: Option<&str>, list: Option<Vec<String>>| Node {
            spec: Some(NodeSpec {
                pod_cidr: single.map(str::to_owned),
                pod_cidrs: list,
                ..NodeSpec::default()
            }),
            ..Node::default()
        };
        assert_eq!(pod_cidrs(&Node::default()), [""; 0]);
        assert_eq!(pod_cidrs(&node(Some(""), None)), [""; 0]);
        assert_eq!(pod_cidrs(&node(Some(""), Some(vec![]))), [""; 0]);
        assert_eq!(pod_cidrs(&node(Some("a"), Some(vec![]))), ["a"]);
        let both = node(Some("a"), Some(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(pod_cidrs(&both), ["a", "b"]);
    }
}
