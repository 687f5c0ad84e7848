//! The constraints that a pod of a workload has by default.

use serde_json::{Value, json};

use super::{Cluster, list, name, namespace, selectors::selects};

/// The default constraints of the pod in question if it has none at all: over nodes and zones, for
/// scores only, with the selector of its workloads.
pub(crate) fn default_constraints(cluster: &Cluster<'_>) -> Vec<Value> {
    let own = list(&cluster.pod["spec"]["topologySpreadConstraints"]);
    let selector = selector(cluster);
    if !own.is_empty() || selector.is_empty() {
        return Vec::new();
    }
    let constraint = |key: &str, skew: i64| {
        json!({
            "topologyKey": key,
            "maxSkew": skew,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchExpressions": selector},
        })
    };
    vec![
        constraint("kubernetes.io/hostname", 3),
        constraint("topology.kubernetes.io/zone", 5),
    ]
}

/// The requirements of the services of the pod's namespace that select it, and of the ReplicaSet
/// that controls it. A service without pairs in its selector has no requirement.
fn selector(cluster: &Cluster<'_>) -> Vec<Value> {
    let mut all = Vec::new();
    for service in cluster.services {
        let pairs = json!({"matchLabels": service["spec"]["selector"]});
        if namespace(service) == namespace(cluster.pod)
            && selects(&pairs, &cluster.pod["metadata"]["labels"])
        {
            all.extend(requirements(&pairs));
        }
    }
    let mut owners = list(&cluster.pod["metadata"]["ownerReferences"]).iter();
    let controller = owners.find(|owner| owner["controller"] == true);
    for set in cluster.replica_sets {
        if let Some(owner) = controller
            && owner["apiVersion"] == "apps/v1"
            && owner["kind"] == "ReplicaSet"
            && owner["name"] == name(set)
            && namespace(set) == namespace(cluster.pod)
        {
            all.extend(requirements(&set["spec"]["selector"]));
        }
    }
    all
}

/// A selector's pairs and expressions, as expressions.
fn requirements(selector: &Value) -> Vec<Value> {
    let pairs = selector["matchLabels"].as_object().into_iter().flatten();
    let equal = |(key, value)| json!({"key": key, "operator": "In", "values": [value]});
    let mut all: Vec<_> = pairs.map(equal).collect();
    all.extend(list(&selector["matchExpressions"]).iter().cloned());
    all
}
