use super::*;
use crate::{
    config::{IpPolicy, PlacementPolicy},
    explain::{Examination, examine_objects},
    testing::{NodeBuilder, PodBuilder},
};

/// The examination of a pod in a cluster of nodes and pods on them.
fn examined(
    policy: PlacementPolicy,
    nodes: &[NodeBuilder],
    pods: &[PodBuilder],
    pod: &PodBuilder,
) -> Examination {
    let nodes: Vec<_> = nodes.iter().map(NodeBuilder::node).collect();
    let pods: Vec<_> = pods.iter().map(|pod| (*pod.pod()).clone()).collect();
    examine_objects(&nodes, &pods, &[], policy, &pod.pod())
}

/// Raw and normalised score of each node by one plugin.
fn scores(
    plugin: &str,
    nodes: &[NodeBuilder],
    pods: &[PodBuilder],
    pod: &PodBuilder,
) -> Vec<(i64, i64)> {
    let examined = examined(IpPolicy::Resource.into(), nodes, pods, pod);
    let of = |score: &NodeScore| {
        let mut plugins = score.plugins.iter();
        let found = plugins.find(|one| one.plugin == plugin);
        found.map(|one| (one.raw, one.normalised))
    };
    examined.scores().filter_map(of).collect()
}

/// A node with addresses.
fn node(name: &str) -> NodeBuilder {
    NodeBuilder::new(name).block("10.0.0.0/24", 253)
}

#[test]
fn least_allocated_matches_the_reference() {
    // Empty 4 CPU/32 Gi node: (4000-100)*100/4000 = 97, (32Gi-200Mi)*100/32Gi = 99; their mean is
    // 98.
    let node = || node("n").offer("cpu", "4").offer("memory", "32Gi");
    let least = |node: NodeBuilder, pods: &[PodBuilder], pod: PodBuilder| {
        scores("NodeResourcesFit", &[node], pods, &pod)[0].0
    };
    let plain = || PodBuilder::new("p");
    assert_eq!(least(node(), &[], plain()), 98);
    let big = PodBuilder::new("big").ask("cpu", "4").ask("memory", "16Gi");
    assert_eq!(least(node(), &[big.on("n")], plain()), 24); // (0 + 49) / 2
    let zero = || plain().ask("cpu", "0").ask("memory", "0");
    assert_eq!(least(node().offer("cpu", "0"), &[], zero()), 100);
    assert_eq!(
        least(node().offer("cpu", "0").offer("memory", "0"), &[], zero()),
        0
    );
    assert_eq!(
        least(node().offer("memory", "0"), &[], plain().ask("cpu", "1")),
        75
    );
    assert_eq!(
        least(
            node(),
            &[],
            plain().ask("cpu", "100m").ask("memory", "500Mi")
        ),
        97
    );
}

#[test]
fn balanced_allocation_is_the_deviation_of_used_parts() {
    let node = || node("n").offer("cpu", "4").offer("memory", "32Gi");
    let balance = |node: NodeBuilder, pods: &[PodBuilder], pod: PodBuilder| {
        let found = scores("NodeResourcesBalancedAllocation", &[node], pods, &pod);
        found.first().map(|(raw, normalised)| {
            assert_eq!(raw, normalised);
            *raw
        })
    };
    let pod = || {
        PodBuilder::new("p")
            .ask("cpu", "100m")
            .ask("memory", "500Mi")
    };
    assert_eq!(balance(node(), &[], pod()), Some(99));
    assert_eq!(
        balance(node(), &[], PodBuilder::new("p")),
        None,
        "best effort"
    );
    let cpu = || PodBuilder::new("p").ask("cpu", "2");
    assert_eq!(balance(node(), &[], cpu()), Some(75)); // |0.5 - 0| / 2
    // Defaults for absent requests do not count here.
    let without = PodBuilder::new("q").on("n");
    assert_eq!(balance(node(), &[without], cpu()), Some(75));
    let over = PodBuilder::new("q").ask("memory", "64Gi").on("n");
    assert_eq!(balance(node(), &[over], cpu()), Some(75)); // |0.5 - 1| / 2
    assert_eq!(balance(node().offer("memory", "0"), &[], cpu()), Some(100));
}

#[test]
fn preferred_node_affinity_sums_weights_and_scales_to_the_best() {
    let term = |weight: i32, expressions: serde_json::Value| serde_json::json!({"weight": weight, "preference": {"matchExpressions": expressions}});
    let zone =
        |zone: &str| serde_json::json!([{"key": "zone", "operator": "In", "values": [zone]}]);
    let ssd = serde_json::json!([{"key": "disk", "operator": "Exists"}]);
    let pod = |terms: serde_json::Value| {
        let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
        let affinity = serde_json::json!({"nodeAffinity": {preferred: terms}});
        PodBuilder::new("p").set("/spec/affinity", affinity)
    };
    let nodes = [
        node("a").label("zone", "x"),
        node("b").label("zone", "x").label("disk", "ssd"),
        node("c").label("zone", "y"),
    ];
    let wanted = pod(serde_json::json!([
        term(20, zone("x")),
        term(40, ssd),
        term(9, serde_json::json!([]))
    ]));
    let found = scores("NodeAffinity", &nodes, &[], &wanted);
    assert_eq!(found, [(20, 33), (60, 100), (0, 0)]);
    let none = pod(serde_json::json!([term(5, zone("z"))]));
    assert_eq!(scores("NodeAffinity", &nodes, &[], &none), [(0, 0); 3]);
    assert_eq!(
        scores("NodeAffinity", &nodes, &[], &PodBuilder::new("p")),
        []
    );
}

#[test]
fn node_with_most_soft_taints_scores_nothing() {
    let nodes = [node("a").taint("k", "v", "PreferNoSchedule"), node("b")];
    let pod = PodBuilder::new("p");
    assert_eq!(
        scores("TaintToleration", &nodes, &[], &pod),
        [(1, 0), (0, 100)]
    );
    let tolerant = PodBuilder::new("p").tolerate("k");
    assert_eq!(
        scores("TaintToleration", &nodes, &[], &tolerant),
        [(0, 100); 2]
    );
}

#[test]
fn breaks_ties_by_free_ips_then_pods_then_order() {
    let policy = PlacementPolicy {
        pod_ips_weight: 0,
        ..IpPolicy::Resource.into()
    };
    let best = |nodes: &[NodeBuilder], pods: &[PodBuilder]| {
        let mut cache = crate::cache::NodeCache::default();
        for node in nodes {
            cache.apply_node(std::sync::Arc::new(node.node()));
        }
        for pod in pods {
            let pod =
                std::sync::Arc::new(crate::pod::PodInfo::new(&pod.pod(), &Default::default()));
            let node = pod.node_name.clone().unwrap();
            cache.confirm(pod, &node);
        }
        let pod = crate::pod::PodInfo::new(&PodBuilder::new("p").pod(), &Default::default());
        let framework = Framework::new(policy.clone());
        let decision = crate::plan::plan(cache.cluster(), &pod, &framework, 0);
        decision.node.unwrap().node.to_string()
    };
    let a = NodeBuilder::new("a").block("10.0.0.0/29", 5);
    let b = NodeBuilder::new("b").block("10.0.1.0/29", 5);
    let c = NodeBuilder::new("c").block("10.0.2.0/28", 13);
    let d = NodeBuilder::new("d").block("10.0.3.0/28", 13);
    assert_eq!(best(&[a.clone(), b.clone()], &[]), "a");
    assert_eq!(best(&[a.clone(), b, c.clone()], &[]), "c");
    let host = PodBuilder::new("q").host_network().on("c");
    let host = host.ask("cpu", "0").ask("memory", "0");
    assert_eq!(best(&[a, c, d], &[host]), "d");
}

#[test]
fn scarce_addresses_are_left_to_later_pods() {
    // The small node has more of everything else left, so that by cpu and memory alone it would
    // take most pods until its addresses are used up.
    let nodes = [
        NodeBuilder::new("large")
            .block("10.0.0.0/24", 250)
            .offer("cpu", "16"),
        NodeBuilder::new("small")
            .block("10.0.1.0/28", 8)
            .offer("cpu", "16"),
    ];
    let others = (0..20).map(|n| {
        let other = PodBuilder::new(&format!("other-{n}")).host_network();
        other.ask("cpu", "200m").ask("memory", "400Mi").on("large")
    });
    let placed_on_small = |weight| {
        let policy = PlacementPolicy {
            pod_ips_weight: weight,
            ..IpPolicy::Resource.into()
        };
        let mut pods: Vec<_> = others.clone().collect();
        for n in 0..10 {
            let pod = PodBuilder::new(&format!("p-{n}"))
                .ask("cpu", "100m")
                .ask("memory", "200Mi");
            let found = examined(policy.clone(), &nodes, &pods, &pod);
            let best = found
                .scores()
                .max_by_key(|score| (score.total, score.free_pod_ips));
            pods.push(pod.on(best.unwrap().node.as_str()));
        }
        let on_small = |pod: &&PodBuilder| {
            pod.pod().spec.as_ref().unwrap().node_name.as_deref() == Some("small")
        };
        pods.iter().filter(on_small).count()
    };
    assert_eq!(placed_on_small(0), 8);
    assert!(placed_on_small(crate::config::DEFAULT_POD_IPS_WEIGHT) <= 3);
}
