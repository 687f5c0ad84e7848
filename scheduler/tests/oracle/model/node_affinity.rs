//! `NodeName` and `NodeAffinity`.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    Cluster, Refusal, list, name, of_largest, refusal,
    selectors::{is_empty_term, node_matches, term_matches},
    zip,
};

/// The pod's required node affinity; null if it has none.
pub(crate) fn required(pod: &Value) -> &Value {
    &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
}

/// The nodes that the required terms name, if each of them names some by `In` on `metadata.name`.
/// Within a term, several such expressions leave the names that all of them have.
pub(crate) fn named_nodes(pod: &Value) -> Option<BTreeSet<String>> {
    let terms = list(&required(pod)["nodeSelectorTerms"]);
    if terms.is_empty() {
        return None;
    }
    let mut union = BTreeSet::new();
    for term in terms {
        let mut of_term: Option<BTreeSet<String>> = None;
        for field in list(&term["matchFields"]) {
            if field["key"] == "metadata.name" && field["operator"] == "In" {
                let values = list(&field["values"]).iter();
                let names = values.map(|value| value.as_str().unwrap_or_default().to_owned());
                let names: BTreeSet<_> = names.collect();
                of_term = Some(match of_term {
                    Some(known) => known.intersection(&names).cloned().collect(),
                    None => names,
                });
            }
        }
        union.extend(of_term?);
    }
    Some(union)
}

/// Refuses all nodes but the one that the pod names.
pub(crate) fn node_name(cluster: &Cluster<'_>, node: &Value) -> Option<Refusal> {
    let wanted = cluster.pod["spec"]["nodeName"].as_str().unwrap_or_default();
    let refused = !wanted.is_empty() && wanted != name(node);
    let reason = "node(s) didn't match the requested node name";
    refused.then(|| refusal("NodeName", reason, true))
}

/// Refuses nodes that the pod's `nodeSelector` or required affinity does not match.
pub(crate) fn node_affinity(cluster: &Cluster<'_>, node: &Value) -> Option<Refusal> {
    let reason = "node(s) didn't match Pod's node affinity/selector";
    (!node_matches(cluster.pod, node)).then(|| refusal("NodeAffinity", reason, true))
}

/// The sum of the weights of the preferred terms that match, against the largest sum. A pod
/// without preferred terms that can match is skipped.
pub(crate) fn scores(cluster: &Cluster<'_>, feasible: &[&Value]) -> Option<Vec<(i64, i64)>> {
    let affinity = &cluster.pod["spec"]["affinity"]["nodeAffinity"];
    let preferred = &affinity["preferredDuringSchedulingIgnoredDuringExecution"];
    let mut preferred: Vec<_> = list(preferred).iter().collect();
    preferred.retain(|preferred| !is_empty_term(&preferred["preference"]));
    if preferred.is_empty() {
        return None;
    }
    let mut raw = Vec::new();
    for node in feasible {
        let matching = preferred
            .iter()
            .filter(|p| term_matches(&p["preference"], node));
        raw.push(matching.map(|p| p["weight"].as_i64().unwrap_or(0)).sum());
    }
    let normalised = of_largest(&raw);
    zip(raw, normalised)
}
