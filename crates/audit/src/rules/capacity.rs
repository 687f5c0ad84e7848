//! The number of pods that the addresses serve, of a node and of the cluster.

use std::collections::{BTreeMap, BTreeSet};

use podplane_ipam::{figures::readable, invariants::Pod};

use super::{JoinedList, node as node_object, pod as pod_object};
use crate::{
    dump::Dump,
    finding::{Code, Finding, Severity},
    summary::Summary,
};

/// The share of its addresses above which a node is nearly full, in hundredths.
const NEAR: u64 = 90;

/// Nodes over their capacity (as the invariants report), near it, or with pods that wait for an
/// address.
pub(super) fn of_nodes(
    dump: &Dump,
    used: &BTreeMap<&str, u64>,
    over: &BTreeSet<String>,
) -> Vec<Finding> {
    let waiting = waiting(dump);
    // In other networks a node without a block may have addresses.
    let has_blocks = |name: &str| {
        let network = &dump.network;
        network.excludes(Code::IpCapacity).is_none()
            && dump
                .node_named(name)
                .is_some_and(|node| !node.is_virtual && node.ipam == network.ipam)
    };
    let nodes = dump.world.nodes.iter().filter_map(|node| {
        let name = node.name.as_str();
        let waiting = waiting.get(name).map(Vec::as_slice).unwrap_or_default();
        let used = used.get(name).copied().unwrap_or_default();
        let wait = match waiting.len() {
            0 => String::new(),
            1 => "; 1 of them waits for an address".into(),
            count => format!("; {count} of them wait for an address"),
        };
        let capacity = node.ip_capacity;
        let dumped = dump.node_named(name);
        let orphaned = dumped.map_or(0, |node| node.orphaned);
        let orphans = match orphaned {
            0 => String::new(),
            1 => "; 1 is orphaned".into(),
            count => format!("; {} are orphaned", readable(count.into())),
        };
        let taken = u128::from(used) + u128::from(orphaned);
        let is_near = |capacity: u64| taken * 100 >= u128::from(capacity) * u128::from(NEAR);
        let (severity, repair) = match capacity {
            Some(_) if over.contains(name) => (
                Severity::Error,
                "delete pods of the node, so that their owners make others elsewhere; cordon it until they have, or let the scheduler count addresses",
            ),
            Some(capacity) if orphaned > 0 && is_near(capacity) => (
                Severity::Warning,
                "end what holds the orphaned addresses: sandboxes of pods that are gone, or leaked allocation files",
            ),
            // A node without addresses is not nearly full.
            Some(capacity) if is_near(capacity) => (
                Severity::Warning,
                "add nodes, or give this one a larger block; a lower --max-pods of its kubelet sends pods elsewhere where the scheduler counts no addresses",
            ),
            Some(_) if !waiting.is_empty() => (
                Severity::Info,
                "if they still wait in a minute, look at the events of the pods: it is not for want of addresses",
            ),
            None if !waiting.is_empty() && has_blocks(name) => (
                Severity::Warning,
                "give the node a block; write the steps with: podplane audit --repair DIR",
            ),
            Some(_) | None => return None,
        };
        let exact = dumped.and_then(|node| dump.capacity(node));
        let has = counted(exact.unwrap_or_default(), "address", "addresses");
        let message = format!("node {name} has {has} for {}{orphans}{wait}", pods(used));
        let waiting = waiting.iter().map(|pod| format!("Pod/{}/{}", pod.namespace, pod.name));
        let mut objects: Vec<_> = waiting.chain([node_object(name)]).collect();
        objects.sort_unstable();
        Some(Finding {
            prefixes: node.pod_cidrs.clone(),
            code: Code::IpCapacity,
            severity,
            objects,
            message,
            repair: repair.into(),
        })
    });
    nodes.collect()
}

fn pods(count: u64) -> String {
    counted(count.into(), "pod", "pods")
}

fn counted(count: u128, one: &str, several: &str) -> String {
    let noun = if count == 1 { one } else { several };
    format!("{} {noun}", readable(count))
}

/// Pods that wait for an address, by their node.
fn waiting(dump: &Dump) -> BTreeMap<&str, Vec<&Pod>> {
    let mut waiting = BTreeMap::<&str, Vec<&Pod>>::new();
    let pods = dump
        .world
        .pods
        .iter()
        .filter(|pod| pod.uses_pod_network() && pod.ips.is_empty());
    for pod in pods {
        if let Some(node) = &pod.node {
            waiting.entry(node).or_default().push(pod);
        }
    }
    waiting
}

/// Pods that no node has an address for, and ranges without a free block.
pub(super) fn of_cluster(dump: &Dump, summary: &Summary) -> Vec<Finding> {
    let full = summary
        .blocks
        .iter()
        .filter(|blocks| blocks.free == 0)
        .map(|blocks| Finding {
            prefixes: Vec::new(),
            code: Code::IpCapacity,
            severity: Severity::Info,
            objects: Vec::new(),
            message: format!(
                "no block of {} is free: all {} of /{} are taken",
                blocks.range, blocks.total, blocks.node_mask
            ),
            repair: "the next node gets no block: plan a larger range before it comes".into(),
        });
    let starved = (!dump.starved.is_empty()).then(|| Finding {
        prefixes: Vec::new(),
        code: Code::IpCapacity,
        severity: Severity::Warning,
        objects: dump.starved.iter().map(pod_object).collect(),
        message: format!(
            "no node has a free address for {}: {}",
            pods(dump.starved.len() as u64),
            JoinedList(&dump.starved)
        ),
        repair: "add nodes, or delete pods".into(),
    });
    full.chain(starved).collect()
}
