//! `PodTopologySpread`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    Cluster, Refusal, has_ended, label, list, namespace, refusal,
    resources::{float, truncated},
    selectors::{is_empty, node_matches, selects},
    taints::untolerated,
    workloads::default_constraints,
};

/// The label of domains that are single nodes.
const HOSTNAME: &str = "kubernetes.io/hostname";

/// The constraints of the pod in question with this `whenUnsatisfiable`.
fn constraints<'a>(cluster: &Cluster<'a>, action: &str) -> Vec<&'a Value> {
    let all = list(&cluster.pod["spec"]["topologySpreadConstraints"]).iter();
    all.filter(|constraint| constraint["whenUnsatisfiable"] == action)
        .collect()
}

fn key(constraint: &Value) -> &str {
    constraint["topologyKey"].as_str().unwrap_or_default()
}

fn has_all_keys(node: &Value, constraints: &[&Value]) -> bool {
    constraints
        .iter()
        .all(|constraint| label(node, key(constraint)).is_some())
}

/// True if the constraint selects pods with these labels: its selector does, and for each of
/// `matchLabelKeys` that the pod in question has, they have the same value.
fn selects_pod(cluster: &Cluster<'_>, constraint: &Value, pod: &Value) -> bool {
    let mut keys = list(&constraint["matchLabelKeys"])
        .iter()
        .filter_map(Value::as_str);
    selects(&constraint["labelSelector"], &pod["metadata"]["labels"])
        && keys.all(|key| match label(cluster.pod, key) {
            Some(value) => label(pod, key) == Some(value),
            None => true,
        })
}

/// True if the pods of the node count: its policies ignore node affinity, or the pod in question
/// matches the node (the default), and they ignore taints (the default), or it tolerates them.
fn includes(cluster: &Cluster<'_>, constraint: &Value, node: &Value) -> bool {
    let honours_affinity = constraint["nodeAffinityPolicy"] != "Ignore";
    let honours_taints = constraint["nodeTaintsPolicy"] == "Honor";
    (!honours_affinity || node_matches(cluster.pod, node))
        && (!honours_taints || untolerated(cluster.pod, node).is_none())
}

/// The number of pods on the node that the constraint selects, of the same namespace; those that
/// are being deleted do not count. A constraint that selects everything counts none.
fn count(cluster: &Cluster<'_>, constraint: &Value, node: &Value) -> i64 {
    let keys = list(&constraint["matchLabelKeys"])
        .iter()
        .filter_map(Value::as_str);
    let has_keys = keys.filter(|key| label(cluster.pod, key).is_some()).count() > 0;
    if is_empty(&constraint["labelSelector"]) && !has_keys {
        return 0;
    }
    let pods = cluster.pods_on(node).into_iter();
    let counted = pods.filter(|pod| {
        pod["metadata"]["deletionTimestamp"].is_null()
            && !has_ended(pod)
            && namespace(pod) == namespace(cluster.pod)
            && selects_pod(cluster, constraint, pod)
    });
    i64::try_from(counted.count()).unwrap()
}

/// The number of selected pods in each domain of the constraint, over the nodes that have all keys
/// of all constraints and that it includes.
fn domains(
    cluster: &Cluster<'_>,
    constraint: &Value,
    constraints: &[&Value],
) -> BTreeMap<String, i64> {
    let mut domains = BTreeMap::new();
    for node in cluster.nodes {
        if has_all_keys(node, constraints)
            && includes(cluster, constraint, node)
            && let Some(value) = label(node, key(constraint))
        {
            *domains.entry(value.to_owned()).or_default() += count(cluster, constraint, node);
        }
    }
    domains
}

/// Refuses a node without the key of a constraint, which is unresolvable, and one in whose domain
/// the pods with this one would be more than `maxSkew` more than in the smallest domain. The
/// smallest is taken as 0 while there are fewer domains than `minDomains`.
pub(crate) fn pod_topology_spread(cluster: &Cluster<'_>, node: &Value) -> Option<Refusal> {
    let by = "PodTopologySpread";
    let reason = "node(s) didn't match pod topology spread constraints";
    let constraints = constraints(cluster, "DoNotSchedule");
    for constraint in &constraints {
        let Some(value) = label(node, key(constraint)) else {
            let reason = format!("{reason} (missing required label)");
            return Some(refusal(by, &reason, true));
        };
        let domains = domains(cluster, constraint, &constraints);
        let min_domains = constraint["minDomains"].as_u64().unwrap_or(1);
        let has_too_few = u64::try_from(domains.len()).unwrap() < min_domains;
        let smallest = match domains.values().min() {
            Some(smallest) if !has_too_few => *smallest,
            _ => 0,
        };
        let pods = domains.get(value).copied().unwrap_or(0);
        let itself = i64::from(selects_pod(cluster, constraint, cluster.pod));
        if pods + itself - smallest > constraint["maxSkew"].as_i64().unwrap_or(0) {
            return Some(refusal(by, reason, false));
        }
    }
    None
}

/// The sum over constraints of the pods in the node's domain, times ln(domains + 2), plus
/// `maxSkew` - 1; rounded. Domains are those of the feasible nodes with all keys; a node without
/// all has 0. In domains that are single nodes all of its pods count, whatever the constraint
/// includes. Normalised, fewer are better: 100·(largest + smallest − own)/largest.
///
/// With default constraints no key is needed. A node without a constraint's key has nothing from
/// that constraint, and is in the domain of the empty value.
pub(crate) fn scores(cluster: &Cluster<'_>, feasible: &[&Value]) -> Option<Vec<(i64, i64)>> {
    let defaults = default_constraints(cluster);
    let is_default = !defaults.is_empty();
    let constraints = match is_default {
        true => defaults.iter().collect(),
        false => constraints(cluster, "ScheduleAnyway"),
    };
    if constraints.is_empty() {
        return None;
    }
    let scored = |node: &&Value| is_default || has_all_keys(node, &constraints);
    let value = |node: &Value, constraint: &Value| {
        let value = label(node, key(constraint));
        value.unwrap_or_default().to_owned()
    };
    let mut raw = Vec::new();
    for node in feasible {
        let mut score = 0.0;
        for constraint in &constraints {
            if !scored(node) || label(node, key(constraint)).is_none() {
                continue;
            }
            let others: Vec<_> = feasible.iter().filter(|node| scored(node)).collect();
            let (mut pods, size);
            if key(constraint) == HOSTNAME {
                pods = count(cluster, constraint, node);
                size = others.len();
            } else {
                pods = 0;
                for other in cluster.nodes {
                    if scored(&other)
                        && includes(cluster, constraint, other)
                        && value(other, constraint) == value(node, constraint)
                    {
                        pods += count(cluster, constraint, other);
                    }
                }
                let values: BTreeSet<_> =
                    others.iter().map(|node| value(node, constraint)).collect();
                size = values.len();
            }
            let weight = float(i64::try_from(size).unwrap() + 2).ln();
            let skew = constraint["maxSkew"].as_i64().unwrap_or(0);
            score += float(pods) * weight + float(skew - 1);
        }
        raw.push(truncated(f64::round(score)));
    }
    let of_scored: Vec<_> = feasible
        .iter()
        .zip(&raw)
        .filter(|(node, _)| scored(node))
        .collect();
    let largest = of_scored
        .iter()
        .map(|(_, score)| **score)
        .max()
        .unwrap_or(0);
    let smallest = of_scored
        .iter()
        .map(|(_, score)| **score)
        .min()
        .unwrap_or(0);
    let mut scores = Vec::new();
    for (node, score) in feasible.iter().zip(raw) {
        let normalised = match (scored(node), largest) {
            (false, _) => 0,
            (true, 0) => 100,
            (true, _) => 100 * (largest + smallest - score) / largest,
        };
        scores.push((score, normalised));
    }
    Some(scores)
}
