//! Builders of pods and nodes for tests.

use std::sync::Arc;

use podplane_api::core::{Node, Pod};
use serde_json::{Value, json};

use crate::{
    node::{NodeInfo, NodePods},
    pod::PodInfo,
};

/// A pod whose UID is its name, in `default`, with one container without requests.
#[derive(Clone, Debug)]
pub(crate) struct PodBuilder(Value);

impl PodBuilder {
    pub(crate) fn new(name: &str) -> Self {
        let metadata = json!({"name": name, "namespace": "default", "uid": name});
        let spec = json!({"containers": [{"name": "c", "resources": {"requests": {}}}]});
        Self(json!({"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}))
    }

    pub(crate) fn set(mut self, pointer: &str, value: Value) -> Self {
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        self.0.pointer_mut(parent).unwrap()[field] = value;
        self
    }

    pub(crate) fn namespace(self, namespace: &str) -> Self {
        self.set("/metadata/namespace", json!(namespace))
    }

    pub(crate) fn host_network(self) -> Self {
        self.set("/spec/hostNetwork", json!(true))
    }

    pub(crate) fn ask(self, resource: &str, amount: &str) -> Self {
        let mut pod = self;
        pod.0["spec"]["containers"][0]["resources"]["requests"][resource] = json!(amount);
        pod
    }

    pub(crate) fn host_port(self, ip: &str, port: u16) -> Self {
        let port = json!([{"containerPort": 80, "hostPort": port, "hostIP": ip}]);
        self.set("/spec/containers/0/ports", port)
    }

    pub(crate) fn tolerate(self, key: &str) -> Self {
        self.set(
            "/spec/tolerations",
            json!([{"key": key, "operator": "Exists"}]),
        )
    }

    pub(crate) fn priority(self, priority: i32) -> Self {
        self.set("/spec/priority", json!(priority))
    }

    pub(crate) fn on(self, node: &str) -> Self {
        self.set("/spec/nodeName", json!(node))
    }

    pub(crate) fn ended(self, phase: &str, reason: &str) -> Self {
        self.set("/status", json!({"phase": phase, "reason": reason}))
    }

    /// Marks the sandbox as removed by the kubelet.
    pub(crate) fn without_sandbox(self) -> Self {
        let condition = json!({"type": podplane_api::pod_ips::POD_READY_TO_START_CONTAINERS, "status": "False"});
        self.set("/status/conditions", json!([condition]))
    }

    pub(crate) fn pod(&self) -> Arc<Pod> {
        Arc::new(serde_json::from_value(self.0.clone()).unwrap())
    }

    pub(crate) fn info(&self) -> Arc<PodInfo> {
        Arc::new(PodInfo::new(self.pod()))
    }
}

/// A node whose UID is its name, with 8 CPU, 32 GiB, room for 110 pods, and no block.
#[derive(Clone, Debug)]
pub(crate) struct NodeBuilder(Value);

impl NodeBuilder {
    pub(crate) fn new(name: &str) -> Self {
        let allocatable = json!({"cpu": "8", "memory": "32Gi", "pods": "110"});
        Self(json!({
            "metadata": {"name": name, "uid": name, "labels": {}, "annotations": {}},
            "spec": {},
            "status": {"allocatable": allocatable},
        }))
    }

    pub(crate) fn offer(mut self, resource: &str, amount: &str) -> Self {
        self.0["status"]["allocatable"][resource] = json!(amount);
        self
    }

    pub(crate) fn pod_cidr(mut self, cidr: &str) -> Self {
        self.0["spec"]["podCIDR"] = json!(cidr);
        self.0["spec"]["podCIDRs"] = json!([cidr]);
        self
    }

    /// Sets a block, and the number of addresses that the node reports.
    pub(crate) fn block(self, cidr: &str, pod_ips: u32) -> Self {
        let node = self.pod_cidr(cidr);
        node.offer(podplane_api::pod_ips::POD_IPS, &pod_ips.to_string())
    }

    pub(crate) fn allocated(mut self, addresses: &str) -> Self {
        self.0["metadata"]["annotations"][podplane_api::pod_ips::POD_IPS_ALLOCATED] =
            json!(addresses);
        self
    }

    pub(crate) fn annotate(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["annotations"][key] = json!(value);
        self
    }

    pub(crate) fn condition(mut self, kind: &str, status: &str) -> Self {
        let condition = json!({"type": kind, "status": status});
        match self.0["status"]["conditions"].as_array_mut() {
            Some(conditions) => conditions.push(condition),
            None => self.0["status"]["conditions"] = json!([condition]),
        }
        self
    }

    pub(crate) fn heartbeat(mut self, time: &str) -> Self {
        let ready = json!({"type": "Ready", "status": "True", "lastHeartbeatTime": time});
        self.0["status"]["conditions"] = json!([ready]);
        self
    }

    pub(crate) fn label(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["labels"][key] = json!(value);
        self
    }

    pub(crate) fn taint(mut self, key: &str, value: &str, effect: &str) -> Self {
        self.0["spec"]["taints"] = json!([{"key": key, "value": value, "effect": effect}]);
        self
    }

    pub(crate) fn cordon(mut self) -> Self {
        self.0["spec"]["unschedulable"] = json!(true);
        self
    }

    pub(crate) fn uid(mut self, uid: &str) -> Self {
        self.0["metadata"]["uid"] = json!(uid);
        self
    }

    pub(crate) fn node(&self) -> Node {
        serde_json::from_value(self.0.clone()).unwrap()
    }

    pub(crate) fn info(&self) -> NodeInfo {
        NodeInfo::new(Arc::new(self.node()), NodePods::default())
    }
}
