//! The manifests and network configurations of the demo.

use serde_json::{Value, json};

/// A network configuration with its own IPAM: a small block from a pool that is independent of
/// podCIDR, as Calico gives to its nodes.
pub(super) fn pool_of(subnet: &str) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "pool",
        "plugins": [{
            "type": "bridge",
            "bridge": "pool0",
            "isGateway": true,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": subnet}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }],
    })
}

/// A pod of one node, like those of DaemonSets.
pub(super) fn agent(node: &str) -> Value {
    pod(&format!("agent-{}", number(node)), node)
}

/// A pod that is assigned to a node.
pub(super) fn pod(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "agent"}},
        "spec": {
            "nodeName": node,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "pause", "image": "registry.k8s.io/pause:3.10"}],
        },
    })
}

/// The number of a node's name.
pub(super) fn number(node: &str) -> &str {
    node.rsplit('-').next().unwrap_or(node)
}

/// A node as it registers: without a block.
pub(super) fn node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
}

/// A node with a changed label, as nodes report changes all the time.
pub(super) fn node_that_reports(name: &str, what: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"seen": what}}})
}
