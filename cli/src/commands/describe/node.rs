//! A node's sheet.

use std::collections::BTreeMap;

use jiff::Timestamp;
use podplane_api::{
    Object as _, Quantity,
    coordination::Lease,
    core::{Event, Node, Pod, Taint},
    kinds::{node, pod},
    meta::MicroTime,
    pod_ips::{self, PodIpResource},
    table::{self, age},
};
use podplane_client::{Client, ListParams};
use podplane_ipam::NodeAddresses;
use podplane_kubelet::kubelet::node_network::annotations::Peer;

use super::{annotations, events, events_table, network, pairs, time};
use crate::output::sheet::Sheet;

/// The namespace of the kubelets' leases.
const LEASES: &str = "kube-node-lease";

pub(super) async fn sheet(client: &Client, name: &str) -> anyhow::Result<Sheet> {
    let node = client.all::<Node>().get(name).await?;
    let on_it = ListParams {
        field_selector: format!("spec.nodeName={name}"),
        ..ListParams::default()
    };
    let mut pods = client.all::<Pod>().list(&on_it).await?.items;
    let resource = PodIpResource::of_node(&node);
    let held = pods.iter().map(|pod| resource.addresses_held(pod)).sum();
    pods.retain(|pod| !pod_ips::is_terminal(pod));
    let lease = match client.namespaced::<Lease>(LEASES).get(name).await {
        Ok(lease) => Some(lease),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error.into()),
    };
    let events = events(client, &node).await?;
    let nodes = client.all::<Node>().list(&ListParams::default()).await?;
    let peers: Vec<_> = nodes.items.iter().map(Peer::of).collect();
    Ok(write(
        &node,
        resource.addresses(&node, held),
        &peers,
        &pods,
        lease.as_ref(),
        &events,
        Timestamp::now(),
    ))
}

fn write(
    node: &Node,
    addresses: NodeAddresses,
    peers: &[Peer],
    pods: &[Pod],
    lease: Option<&Lease>,
    events: &[Event],
    now: Timestamp,
) -> Sheet {
    let mut sheet = Sheet::default();
    let spec = node.spec.as_ref();
    let status = node.status.as_ref();
    sheet.field("Name", node.name());
    sheet.field("Roles", node::roles(node));
    sheet.fields("Labels", pairs(node.metadata.labels.as_ref(), "="));
    sheet.fields("Annotations", annotations(node));
    sheet.field("Created", time(node.metadata.creation_timestamp.as_ref()));
    sheet.fields(
        "Taints",
        spec.iter()
            .flat_map(|spec| spec.taints.iter().flatten())
            .map(taint),
    );
    sheet.field("Unschedulable", node::is_unschedulable(node).to_string());
    sheet.field(
        "PodCIDR",
        spec.and_then(|spec| spec.pod_cidr.as_deref())
            .unwrap_or(table::NONE),
    );
    sheet.field("PodCIDRs", node::pod_cidrs(node));
    sheet.field("Pod IPs", addresses.to_string());
    network::write(&mut sheet, &Peer::of(node), peers);
    sheet.section("Lease", |sheet| {
        if let Some(lease) = lease.and_then(|lease| lease.spec.as_ref()) {
            let renewed = lease.renew_time.as_ref();
            let renewed = renewed.map_or_else(
                || table::NONE.into(),
                |MicroTime(time)| format!("{time} ({} ago)", age::between(*time, now)),
            );
            sheet.field(
                "Holder",
                lease.holder_identity.as_deref().unwrap_or(table::NONE),
            );
            sheet.field("Renewed", renewed);
        }
    });
    conditions(&mut sheet, node, now);
    let addresses = status
        .iter()
        .flat_map(|status| status.addresses.iter().flatten());
    sheet.section("Addresses", |sheet| {
        addresses.for_each(|address| sheet.field(&address.type_, &address.address))
    });
    sheet.section("Capacity", |sheet| {
        quantities(sheet, status.and_then(|status| status.capacity.as_ref()))
    });
    sheet.section("Allocatable", |sheet| {
        quantities(sheet, status.and_then(|status| status.allocatable.as_ref()))
    });
    if let Some(info) = status.and_then(|status| status.node_info.as_ref()) {
        sheet.section("System Info", |sheet| {
            sheet.field("Kubelet Version", &info.kubelet_version);
            sheet.field("Container Runtime Version", &info.container_runtime_version);
            sheet.field("Kernel Version", &info.kernel_version);
        });
    }
    let rows = pods.iter().map(|pod| {
        vec![
            pod.namespace().into(),
            pod.name().into(),
            pod::shown_status(pod),
            pod::ips(pod),
            if pod_ips::is_host_network(pod) {
                "yes"
            } else {
                "no"
            }
            .into(),
            table::created(pod, now),
        ]
    });
    sheet.table(
        "Pods",
        &["Namespace", "Name", "Status", "IP", "Host Network", "Age"],
        rows.collect(),
    );
    events_table(&mut sheet, events, now);
    sheet
}

fn conditions(sheet: &mut Sheet, node: &Node, now: Timestamp) {
    let conditions = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let rows = conditions.map(|condition| {
        vec![
            condition.type_.clone(),
            condition.status.clone(),
            age::since(condition.last_heartbeat_time.as_ref(), now),
            age::since(condition.last_transition_time.as_ref(), now),
            text(&condition.reason),
            text(&condition.message),
        ]
    });
    sheet.table(
        "Conditions",
        &["Type", "Status", "Heartbeat", "Since", "Reason", "Message"],
        rows.collect(),
    );
}

fn quantities(sheet: &mut Sheet, quantities: Option<&BTreeMap<String, Quantity>>) {
    for (resource, quantity) in quantities.into_iter().flatten() {
        sheet.field(resource, &quantity.0);
    }
}

/// `key=value:effect`
fn taint(taint: &Taint) -> String {
    let Taint {
        key, value, effect, ..
    } = taint;
    match value.as_deref() {
        Some(value) if !value.is_empty() => format!("{key}={value}:{effect}"),
        _ => format!("{key}:{effect}"),
    }
}

#[cfg(test)]
mod tests {
    use podplane_api::strict;
    use serde_json::json;

    use super::*;

    #[test]
    fn describes_a_node_with_a_pod() {
        let node: Node = strict::decode(json!({"metadata": {"name": "node-0", "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"kubernetes.io/hostname": "node-0"}, "annotations": {"podplane.io/pod-ips-orphaned": "1"}},
            "spec": {"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24"], "taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}]},
            "status": {"capacity": {"cpu": "4", "podplane.io/pod-ips": "253"}, "allocatable": {"cpu": "4"},
                "addresses": [{"type": "InternalIP", "address": "172.18.0.2"}],
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status",
                    "lastHeartbeatTime": "2026-01-01T00:00:50Z", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}))
        .unwrap();
        let pod: Pod = strict::decode(json!({"metadata": {"name": "web-0", "namespace": "default", "creationTimestamp": "2026-01-01T00:00:30Z"},
            "spec": {"nodeName": "node-0", "containers": [{"name": "c"}]}, "status": {"phase": "Running", "podIP": "10.244.0.2"}}))
        .unwrap();
        let now = "2026-01-01T00:01:00Z".parse().unwrap();
        let want = "\
Name:           node-0
Roles:          <none>
Labels:         kubernetes.io/hostname=node-0
Annotations:    podplane.io/pod-ips-orphaned: 1
Created:        2026-01-01T00:00:00Z
Taints:         a=b:NoSchedule
Unschedulable:  false
PodCIDR:        10.244.0.0/24
PodCIDRs:       10.244.0.0/24
Pod IPs:        251 of 253 IPs free: 1 pod, 1 orphaned
Lease:          <none>
Conditions:
  Type    Status   Heartbeat   Since   Reason         Message
  Ready   True     10s         60s     KubeletReady   kubelet is posting ready status
Addresses:
  InternalIP:  172.18.0.2
Capacity:
  cpu:                  4
  podplane.io/pod-ips:  253
Allocatable:
  cpu:  4
Pods:
  Namespace   Name    Status    IP           Host Network   Age
  default     web-0   Running   10.244.0.2   no             30s
Events:         <none>";
        let addresses = PodIpResource::default().addresses(&node, 1);
        let sheet = write(&node, addresses, &[], &[pod], None, &[], now);
        assert_eq!(sheet.to_string(), want);
    }
}
