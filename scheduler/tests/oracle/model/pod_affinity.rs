//! `InterPodAffinity`.

use serde_json::Value;

use super::{
    Cluster, Refusal, has_ended, label, list, namespace, refusal,
    resources::{float, truncated},
    selectors::{is_empty, selects},
};

/// The score of an existing pod's required affinity that selects the pod in question.
const HARD_WEIGHT: i64 = 1;

/// The required terms of a pod, of `podAffinity` or `podAntiAffinity`.
fn required<'a>(pod: &'a Value, kind: &str) -> &'a [Value] {
    list(&pod["spec"]["affinity"][kind]["requiredDuringSchedulingIgnoredDuringExecution"])
}

/// The preferred terms of a pod with their weights.
fn preferred<'a>(pod: &'a Value, kind: &str) -> Vec<(&'a Value, i64)> {
    let terms = &pod["spec"]["affinity"][kind]["preferredDuringSchedulingIgnoredDuringExecution"];
    let terms = list(terms).iter();
    terms
        .map(|term| {
            (
                &term["podAffinityTerm"],
                term["weight"].as_i64().unwrap_or(0),
            )
        })
        .collect()
}

fn key(term: &Value) -> &str {
    term["topologyKey"].as_str().unwrap_or_default()
}

/// True if the term selects pods of this namespace: it lists it, or its selector selects the
/// namespace's labels, or it has neither and its owner is there. A namespace that is not known has
/// no labels; the terms of the pod in question select it only if they select all.
fn selects_namespace(cluster: &Cluster<'_>, term: &Value, owner: &Value, of: &str) -> bool {
    let listed = list(&term["namespaces"]);
    let selector = &term["namespaceSelector"];
    if listed.is_empty() && selector.is_null() {
        return namespace(owner) == of;
    }
    let known = cluster
        .namespaces
        .iter()
        .find(|known| super::name(known) == of);
    let is_selected = match known {
        Some(namespace) => selects(selector, &namespace["metadata"]["labels"]),
        None if std::ptr::eq(owner, cluster.pod) => is_empty(selector),
        None => selects(selector, &Value::Null),
    };
    listed.iter().any(|listed| listed == of) || is_selected
}

/// True if the term of `owner` selects the pod. For each of `matchLabelKeys` that the owner has,
/// the pod has the same value; for each of `mismatchLabelKeys`, it does not.
fn selects_pod(cluster: &Cluster<'_>, term: &Value, owner: &Value, pod: &Value) -> bool {
    let keys = |field: &str| {
        let keys = list(&term[field]).iter().filter_map(Value::as_str);
        let keys = keys.filter(|key| label(owner, key).is_some());
        keys.collect::<Vec<_>>()
    };
    let is_same = |key: &&str| label(pod, key) == label(owner, key);
    selects_namespace(cluster, term, owner, namespace(pod))
        && selects(&term["labelSelector"], &pod["metadata"]["labels"])
        && keys("matchLabelKeys").iter().all(is_same)
        && !keys("mismatchLabelKeys").iter().any(is_same)
}

/// True if both nodes have the label of the term, with the same value.
fn is_same_domain(term: &Value, one: &Value, other: &Value) -> bool {
    label(one, key(term)).is_some() && label(one, key(term)) == label(other, key(term))
}

/// All pods that are on nodes and have not ended, each with its node.
fn placed<'a>(cluster: &Cluster<'a>) -> Vec<(&'a Value, &'a Value)> {
    let nodes = cluster.nodes.iter();
    nodes
        .flat_map(|node| {
            cluster
                .pods_on(node)
                .into_iter()
                .filter(|pod| !has_ended(pod))
                .map(move |pod| (pod, node))
        })
        .collect()
}

/// True if the pod's required affinity holds: in the node's domain of each term is a pod that all
/// terms select. The node has the labels of all terms. The first of a group of pods passes: no pod
/// that all terms select is in any domain, and they select the pod itself.
///
/// Terms with one key share its domains, so that the pods of a domain count for each of them.
fn satisfies_affinity(cluster: &Cluster<'_>, node: &Value) -> bool {
    let terms = required(cluster.pod, "podAffinity");
    let all_select = |pod: &Value| {
        terms
            .iter()
            .all(|term| selects_pod(cluster, term, cluster.pod, pod))
    };
    let mut selected = placed(cluster);
    selected.retain(|(pod, _)| all_select(pod));
    let is_there = |term: &Value| {
        selected
            .iter()
            .any(|(_, at)| is_same_domain(term, at, node))
    };
    let is_anywhere = |term: &Value| {
        selected
            .iter()
            .any(|(_, at)| label(at, key(term)).is_some())
    };
    terms.iter().all(|term| label(node, key(term)).is_some())
        && (terms.iter().all(is_there)
            || (!terms.iter().any(is_anywhere) && all_select(cluster.pod)))
}

/// True if no pod that a term of the pod's required anti-affinity selects is in the node's domain.
fn satisfies_anti_affinity(cluster: &Cluster<'_>, node: &Value) -> bool {
    required(cluster.pod, "podAntiAffinity").iter().all(|term| {
        !placed(cluster).iter().any(|(pod, at)| {
            selects_pod(cluster, term, cluster.pod, pod) && is_same_domain(term, at, node)
        })
    })
}

/// True if no pod in the node's domain has a required anti-affinity that selects the pod.
fn satisfies_existing_anti_affinity(cluster: &Cluster<'_>, node: &Value) -> bool {
    !placed(cluster).iter().any(|(owner, at)| {
        required(owner, "podAntiAffinity").iter().any(|term| {
            selects_pod(cluster, term, owner, cluster.pod) && is_same_domain(term, at, node)
        })
    })
}

/// Refuses a node by the pod's required affinity, which is unresolvable, its anti-affinity, or that
/// of existing pods, in this order.
pub(crate) fn inter_pod_affinity(cluster: &Cluster<'_>, node: &Value) -> Option<Refusal> {
    let by = "InterPodAffinity";
    if !satisfies_affinity(cluster, node) {
        let reason = "node(s) didn't match pod affinity rules";
        return Some(refusal(by, reason, true));
    }
    if !satisfies_anti_affinity(cluster, node) {
        let reason = "node(s) didn't match pod anti-affinity rules";
        return Some(refusal(by, reason, false));
    }
    let reason = "node(s) didn't satisfy existing pods anti-affinity rules";
    (!satisfies_existing_anti_affinity(cluster, node)).then(|| refusal(by, reason, false))
}

/// The pairs of a term and a placed pod that count for the pod in question: its preferred terms
/// that select the placed pod, and the placed pod's required affinity and preferred terms that
/// select it; anti-affinity has negative weights. The node of the placed pod has the term's label.
fn weighted<'a>(cluster: &Cluster<'a>) -> Vec<(&'a Value, &'a Value, i64)> {
    let mut found = Vec::new();
    for (existing, at) in placed(cluster) {
        let mut count = |term: &'a Value, owner: &'a Value, pod: &Value, weight: i64| {
            if selects_pod(cluster, term, owner, pod) && label(at, key(term)).is_some() {
                found.push((term, at, weight));
            }
        };
        for (owner, pod) in [(cluster.pod, existing), (existing, cluster.pod)] {
            for (term, weight) in preferred(owner, "podAffinity") {
                count(term, owner, pod, weight);
            }
            for (term, weight) in preferred(owner, "podAntiAffinity") {
                count(term, owner, pod, -weight);
            }
        }
        for term in required(existing, "podAffinity") {
            count(term, existing, cluster.pod, HARD_WEIGHT);
        }
    }
    found
}

/// The sum of the weights in the node's domains, brought to 0 to 100 between the smallest and the
/// largest; 0 if they are equal. Pods for which nothing counts are skipped.
pub(crate) fn scores(cluster: &Cluster<'_>, feasible: &[&Value]) -> Option<Vec<(i64, i64)>> {
    let weighted = weighted(cluster);
    if weighted.is_empty() {
        return None;
    }
    let mut raw = Vec::new();
    for node in feasible {
        let near = weighted
            .iter()
            .filter(|(term, at, _)| is_same_domain(term, at, node));
        raw.push(near.map(|(_, _, weight)| *weight).sum::<i64>());
    }
    let smallest = raw.iter().copied().min().unwrap_or(0);
    let range = raw.iter().copied().max().unwrap_or(0) - smallest;
    let normalise = |score: i64| match range {
        0 => 0,
        _ => truncated(100.0 * (float(score - smallest) / float(range))),
    };
    let normalised = raw.iter().copied().map(normalise).collect();
    super::zip(raw, normalised)
}
