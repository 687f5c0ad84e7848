//! The decision by the reference's rules, read from the objects' JSON each time it is asked.
//!
//! It is written from the rules of Kubernetes 1.34 and the records of decisions 0039, 0041 and
//! 0042, not from the scheduler, with which it shares no code. Loops are nested and nothing is
//! kept: each function should be seen to be right.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

mod images;
mod node_affinity;
mod node_ports;
mod pod_affinity;
mod pod_ips;
mod resources;
mod selectors;
mod taints;
mod topology_spread;
mod workloads;

/// The limit that addresses put on pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// Addresses are counted.
    Resource,
    /// The size of podCIDR bounds the number of pods.
    PodCidr,
    /// Addresses do not matter.
    Off,
}

/// The objects of a cluster, and the pod in question.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cluster<'a> {
    pub(crate) nodes: &'a [Value],
    pub(crate) pods: &'a [Value],
    pub(crate) namespaces: &'a [Value],
    pub(crate) services: &'a [Value],
    pub(crate) replica_sets: &'a [Value],
    pub(crate) pod: &'a Value,
    pub(crate) policy: Policy,
}

/// The refusal of a node by one plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) by: String,
    /// A plugin that has several lists them in no order.
    pub(crate) reasons: BTreeSet<String>,
    /// True for `UnschedulableAndUnresolvable`.
    pub(crate) is_unresolvable: bool,
}

/// The score of a node by one plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Score {
    pub(crate) plugin: String,
    pub(crate) raw: i64,
    pub(crate) normalised: i64,
    pub(crate) weight: i64,
}

/// The feasibility of a node: its scores by plugins that do not skip the pod, or its refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Refused(Refusal),
    Feasible {
        total: i64,
        scores: Vec<Score>,
        /// The number of pods on the node.
        pods: usize,
        /// The free addresses of the node; 0 unless they are counted.
        free_pod_ips: i64,
    },
}

/// The decision on all nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// A plugin rejects the pod for all nodes, with this reason.
    Rejected { by: String, reason: String },
    /// The verdict of each node.
    Examined(BTreeMap<String, Verdict>),
}

/// The plugins that score, in their order, with their weights.
type Scorer = fn(&Cluster<'_>, &[&Value]) -> Option<Vec<(i64, i64)>>;
const SCORERS: [(&str, i64, Scorer); 8] = [
    ("TaintToleration", 3, taints::scores),
    ("NodeAffinity", 2, node_affinity::scores),
    ("NodeResourcesFit", 1, resources::least_allocated),
    ("PodIPs", 2, pod_ips::scores),
    ("PodTopologySpread", 2, topology_spread::scores),
    ("InterPodAffinity", 2, pod_affinity::scores),
    ("NodeResourcesBalancedAllocation", 1, resources::balanced),
    ("ImageLocality", 1, images::scores),
];

/// The filters in their order.
type Filter = fn(&Cluster<'_>, &Value) -> Option<Refusal>;
const FILTERS: [Filter; 9] = [
    taints::node_unschedulable,
    node_affinity::node_name,
    taints::taint_toleration,
    node_affinity::node_affinity,
    node_ports::node_ports,
    resources::fit,
    pod_ips::pod_ips,
    topology_spread::pod_topology_spread,
    pod_affinity::inter_pod_affinity,
];

/// Decides: the first filter that refuses a node gives its reasons, and the nodes that are left
/// are scored.
pub(crate) fn decide(cluster: &Cluster<'_>) -> Decision {
    let only = match node_affinity::named_nodes(cluster.pod) {
        Some(names) if names.is_empty() => {
            return Decision::Rejected {
                by: "NodeAffinity".into(),
                reason: "pod affinity terms conflict".into(),
            };
        }
        only => only,
    };
    let mut verdicts = BTreeMap::new();
    let mut feasible = Vec::new();
    for node in cluster.nodes {
        let refused = match &only {
            Some(names) if !names.contains(name(node)) => Some(refusal(
                "NodeAffinity",
                "node(s) didn't satisfy plugin(s) [NodeAffinity]",
                true,
            )),
            _ => FILTERS.iter().find_map(|filter| filter(cluster, node)),
        };
        match refused {
            Some(refusal) => {
                verdicts.insert(name(node).to_owned(), Verdict::Refused(refusal));
            }
            None => feasible.push(node),
        }
    }
    let columns = SCORERS
        .iter()
        .map(|(plugin, weight, scorer)| (plugin, weight, scorer(cluster, &feasible)));
    let columns: Vec<_> = columns.collect();
    for (index, node) in feasible.iter().enumerate() {
        let mut scores = Vec::new();
        for (plugin, weight, column) in &columns {
            if let Some((raw, normalised)) = column.as_ref().map(|column| column[index]) {
                scores.push(Score {
                    plugin: (**plugin).to_owned(),
                    raw,
                    normalised,
                    weight: **weight,
                });
            }
        }
        let verdict = Verdict::Feasible {
            total: scores.iter().map(|s| s.normalised * s.weight).sum(),
            scores,
            pods: cluster.pods_on(node).len(),
            free_pod_ips: match cluster.policy {
                Policy::Resource => pod_ips::free(cluster, node),
                Policy::PodCidr | Policy::Off => 0,
            },
        };
        verdicts.insert(name(node).to_owned(), verdict);
    }
    Decision::Examined(verdicts)
}

impl<'a> Cluster<'a> {
    /// The pods that count on a node: those that name it, until they are released. Pods that are
    /// being deleted count.
    fn pods_on(&self, node: &Value) -> Vec<&'a Value> {
        let pods = self.pods.iter();
        pods.filter(|pod| pod["spec"]["nodeName"] == node["metadata"]["name"])
            .filter(|pod| !is_released(pod))
            .collect()
    }
}

fn refusal(by: &str, reason: &str, is_unresolvable: bool) -> Refusal {
    Refusal {
        by: by.to_owned(),
        reasons: BTreeSet::from([reason.to_owned()]),
        is_unresolvable,
    }
}

/// True if the pod has ended and holds no address: it is on its node's network, or its kubelet
/// reports that it has no sandbox. In the reference a pod is released when it has ended (record
/// 0019).
fn is_released(pod: &Value) -> bool {
    has_ended(pod)
        && (pod["spec"]["hostNetwork"] == true
            || has_condition(pod, "PodReadyToStartContainers", "False"))
}

/// True if the pod has ended. It is none that other pods are spread from or drawn to.
fn has_ended(pod: &Value) -> bool {
    let phase = &pod["status"]["phase"];
    phase == "Succeeded" || phase == "Failed"
}

fn has_condition(object: &Value, kind: &str, status: &str) -> bool {
    let mut conditions = list(&object["status"]["conditions"]).iter();
    conditions.any(|c| c["type"] == kind && c["status"] == status)
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn namespace(object: &Value) -> &str {
    object["metadata"]["namespace"].as_str().unwrap_or_default()
}

fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object["metadata"]["labels"][key].as_str()
}

/// The elements of a list; none if it is missing.
fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Scores against the largest: 100 for it, and proportionally less for smaller ones, rounded down.
fn of_largest(scores: &[i64]) -> Vec<i64> {
    let largest = scores.iter().copied().max().unwrap_or(0);
    let scores = scores.iter();
    match largest {
        0 => scores.map(|_| 0).collect(),
        _ => scores.map(|score| 100 * score / largest).collect(),
    }
}

fn zip(raw: Vec<i64>, normalised: Vec<i64>) -> Option<Vec<(i64, i64)>> {
    Some(raw.into_iter().zip(normalised).collect())
}
