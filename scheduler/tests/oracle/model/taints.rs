//! `NodeUnschedulable` and `TaintToleration`.

use serde_json::{Value, json};

use super::{Cluster, Refusal, list, of_largest, refusal, zip};

/// True if the toleration tolerates the taint. An empty effect or key is any; with `Exists` the
/// value is any, else it is equal.
fn tolerates(toleration: &Value, taint: &Value) -> bool {
    let is_any = |field: &str| toleration[field].as_str().unwrap_or_default().is_empty();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let is_value = match toleration["operator"].as_str() {
        None | Some("" | "Equal") => text(&toleration["value"]) == text(&taint["value"]),
        Some(operator) => operator == "Exists",
    };
    (is_any("effect") || toleration["effect"] == taint["effect"])
        && (is_any("key") || toleration["key"] == taint["key"])
        && is_value
}

fn is_tolerated(pod: &Value, taint: &Value) -> bool {
    let tolerations = list(&pod["spec"]["tolerations"]);
    tolerations.iter().any(|t| tolerates(t, taint))
}

/// The first taint of the node that keeps the pod away: it has the effect `NoSchedule` or
/// `NoExecute`, and the pod does not tolerate it.
pub(crate) fn untolerated<'a>(pod: &Value, node: &'a Value) -> Option<&'a Value> {
    list(&node["spec"]["taints"]).iter().find(|taint| {
        (taint["effect"] == "NoSchedule" || taint["effect"] == "NoExecute")
            && !is_tolerated(pod, taint)
    })
}

/// Refuses an unschedulable node, unless the pod tolerates the taint that such a node has.
pub(crate) fn node_unschedulable(cluster: &Cluster<'_>, node: &Value) -> Option<Refusal> {
    let taint = json!({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"});
    let refused = node["spec"]["unschedulable"] == true && !is_tolerated(cluster.pod, &taint);
    refused.then(|| refusal("NodeUnschedulable", "node(s) were unschedulable", true))
}

/// Refuses a node with a taint that keeps the pod away, and names the first.
pub(crate) fn taint_toleration(cluster: &Cluster<'_>, node: &Value) -> Option<Refusal> {
    let taint = untolerated(cluster.pod, node)?;
    let text = |field: &str| taint[field].as_str().unwrap_or_default();
    let (key, value) = (text("key"), text("value"));
    let reason = format!("node(s) had untolerated taint {{{key}: {value}}}");
    Some(refusal("TaintToleration", &reason, true))
}

/// The number of `PreferNoSchedule` taints that the pod does not tolerate, by tolerations of that
/// effect or of any. The node with the most gets 0, one without gets 100.
pub(crate) fn scores(cluster: &Cluster<'_>, feasible: &[&Value]) -> Option<Vec<(i64, i64)>> {
    let mut raw = Vec::new();
    for node in feasible {
        let taints = list(&node["spec"]["taints"]).iter();
        let disliked = taints.filter(|taint| {
            taint["effect"] == "PreferNoSchedule" && !is_tolerated(cluster.pod, taint)
        });
        raw.push(i64::try_from(disliked.count()).unwrap());
    }
    let normalised = of_largest(&raw).iter().map(|score| 100 - score).collect();
    zip(raw, normalised)
}
