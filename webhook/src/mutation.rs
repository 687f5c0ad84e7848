//! The request for an address: which new pods get it, and the patch that adds it.
//!
//! A pod on the pod network gets request and limit 1 of the resource of pod addresses, so that a
//! scheduler that counts extended resources counts addresses. It is pure.

use std::fmt;

use json_patch::{AddOperation, Patch, PatchOperation, jsonptr::PointerBuf};
use podplane_api::{
    Object as _, Quantity,
    core::{Container, Node, Pod, PodSpec, ResourceRequirements},
    pod_ips::{PodIpResource, is_host_network, is_mirror},
    taints::tolerates,
};
use serde_json::{Value, json};

/// The decision about a new pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Mutation {
    /// The pod gets the request by this patch.
    Add(Patch),
    /// The pod stays as it is.
    Keep(KeepReason),
}

/// The reason to leave a pod as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeepReason {
    /// The pod is on its node's network.
    HostNetwork,
    /// The pod is a mirror pod: it runs already, and its kubelet has its specification from a file.
    Mirror,
    /// A container or the pod itself names the resource, also with 0.
    NamesResource,
    /// The pod has no container, which the API server will refuse.
    NoContainer,
    /// There is no node for the pod.
    NoNode,
    /// A node for the pod does not publish the resource: with the request the pod could not be
    /// scheduled there.
    UnpublishedOn(String),
}

impl KeepReason {
    /// The label of the metric.
    pub fn label(&self) -> &'static str {
        match self {
            Self::HostNetwork => "host_network",
            Self::Mirror => "mirror",
            Self::NamesResource => "names_resource",
            Self::NoContainer => "no_container",
            Self::NoNode => "no_node",
            Self::UnpublishedOn(_) => "unpublished",
        }
    }
}

/// A note for the audit log.
impl fmt::Display for KeepReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HostNetwork => f.write_str("not added: the pod has hostNetwork"),
            Self::Mirror => f.write_str("not added: the pod is a mirror pod"),
            Self::NamesResource => f.write_str("not added: the pod names the resource"),
            Self::NoContainer => f.write_str("not added: the pod has no container"),
            Self::NoNode => f.write_str("not added: no node is schedulable for the pod"),
            Self::UnpublishedOn(node) => {
                write!(f, "not added: node {node} does not publish the resource")
            }
        }
    }
}

/// Decides about a new pod.
///
/// The request is added only if every schedulable node publishes the resource in
/// `status.allocatable`. A node counts if it is Ready, is not cordoned or being deleted, and the
/// pod tolerates its taints with the effects NoSchedule and NoExecute. So control planes and virtual
/// nodes, which have such taints, count only for the pods that may go there.
pub fn plan<'a>(
    pod: &Pod,
    nodes: impl IntoIterator<Item = &'a Node>,
    resource: &PodIpResource,
) -> Mutation {
    if is_host_network(pod) {
        return Mutation::Keep(KeepReason::HostNetwork);
    }
    if is_mirror(pod) {
        return Mutation::Keep(KeepReason::Mirror);
    }
    let spec = pod.spec.as_ref();
    let Some((spec, container)) = spec.and_then(|spec| Some((spec, spec.containers.first()?)))
    else {
        return Mutation::Keep(KeepReason::NoContainer);
    };
    if names(spec, resource) {
        return Mutation::Keep(KeepReason::NamesResource);
    }
    let mut has_node = false;
    for node in nodes.into_iter().filter(|node| is_schedulable(node, spec)) {
        if !publishes(node, resource) {
            let node = node.name().to_owned();
            return Mutation::Keep(KeepReason::UnpublishedOn(node));
        }
        has_node = true;
    }
    match has_node {
        true => Mutation::Add(patch(container, resource)),
        false => Mutation::Keep(KeepReason::NoNode),
    }
}

/// Returns true if the node publishes an amount of the resource, also 0.
pub fn publishes(node: &Node, resource: &PodIpResource) -> bool {
    let status = node.status.as_ref();
    let allocatable = status.and_then(|status| status.allocatable.as_ref());
    allocatable.is_some_and(|amounts| amounts.contains_key(resource.as_str()))
}

/// Returns true if a pod with tolerations of everything could be scheduled to the node.
pub fn is_open(node: &Node) -> bool {
    let spec = node.spec.as_ref();
    let is_cordoned = spec.is_some_and(|spec| spec.unschedulable == Some(true));
    let status = node.status.as_ref();
    let mut conditions = status.iter().flat_map(|s| s.conditions.iter().flatten());
    let is_ready = conditions.any(|c| c.type_ == "Ready" && c.status == "True");
    is_ready && !is_cordoned && !node.is_deleting()
}

fn is_schedulable(node: &Node, spec: &PodSpec) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let mut repelling = taints
        .into_iter()
        .flatten()
        .filter(|taint| matches!(&*taint.effect, "NoSchedule" | "NoExecute"));
    let tolerations = || spec.tolerations.iter().flatten();
    is_open(node)
        && repelling.all(|taint| tolerations().any(|toleration| tolerates(toleration, taint)))
}

fn names(spec: &PodSpec, resource: &PodIpResource) -> bool {
    type Amounts = std::collections::BTreeMap<String, Quantity>;
    let has = |amounts: Option<&Amounts>| {
        amounts.is_some_and(|amounts| amounts.contains_key(resource.as_str()))
    };
    let in_requirements = |resources: Option<&ResourceRequirements>| {
        resources.is_some_and(|r| has(r.requests.as_ref()) || has(r.limits.as_ref()))
    };
    let init = spec.init_containers.iter().flatten();
    let mut containers = spec.containers.iter().chain(init);
    containers.any(|container| in_requirements(container.resources.as_ref()))
        || in_requirements(spec.resources.as_ref())
        || has(spec.overhead.as_ref())
}

/// Adds request and limit to the first container. One container is enough: the request of a pod is
/// at least the sum over its containers, and init containers run before them and need no more.
fn patch(container: &Container, resource: &PodIpResource) -> Patch {
    let amount = || json!("1");
    let amounts = || json!({resource.as_str(): "1"});
    let place = ["spec", "containers", "0", "resources"];
    let add = |tokens: &[&str], value: Value| {
        PatchOperation::Add(AddOperation {
            path: PointerBuf::from_tokens(tokens.iter().copied()),
            value,
        })
    };
    let Some(resources) = &container.resources else {
        let both = json!({"requests": amounts(), "limits": amounts()});
        return Patch(vec![add(&place, both)]);
    };
    let part = |name: &str, present: bool| {
        let [spec, containers, number, resources] = place;
        match present {
            true => add(
                &[spec, containers, number, resources, name, resource.as_str()],
                amount(),
            ),
            false => add(&[spec, containers, number, resources, name], amounts()),
        }
    };
    Patch(vec![
        part("requests", resources.requests.is_some()),
        part("limits", resources.limits.is_some()),
    ])
}

#[cfg(test)]
mod tests {
    use podplane_api::pod_ips::POD_IPS;

    use super::*;

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"spec": spec})).unwrap()
    }

    fn node(name: &str, change: impl FnOnce(&mut Value)) -> Node {
        let mut node = json!({
            "metadata": {"name": name},
            "spec": {},
            "status": {
                "allocatable": {POD_IPS: "0"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        change(&mut node);
        serde_json::from_value(node).unwrap()
    }

    fn silent(name: &str, change: impl FnOnce(&mut Value)) -> Node {
        node(name, |node| {
            node["status"]["allocatable"] = json!({"pods": "110"});
            change(node);
        })
    }

    fn planned(pod: &Pod, nodes: &[Node]) -> Mutation {
        plan(pod, nodes, &PodIpResource::default())
    }

    /// The pod with the patch.
    fn patched(before: Value) -> Value {
        let Mutation::Add(patch) = planned(&pod(before.clone()), &[node("a", |_| {})]) else {
            panic!("{before} is kept");
        };
        let mut all = json!({"spec": before});
        json_patch::patch(&mut all, &patch).unwrap();
        all["spec"].take()
    }

    #[test]
    fn adds_request_and_limit_to_the_first_container() {
        let one = json!({"requests": {POD_IPS: "1"}, "limits": {POD_IPS: "1"}});
        let cpu = json!({"requests": {"cpu": "1"}});
        let both = json!({"requests": {"cpu": "1", POD_IPS: "1"}, "limits": {POD_IPS: "1"}});
        let init = json!([{"name": "i"}]);
        for (resources, want) in [
            (json!(null), &one),
            (json!({}), &one),
            (json!({"requests": {}}), &one),
            (cpu, &both),
        ] {
            let containers = json!([{"name": "a", "resources": resources}, {"name": "b"}]);
            let spec = patched(json!({"containers": containers, "initContainers": init}));
            assert_eq!(spec["containers"][0]["resources"], *want);
            assert_eq!(spec["containers"][1], json!({"name": "b"}));
            assert_eq!(spec["initContainers"], init);
            // The API server may ask again about the pod with the patch.
            let again = planned(&pod(spec), &[node("a", |_| {})]);
            assert_eq!(again, Mutation::Keep(KeepReason::NamesResource));
        }
    }

    #[test]
    fn keeps_pods_that_need_no_request() {
        let named =
            |part: &str, amount: &str| json!({"name": "c", "resources": {part: {POD_IPS: amount}}});
        let plain = json!({"name": "c"});
        for (spec, why) in [
            (
                json!({"containers": [plain], "hostNetwork": true}),
                KeepReason::HostNetwork,
            ),
            (json!({"containers": []}), KeepReason::NoContainer),
            (
                json!({"containers": [plain, named("requests", "2")]}),
                KeepReason::NamesResource,
            ),
            (
                json!({"containers": [named("limits", "1")]}),
                KeepReason::NamesResource,
            ),
            (
                json!({"containers": [named("requests", "0")]}),
                KeepReason::NamesResource,
            ),
            (
                json!({"containers": [plain], "initContainers": [named("requests", "1")]}),
                KeepReason::NamesResource,
            ),
            (
                json!({"containers": [plain], "resources": {"requests": {POD_IPS: "1"}}}),
                KeepReason::NamesResource,
            ),
            (
                json!({"containers": [plain], "overhead": {POD_IPS: "1"}}),
                KeepReason::NamesResource,
            ),
        ] {
            let kept = planned(&pod(spec.clone()), &[node("a", |_| {})]);
            assert_eq!(kept, Mutation::Keep(why), "{spec}");
        }
        let mut mirror = pod(json!({"containers": [plain]}));
        let annotation = ("kubernetes.io/config.mirror".to_owned(), "x".to_owned());
        mirror.metadata.annotations = Some([annotation].into());
        let kept = planned(&mirror, &[node("a", |_| {})]);
        assert_eq!(kept, Mutation::Keep(KeepReason::Mirror));
    }

    #[test]
    fn adds_only_if_every_schedulable_node_publishes_the_resource() {
        let taint = |effect: &str| json!([{"key": "k", "effect": effect}]);
        let virtual_node = |effect| silent("v", |node| node["spec"]["taints"] = taint(effect));
        let all = json!([{"operator": "Exists"}]);
        let other = json!([{"key": "x", "operator": "Exists"}]);
        let silent_on = |name: &str| Some(KeepReason::UnpublishedOn(name.to_owned()));
        let cordoned = silent("c", |node| node["spec"]["unschedulable"] = json!(true));
        let not_ready = silent("n", |node| {
            node["status"]["conditions"][0]["status"] = json!("Unknown");
        });
        let new = silent("w", |node| node["status"]["conditions"] = json!(null));
        let leaving = silent("l", |node| {
            node["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        });
        let good = node("a", |_| {});
        for (nodes, tolerations, why) in [
            (vec![good.clone()], json!(null), None),
            (vec![], json!(null), Some(KeepReason::NoNode)),
            (
                vec![cordoned.clone()],
                json!(null),
                Some(KeepReason::NoNode),
            ),
            (
                vec![good.clone(), silent("s", |_| {})],
                json!(null),
                silent_on("s"),
            ),
            (
                vec![good.clone(), cordoned, not_ready, new, leaving],
                all.clone(),
                None,
            ),
            (
                vec![good.clone(), virtual_node("NoSchedule")],
                json!(null),
                None,
            ),
            (vec![good.clone(), virtual_node("NoExecute")], other, None),
            (
                vec![good.clone(), virtual_node("NoSchedule")],
                all,
                silent_on("v"),
            ),
            (
                vec![good, virtual_node("PreferNoSchedule")],
                json!(null),
                silent_on("v"),
            ),
        ] {
            let pod = pod(json!({"containers": [{"name": "c"}], "tolerations": tolerations}));
            let kept = match planned(&pod, &nodes) {
                Mutation::Add(_) => None,
                Mutation::Keep(why) => Some(why),
            };
            assert_eq!(kept, why, "{nodes:?}");
        }
    }
}
