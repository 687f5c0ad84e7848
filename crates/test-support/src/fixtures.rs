//! Objects for tests, built field by field.

use std::sync::Arc;

use podplane_api::core::{Node, Pod};
use serde_json::{Value, json};

/// A pod whose UID is its name, in `default`, with one container without requests.
#[derive(Clone, Debug)]
pub struct PodBuilder(Value);

impl PodBuilder {
    /// Starts with a pod that waits for a node.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let metadata = json!({"name": name, "namespace": "default", "uid": name});
        let spec = json!({"containers": [{"name": "c", "resources": {"requests": {}}}]});
        Self(json!({"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}))
    }

    /// Sets the field at a JSON pointer; its parent must exist.
    #[must_use]
    pub fn set(mut self, pointer: &str, value: Value) -> Self {
        let (parent, field) = pointer
            .rsplit_once('/')
            .expect("a pointer begins with a slash");
        let parent = self.0.pointer_mut(parent);
        parent.expect("the parent exists")[field] = value;
        self
    }

    /// Sets the namespace.
    #[must_use]
    pub fn namespace(self, namespace: &str) -> Self {
        self.set("/metadata/namespace", json!(namespace))
    }

    /// Puts the pod on the network of its node.
    #[must_use]
    pub fn host_network(self) -> Self {
        self.set("/spec/hostNetwork", json!(true))
    }

    /// Requests an amount of a resource.
    #[must_use]
    pub fn ask(self, resource: &str, amount: &str) -> Self {
        let mut pod = self;
        pod.0["spec"]["containers"][0]["resources"]["requests"][resource] = json!(amount);
        pod
    }

    /// Asks for a port of the node, at an address of the node or, if that is empty, at all.
    #[must_use]
    pub fn host_port(self, ip: &str, port: u16) -> Self {
        let port = json!([{"containerPort": 80, "hostPort": port, "hostIP": ip}]);
        self.set("/spec/containers/0/ports", port)
    }

    /// Tolerates every taint with this key.
    #[must_use]
    pub fn tolerate(self, key: &str) -> Self {
        self.set(
            "/spec/tolerations",
            json!([{"key": key, "operator": "Exists"}]),
        )
    }

    /// Sets the priority.
    #[must_use]
    pub fn priority(self, priority: i32) -> Self {
        self.set("/spec/priority", json!(priority))
    }

    /// Binds the pod to a node.
    #[must_use]
    pub fn on(self, node: &str) -> Self {
        self.set("/spec/nodeName", json!(node))
    }

    /// Sets a terminal phase and its reason.
    #[must_use]
    pub fn ended(self, phase: &str, reason: &str) -> Self {
        self.set("/status", json!({"phase": phase, "reason": reason}))
    }

    /// Marks the sandbox as removed by the kubelet.
    #[must_use]
    pub fn without_sandbox(self) -> Self {
        let condition = json!({"type": podplane_api::pod_ips::POD_READY_TO_START_CONTAINERS, "status": "False"});
        self.set("/status/conditions", json!([condition]))
    }

    /// The pod.
    #[must_use]
    pub fn pod(&self) -> Arc<Pod> {
        Arc::new(serde_json::from_value(self.0.clone()).expect("the fields have their types"))
    }
}

/// A node whose UID is its name, with 8 CPU, 32 GiB, room for 110 pods, and no block.
#[derive(Clone, Debug)]
pub struct NodeBuilder(Value);

impl NodeBuilder {
    /// Starts with a node without a block.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let allocatable = json!({"cpu": "8", "memory": "32Gi", "pods": "110"});
        Self(json!({
            "metadata": {"name": name, "uid": name, "labels": {}, "annotations": {}},
            "spec": {},
            "status": {"allocatable": allocatable},
        }))
    }

    /// Sets the allocatable amount of a resource.
    #[must_use]
    pub fn offer(mut self, resource: &str, amount: &str) -> Self {
        self.0["status"]["allocatable"][resource] = json!(amount);
        self
    }

    /// Sets the block.
    #[must_use]
    pub fn pod_cidr(mut self, cidr: &str) -> Self {
        self.0["spec"]["podCIDR"] = json!(cidr);
        self.0["spec"]["podCIDRs"] = json!([cidr]);
        self
    }

    /// Sets a block, and the number of addresses that the node reports.
    #[must_use]
    pub fn block(self, cidr: &str, pod_ips: u32) -> Self {
        let node = self.pod_cidr(cidr);
        node.offer(podplane_api::pod_ips::POD_IPS, &pod_ips.to_string())
    }

    /// Sets the number of addresses that the kubelet reports as allocated.
    #[must_use]
    pub fn allocated(mut self, addresses: &str) -> Self {
        self.0["metadata"]["annotations"][podplane_api::pod_ips::POD_IPS_ALLOCATED] =
            json!(addresses);
        self
    }

    /// Sets the number of addresses that the kubelet reports as orphaned.
    #[must_use]
    pub fn orphaned(self, addresses: &str) -> Self {
        self.annotate(podplane_api::pod_ips::POD_IPS_ORPHANED, addresses)
    }

    /// Sets an annotation.
    #[must_use]
    pub fn annotate(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["annotations"][key] = json!(value);
        self
    }

    /// Adds a condition.
    #[must_use]
    pub fn condition(mut self, kind: &str, status: &str) -> Self {
        let condition = json!({"type": kind, "status": status});
        match self.0["status"]["conditions"].as_array_mut() {
            Some(conditions) => conditions.push(condition),
            None => self.0["status"]["conditions"] = json!([condition]),
        }
        self
    }

    /// Makes the node Ready, with a heartbeat at this time.
    #[must_use]
    pub fn heartbeat(mut self, time: &str) -> Self {
        let ready = json!({"type": "Ready", "status": "True", "lastHeartbeatTime": time});
        self.0["status"]["conditions"] = json!([ready]);
        self
    }

    /// Sets a label.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["labels"][key] = json!(value);
        self
    }

    /// Sets the taint, the only one.
    #[must_use]
    pub fn taint(mut self, key: &str, value: &str, effect: &str) -> Self {
        self.0["spec"]["taints"] = json!([{"key": key, "value": value, "effect": effect}]);
        self
    }

    /// Marks the node as unschedulable.
    #[must_use]
    pub fn cordon(mut self) -> Self {
        self.0["spec"]["unschedulable"] = json!(true);
        self
    }

    /// Sets the UID.
    #[must_use]
    pub fn uid(mut self, uid: &str) -> Self {
        self.0["metadata"]["uid"] = json!(uid);
        self
    }

    /// The node.
    #[must_use]
    pub fn node(&self) -> Node {
        serde_json::from_value(self.0.clone()).expect("the fields have their types")
    }
}
