//! The resource of pod addresses by its name: capacity of nodes and need of pods.

use std::{fmt, str::FromStr, sync::Arc};

use podplane_ipam::{
    addresses::{AddressReport, NodeAddresses, PodFacts},
    capacity::{self, NodeCapacity, NodeFacts},
    parse_cidr,
};

use super::{
    POD_IPS, POD_IPS_RESOURCE, allocated, annotation, condition, facts, is_reported, orphaned,
    pod_cidrs, total,
};
use crate::{
    Quantity,
    core::{Container, Node, NodeStatus, Pod, PodSpec},
    names, quantity,
};

type Quantities = std::collections::BTreeMap<String, Quantity>;

/// The name of the extended resource of pod addresses, [`POD_IPS`] unless `--pod-ip-resource` names
/// another one. Cloning is cheap.
///
/// Under any name, each pod on the pod network needs one, or as many as it requests: a plugin that
/// counts addresses gives every pod one, whether it requests it or not. A resource that only some
/// pods use, such as a network interface of their own, is an ordinary extended resource and not
/// this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodIpResource(Arc<str>);

/// The text is not the name of an extended resource.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid resource name {name:?}: {reason}; give an extended resource, such as {POD_IPS} or vpc.amazonaws.com/PrivateIPv4Address"
)]
pub struct PodIpResourceError {
    name: String,
    reason: String,
}

impl Default for PodIpResource {
    fn default() -> Self {
        Self(POD_IPS.into())
    }
}

impl fmt::Display for PodIpResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for PodIpResource {
    type Err = PodIpResourceError;

    fn from_str(text: &str) -> Result<Self, PodIpResourceError> {
        let broken = names::qualified_name(text);
        let reason = match text.split_once('/') {
            _ if !broken.is_empty() => broken.join(", "),
            None => "it has no domain".to_owned(),
            // As in the reference, names of this domain are not extended resources.
            Some((domain, _))
                if domain == "kubernetes.io" || domain.ends_with(".kubernetes.io") =>
            {
                "the domain kubernetes.io is that of Kubernetes' own resources".to_owned()
            }
            Some((domain, _)) if domain.starts_with("requests.") => {
                "the prefix \"requests.\" is reserved for quotas".to_owned()
            }
            Some(_) => return Ok(Self(text.into())),
        };
        Err(PodIpResourceError {
            name: text.to_owned(),
            reason,
        })
    }
}

impl PodIpResource {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The resource that the node's kubelet names in [`POD_IPS_RESOURCE`], for readers without the
    /// flag; the default if it names none.
    #[must_use]
    pub fn of_node(node: &Node) -> Self {
        let named = annotation(node, POD_IPS_RESOURCE);
        named.and_then(|name| name.parse().ok()).unwrap_or_default()
    }

    /// The addresses of a node whose pods hold `held` of them.
    #[must_use]
    pub fn addresses(&self, node: &Node, held: u64) -> NodeAddresses {
        NodeAddresses::of(&self.report(node), held)
    }

    /// The most addresses that the pods of the node may hold so that a further pod can have
    /// `needed`; `None` if it cannot, even if they hold none.
    #[must_use]
    pub fn most_held(&self, node: &Node, needed: u64) -> Option<u64> {
        NodeAddresses::most_held(&self.report(node), needed)
    }

    /// The addresses of a node as its kubelet reports them.
    ///
    /// A kubelet that reports orphaned addresses takes them off allocatable for schedulers that do
    /// not know them, so that the capacity counts here: they are not counted twice.
    #[must_use]
    pub fn report(&self, node: &Node) -> AddressReport {
        let orphaned = orphaned(node);
        AddressReport {
            capacity: match orphaned {
                Some(_) => self.capacity(node),
                None => self.allocatable(node),
            },
            orphaned,
            allocated: allocated(node),
        }
    }

    /// The number of pods that the node has addresses for, orphaned addresses included.
    ///
    /// A node agent publishes fewer than there are, and says in an annotation how many there are.
    #[must_use]
    pub fn capacity(&self, node: &Node) -> NodeCapacity {
        let status = node.status.as_ref();
        let capacity = status.and_then(|status| self.amount(status.capacity.as_ref()));
        let allocatable = status.and_then(|status| self.amount(status.allocatable.as_ref()));
        if let (Some(_), Some(total)) = (capacity, total(node)) {
            return of_facts(node, Some(total), None);
        }
        match status {
            Some(status) if is_reported(status) => of_facts(node, capacity.or(allocatable), None),
            _ => of_facts(node, None, allocatable),
        }
    }

    /// The amount of the resource in the node's status: of its capacity, and of its allocatable.
    #[must_use]
    pub fn published(&self, node: &Node) -> [Option<u64>; 2] {
        let status = node.status.as_ref();
        let capacity = status.and_then(|status| self.amount(status.capacity.as_ref()));
        let allocatable = status.and_then(|status| self.amount(status.allocatable.as_ref()));
        [capacity, allocatable]
    }

    /// The number of pods that the node has addresses for, without those that its kubelet takes off
    /// allocatable.
    #[must_use]
    pub fn allocatable(&self, node: &Node) -> NodeCapacity {
        let status = node.status.as_ref();
        let allocatable = status.and_then(|status| self.amount(status.allocatable.as_ref()));
        match status {
            Some(status) if is_reported(status) => of_facts(node, allocatable, None),
            _ => of_facts(node, None, allocatable),
        }
    }

    /// The number of addresses that the pod needs on its node; see [`PodFacts::needed`].
    #[must_use]
    pub fn addresses_needed(&self, pod: &Pod) -> u64 {
        self.facts(pod).needed()
    }

    /// The number of addresses that the pod holds; see [`PodFacts::held`].
    #[must_use]
    pub fn addresses_held(&self, pod: &Pod) -> u64 {
        self.facts(pod).held()
    }

    /// The pod's request for the resource, as the reference computes requests: those of containers
    /// and sidecars together, or the largest step of the initialization if that is more; instead of
    /// that the pod's own request, if it has one; plus its overhead. A negative or invalid amount
    /// counts as 0, since the API server rejects it.
    #[must_use]
    pub fn requested(&self, pod: &Pod) -> u64 {
        let spec = pod.spec.as_ref();
        spec.map_or(0, |spec| self.requested_by(spec))
    }

    fn facts(&self, pod: &Pod) -> PodFacts {
        PodFacts {
            requested: self.requested(pod),
            ..facts(pod)
        }
    }

    fn requested_by(&self, spec: &PodSpec) -> u64 {
        let of = |container: &Container| {
            let resources = container.resources.as_ref();
            self.amount(resources.and_then(|resources| resources.requests.as_ref()))
                .unwrap_or(0)
        };
        let mut sidecars = 0_u64;
        let mut starting = 0_u64;
        for container in spec.init_containers.iter().flatten() {
            let step = sidecars.saturating_add(of(container));
            starting = starting.max(step);
            if container.restart_policy.as_deref() == Some("Always") {
                sidecars = step;
            }
        }
        let running = spec.containers.iter().map(of);
        let running = running.fold(sidecars, u64::saturating_add);
        let whole = spec.resources.as_ref();
        let whole = self.amount(whole.and_then(|resources| resources.requests.as_ref()));
        let overhead = self.amount(spec.overhead.as_ref()).unwrap_or(0);
        let amount = whole.unwrap_or_else(|| running.max(starting));
        amount.saturating_add(overhead)
    }

    fn amount(&self, list: Option<&Quantities>) -> Option<u64> {
        list?.get(self.as_str()).map(count)
    }
}

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

/// A quantity as a count. A negative or invalid one counts as 0: nothing is scheduled on an amount
/// that cannot be parsed.
fn count(quantity: &Quantity) -> u64 {
    let units = quantity::units(quantity).unwrap_or(0);
    u64::try_from(units).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use podplane_ipam::capacity::Basis;
    use serde_json::{Value, json};

    use super::*;
    use crate::pod_ips::{POD_IPS_ALLOCATED, POD_IPS_ORPHANED, POD_IPS_REPORTED, POD_IPS_TOTAL};

    const VPC: &str = "vpc.amazonaws.com/PrivateIPv4Address";

    fn node(spec: Value, status: Value) -> Node {
        serde_json::from_value(json!({"spec": spec, "status": status})).unwrap()
    }

    fn default() -> PodIpResource {
        PodIpResource::default()
    }

    fn pods(count: u64, basis: Basis) -> NodeCapacity {
        NodeCapacity::Pods { count, basis }
    }

    #[test]
    fn the_condition_distinguishes_reports_from_amounts_set_otherwise() {
        let of = |reported: &str| {
            let status = json!({
                "capacity": {POD_IPS: "6"}, "allocatable": {POD_IPS: "4", "pods": "110"},
                "conditions": [{"type": POD_IPS_REPORTED, "status": reported}]});
            let node = node(json!({"podCIDR": "10.0.0.0/24"}), status);
            (default().capacity(&node), default().allocatable(&node))
        };
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
        let of = |spec, status| default().allocatable(&node(spec, status));
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
            assert_eq!(default().allocatable(&node).count(), 0, "{amount}");
        }
    }

    #[test]
    fn only_extended_resources_are_names_of_the_resource() {
        for name in [POD_IPS, VPC, "networking.gke.io.networks/red.IP"] {
            assert_eq!(name.parse::<PodIpResource>().unwrap().as_str(), name);
        }
        for (name, reason) in [
            ("", "name part must be non-empty"),
            ("pods", "it has no domain"),
            ("a b/c", "prefix part"),
            ("example.com/a/b", "a qualified name"),
            ("kubernetes.io/batch-cpu", "Kubernetes' own resources"),
            ("requests.example.com/ips", "reserved for quotas"),
        ] {
            let error = name.parse::<PodIpResource>().unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
            assert!(error.starts_with(&format!("invalid resource name {name:?}: ")));
        }
    }

    #[test]
    fn orphaned_addresses_are_counted_once() {
        let of = |annotations: Value, held| {
            let mut node = node(
                json!({"podCIDR": "10.0.0.0/29"}),
                json!({"capacity": {POD_IPS: "5"}, "allocatable": {POD_IPS: "3"}}),
            );
            node.metadata.annotations = serde_json::from_value(annotations).unwrap();
            let addresses = default().addresses(&node, held);
            (addresses.orphaned, addresses.free())
        };
        assert_eq!(of(json!({POD_IPS_ORPHANED: "2"}), 1), (2, 2));
        // An older kubelet takes leaked addresses off allocatable and reports no others.
        assert_eq!(of(json!({POD_IPS_ALLOCATED: "2"}), 1), (1, 1));
        assert_eq!(of(json!({POD_IPS_ALLOCATED: "1"}), 2), (0, 1));
        assert_eq!(of(json!({POD_IPS_ORPHANED: "x"}), 0), (0, 3));
    }

    #[test]
    fn the_total_of_a_node_agent_counts_while_the_agent_publishes() {
        let of = |status: Value| {
            let mut node = node(json!({"podCIDR": "10.0.0.0/29"}), status);
            let annotations = json!({POD_IPS_TOTAL: "5", POD_IPS_ORPHANED: "1"});
            node.metadata.annotations = serde_json::from_value(annotations).unwrap();
            let addresses = default().addresses(&node, 2);
            (addresses.capacity, addresses.free())
        };
        // Two pods without a request and an orphaned address are taken off.
        let published = json!({"capacity": {POD_IPS: "2"}, "allocatable": {POD_IPS: "2"}});
        assert_eq!(of(published.clone()), (pods(5, Basis::Report), 2));
        let mut of_kubelet = published;
        of_kubelet["conditions"] = json!([{"type": POD_IPS_REPORTED, "status": "True"}]);
        assert_eq!(of(of_kubelet), (pods(2, Basis::Report), 0));
        assert_eq!(of(json!({})), (pods(5, Basis::Blocks), 2));
    }

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"spec": spec})).unwrap()
    }

    fn container(amount: Option<&str>) -> Value {
        match amount {
            Some(amount) => json!({"name": "c", "resources": {"requests": {POD_IPS: amount}}}),
            None => json!({"name": "c"}),
        }
    }

    #[test]
    fn a_pod_needs_as_many_addresses_as_it_requests_and_at_least_one() {
        let one = container(Some("1"));
        let mut sidecar = one.clone();
        sidecar["restartPolicy"] = json!("Always");
        let init = json!([sidecar, container(Some("2"))]);
        for (name, spec, needed) in [
            ("none", json!({"containers": [container(None)]}), 1),
            ("zero", json!({"containers": [container(Some("0"))]}), 1),
            ("one", json!({"containers": [one]}), 1),
            ("two", json!({"containers": [container(Some("2"))]}), 2),
            ("sum", json!({"containers": [one, one, container(None)]}), 2),
            (
                "step",
                json!({"containers": [one], "initContainers": init}),
                3,
            ),
            (
                "whole",
                json!({"containers": [one, one], "resources": {"requests": {POD_IPS: "4"}}}),
                4,
            ),
            (
                "overhead",
                json!({"containers": [one], "overhead": {POD_IPS: "1"}}),
                2,
            ),
            (
                "host",
                json!({"containers": [container(Some("2"))], "hostNetwork": true}),
                0,
            ),
            ("invalid", json!({"containers": [container(Some("x"))]}), 1),
        ] {
            let mut pod = pod(spec);
            assert_eq!(default().addresses_needed(&pod), needed, "{name}");
            assert_eq!(default().addresses_held(&pod), 0, "{name}");
            pod.spec.as_mut().unwrap().node_name = Some("n".into());
            assert_eq!(default().addresses_held(&pod), needed, "{name}");
        }
    }

    #[test]
    fn under_another_name_the_amounts_of_that_resource_count() {
        let vpc: PodIpResource = VPC.parse().unwrap();
        let status = json!({
            "capacity": {VPC: "14", POD_IPS: "5"}, "allocatable": {VPC: "12", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}]});
        let mut node = node(json!({}), status);
        assert_eq!(vpc.allocatable(&node), pods(12, Basis::Report));
        assert_eq!(default().allocatable(&node), pods(110, Basis::Pods));
        assert_eq!(PodIpResource::of_node(&node), default());
        let named = [(POD_IPS_RESOURCE.to_owned(), VPC.to_owned())];
        node.metadata.annotations = Some(named.into());
        assert_eq!(PodIpResource::of_node(&node), vpc);
        let pod = pod(json!({"containers": [
            {"name": "c", "resources": {"requests": {VPC: "3", POD_IPS: "2"}}}]}));
        assert_eq!(vpc.addresses_needed(&pod), 3);
        assert_eq!(default().addresses_needed(&pod), 2);
        assert_eq!(vpc.addresses_needed(&Pod::default()), 1);
    }
}
