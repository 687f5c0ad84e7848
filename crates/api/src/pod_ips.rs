//! Pod IPs as a resource of nodes: the names that the processes share, and the rules of counting
//! (ADR 0004).

use podplane_ipam::{
    capacity::{self, NodeCapacity, NodeFacts},
    parse_cidr,
};

use crate::{
    Quantity,
    core::{Node, NodeStatus, Pod},
    quantity,
};

/// The resource: the number of pod IPs in the ranges of a node.
pub const POD_IPS: &str = "podplane.io/pod-ips";
/// The annotation with the number of allocated pod IPs, set by the kubelet.
pub const POD_IPS_ALLOCATED: &str = "podplane.io/pod-ips-allocated";
/// The annotation with the ranges of the pods' addresses, separated by commas, if they are not in
/// the node's podCIDR; set by the kubelet.
pub const POD_RANGES: &str = "podplane.io/pod-ranges";
/// The annotation with the IPAM plugin of the node's network, set by the kubelet.
pub const IPAM: &str = "podplane.io/ipam";
/// The type of the node condition that is true if the node's IPAM plugin reports its capacity.
///
/// While it is True, or Unknown because a newer report is missing, capacity and allocatable
/// [`POD_IPS`] are the plugin's. While it is False they were set by something else.
pub const POD_IPS_REPORTED: &str = "PodIPsReported";
/// The reason of a pod that the kubelet rejected because no address was free; in the reference's
/// form, `OutOf` and the resource.
pub const OUT_OF_POD_IPS: &str = "OutOfpodIPs";
/// The pod condition that is true if the pod has a sandbox with a network (KEP-3085); set by the
/// kubelet.
pub const POD_READY_TO_START_CONTAINERS: &str = "PodReadyToStartContainers";

/// The blocks of a node, the primary family's first; empty if it has none yet. The list takes
/// precedence; an object with only the older field has one block, or none if that is empty.
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

/// The number of allocated pod IPs that the kubelet reports, if any. Invalid numbers are ignored.
pub fn allocated(node: &Node) -> Option<u64> {
    let annotations = node.metadata.annotations.as_ref()?;
    annotations.get(POD_IPS_ALLOCATED)?.parse().ok()
}

/// The IPAM plugin of the node's network, if the kubelet reports one.
pub fn ipam(node: &Node) -> Option<&str> {
    let annotations = node.metadata.annotations.as_ref()?;
    let name = annotations.get(IPAM)?;
    Some(name.as_str()).filter(|name| !name.is_empty())
}

/// Returns true if [`POD_IPS`] in the status is the IPAM plugin's report. A status without the
/// condition is taken as reported: other kubelets do not set it.
pub fn is_reported(status: &NodeStatus) -> bool {
    condition(status, POD_IPS_REPORTED) != Some("False")
}

/// The number of pods that the node has addresses for, leaked addresses included.
pub fn capacity(node: &Node) -> NodeCapacity {
    let status = node.status.as_ref();
    let amount = |list: Option<&Quantities>| list?.get(POD_IPS).map(count);
    let total = status.and_then(|status| amount(status.capacity.as_ref()));
    let allocatable = status.and_then(|status| amount(status.allocatable.as_ref()));
    match status {
        Some(status) if is_reported(status) => of_facts(node, total.or(allocatable), None),
        _ => of_facts(node, None, allocatable),
    }
}

/// The number of pods that the node has addresses for, without leaked ones: a scheduler's limit.
pub fn allocatable(node: &Node) -> NodeCapacity {
    let status = node.status.as_ref();
    let allocatable = status
        .and_then(|status| status.allocatable.as_ref())
        .and_then(|list| list.get(POD_IPS).map(count));
    match status {
        Some(status) if is_reported(status) => of_facts(node, allocatable, None),
        _ => of_facts(node, None, allocatable),
    }
}

type Quantities = std::collections::BTreeMap<String, Quantity>;

fn of_facts(node: &Node, reported: Option<u64>, allocatable: Option<u64>) -> NodeCapacity {
    let blocks = pod_cidrs(node);
    let parsed: Result<Vec<_>, _> = blocks.iter().map(|block| parse_cidr(block)).collect();
    let status = node.status.as_ref();
    let pods = status.and_then(|status| status.allocatable.as_ref()?.get("pods"));
    capacity::of_node(&NodeFacts {
        reported,
        allocatable,
        has_blocks: !blocks.is_empty(),
        // If one of two families is invalid it provides no address, and a pod needs one of each.
        blocks: parsed.unwrap_or_default(),
        pods: pods.map_or(0, count),
        is_network_ready: status.is_some_and(is_network_ready),
    })
}

/// Returns true if the node is Ready and NetworkUnavailable is not True. A kubelet is not Ready
/// while its network needs a block that the node does not have; for other kubelets the cloud
/// controller sets the condition.
fn is_network_ready(status: &NodeStatus) -> bool {
    condition(status, "Ready") == Some("True")
        && condition(status, "NetworkUnavailable") != Some("True")
}

fn condition<'a>(status: &'a NodeStatus, kind: &str) -> Option<&'a str> {
    let mut conditions = status.conditions.iter().flatten();
    let found = conditions.find(|condition| condition.type_ == kind)?;
    Some(found.status.as_str())
}

/// A quantity as a count. A negative or invalid one counts as 0: nothing is scheduled on an amount
/// that cannot be parsed.
fn count(quantity: &Quantity) -> u64 {
    let units = quantity::units(quantity).unwrap_or(0);
    u64::try_from(units).unwrap_or(0)
}

/// True if the pod shares its node's network, and so uses no pod IP.
pub fn is_host_network(pod: &Pod) -> bool {
    let host_network = pod.spec.as_ref().and_then(|spec| spec.host_network);
    host_network.unwrap_or_default()
}

/// True if the pod has ended for good: it Succeeded or Failed. Its address may still be in use: see
/// [`holds_address`].
pub fn is_terminal(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// True if the pod has, or may have, an address of its node's block (ADR 0019).
///
/// A pod on the pod network holds one from its binding until its kubelet reports that the sandbox
/// is gone: the pod has ended and [`POD_READY_TO_START_CONTAINERS`] is False. Neither a deletion
/// timestamp nor the phase alone frees an address.
pub fn holds_address(pod: &Pod) -> bool {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let is_bound = node.is_some_and(|node| !node.is_empty());
    is_bound && !is_host_network(pod) && !(is_terminal(pod) && has_no_sandbox(pod))
}

/// True if the kubelet reports that the pod has no sandbox with a network:
/// [`POD_READY_TO_START_CONTAINERS`] is False.
pub fn has_no_sandbox(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    let mut conditions = status
        .into_iter()
        .flat_map(|s| s.conditions.iter().flatten());
    conditions.any(|c| c.type_ == POD_READY_TO_START_CONTAINERS && c.status == "False")
}

#[cfg(test)]
mod tests {
    use podplane_ipam::capacity::Basis;
    use serde_json::json;

    use crate::core::{NodeSpec, PodCondition, PodSpec, PodStatus};

    use super::*;

    fn node(spec: serde_json::Value, status: serde_json::Value) -> Node {
        serde_json::from_value(json!({"spec": spec, "status": status})).unwrap()
    }

    #[test]
    fn the_condition_distinguishes_reports_from_amounts_set_otherwise() {
        let of = |reported: &str| {
            let status = json!({
                "capacity": {POD_IPS: "6"}, "allocatable": {POD_IPS: "4", "pods": "110"},
                "conditions": [{"type": POD_IPS_REPORTED, "status": reported}]});
            let node = node(json!({"podCIDR": "10.0.0.0/24"}), status);
            (capacity(&node), allocatable(&node))
        };
        let pods = |count, basis| NodeCapacity::Pods { count, basis };
        let reported = (pods(6, Basis::Report), pods(4, Basis::Report));
        assert_eq!(of("True"), reported);
        assert_eq!(of("Unknown"), reported);
        let set = pods(4, Basis::Allocatable);
        assert_eq!(of("False"), (set, set));
    }

    #[test]
    fn capacity_without_a_report_is_that_of_blocks_then_pods() {
        let conditions = |ready: &str, unavailable: &str| {
            json!({"allocatable": {"pods": "110"}, "conditions": [
                {"type": "Ready", "status": ready},
                {"type": "NetworkUnavailable", "status": unavailable}]})
        };
        let of = |spec, status| allocatable(&node(spec, status));
        let pods = |count, basis| NodeCapacity::Pods { count, basis };
        let block = json!({"podCIDRs": ["10.0.0.0/29", "fd00::/64"]});
        assert_eq!(of(block.clone(), json!({})), pods(5, Basis::Blocks));
        let ready = conditions("True", "False");
        assert_eq!(of(block, ready.clone()), pods(5, Basis::Blocks));
        assert_eq!(of(json!({}), ready), pods(110, Basis::Pods));
        let invalid = json!({"podCIDRs": ["10.0.0.0/24", "fd00::/x"]});
        assert_eq!(of(invalid, json!({})), pods(0, Basis::Blocks));
        for waits in [
            json!({}),
            conditions("False", "False"),
            conditions("True", "True"),
        ] {
            assert_eq!(of(json!({}), waits), NodeCapacity::AwaitsBlock);
        }
    }

    #[test]
    fn invalid_amounts_count_as_zero() {
        for amount in ["-1", "many"] {
            let status = json!({"allocatable": {POD_IPS: amount}});
            let node = node(json!({"podCIDR": "10.0.0.0/24"}), status);
            assert_eq!(allocatable(&node).count(), 0, "{amount}");
        }
    }

    #[test]
    fn an_empty_pod_cidr_is_not_a_block() {
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
