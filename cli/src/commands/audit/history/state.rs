//! Pods and nodes as the judge of the history needs them.

use podplane_api::{
    Object,
    core::{Node, Pod},
    jiff::Timestamp,
    pod_ips::{self, PodIpResource},
};
use podplane_audit::{NodeState, PodState, StateChange};
use podplane_ipam::{
    invariants::{self, PodKey},
    parse_cidr,
};

/// A kind that the history has.
pub(super) trait HistoryObject: Object {
    /// The state of a present object. `resource` is that of the cluster's pod addresses.
    fn state(&self, resource: &PodIpResource) -> StateChange;

    /// The deletion of the object.
    fn gone(&self) -> StateChange;

    /// The resource of pod addresses that the object names, if it is not the default one.
    fn named_resource(&self) -> Option<PodIpResource> {
        None
    }
}

impl HistoryObject for Pod {
    fn state(&self, resource: &PodIpResource) -> StateChange {
        StateChange::Pod(pod(self, resource))
    }

    fn gone(&self) -> StateChange {
        StateChange::PodGone(key(self))
    }
}

impl HistoryObject for Node {
    fn state(&self, _: &PodIpResource) -> StateChange {
        StateChange::Node(node(self))
    }

    fn gone(&self) -> StateChange {
        StateChange::NodeGone(self.name().into())
    }

    fn named_resource(&self) -> Option<PodIpResource> {
        let named = PodIpResource::of_node(self);
        (named != PodIpResource::default()).then_some(named)
    }
}

fn key(pod: &Pod) -> PodKey {
    PodKey {
        namespace: pod.namespace().into(),
        name: pod.name().into(),
    }
}

/// The state of a pod. Addresses that cannot be parsed are left out.
pub(super) fn pod(pod: &Pod, resource: &PodIpResource) -> PodState {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let status = pod.status.iter();
    let ips = status.flat_map(|status| status.pod_ips.iter().flatten());
    PodState {
        key: key(pod),
        uid: pod.uid().into(),
        node: node.filter(|node| !node.is_empty()),
        is_mirror: pod_ips::is_mirror(pod),
        held: resource.addresses_held(pod),
        ips: ips.filter_map(|ip| ip.ip.parse().ok()).collect(),
    }
}

/// The state of a node. Blocks that cannot be parsed are left out.
pub(super) fn node(node: &Node) -> NodeState {
    let blocks = pod_ips::pod_cidrs(node).iter();
    NodeState {
        node: invariants::Node {
            name: node.name().into(),
            uid: node.uid().into(),
            pod_cidrs: blocks.filter_map(|block| parse_cidr(block).ok()).collect(),
            ip_capacity: None,
        },
        report: PodIpResource::of_node(node).report(node),
    }
}

/// The time of the last write that the object records, in whole seconds.
pub(super) fn written_at(object: &impl Object) -> Option<Timestamp> {
    let metadata = object.metadata();
    let entries = metadata.managed_fields.iter().flatten();
    let times = entries.filter_map(|entry| entry.time.as_ref());
    let times = times.chain(metadata.creation_timestamp.as_ref());
    times.map(|time| time.0).max()
}

#[cfg(test)]
mod tests {
    use podplane_ipam::capacity::NodeCapacity;
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_what_counts_for_addresses() {
        let object = |annotations| {
            Pod::from_json(json!({
                "metadata": {"name": "p", "namespace": "default", "uid": "u", "annotations": annotations},
                "spec": {"nodeName": "n", "containers": [{"name": "c"}]},
                "status": {"podIPs": [{"ip": "10.0.0.2"}, {"ip": "?"}]}}))
            .unwrap()
        };
        let state = pod(&object(json!({})), &PodIpResource::default());
        assert_eq!((state.held, state.is_mirror), (1, false));
        assert_eq!(state.ips, ["10.0.0.2".parse::<std::net::IpAddr>().unwrap()]);
        let mirror = object(json!({pod_ips::CONFIG_MIRROR: "hash"}));
        assert!(pod(&mirror, &PodIpResource::default()).is_mirror);
        let object = Node::from_json(json!({
            "metadata": {"name": "n", "annotations": {pod_ips::POD_IPS_ORPHANED: "2"}},
            "spec": {"podCIDRs": ["10.0.0.0/29", "?"]},
            "status": {"capacity": {pod_ips::POD_IPS: "5"}, "allocatable": {pod_ips::POD_IPS: "3"}}}))
        .unwrap();
        let state = node(&object);
        assert_eq!(state.node.pod_cidrs, ["10.0.0.0/29".parse().unwrap()]);
        assert_eq!(state.report.orphaned, Some(2));
        assert!(matches!(
            state.report.capacity,
            NodeCapacity::Pods { count: 5, .. }
        ));
    }

    #[test]
    fn the_time_of_a_change_is_that_of_the_last_writer() {
        let time = |second: u8| format!("2026-01-01T00:00:{second:02}Z");
        let node = Node::from_json(
            json!({"metadata": {"name": "n", "creationTimestamp": time(1),
            "managedFields": [{"manager": "a", "time": time(7)}, {"manager": "b", "time": time(3)}]}}),
        );
        let written = written_at(&node.unwrap()).unwrap();
        assert_eq!(written.to_string(), time(7));
        assert_eq!(written_at(&Node::default()), None);
    }
}
