//! `NodePorts`.

use serde_json::Value;

use super::{Cluster, Refusal, list, refusal};

/// A host port: address, protocol and number.
type HostPort = (String, String, i64);

/// The host ports of the containers that run as long as the pod: ordinary ones and sidecars. The
/// address is 0.0.0.0 and the protocol TCP if they are missing.
fn host_ports(pod: &Value) -> Vec<HostPort> {
    let mut found = Vec::new();
    let sidecars = list(&pod["spec"]["initContainers"]).iter();
    let sidecars = sidecars.filter(|container| container["restartPolicy"] == "Always");
    for container in list(&pod["spec"]["containers"]).iter().chain(sidecars) {
        for port in list(&container["ports"]) {
            let or = |field: &str, other: &str| match port[field].as_str() {
                None | Some("") => other.to_owned(),
                Some(text) => text.to_owned(),
            };
            let number = port["hostPort"].as_i64().unwrap_or(0);
            if number > 0 {
                found.push((or("hostIP", "0.0.0.0"), or("protocol", "TCP"), number));
            }
        }
    }
    found
}

/// True if both cannot be used: same protocol and number, and the same address or one of them
/// 0.0.0.0, which is all.
fn conflict(one: &HostPort, other: &HostPort) -> bool {
    let is_same_address = one.0 == other.0 || one.0 == "0.0.0.0" || other.0 == "0.0.0.0";
    one.1 == other.1 && one.2 == other.2 && is_same_address
}

/// Refuses a node where a host port of the pod is in use. The pod's own ports are not compared
/// with each other.
pub(crate) fn node_ports(cluster: &Cluster<'_>, node: &Value) -> Option<Refusal> {
    let wanted = host_ports(cluster.pod);
    let used: Vec<_> = cluster
        .pods_on(node)
        .into_iter()
        .flat_map(host_ports)
        .collect();
    let refused = wanted
        .iter()
        .any(|port| used.iter().any(|used| conflict(port, used)));
    let reason = "node(s) didn't have free ports for the requested pod ports";
    refused.then(|| refusal("NodePorts", reason, false))
}
