//! `PodIPs`, which is not the reference's: the rule of records 0039, 0041 and 0042.

use serde_json::Value;

use super::{Cluster, Policy, Refusal, has_condition, refusal, resources, zip};

/// The resource of addresses.
pub(crate) const RESOURCE: &str = "podplane.io/pod-ips";

/// The number of addresses that a pod needs: none on its node's network, else its request, and at
/// least one.
fn needed(pod: &Value) -> i64 {
    let requested = resources::requested(pod);
    match pod["spec"]["hostNetwork"] == true {
        true => 0,
        false => requested.get(RESOURCE).copied().unwrap_or(0).max(1),
    }
}

/// The addresses that the pods of the node hold: each what it needs.
fn held(cluster: &Cluster<'_>, node: &Value) -> i64 {
    cluster.pods_on(node).into_iter().map(needed).sum()
}

fn annotation(node: &Value, key: &str) -> Option<i64> {
    node["metadata"]["annotations"][key].as_str()?.parse().ok()
}

fn orphaned(node: &Value) -> Option<i64> {
    annotation(node, "podplane.io/pod-ips-orphaned")
}

/// The number of usable addresses of an IPv4 block: without those of the network, the gateway and
/// broadcast, and none in /31 and /32.
fn of_block(block: &str) -> i64 {
    let length = block
        .split_once('/')
        .and_then(|(_, length)| length.parse::<u32>().ok());
    match length.unwrap() {
        length @ 0..=30 => (1 << (32 - length)) - 3,
        _ => 0,
    }
}

/// The addresses of the node. A node without a block and without a network has none; else the
/// amount in its status decides, then the size of its block, then its number of pods. Where the
/// kubelet reports orphaned addresses it takes them off allocatable, so that the capacity counts.
fn capacity(node: &Value) -> i64 {
    let block = node["spec"]["podCIDR"].as_str();
    let has_network =
        has_condition(node, "Ready", "True") && !has_condition(node, "NetworkUnavailable", "True");
    if block.is_none() && !has_network {
        return 0;
    }
    let allocatable = resources::amounts(&node["status"]["allocatable"]);
    let total = resources::amounts(&node["status"]["capacity"]);
    let amount = match orphaned(node) {
        Some(_) => total.get(RESOURCE).or(allocatable.get(RESOURCE)),
        None => allocatable.get(RESOURCE),
    };
    let without = || match block {
        Some(block) => of_block(block),
        None => allocatable.get("pods").copied().unwrap_or(0),
    };
    amount.copied().unwrap_or_else(without)
}

/// The addresses that are taken and that no pod holds. Without a report of them, it is the surplus
/// of allocated addresses over those of pods.
fn orphans(cluster: &Cluster<'_>, node: &Value) -> i64 {
    let allocated = annotation(node, "podplane.io/pod-ips-allocated").unwrap_or(0);
    orphaned(node).unwrap_or_else(|| (allocated - held(cluster, node)).max(0))
}

/// The addresses that further pods can have.
pub(crate) fn free(cluster: &Cluster<'_>, node: &Value) -> i64 {
    (capacity(node) - held(cluster, node) - orphans(cluster, node)).max(0)
}

/// Refuses a node with fewer free addresses than the pod needs. It is unresolvable if the node has
/// too few even without its pods.
pub(crate) fn pod_ips(cluster: &Cluster<'_>, node: &Value) -> Option<Refusal> {
    let needed = needed(cluster.pod);
    let refused = cluster.policy == Policy::Resource && needed > free(cluster, node);
    let most = capacity(node) - orphans(cluster, node);
    refused.then(|| refusal("PodIPs", "Insufficient pod IPs", needed > most))
}

/// The percentage of addresses that are free with the pod. Pods that need none are skipped.
pub(crate) fn scores(cluster: &Cluster<'_>, feasible: &[&Value]) -> Option<Vec<(i64, i64)>> {
    if cluster.policy != Policy::Resource || needed(cluster.pod) == 0 {
        return None;
    }
    let score = |node: &&Value| match capacity(node) {
        0 => 0,
        all => 100 * (free(cluster, node) - needed(cluster.pod)).max(0) / all,
    };
    let scores: Vec<_> = feasible.iter().map(score).collect();
    zip(scores.clone(), scores)
}

/// The number of pods of a node whose IPv4 block bounds it.
pub(crate) fn pod_cidr_limit(node: &Value, pods: i64) -> i64 {
    match node["spec"]["podCIDR"].as_str() {
        Some(block) => of_block(block).min(pods),
        None => pods,
    }
}
