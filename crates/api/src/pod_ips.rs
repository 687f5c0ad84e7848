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
/// The condition in which the kubelet says whether the pod has a sandbox with a network (KEP-3085).
pub const POD_READY_TO_START_CONTAINERS: &str = "PodReadyToStartContainers";

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

/// Whether the pod runs no more and never will again: it Succeeded or Failed. Its address may still be in use: see [`holds_address`].
pub fn is_terminal(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Whether an address of its node's block is the pod's, or may be (ADR 0019).
///
/// A pod on the pod network holds one from its binding until its kubelet says that the sandbox is gone: it is finished and
/// [`POD_READY_TO_START_CONTAINERS`] is False. Neither a deletion timestamp nor the phase alone frees an address.
pub fn holds_address(pod: &Pod) -> bool {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let is_bound = node.is_some_and(|node| !node.is_empty());
    is_bound && !is_host_network(pod) && !(is_terminal(pod) && has_no_sandbox(pod))
}

/// Whether its kubelet says that the pod has no sandbox with a network: [`POD_READY_TO_START_CONTAINERS`] is False.
pub fn has_no_sandbox(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let mut conditions = status
        .into_iter()
        .flat_map(|s| s.conditions.iter().flatten());
    conditions.any(|c| c.type_ == POD_READY_TO_START_CONTAINERS && c.status == "False")
}

#[cfg(test)]
mod tests {
    use crate::core::{NodeSpec, PodCondition, PodSpec, PodStatus};

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

    fn bound(phase: &str, sandbox: Option<&str>) -> Pod {
        let condition = |status: &str| PodCondition {
            type_: POD_READY_TO_START_CONTAINERS.into(),
            status: status.into(),
            ..PodCondition::default()
        };
        Pod {
            spec: Some(PodSpec {
                node_name: Some("n".into()),
                ..PodSpec::default()
            }),
            status: Some(PodStatus {
                phase: Some(phase.into()),
                conditions: sandbox.map(|status| vec![condition(status)]),
                ..PodStatus::default()
            }),
            ..Pod::default()
        }
    }

    #[test]
    fn holds_its_address_until_it_is_finished_and_without_a_sandbox() {
        for (phase, sandbox, holds) in [
            ("Pending", None, true),
            ("Pending", Some("False"), true),
            ("Running", Some("True"), true),
            ("Running", Some("False"), true),
            ("Succeeded", None, true),
            ("Failed", Some("True"), true),
            ("Failed", Some("Unknown"), true),
            ("Failed", Some("False"), false),
            ("Succeeded", Some("False"), false),
        ] {
            let mut pod = bound(phase, sandbox);
            assert_eq!(holds_address(&pod), holds, "{phase} {sandbox:?}");
            pod.metadata.deletion_timestamp =
                Some(crate::meta::Time(crate::jiff::Timestamp::UNIX_EPOCH));
            assert_eq!(holds_address(&pod), holds, "deleting {phase} {sandbox:?}");
        }
    }

    #[test]
    fn holds_no_address_without_a_node_or_on_the_network_of_its_node() {
        let with = |change: fn(&mut PodSpec)| {
            let mut pod = bound("Running", Some("True"));
            pod.spec.as_mut().map(change);
            pod
        };
        assert!(holds_address(&with(|_| {})));
        assert!(!holds_address(&with(|spec| spec.node_name = None)));
        assert!(!holds_address(&with(
            |spec| spec.node_name = Some(String::new())
        )));
        assert!(!holds_address(&with(|spec| spec.host_network = Some(true))));
        assert!(!holds_address(&Pod::default()));
    }
}
