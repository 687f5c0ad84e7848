//! PodTopologySpread.

use podplane_api::pod_ips::PodIpResource;
use serde_json::from_value;

use super::*;
use crate::{
    cache::NodeCache,
    explain::{Examination, examine_cached},
    testing::AsInfo as _,
};

const SKEW: &str = "node(s) didn't match pod topology spread constraints";
const NO_LABEL: &str =
    "node(s) didn't match pod topology spread constraints (missing required label)";

fn node(name: &str, zone: &str) -> NodeBuilder {
    let node = NodeBuilder::new(name).label("zone", zone);
    node.label("kubernetes.io/hostname", name)
}

/// Three nodes in two zones.
fn nodes() -> [NodeBuilder; 3] {
    [node("a", "x"), node("b", "x"), node("c", "y")]
}

fn web(name: &str) -> PodBuilder {
    PodBuilder::new(name).set("/metadata/labels", json!({"app": "web"}))
}

/// A constraint over `key` with the pods of the app web.
fn constraint(key: &str, when: &str) -> Value {
    json!({"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": when,
        "labelSelector": {"matchLabels": {"app": "web"}}})
}

fn with(constraint: &Value, field: &str, value: Value) -> Value {
    let mut changed = constraint.clone();
    changed[field] = value;
    changed
}

fn spread(pod: PodBuilder, constraints: &[Value]) -> PodBuilder {
    pod.set("/spec/topologySpreadConstraints", json!(constraints))
}

fn examined(nodes: &[NodeBuilder], pods: &[PodBuilder], pod: &PodBuilder) -> Examination {
    let nodes: Vec<_> = nodes.iter().map(NodeBuilder::node).collect();
    let pods: Vec<_> = pods.iter().map(|pod| (*pod.pod()).clone()).collect();
    examine_objects(&nodes, &pods, &[], IpPolicy::Off.into(), &pod.pod())
}

/// The reason of each node, empty for a feasible one.
fn refused(nodes: &[NodeBuilder], pods: &[PodBuilder], pod: &PodBuilder) -> Vec<String> {
    let verdicts = examined(nodes, pods, pod).nodes.into_iter();
    let reason = |refusal: NodeRefusal| refusal.reasons[0].to_string();
    verdicts
        .map(|verdict| verdict.result.map_or_else(reason, |_| String::new()))
        .collect()
}

/// Raw and normalised score of each node.
fn scores(nodes: &[NodeBuilder], pods: &[PodBuilder], pod: &PodBuilder) -> Vec<(i64, i64)> {
    let examined = examined(nodes, pods, pod);
    let plugins = examined.scores().flat_map(|score| score.plugins.clone());
    let spread = plugins.filter(|one| one.plugin == "PodTopologySpread");
    spread.map(|one| (one.raw, one.normalised)).collect()
}

#[test]
fn limits_the_difference_between_zones() {
    let zones = constraint("zone", "DoNotSchedule");
    let pod = spread(web("p"), std::slice::from_ref(&zones));
    assert_eq!(refused(&nodes(), &[], &pod), ["", "", ""]);
    let pods = [web("q").on("a")];
    assert_eq!(refused(&nodes(), &pods, &pod), [SKEW, SKEW, ""]);
    // A pod that the selector does not select may go anywhere: the skew stays 1.
    let other = spread(PodBuilder::new("p"), std::slice::from_ref(&zones));
    assert_eq!(refused(&nodes(), &pods, &other), ["", "", ""]);
    let two = spread(web("p"), &[with(&zones, "maxSkew", json!(2))]);
    assert_eq!(refused(&nodes(), &pods, &two), ["", "", ""]);
    // Other namespaces and pods in deletion do not count.
    let elsewhere = [web("q").namespace("other").on("a")];
    assert_eq!(refused(&nodes(), &elsewhere, &pod), ["", "", ""]);
    let time = json!("2026-01-01T00:00:00Z");
    let leaving = [web("q").on("a").set("/metadata/deletionTimestamp", time)];
    assert_eq!(refused(&nodes(), &leaving, &pod), ["", "", ""]);
    let ended = [web("q").on("a").ended("Succeeded", "")];
    assert_eq!(refused(&nodes(), &ended, &pod), ["", "", ""]);
}

#[test]
fn node_without_the_label_is_refused_and_not_counted() {
    let pod = spread(web("p"), &[constraint("zone", "DoNotSchedule")]);
    let bare = NodeBuilder::new("d");
    let nodes = [node("a", "x"), node("c", "y"), bare];
    let pods = [web("q").on("a"), web("r").on("d"), web("s").on("d")];
    assert_eq!(refused(&nodes, &pods, &pod), [SKEW, "", NO_LABEL]);
    let examined = examined(&nodes, &pods, &pod);
    let resolvable: Vec<_> = examined.refusals().map(|(_, one)| one.resolvable).collect();
    assert_eq!(
        resolvable,
        [Resolvability::ByPreemption, Resolvability::Never]
    );
}

#[test]
fn too_few_domains_count_as_an_empty_one() {
    let zones = constraint("zone", "DoNotSchedule");
    let pods = [web("q").on("a"), web("r").on("c")];
    let with_min = |least: i32| spread(web("p"), &[with(&zones, "minDomains", json!(least))]);
    assert_eq!(refused(&nodes(), &pods, &with_min(2)), ["", "", ""]);
    assert_eq!(refused(&nodes(), &pods, &with_min(3)), [SKEW; 3]);
}

#[test]
fn policies_include_nodes_by_affinity_and_taints() {
    let zones = constraint("zone", "DoNotSchedule");
    let nodes = [node("a", "x").label("disk", "ssd"), node("c", "y")];
    let pods = [web("q").on("a")];
    let selecting = |constraint: &Value| {
        let pod = web("p").set("/spec/nodeSelector", json!({"disk": "ssd"}));
        spread(pod, std::slice::from_ref(constraint))
    };
    let affinity = "node(s) didn't match Pod's node affinity/selector";
    // Zone y has no eligible node, so zone x is not fuller than any other.
    assert_eq!(refused(&nodes, &pods, &selecting(&zones)), ["", affinity]);
    let ignored = with(&zones, "nodeAffinityPolicy", json!("Ignore"));
    assert_eq!(
        refused(&nodes, &pods, &selecting(&ignored)),
        [SKEW, affinity]
    );

    let nodes = [node("a", "x"), node("c", "y").taint("k", "v", "NoSchedule")];
    let taint = "node(s) had untolerated taint {k: v}";
    let pod = spread(web("p"), std::slice::from_ref(&zones));
    assert_eq!(refused(&nodes, &pods, &pod), [SKEW, taint]);
    let pod = spread(
        web("p"),
        &[with(&zones, "nodeTaintsPolicy", json!("Honor"))],
    );
    assert_eq!(refused(&nodes, &pods, &pod), ["", taint]);
}

#[test]
fn every_constraint_must_hold_and_keys_narrow_the_selector() {
    let zones = constraint("zone", "DoNotSchedule");
    let hosts = constraint("kubernetes.io/hostname", "DoNotSchedule");
    let pods = [web("q").on("a"), web("r").on("c")];
    let pod = spread(web("p"), &[zones.clone(), hosts]);
    assert_eq!(refused(&nodes(), &pods, &pod), [SKEW, "", SKEW]);

    let labelled = |name: &str, hash: &str| {
        PodBuilder::new(name).set("/metadata/labels", json!({"app": "web", "hash": hash}))
    };
    let keyed = with(&zones, "matchLabelKeys", json!(["hash", "absent"]));
    let pods = [labelled("q", "1").on("a")];
    let same = spread(labelled("p", "1"), std::slice::from_ref(&keyed));
    assert_eq!(refused(&nodes(), &pods, &same), [SKEW, SKEW, ""]);
    let other = spread(labelled("p", "2"), std::slice::from_ref(&keyed));
    assert_eq!(refused(&nodes(), &pods, &other), ["", "", ""]);
}

#[test]
fn fuller_domains_score_less() {
    let soft = constraint("zone", "ScheduleAnyway");
    let pod = spread(web("p"), std::slice::from_ref(&soft));
    assert_eq!(scores(&nodes(), &[], &pod), [(0, 100); 3]);
    let pods = [web("q").on("a"), web("r").on("b"), web("s").on("c")];
    // ln(2 zones + 2) = 1.39 for each pod: 2.77 and 1.39; 100·(3+1-3)/3 and 100·(3+1-1)/3.
    assert_eq!(scores(&nodes(), &pods, &pod), [(3, 33), (3, 33), (1, 100)]);
    assert_eq!(refused(&nodes(), &pods, &pod), ["", "", ""]);
    let per_host = constraint("kubernetes.io/hostname", "ScheduleAnyway");
    let pod = spread(web("p"), &[per_host]);
    let pods = [web("q").on("a"), web("r").on("a")];
    // ln(3 nodes + 2) = 1.61 for each pod.
    assert_eq!(scores(&nodes(), &pods, &pod), [(3, 0), (0, 100), (0, 100)]);
    // A node without the label is the last choice.
    let nodes = [node("a", "x"), NodeBuilder::new("b"), node("c", "y")];
    let pod = spread(web("p"), &[soft]);
    assert_eq!(
        scores(&nodes, &[web("q").on("a")], &pod),
        [(1, 0), (0, 0), (0, 100)]
    );
}

const HOSTNAME: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";

/// Raw and normalised score of each node in a cluster with these services and ReplicaSets.
fn default_scores(
    nodes: &[NodeBuilder],
    pods: &[PodBuilder],
    workloads: &[Value],
    pod: &PodBuilder,
) -> Vec<(i64, i64)> {
    let nodes = nodes.iter().map(NodeBuilder::node);
    let pods = pods.iter().map(|pod| (*pod.info()).clone());
    let mut cache = NodeCache::of(nodes, pods, &[], &PodIpResource::default());
    for workload in workloads {
        match workload["kind"] == "Service" {
            true => cache
                .cluster_mut()
                .apply_service(&from_value(workload.clone()).unwrap()),
            false => cache
                .cluster_mut()
                .apply_replica_set(&from_value(workload.clone()).unwrap()),
        }
    }
    let examined = examine_cached(&mut cache, IpPolicy::Off.into(), &pod.pod());
    let plugins = examined.scores().flat_map(|score| score.plugins.clone());
    let spread = plugins.filter(|one| one.plugin == "PodTopologySpread");
    spread.map(|one| (one.raw, one.normalised)).collect()
}

fn service(namespace: &str, selector: &Value) -> Value {
    json!({"kind": "Service", "metadata": {"name": "web", "namespace": namespace},
        "spec": {"selector": selector}})
}

fn replica_set(name: &str, selector: &Value) -> Value {
    json!({"kind": "ReplicaSet", "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": selector}})
}

/// The pod with an owner of that kind and the name `web`.
fn owned(pod: PodBuilder, version: &str, kind: &str, is_controller: bool) -> PodBuilder {
    let owner = json!({"apiVersion": version, "kind": kind, "name": "web", "uid": "u",
        "controller": is_controller});
    pod.set("/metadata/ownerReferences", json!([owner]))
}

#[test]
fn pods_of_a_workload_are_spread_by_default() {
    let zoned = |name: &str, zone: &str| {
        let node = NodeBuilder::new(name).label(HOSTNAME, name);
        node.label(ZONE, zone)
    };
    let nodes = [zoned("a", "x"), zoned("b", "x"), zoned("c", "y")];
    let pods = [web("q").on("a"), PodBuilder::new("r").on("c")];
    let scores = |workloads: &[Value], pod: &PodBuilder| {
        let scores = default_scores(&nodes, &pods, workloads, pod);
        (!scores.is_empty()).then_some(scores)
    };
    // ln(3 nodes + 2) = 1.61 and ln(2 zones + 2) = 1.39 for each pod, and the slacks 2 and 4.
    let spread_out = Some(vec![(9, 66), (7, 88), (6, 100)]);
    let app = json!({"app": "web"});
    let in_default = service("default", &app);
    assert_eq!(
        scores(std::slice::from_ref(&in_default), &web("p")),
        spread_out
    );
    let set = replica_set("web", &json!({"matchLabels": app}));
    let of_set = owned(web("p"), "apps/v1", "ReplicaSet", true);
    assert_eq!(scores(std::slice::from_ref(&set), &of_set), spread_out);
    assert_eq!(
        scores(&[in_default.clone(), set.clone()], &of_set),
        spread_out
    );
    let expressions = json!([{"key": "app", "operator": "NotIn", "values": ["db"]},
        {"key": "app", "operator": "Exists"}]);
    let by_expressions = replica_set("web", &json!({"matchExpressions": expressions}));
    assert_eq!(scores(&[by_expressions], &of_set), spread_out);

    // Without a workload, or with constraints of its own, a pod is not.
    for (workload, pod) in [
        (service("other", &app), web("p")),
        (service("default", &json!({"app": "db"})), web("p")),
        (
            service("default", &json!({"app": "web", "tier": "x"})),
            web("p"),
        ),
        (service("default", &json!(null)), web("p")),
        (service("default", &json!({})), web("p")),
        (replica_set("web", &json!({})), of_set.clone()),
        (replica_set("other", &json!({"matchLabels": app})), of_set),
        (set.clone(), web("p")),
        (set.clone(), owned(web("p"), "apps/v1", "ReplicaSet", false)),
        (set.clone(), owned(web("p"), "batch/v1", "Job", true)),
        (set, owned(web("p"), "example.com/v1", "ReplicaSet", true)),
        (
            in_default.clone(),
            spread(web("p"), &[constraint("zone", "DoNotSchedule")]),
        ),
    ] {
        assert_eq!(
            scores(std::slice::from_ref(&workload), &pod),
            None,
            "{workload}"
        );
    }
}

#[test]
fn all_workloads_of_a_pod_narrow_the_selector() {
    let nodes = nodes();
    let labelled = |name: &str, hash: &str| {
        PodBuilder::new(name).set("/metadata/labels", json!({"app": "web", "hash": hash}))
    };
    let pods = [labelled("q", "1").on("a"), labelled("r", "2").on("b")];
    let service = service("default", &json!({"app": "web"}));
    let set = replica_set("web", &json!({"matchLabels": {"hash": "1"}}));
    let pod = labelled("p", "1");
    let raw = |workloads: &[Value], pod: &PodBuilder| {
        let scores = default_scores(&nodes, &pods, workloads, pod);
        scores.into_iter().map(|(raw, _)| raw).collect::<Vec<_>>()
    };
    // ln(3 nodes + 2) = 1.61 for each pod, and the slack 2.
    assert_eq!(raw(std::slice::from_ref(&service), &pod), [4, 4, 2]);
    let of_set = owned(pod, "apps/v1", "ReplicaSet", true);
    assert_eq!(raw(&[service, set], &of_set), [4, 2, 2]);
}

#[test]
fn nodes_without_a_zone_are_spread_over_by_default() {
    let bare = |name: &str| NodeBuilder::new(name).label(HOSTNAME, name);
    let workloads = [service("default", &json!({"app": "web"}))];
    let nodes = [
        bare("a").label(ZONE, "x"),
        bare("b"),
        bare("c"),
        NodeBuilder::new("d"),
    ];
    let pods = [web("q").on("b")];
    // ln(4 nodes + 2) = 1.79 for each pod on a node, and the slacks 2 and, with a zone, 4.
    assert_eq!(
        default_scores(&nodes, &pods, &workloads, &web("p")),
        [(6, 0), (4, 33), (2, 66), (0, 100)]
    );
    // The nodes without a zone are one more, that of the empty value: ln(2 zones + 2) = 1.39.
    let nodes = [
        bare("a").label(ZONE, ""),
        bare("b"),
        bare("c").label(ZONE, "x"),
    ];
    assert_eq!(
        default_scores(&nodes, &pods, &workloads, &web("p")),
        [(7, 57), (4, 100), (6, 71)]
    );
}
