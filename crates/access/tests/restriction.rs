//! The writes that a node may do, case by case.

#![expect(clippy::unwrap_used, reason = "a test")]

use podplane_access::{
    Identity,
    relations::RelationIndex,
    restriction::{NodeWrite, RestrictionError, admit, is_restricted_label},
};
use podplane_api::{
    authentication::TokenRequest,
    core::{Node, Pod},
};
use serde_json::{Value, json};

/// The answer to a write of the node `n1`: empty for admitted.
fn answer(write: &NodeWrite<'_>) -> String {
    answer_to(&Identity::node("n1"), write)
}

fn answer_to(identity: &Identity, write: &NodeWrite<'_>) -> String {
    let mut relations = RelationIndex::new();
    relations.apply_node("n1", "node-1");
    // As admission completes it.
    let token = json!({"serviceAccountToken": {"path": "token"}});
    let volume = json!({"name": "kube-api-access-a", "projected": {"sources": [token]}});
    relations.apply_pod(&pod_of(json!({"spec": {"volumes": [volume]}})));
    relations.apply_pod(&pod_of(
        json!({"metadata": {"name": "other"}, "spec": {"nodeName": "n2"}}),
    ));
    match admit(identity, write, &relations) {
        Ok(()) => String::new(),
        Err(RestrictionError::Forbidden(why)) => why,
        Err(not_found @ RestrictionError::NotFound { .. }) => not_found.to_string(),
    }
}

/// `base` with the fields of `patch`; null removes one.
fn merged(mut base: Value, patch: Value) -> Value {
    fn merge(base: &mut Value, patch: Value) {
        match patch {
            Value::Object(fields) if base.is_object() => {
                for (key, value) in fields {
                    if value.is_null() {
                        base.as_object_mut().unwrap().remove(&key);
                    } else {
                        merge(&mut base[key], value);
                    }
                }
            }
            patch => *base = patch,
        }
    }
    merge(&mut base, patch);
    base
}

fn node_of(patch: Value) -> Node {
    let base = json!({
        "metadata": {
            "name": "n1", "uid": "node-1",
            "labels": {"kubernetes.io/hostname": "n1", "podplane.io/pool": "a", "free": "yes"},
        },
        "spec": {
            "podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"],
            "taints": [{"key": "gpu", "effect": "NoSchedule"}],
        },
    });
    serde_json::from_value(merged(base, patch)).unwrap()
}

fn create_node(node: Value) -> String {
    let node: Node = serde_json::from_value(node).unwrap();
    answer(&NodeWrite::CreateNode(&node))
}

fn update_node(patch: Value) -> String {
    let old = node_of(json!({}));
    let new = node_of(patch);
    answer(&NodeWrite::UpdateNode {
        old: &old,
        new: &new,
    })
}

/// A pod of `n1`.
fn pod_of(patch: Value) -> Pod {
    let base = json!({
        "metadata": {"name": "web", "namespace": "prod", "uid": "pod-1", "labels": {"app": "web"}},
        "spec": {"nodeName": "n1", "serviceAccountName": "ci", "containers": []},
    });
    serde_json::from_value(merged(base, patch)).unwrap()
}

/// The creation of a mirror pod.
fn create_mirror(patch: Value) -> String {
    let base = json!({
        "metadata": {
            "name": "static-n1", "namespace": "kube-system",
            "annotations": {"kubernetes.io/config.mirror": "hash"},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "node-1", "controller": true},
            ],
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "c"}]},
    });
    let pod: Pod = serde_json::from_value(merged(base, patch)).unwrap();
    answer(&NodeWrite::CreatePod(&pod))
}

fn owner(patch: Value) -> Value {
    let base = json!({
        "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "node-1", "controller": true,
    });
    json!({"metadata": {"ownerReferences": [merged(base, patch)]}})
}

#[test]
fn others_than_nodes_are_not_restricted() {
    let write = NodeWrite::DeleteNode { name: "n2" };
    for identity in [
        Identity::new("ada", ["dev"]),
        Identity::new("system:node:n1", ["system:authenticated"]),
        Identity::new("n1", ["system:nodes"]),
        Identity::server(),
    ] {
        assert_eq!(answer_to(&identity, &write), "", "{identity:?}");
    }
    assert_eq!(
        answer_to(
            &Identity::new("system:node:", ["system:nodes"]),
            &NodeWrite::Other
        ),
        "could not determine node from user \"system:node:\""
    );
    assert_eq!(answer(&NodeWrite::Other), "");
}

#[test]
fn a_node_writes_its_own_node_alone() {
    assert_eq!(answer(&NodeWrite::DeleteNode { name: "n1" }), "");
    let refused = "node \"n1\" is not allowed to modify node \"n2\"";
    assert_eq!(answer(&NodeWrite::DeleteNode { name: "n2" }), refused);
    assert_eq!(create_node(json!({"metadata": {"name": "n1"}})), "");
    assert_eq!(create_node(json!({"metadata": {"name": "n2"}})), refused);
    assert_eq!(update_node(json!({"metadata": {"name": "n2"}})), refused);
    assert_eq!(
        create_node(json!({"metadata": {"generateName": "n"}})),
        "node \"n1\" is not allowed to modify node \"\""
    );
}

#[test]
fn a_node_registers_with_labels_about_itself_and_with_taints() {
    let labels = json!({
        "kubernetes.io/hostname": "n1", "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
        "topology.kubernetes.io/zone": "a", "node.kubernetes.io/anything": "x",
        "sub.kubelet.kubernetes.io/x": "x", "example.com/pool": "x", "free": "x",
    });
    let spec = json!({"taints": [{"key": "new", "effect": "NoSchedule"}], "unschedulable": true});
    let node = json!({"metadata": {"name": "n1", "labels": labels}, "spec": spec});
    assert_eq!(create_node(node), "");
}

#[test]
fn a_node_does_not_register_with_restricted_labels() {
    for label in [
        "node-restriction.kubernetes.io/pool",
        "a.node-restriction.kubernetes.io/pool",
        "node-role.kubernetes.io/control-plane",
        "kubernetes.io/other",
        "k8s.io/other",
        "a.k8s.io/other",
        "podplane.io/pool",
        "a.podplane.io/pool",
    ] {
        assert_eq!(
            create_node(json!({"metadata": {"name": "n1", "labels": {label: "x"}}})),
            format!("node \"n1\" is not allowed to set the following labels: {label}")
        );
        assert!(is_restricted_label(label));
    }
    for label in [
        "pool",
        "kubernetes.io",
        "mykubernetes.io/x",
        "mypodplane.io/x",
        "k8s.io.example/x",
    ] {
        assert!(!is_restricted_label(label), "{label}");
    }
}

#[test]
fn a_node_does_not_change_restricted_labels() {
    for (label, value) in [
        ("podplane.io/pool", json!("b")),
        ("podplane.io/pool", Value::Null),
        ("podplane.io/new", json!("")),
        ("node-restriction.kubernetes.io/x", json!("x")),
    ] {
        assert_eq!(
            update_node(json!({"metadata": {"labels": {label: value}}})),
            format!("is not allowed to modify labels: {label}")
        );
    }
    assert_eq!(
        update_node(json!({"metadata": {"labels": {"podplane.io/b": "", "k8s.io/a": ""}}})),
        "is not allowed to modify labels: k8s.io/a, podplane.io/b"
    );
    let free = json!({"kubernetes.io/hostname": "other", "free": null, "example.com/x": "x"});
    assert_eq!(update_node(json!({"metadata": {"labels": free}})), "");
}

#[test]
fn a_node_does_not_change_its_taints_owners_and_blocks() {
    assert_eq!(update_node(json!({})), "");
    let status = json!({
        "metadata": {"annotations": {"podplane.io/pod-ips": "100"}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    });
    assert_eq!(update_node(status), "");
    assert_eq!(update_node(json!({"spec": {"unschedulable": true}})), "");
    let taints = "node \"n1\" is not allowed to modify taints";
    assert_eq!(update_node(json!({"spec": {"taints": null}})), taints);
    assert_eq!(
        update_node(json!({"spec": {"taints": [{"key": "gpu", "effect": "NoExecute"}]}})),
        taints
    );
    assert_eq!(
        update_node(owner(json!({}))),
        "node \"n1\" is not allowed to modify ownerReferences"
    );
    let blocks = "node \"n1\" is not allowed to modify podCIDRs";
    assert_eq!(
        update_node(json!({"spec": {"podCIDR": "10.0.1.0/24"}})),
        blocks
    );
    assert_eq!(update_node(json!({"spec": {"podCIDRs": []}})), blocks);
    assert_eq!(
        update_node(json!({"spec": {"podCIDR": null, "podCIDRs": null}})),
        blocks
    );
    assert_eq!(
        create_node(json!({"metadata": {"name": "n1"}, "spec": {"podCIDR": "10.0.0.0/24"}})),
        "node \"n1\" is not allowed to set podCIDRs"
    );
    assert_eq!(
        create_node(json!({"metadata": {"name": "n1"}, "spec": {"podCIDRs": ["10.0.0.0/24"]}})),
        "node \"n1\" is not allowed to set podCIDRs"
    );
}

#[test]
fn a_node_sets_no_config_source() {
    let source = json!({"configMap": {
        "namespace": "x", "name": "x", "kubeletConfigKey": "x",
    }});
    assert_eq!(
        create_node(json!({"metadata": {"name": "n1"}, "spec": {"configSource": source}})),
        "node \"n1\" is not allowed to create pods with a non-nil configSource"
    );
    assert_eq!(
        update_node(json!({"spec": {"configSource": source}})),
        "node \"n1\" is not allowed to update configSource to a new non-nil configSource"
    );
    let old = node_of(json!({"spec": {"configSource": source}}));
    let new = node_of(json!({}));
    let (kept, dropped) = ([&old, &old], [&old, &new]);
    for [old, new] in [kept, dropped] {
        assert_eq!(answer(&NodeWrite::UpdateNode { old, new }), "");
    }
}

#[test]
fn a_node_creates_mirror_pods_of_its_own() {
    assert_eq!(create_mirror(json!({})), "");
    assert_eq!(
        create_mirror(json!({"metadata": {"annotations": null}})),
        "pod does not have \"kubernetes.io/config.mirror\" annotation, node \"n1\" can only create \
         mirror pods"
    );
    for node in [json!("n2"), Value::Null] {
        assert_eq!(
            create_mirror(json!({"spec": {"nodeName": node}})),
            "node \"n1\" can only create pods with spec.nodeName set to itself"
        );
    }
}

#[test]
fn a_mirror_pod_has_its_node_as_the_one_owner() {
    let not_own = "node \"n1\" can only create pods with an owner reference set to itself";
    assert_eq!(
        create_mirror(json!({"metadata": {"ownerReferences": null}})),
        not_own
    );
    for wrong in [
        json!({"name": "n2"}),
        json!({"kind": "Pod"}),
        json!({"apiVersion": "v2"}),
    ] {
        assert_eq!(create_mirror(owner(wrong)), not_own);
    }
    for controller in [Value::Null, json!(false)] {
        assert_eq!(
            create_mirror(owner(json!({"controller": controller}))),
            "node \"n1\" can only create pods with a controller owner reference set to itself"
        );
    }
    assert_eq!(
        create_mirror(owner(json!({"blockOwnerDeletion": true}))),
        "node \"n1\" must not set blockOwnerDeletion on an owner reference"
    );
    assert_eq!(
        create_mirror(owner(json!({"uid": "node-0"}))),
        "node n1 UID mismatch: expected node-0 got node-1"
    );
    let one = json!({
        "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "node-1", "controller": true,
    });
    assert_eq!(
        create_mirror(json!({"metadata": {"ownerReferences": [one, one]}})),
        "node \"n1\" can only create pods with a single owner reference set to itself"
    );
    let unknown = admit(
        &Identity::node("n1"),
        &NodeWrite::CreatePod(
            &serde_json::from_value(json!({
                "metadata": {
                    "annotations": {"kubernetes.io/config.mirror": "hash"}, "ownerReferences": [one],
                },
                "spec": {"nodeName": "n1", "containers": []},
            }))
            .unwrap(),
        ),
        &RelationIndex::new(),
    );
    assert_eq!(unknown.unwrap_err().to_string(), "nodes \"n1\" not found");
}

#[test]
fn a_mirror_pod_refers_to_no_other_object() {
    let refused =
        |objects: &str| format!("node \"n1\" can not create pods that reference {objects}");
    let of_volume = |volume: Value| {
        let volume = merged(json!({"name": "v"}), volume);
        create_mirror(json!({"spec": {"volumes": [volume]}}))
    };
    let of_container = |kind: &str, fields: Value| {
        let container = merged(json!({"name": "c"}), fields);
        create_mirror(json!({"spec": {kind: [container]}}))
    };
    assert_eq!(
        create_mirror(json!({"spec": {"serviceAccountName": "ci"}})),
        refused("a service account")
    );
    let secret = json!({"secretRef": {"name": "x"}});
    for volume in [
        json!({"secret": {"secretName": "x"}}),
        json!({"projected": {"sources": [{"secret": {"name": "x"}}]}}),
        json!({"azureFile": {"secretName": "x", "shareName": "x"}}),
        json!({"cephfs": merged(json!({"monitors": []}), secret.clone())}),
        json!({"cinder": merged(json!({"volumeID": "x"}), secret.clone())}),
        json!({"flexVolume": merged(json!({"driver": "x"}), secret.clone())}),
        json!({"iscsi": merged(
            json!({"iqn": "x", "lun": 0, "targetPortal": "x"}), secret.clone()
        )}),
        json!({"rbd": merged(json!({"image": "x", "monitors": []}), secret.clone())}),
        json!({"storageos": secret.clone()}),
        json!({"scaleIO": merged(json!({"gateway": "x", "system": "x"}), secret.clone())}),
        json!({"csi": {"driver": "x", "nodePublishSecretRef": {"name": "x"}}}),
    ] {
        assert_eq!(of_volume(volume.clone()), refused("secrets"), "{volume}");
    }
    assert_eq!(
        create_mirror(json!({"spec": {"imagePullSecrets": [{"name": "x"}]}})),
        refused("secrets")
    );
    for kind in ["containers", "initContainers", "ephemeralContainers"] {
        let variable = |from: Value| json!({"env": [{"name": "X", "valueFrom": from}]});
        let key = json!({"name": "x", "key": "x"});
        for (fields, objects) in [
            (variable(json!({"secretKeyRef": key})), "secrets"),
            (
                json!({"envFrom": [{"secretRef": {"name": "x"}}]}),
                "secrets",
            ),
            (variable(json!({"configMapKeyRef": key})), "configmaps"),
            (
                json!({"envFrom": [{"configMapRef": {"name": "x"}}]}),
                "configmaps",
            ),
        ] {
            assert_eq!(of_container(kind, fields), refused(objects), "{kind}");
        }
        let free = variable(json!({"fieldRef": {"fieldPath": "metadata.name"}}));
        assert_eq!(of_container(kind, free), "");
    }
    for volume in [
        json!({"configMap": {"name": "x"}}),
        json!({"projected": {"sources": [{"configMap": {"name": "x"}}]}}),
    ] {
        assert_eq!(of_volume(volume), refused("configmaps"));
    }
    assert_eq!(
        of_volume(json!({"projected": {"sources": [{"clusterTrustBundle": {"path": "x"}}]}})),
        refused("clustertrustbundles")
    );
    assert_eq!(
        of_volume(json!({"persistentVolumeClaim": {"claimName": "x"}})),
        refused("persistentvolumeclaims")
    );
    assert_eq!(
        create_mirror(json!({"spec": {"resourceClaims": [{"name": "x"}]}})),
        refused("resourceclaims")
    );
    assert_eq!(of_volume(json!({"hostPath": {"path": "/x"}})), "");
}

#[test]
fn a_node_writes_the_status_of_its_own_pods() {
    let old = pod_of(json!({}));
    let update = |old: &Pod, patch: Value| {
        answer(&NodeWrite::UpdatePodStatus {
            old,
            new: &pod_of(patch),
        })
    };
    assert_eq!(update(&old, json!({"status": {"phase": "Running"}})), "");
    let elsewhere = pod_of(json!({"spec": {"nodeName": "n2"}}));
    let unbound = pod_of(json!({"spec": {"nodeName": null}}));
    for old in [&elsewhere, &unbound] {
        assert_eq!(
            update(old, json!({"spec": {"nodeName": "n1"}})),
            "node \"n1\" can only update pod status for pods with spec.nodeName set to itself"
        );
    }
    assert_eq!(
        update(&old, json!({"metadata": {"labels": {"app": "db"}}})),
        "node \"n1\" cannot update labels through pod status"
    );
    assert_eq!(
        update(
            &old,
            json!({"status": {"resourceClaimStatuses": [{"name": "x"}]}})
        ),
        "node \"n1\" cannot update resource claim statues"
    );
}

#[test]
fn a_node_deletes_and_evicts_its_own_pods() {
    let own = pod_of(json!({}));
    let elsewhere = pod_of(json!({"spec": {"nodeName": "n2"}}));
    let unbound = pod_of(json!({"spec": {"nodeName": null}}));
    assert_eq!(answer(&NodeWrite::DeletePod(&own)), "");
    assert_eq!(answer(&NodeWrite::EvictPod(&own)), "");
    for other in [&elsewhere, &unbound] {
        assert_eq!(
            answer(&NodeWrite::DeletePod(other)),
            "node \"n1\" can only delete pods with spec.nodeName set to itself"
        );
        assert_eq!(
            answer(&NodeWrite::EvictPod(other)),
            "node n1 can only evict pods with spec.nodeName set to itself"
        );
    }
}

#[test]
fn a_node_writes_nothing_else_of_pods() {
    assert_eq!(
        answer(&NodeWrite::UpdatePod),
        "unexpected operation \"UPDATE\", node \"n1\" can only create and delete mirror pods"
    );
    for subresource in ["binding", "ephemeralcontainers", "resize"] {
        assert_eq!(
            answer(&NodeWrite::OtherOfPod { subresource }),
            format!(
                "unexpected pod subresource {subresource:?}, only 'status' and 'eviction' are allowed"
            )
        );
    }
}

#[test]
fn a_node_writes_its_own_lease() {
    let write = |namespace, name| answer(&NodeWrite::Lease { namespace, name });
    assert_eq!(write("kube-node-lease", "n1"), "");
    for name in ["n2", ""] {
        assert_eq!(
            write("kube-node-lease", name),
            "can only access node lease with the same name as the requesting node"
        );
    }
    assert_eq!(
        write("kube-system", "n1"),
        "can only access leases in the \"kube-node-lease\" system namespace"
    );
}

#[test]
fn a_node_gets_tokens_bound_to_its_own_pods() {
    fn request(namespace: &str, bound: Value, audiences: Value) -> String {
        let base = json!({"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "pod-1"});
        let bound = match bound {
            Value::Null => Value::Null,
            bound => merged(base, bound),
        };
        let spec = json!({"audiences": audiences, "boundObjectRef": bound});
        let request: TokenRequest = serde_json::from_value(json!({"spec": spec})).unwrap();
        answer(&NodeWrite::RequestToken {
            namespace,
            request: &request,
        })
    }
    assert_eq!(request("prod", json!({}), json!([])), "");
    assert_eq!(request("prod", json!({}), json!([""])), "");
    for unbound in [
        Value::Null,
        json!({"kind": "Secret"}),
        json!({"apiVersion": "v2"}),
        json!({"name": null}),
        json!({"name": ""}),
    ] {
        assert_eq!(
            request("prod", unbound, json!([])),
            "node requested token not bound to a pod"
        );
    }
    for uid in [Value::Null, json!("")] {
        assert_eq!(
            request("prod", json!({"uid": uid}), json!([])),
            "node requested token with a pod binding without a uid"
        );
    }
    assert_eq!(
        request("prod", json!({"uid": "pod-0"}), json!([])),
        "the UID in the bound object reference (pod-0) does not match the UID in record. The object \
         might have been deleted and then recreated"
    );
    assert_eq!(
        request("prod", json!({"name": "other"}), json!([])),
        "node requested token bound to a pod scheduled on a different node"
    );
    assert_eq!(
        request("test", json!({}), json!([])),
        "pods \"web\" not found"
    );
    assert_eq!(
        request("prod", json!({}), json!(["vault"])),
        "audience \"vault\" not found in pod spec volume"
    );
    assert_eq!(
        request("prod", json!({}), json!(["", "vault"])),
        "node may only request 0 or 1 audiences"
    );
}

#[test]
fn the_audiences_of_a_token_are_those_of_the_pods_volumes() {
    let token =
        |audience: Value| json!({"serviceAccountToken": {"path": "t", "audience": audience}});
    let volume = |sources: Value| json!({"name": "v", "projected": {"sources": sources}});
    let mut relations = RelationIndex::new();
    let of_pod = [token(json!("vault")), token(Value::Null)];
    let mut may = |tokens: usize, audiences: Value| {
        let volumes = json!([volume(json!(of_pod[..tokens])), {"name": "w", "emptyDir": {}}]);
        relations.apply_pod(&pod_of(json!({"spec": {"volumes": volumes}})));
        let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "pod-1"});
        let spec = json!({"audiences": audiences, "boundObjectRef": bound});
        let request: TokenRequest = serde_json::from_value(json!({"spec": spec})).unwrap();
        let write = NodeWrite::RequestToken {
            namespace: "prod",
            request: &request,
        };
        admit(&Identity::node("n1"), &write, &relations).is_ok()
    };
    assert!(may(2, json!(["vault"])) && may(1, json!(["vault"])) && !may(0, json!(["vault"])));
    // That of the API server is in the volume that admission adds, unless the pod does not want it.
    assert!(may(2, json!([])) && !may(1, json!([])));
    assert!(!may(2, json!(["other"])));
}

#[test]
fn a_node_asks_for_certificates_of_its_own() {
    let write = |signer, common_name| {
        answer(&NodeWrite::CreateSigningRequest {
            signer,
            common_name,
        })
    };
    for signer in [
        "kubernetes.io/kubelet-serving",
        "kubernetes.io/kube-apiserver-client-kubelet",
    ] {
        assert_eq!(write(signer, Ok("system:node:n1")), "");
        for name in ["system:node:n2", "system:node:n1x", "n1", ""] {
            assert_eq!(
                write(signer, Ok(name)),
                "can only create a node CSR with CN=system:node:n1"
            );
        }
        assert_eq!(
            write(signer, Err("not a request")),
            "unable to parse csr: not a request"
        );
    }
    assert_eq!(write("example.com/signer", Ok("ada")), "");
    assert_eq!(write("example.com/signer", Err("not a request")), "");
}
