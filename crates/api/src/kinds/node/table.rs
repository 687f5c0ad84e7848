//! The table of nodes.

use jiff::Timestamp;
use podplane_ipam::capacity::NodeCapacity;

use crate::{
    Object as _,
    core::Node,
    pod_ips,
    table::{Column, NONE, always, created, wide},
};

const ROLE: &str = "node-role.kubernetes.io/";

pub(super) const COLUMNS: &[Column] = &[
    always("NAME"),
    always("STATUS"),
    always("ROLES"),
    always("AGE"),
    always("VERSION"),
    wide("INTERNAL-IP"),
    wide("EXTERNAL-IP"),
    wide("OS-IMAGE"),
    wide("KERNEL-VERSION"),
    wide("CONTAINER-RUNTIME"),
    wide("POD-CIDR"),
    wide("POD-IPS"),
    wide("ORPHANED-IPS"),
];

pub(super) fn cells(node: &Node, now: Timestamp) -> Vec<String> {
    let info = node
        .status
        .as_ref()
        .and_then(|status| status.node_info.as_ref());
    vec![
        node.name().into(),
        shown_status(node),
        roles(node),
        created(node, now),
        info.map(|info| info.kubelet_version.clone())
            .unwrap_or_default(),
        address(node, "InternalIP"),
        address(node, "ExternalIP"),
        reported(info.map(|info| &info.os_image)),
        reported(info.map(|info| &info.kernel_version)),
        reported(info.map(|info| &info.container_runtime_version)),
        pod_cidrs(node),
        pod_ips(node),
        orphaned(node),
    ]
}

/// The STATUS cell: `Ready`, `NotReady,SchedulingDisabled`; `Unknown` before the kubelet has
/// reported.
pub fn shown_status(node: &Node) -> String {
    let mut conditions = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.find(|condition| condition.type_ == "Ready");
    let mut status = ready
        .map_or("Unknown", |ready| match ready.status.as_str() {
            "True" => "Ready",
            _ => "NotReady",
        })
        .to_owned();
    if is_unschedulable(node) {
        status.push_str(",SchedulingDisabled");
    }
    status
}

/// True if the node is cordoned.
pub fn is_unschedulable(node: &Node) -> bool {
    node.spec
        .as_ref()
        .and_then(|spec| spec.unschedulable)
        .unwrap_or_default()
}

/// The roles in the node's labels.
pub fn roles(node: &Node) -> String {
    let labels = node.metadata.labels.iter().flatten();
    let roles: Vec<_> = labels
        .filter_map(|(key, value)| match key.strip_prefix(ROLE) {
            Some(role) if !role.is_empty() => Some(role),
            _ if key == "kubernetes.io/role" && !value.is_empty() => Some(value),
            _ => None,
        })
        .collect();
    or_none(roles.join(","))
}

/// A value that the kubelet reports, or `<unknown>`.
fn reported(text: Option<&String>) -> String {
    match text {
        Some(text) if !text.is_empty() => text.clone(),
        _ => "<unknown>".into(),
    }
}

fn address(node: &Node, kind: &str) -> String {
    let addresses = node
        .status
        .iter()
        .flat_map(|status| status.addresses.iter().flatten());
    let mut found = addresses.filter(|address| address.type_ == kind);
    found
        .next()
        .map_or_else(|| NONE.into(), |address| address.address.clone())
}

/// The node's blocks, IPv4 and IPv6 together.
pub fn pod_cidrs(node: &Node) -> String {
    or_none(pod_ips::pod_cidrs(node).join(","))
}

/// The allocated pod IPs and their total: `5/253`. Empty for a node that waits for its block.
pub fn pod_ips(node: &Node) -> String {
    let NodeCapacity::Pods { count, .. } = pod_ips::PodIpResource::of_node(node).capacity(node)
    else {
        return NONE.into();
    };
    let allocated = pod_ips::allocated(node).map_or("?".into(), |allocated| allocated.to_string());
    format!("{allocated}/{count}")
}

/// The pod IPs that are not free and that no pod of the node owns; empty if the kubelet does not
/// report them.
fn orphaned(node: &Node) -> String {
    pod_ips::orphaned(node).map_or_else(|| NONE.into(), |orphaned| orphaned.to_string())
}

fn or_none(text: String) -> String {
    if text.is_empty() { NONE.into() } else { text }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::strict;

    fn row(node: serde_json::Value) -> Vec<String> {
        cells(
            &strict::decode(node).unwrap(),
            "2026-01-01T00:00:05Z".parse().unwrap(),
        )
    }

    #[test]
    fn shows_a_reporting_node() {
        let node = json!({"metadata": {"name": "node-0", "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"node-role.kubernetes.io/worker": ""}, "annotations": {"podplane.io/pod-ips-allocated": "5", "podplane.io/pod-ips-orphaned": "1"}},
            "spec": {"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24", "fd00::/64"], "unschedulable": true},
            "status": {"capacity": {"podplane.io/pod-ips": "253"}, "conditions": [{"type": "Ready", "status": "True"}],
                "addresses": [{"type": "Hostname", "address": "node-0"}, {"type": "InternalIP", "address": "172.18.0.2"}],
                "nodeInfo": {"kubeletVersion": "v1.33.0", "architecture": "", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "6.1.0",
                    "kubeProxyVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""}}});
        let want = [
            "node-0",
            "Ready,SchedulingDisabled",
            "worker",
            "5s",
            "v1.33.0",
            "172.18.0.2",
            "<none>",
            "<unknown>",
            "6.1.0",
            "<unknown>",
            "10.244.0.0/24,fd00::/64",
            "5/253",
            "1",
        ];
        assert_eq!(row(node), want);
        assert_eq!(want.len(), COLUMNS.len());
    }

    #[test]
    fn shows_a_node_that_never_reported() {
        let node = json!({"metadata": {"name": "node-0"}});
        assert_eq!(
            row(node),
            [
                "node-0",
                "Unknown",
                "<none>",
                "<unknown>",
                "",
                "<none>",
                "<none>",
                "<unknown>",
                "<unknown>",
                "<unknown>",
                "<none>",
                "<none>",
                "<none>"
            ]
        );
        let node = json!({"metadata": {"name": "n"}, "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
        assert_eq!(row(node)[1], "NotReady");
    }
}
