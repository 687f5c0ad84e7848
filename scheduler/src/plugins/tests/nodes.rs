//! Nodes that are named, and fields that keep a pod from every node.

use super::*;
use crate::explain::Examination;

fn examined(pod: &PodBuilder) -> Examination {
    let nodes = ["a", "b", "c"].map(|name| NodeBuilder::new(name).node());
    examine_objects(&nodes, &[], &[], IpPolicy::Off.into(), &pod.pod())
}

fn named(names: Value) -> PodBuilder {
    let field = |names| json!([{"key": "metadata.name", "operator": "In", "values": names}]);
    let terms: Vec<_> = names.as_array().unwrap().iter().map(field).collect();
    let terms: Vec<_> = terms
        .iter()
        .map(|field| json!({"matchFields": field}))
        .collect();
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let affinity = json!({"nodeAffinity": {required: {"nodeSelectorTerms": terms}}});
    PodBuilder::new("p").set("/spec/affinity", affinity)
}

#[test]
fn names_in_all_terms_leave_other_nodes_out() {
    let found = examined(&named(json!([["b"], ["c", "none"]])));
    let refused: Vec<_> = found.refusals().collect();
    assert_eq!(refused.len(), 1);
    assert_eq!(refused[0].0.as_str(), "a");
    assert_eq!(
        refused[0].1.reasons,
        ["node(s) didn't satisfy plugin(s) [NodeAffinity]"]
    );
    assert_eq!(refused[0].1.by, "NodeAffinity");
}

#[test]
fn contradicting_names_reject_the_pod() {
    let names = |name| json!({"key": "metadata.name", "operator": "In", "values": [name]});
    let term = json!({"matchFields": [names("a"), names("b")]});
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let affinity = json!({"nodeAffinity": {required: {"nodeSelectorTerms": [term]}}});
    let rejection = examined(&PodBuilder::new("p").set("/spec/affinity", affinity)).rejection;
    assert_eq!(rejection.unwrap().reason, "pod affinity terms conflict");
}

#[test]
fn unsupported_fields_reject_the_pod_by_name() {
    let rejection = |pod: PodBuilder| examined(&pod).rejection.map(|rejection| rejection.reason);
    let volumes = |list: Value| PodBuilder::new("p").set("/spec/volumes", list);
    let empty = json!({"name": "tmp", "emptyDir": {}});
    let claim = json!({"name": "data", "persistentVolumeClaim": {"claimName": "data"}});
    let generic = json!({"name": "data", "ephemeral": {}});
    assert_eq!(
        rejection(volumes(json!([empty, claim]))).unwrap(),
        "pod has unbound immediate PersistentVolumeClaims: data"
    );
    assert_eq!(
        rejection(volumes(json!([generic]))).unwrap(),
        "spec.volumes[0].ephemeral is not supported"
    );
    let claims = json!([{"name": "gpu", "resourceClaimName": "gpu"}]);
    assert_eq!(
        rejection(PodBuilder::new("p").set("/spec/resourceClaims", claims)).unwrap(),
        "spec.resourceClaims is not supported"
    );
    for inline in [
        json!({"emptyDir": {}}),
        json!({"configMap": {"name": "c"}}),
        json!({"secret": {"secretName": "s"}}),
        json!({"projected": {}}),
        json!({"downwardAPI": {}}),
        json!({"hostPath": {"path": "/"}}),
        json!({"csi": {"driver": "d"}}),
        json!({"nfs": {"server": "s", "path": "/"}}),
    ] {
        let mut volume = inline.clone();
        volume["name"] = json!("v");
        assert_eq!(rejection(volumes(json!([volume]))), None, "{inline}");
    }
}
