//! Pod IPs as a resource of nodes: the names that the processes share, and the facts of objects for
//! the rule of counting, which is [`podplane_ipam::addresses`] (ADR 0004, ADR 0041).

#[cfg(feature = "clap")]
mod flags;
mod resource;
mod shortage;

use podplane_ipam::addresses::PodFacts;

#[cfg(feature = "clap")]
pub use self::flags::PodIpFlags;
pub use self::resource::{PodIpResource, PodIpResourceError};
pub use self::shortage::{AddressShortage, no_address_on};
use crate::core::{Node, NodeStatus, Pod};

/// The resource: the number of pod IPs in the ranges of a node. It is the default name; see
/// [`PodIpResource`].
pub const POD_IPS: &str = "podplane.io/pod-ips";
/// The annotation with the name of the resource if it is not [`POD_IPS`], set by the kubelet.
pub const POD_IPS_RESOURCE: &str = "podplane.io/pod-ips-resource";
/// The annotation with the number of pod IPs that are not free and that no pod bound to the node
/// owns, set by the kubelet.
pub const POD_IPS_ORPHANED: &str = "podplane.io/pod-ips-orphaned";
/// The annotation with the number of pod IPs in the ranges of a node, orphaned ones included, set by
/// the node agent. Its capacity of [`POD_IPS`] is smaller: schedulers that only add up requests do
/// not know of orphaned addresses, nor of pods without a request (ADR 0064).
pub const POD_IPS_TOTAL: &str = "podplane.io/pod-ips-total";
/// The annotation with the number of pod IPs of sandboxes, set by the kubelet.
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

/// The annotation of a mirror pod: the API's picture of a pod that the kubelet runs by itself, from
/// a file.
pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";

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

/// The number of pod IPs of sandboxes that the kubelet reports, if any. Invalid numbers are
/// ignored.
pub fn allocated(node: &Node) -> Option<u64> {
    annotation(node, POD_IPS_ALLOCATED)?.parse().ok()
}

/// The number of pod IPs that the kubelet reports as orphaned, if any: not free, and of no pod that
/// is bound to the node. Invalid numbers are ignored.
pub fn orphaned(node: &Node) -> Option<u64> {
    annotation(node, POD_IPS_ORPHANED)?.parse().ok()
}

/// The number of pod IPs in the ranges of the node that a node agent reports, if any. It counts
/// only while the node's status has the resource and no kubelet of ours reports it. Invalid numbers
/// are ignored.
pub fn total(node: &Node) -> Option<u64> {
    let status = node.status.as_ref()?;
    match condition(status, POD_IPS_REPORTED) {
        None | Some("False") => annotation(node, POD_IPS_TOTAL)?.parse().ok(),
        Some(_) => None,
    }
}

/// The IPAM plugin of the node's network, if the kubelet reports one.
pub fn ipam(node: &Node) -> Option<&str> {
    annotation(node, IPAM).filter(|name| !name.is_empty())
}

fn annotation<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    let annotations = node.metadata.annotations.as_ref()?;
    annotations.get(key).map(String::as_str)
}

/// Returns true if [`POD_IPS`] in the status is the IPAM plugin's report. A status without the
/// condition is taken as reported: other kubelets do not set it.
pub fn is_reported(status: &NodeStatus) -> bool {
    condition(status, POD_IPS_REPORTED) != Some("False")
}

fn condition<'a>(status: &'a NodeStatus, kind: &str) -> Option<&'a str> {
    let mut conditions = status.conditions.iter().flatten();
    let found = conditions.find(|condition| condition.type_ == kind)?;
    Some(found.status.as_str())
}

/// True if the pod shares its node's network, and so uses no pod IP.
pub fn is_host_network(pod: &Pod) -> bool {
    let host_network = pod.spec.as_ref().and_then(|spec| spec.host_network);
    host_network.unwrap_or_default()
}

/// True if the pod is a mirror pod: it runs on its node whether the API server accepts it or not.
pub fn is_mirror(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.is_some_and(|annotations| annotations.contains_key(CONFIG_MIRROR))
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
/// timestamp nor the phase alone frees an address. [`PodIpResource::addresses_held`] has the
/// number.
pub fn holds_address(pod: &Pod) -> bool {
    facts(pod).held() > 0
}

/// The facts of a pod, without its request.
fn facts(pod: &Pod) -> PodFacts {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    PodFacts {
        is_bound: node.is_some_and(|node| !node.is_empty()),
        is_host_network: is_host_network(pod),
        is_terminal: is_terminal(pod),
        has_no_sandbox: has_no_sandbox(pod),
        requested: 0,
    }
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
    use crate::core::{NodeSpec, PodCondition, PodSpec, PodStatus};

    use super::*;

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
