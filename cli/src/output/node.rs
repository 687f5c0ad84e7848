//! A node as a row.

use podplane_api::{Object as _, core::Node, jiff::Timestamp, quantity};

use super::row::{Column, NONE, always, created, wide};

/// Where the kubelet says how many of the node's pod IPs are allocated.
const ALLOCATED: &str = "podplane.io/pod-ips-allocated";
/// The resource: how many pod IPs the node's ranges hold.
pub(crate) const POD_IPS: &str = "podplane.io/pod-ips";

const ROLE: &str = "node-role.kubernetes.io/";

pub(super) const COLUMNS: &[Column] = &[
    always("NAME"),
    always("STATUS"),
    always("ROLES"),
    always("AGE"),
    always("VERSION"),
    wide("INTERNAL-IP"),
    wide("POD-CIDR"),
    wide("POD-IPS"),
];

pub(super) fn cells(node: &Node, now: Timestamp) -> Vec<String> {
    let info = node
        .status
        .as_ref()
        .and_then(|status| status.node_info.as_ref());
    vec![
        node.name().into(),
        status(node),
        roles(node),
        created(node, now),
        info.map(|info| info.kubelet_version.clone())
            .unwrap_or_default(),
        internal_ip(node),
        pod_cidrs(node),
        pod_ips(node),
    ]
}

/// `Ready`, `NotReady,SchedulingDisabled`; `Unknown` before the kubelet reported.
fn status(node: &Node) -> String {
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

/// Whether it is cordoned.
pub(crate) fn is_unschedulable(node: &Node) -> bool {
    node.spec
        .as_ref()
        .and_then(|spec| spec.unschedulable)
        .unwrap_or_default()
}

/// The roles its labels give it.
pub(crate) fn roles(node: &Node) -> String {
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

fn internal_ip(node: &Node) -> String {
    let addresses = node
        .status
        .iter()
        .flat_map(|status| status.addresses.iter().flatten());
    let mut internal = addresses.filter(|address| address.type_ == "InternalIP");
    internal
        .next()
        .map_or_else(|| NONE.into(), |address| address.address.clone())
}

/// Its blocks, IPv4 and IPv6 together.
pub(crate) fn pod_cidrs(node: &Node) -> String {
    let spec = node.spec.as_ref();
    let all = spec
        .and_then(|spec| spec.pod_cidrs.as_ref())
        .map(|cidrs| cidrs.join(","));
    let one = || spec.and_then(|spec| spec.pod_cidr.clone());
    or_none(all.or_else(one).unwrap_or_default())
}

/// Allocated and all pod IPs: `5/253`. A node without a block has none.
pub(crate) fn pod_ips(node: &Node) -> String {
    let capacity = node
        .status
        .as_ref()
        .and_then(|status| status.capacity.as_ref()?.get(POD_IPS));
    let Some(capacity) = capacity.and_then(|capacity| quantity::units(capacity).ok()) else {
        return NONE.into();
    };
    let allocated = allocated(node).map_or("?".into(), |allocated| allocated.to_string());
    format!("{allocated}/{capacity}")
}

/// How many pod IPs its kubelet says are allocated, if it says so.
pub(crate) fn allocated(node: &Node) -> Option<usize> {
    node.metadata
        .annotations
        .as_ref()?
        .get(ALLOCATED)?
        .parse()
        .ok()
}

fn or_none(text: String) -> String {
    if text.is_empty() { NONE.into() } else { text }
}

#[cfg(test)]
mod tests {
    use podplane_api::strict;
    use serde_json::json;

    use super::*;

    fn row(node: serde_json::Value) -> Vec<String> {
        cells(
            &strict::decode(node).unwrap(),
            "2026-01-01T00:00:05Z".parse().unwrap(),
        )
    }

    #[test]
    fn a_node_that_reported() {
        let node = json!({"metadata": {"name": "node-0", "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"node-role.kubernetes.io/worker": ""}, "annotations": {"podplane.io/pod-ips-allocated": "5"}},
            "spec": {"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24", "fd00::/64"], "unschedulable": true},
            "status": {"capacity": {"podplane.io/pod-ips": "253"}, "conditions": [{"type": "Ready", "status": "True"}],
                "addresses": [{"type": "Hostname", "address": "node-0"}, {"type": "InternalIP", "address": "172.18.0.2"}],
                "nodeInfo": {"kubeletVersion": "v1.33.0", "architecture": "", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "",
                    "kubeProxyVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""}}});
        let want = [
            "node-0",
            "Ready,SchedulingDisabled",
            "worker",
            "5s",
            "v1.33.0",
            "172.18.0.2",
            "10.244.0.0/24,fd00::/64",
            "5/253",
        ];
        assert_eq!(row(node), want);
        assert_eq!(want.len(), COLUMNS.len());
    }

    #[test]
    fn a_node_that_did_not() {
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
                "<none>"
            ]
        );
        let node = json!({"metadata": {"name": "n"}, "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
        assert_eq!(row(node)[1], "NotReady");
    }
}
