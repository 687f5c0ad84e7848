//! Known results of patches in Kubernetes: by name the kind, the object, the patch, and the result
//! or the error's text.

use serde_json::{Value, json};

pub(crate) struct PatchCase {
    pub(crate) name: &'static str,
    pub(crate) kind: (&'static str, &'static str, &'static str),
    pub(crate) object: Value,
    pub(crate) patch: Value,
    pub(crate) expected: Result<Value, &'static str>,
}

const POD: (&str, &str, &str) = ("", "v1", "Pod");
const NODE: (&str, &str, &str) = ("", "v1", "Node");
const DEPLOYMENT: (&str, &str, &str) = ("apps", "v1", "Deployment");

/// All cases of strategic merge patches. Objects are without apiVersion, kind and name.
#[expect(clippy::too_many_lines, reason = "a table")]
pub(crate) fn strategic() -> Vec<PatchCase> {
    let case = |name, kind, object, patch, expected| PatchCase {
        name,
        kind,
        object,
        patch,
        expected,
    };
    let containers = |list: Value| json!({"spec": {"containers": list}});
    let two = containers(json!([{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]));
    let finalizers = |list: Value| json!({"metadata": {"finalizers": list}});
    vec![
        case(
            "containers merge by name",
            POD,
            two.clone(),
            containers(json!([{"name": "b", "image": "2"}])),
            Ok(containers(
                json!([{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]),
            )),
        ),
        case(
            "a new container goes first",
            POD,
            two.clone(),
            containers(json!([{"name": "c"}])),
            Ok(containers(
                json!([{"name": "c"}, {"name": "a", "image": "1"}, {"name": "b", "image": "1"}]),
            )),
        ),
        case(
            "a container is deleted by name",
            POD,
            two.clone(),
            containers(json!([{"name": "a", "$patch": "delete"}])),
            Ok(containers(json!([{"name": "b", "image": "1"}]))),
        ),
        case(
            "a list is replaced whole",
            POD,
            two.clone(),
            containers(json!([{"name": "c"}, {"$patch": "replace"}])),
            Ok(containers(json!([{"name": "c"}]))),
        ),
        case(
            "order is set",
            POD,
            two.clone(),
            json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}}),
            Ok(containers(
                json!([{"name": "b", "image": "1"}, {"name": "a", "image": "1"}]),
            )),
        ),
        case(
            "what kubectl apply sends for a renamed container",
            POD,
            two.clone(),
            json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "c"}], "containers": [{"name": "c"}, {"name": "a", "$patch": "delete"}]}}),
            Ok(containers(
                json!([{"name": "b", "image": "1"}, {"name": "c"}]),
            )),
        ),
        case(
            "env merges by name below",
            POD,
            containers(
                json!([{"name": "a", "env": [{"name": "x", "value": "1"}, {"name": "y", "value": "1"}]}]),
            ),
            containers(
                json!([{"name": "a", "env": [{"name": "y", "value": null}, {"name": "x", "$patch": "delete"}]}]),
            ),
            Ok(containers(json!([{"name": "a", "env": [{"name": "y"}]}]))),
        ),
        case(
            "ports merge by containerPort alone",
            POD,
            containers(
                json!([{"name": "a", "ports": [{"containerPort": 53, "protocol": "TCP"}, {"containerPort": 53, "protocol": "UDP"}]}]),
            ),
            containers(json!([{"name": "a", "ports": [{"containerPort": 53, "name": "dns"}]}])),
            Ok(containers(
                json!([{"name": "a", "ports": [{"containerPort": 53, "protocol": "TCP", "name": "dns"}, {"containerPort": 53, "protocol": "UDP"}]}]),
            )),
        ),
        case(
            "args are replaced",
            POD,
            containers(json!([{"name": "a", "args": ["1", "2"]}])),
            containers(json!([{"name": "a", "args": ["3"]}])),
            Ok(containers(json!([{"name": "a", "args": ["3"]}]))),
        ),
        case(
            "tolerations are replaced",
            POD,
            json!({"spec": {"tolerations": [{"key": "a"}]}}),
            json!({"spec": {"tolerations": [{"key": "b"}]}}),
            Ok(json!({"spec": {"tolerations": [{"key": "b"}]}})),
        ),
        case(
            "volumes keep the keys that are named",
            POD,
            json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}),
            json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/"}}]}}),
            Ok(json!({"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}})),
        ),
        case(
            "taints are replaced, as kubectl taint wants it",
            NODE,
            json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}),
            json!({"spec": {"taints": [{"key": "b", "effect": "NoExecute"}]}}),
            Ok(json!({"spec": {"taints": [{"key": "b", "effect": "NoExecute"}]}})),
        ),
        case(
            "the last taint goes",
            NODE,
            json!({"spec": {"podCIDR": "10.0.0.0/24", "taints": [{"key": "a"}]}}),
            json!({"spec": {"taints": null}}),
            Ok(json!({"spec": {"podCIDR": "10.0.0.0/24"}})),
        ),
        case(
            "cordon",
            NODE,
            json!({"spec": {}}),
            json!({"spec": {"unschedulable": true}}),
            Ok(json!({"spec": {"unschedulable": true}})),
        ),
        case(
            "uncordon",
            NODE,
            json!({"spec": {"unschedulable": true}}),
            json!({"spec": {"unschedulable": null}}),
            Ok(json!({"spec": {}})),
        ),
        case(
            "podCIDRs merge",
            NODE,
            json!({"spec": {"podCIDRs": ["10.0.0.0/24"]}}),
            json!({"spec": {"podCIDRs": ["fd00::/64"]}}),
            Ok(json!({"spec": {"podCIDRs": ["fd00::/64", "10.0.0.0/24"]}})),
        ),
        case(
            "what kubectl apply sends for another podCIDR",
            NODE,
            json!({"spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"]}}),
            json!({"spec": {"$deleteFromPrimitiveList/podCIDRs": ["10.0.0.0/24"], "$setElementOrder/podCIDRs": ["10.0.1.0/24"],
                "podCIDR": "10.0.1.0/24", "podCIDRs": ["10.0.1.0/24"]}}),
            Ok(json!({"spec": {"podCIDR": "10.0.1.0/24", "podCIDRs": ["10.0.1.0/24"]}})),
        ),
        case(
            "conditions merge by type",
            NODE,
            json!({"status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "DiskPressure", "status": "False"}]}}),
            json!({"status": {"$setElementOrder/conditions": [{"type": "DiskPressure"}, {"type": "Ready"}], "conditions": [{"type": "Ready", "status": "True"}]}}),
            Ok(
                json!({"status": {"conditions": [{"type": "DiskPressure", "status": "False"}, {"type": "Ready", "status": "True"}]}}),
            ),
        ),
        case(
            "owners merge by uid",
            POD,
            json!({"metadata": {"ownerReferences": [{"uid": "1", "controller": true}]}}),
            json!({"metadata": {"ownerReferences": [{"uid": "1", "$patch": "delete"}, {"uid": "2"}]}}),
            Ok(json!({"metadata": {"ownerReferences": [{"uid": "2"}]}})),
        ),
        case(
            "finalizers merge",
            POD,
            finalizers(json!(["a", "b"])),
            finalizers(json!(["b", "c"])),
            Ok(finalizers(json!(["a", "b", "c"]))),
        ),
        case(
            "finalizers go one by one",
            POD,
            finalizers(json!(["a", "b"])),
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}),
            Ok(finalizers(json!(["b"]))),
        ),
        case(
            "labels",
            POD,
            json!({"metadata": {"labels": {"a": "1", "b": "1"}}}),
            json!({"metadata": {"labels": {"a": null, "c": "2"}}}),
            Ok(json!({"metadata": {"labels": {"b": "1", "c": "2"}}})),
        ),
        case(
            "a strategy keeps the keys that are named",
            DEPLOYMENT,
            json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}),
            json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}),
            Ok(json!({"spec": {"strategy": {"type": "Recreate"}}})),
        ),
        case(
            "a strategy is replaced",
            DEPLOYMENT,
            json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}),
            json!({"spec": {"strategy": {"$patch": "replace", "type": "Recreate"}}}),
            Ok(json!({"spec": {"strategy": {"type": "Recreate"}}})),
        ),
        case(
            "a map is deleted",
            DEPLOYMENT,
            json!({"spec": {"strategy": {"type": "Recreate"}}}),
            json!({"spec": {"strategy": {"$patch": "delete"}}}),
            Ok(json!({"spec": {"strategy": {}}})),
        ),
        case(
            "what kubectl set image sends",
            DEPLOYMENT,
            json!({"spec": {"template": two}}),
            json!({"spec": {"template": {"spec": {"$setElementOrder/containers": [{"name": "a"}, {"name": "b"}], "containers": [{"name": "a", "image": "9"}]}}}}),
            Ok(
                json!({"spec": {"template": containers(json!([{"name": "a", "image": "9"}, {"name": "b", "image": "1"}]))}}),
            ),
        ),
        case(
            "an unknown field is for the decoder to refuse",
            POD,
            json!({"spec": {}}),
            json!({"spec": {"sepc": {"a": 1}}}),
            Ok(json!({"spec": {"sepc": {"a": 1}}})),
        ),
        case(
            "no merge key",
            POD,
            two.clone(),
            containers(json!([{"image": "x"}])),
            Err("map: map[image:x] does not contain declared merge key: name"),
        ),
        case(
            "an unknown directive",
            POD,
            two.clone(),
            containers(json!([{"name": "a", "$patch": "bogus"}])),
            Err("unknown patch type: bogus in map: map[$patch:bogus name:a]"),
        ),
        case(
            "merge is not a directive of elements",
            POD,
            two.clone(),
            containers(json!([{"name": "a", "$patch": "merge"}])),
            Err("merging lists cannot yet be specified in the patch"),
        ),
        case(
            "retained keys must name what is set",
            POD,
            two.clone(),
            json!({"spec": {"$retainKeys": ["containers"], "hostNetwork": true}}),
            Err("invalid patch format of retainKeys"),
        ),
        case(
            "a deletion without a field",
            POD,
            two.clone(),
            json!({"metadata": {"$deleteFromPrimitiveList": ["a"]}}),
            Err("invalid patch format of primitive list"),
        ),
        case(
            "an order without a field",
            POD,
            two.clone(),
            json!({"metadata": {"$setElementOrder": ["a"]}}),
            Err("invalid patch format of setElementOrder list"),
        ),
        case(
            "an order of an unknown field",
            POD,
            two.clone(),
            json!({"metadata": {"$setElementOrder/nope": ["a"]}}),
            Err(r#"unable to find api field in struct ObjectMeta for the json field "nope""#),
        ),
        case(
            "an order that is not a list",
            POD,
            finalizers(json!(["a"])),
            json!({"metadata": {"$setElementOrder/finalizers": 5}}),
            Err("expected a []interface {}, but received a int64"),
        ),
        case(
            "an order that does not fit",
            POD,
            two.clone(),
            json!({"spec": {"$setElementOrder/containers": [{"name": "b"}], "containers": [{"name": "a"}]}}),
            Err(
                "The order in patch list:\n[map[name:a]]\n doesn't match $setElementOrder list:\n[map[name:b]]\n",
            ),
        ),
        case(
            "elements of several types",
            POD,
            finalizers(json!(["a"])),
            finalizers(json!(["z", 1])),
            Err("list element types are not identical: [[a] [z 1]]"),
        ),
    ]
}
