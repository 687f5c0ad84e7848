use serde_json::json;

use super::*;
use crate::{
    cache::NodeCache,
    config::IpPolicy,
    testing::{NodeBuilder, PodBuilder},
};

fn node(name: &str) -> NodeBuilder {
    NodeBuilder::new(name)
        .block("10.0.0.0/24", 253)
        .offer("cpu", "4")
}

/// A pod that asks for so many cpus.
fn pod(name: &str, cpu: &str, priority: i32) -> PodBuilder {
    PodBuilder::new(name).ask("cpu", cpu).priority(priority)
}

fn cluster(nodes: &[NodeBuilder], pods: &[PodBuilder]) -> Cluster {
    let mut cache = NodeCache::default();
    for node in nodes {
        cache.apply_node(Arc::new(node.node()));
    }
    for pod in pods {
        let pod = Arc::new(PodInfo::new(&pod.pod(), &Default::default()));
        let node = pod.node_name.clone().unwrap();
        cache.confirm(pod, &node);
    }
    cache.cluster().clone()
}

fn decide(
    nodes: &[NodeBuilder],
    pods: &[PodBuilder],
    budgets: &[DisruptionBudget],
    pod: &PodBuilder,
) -> Result<(String, Vec<String>, usize), String> {
    let mut cluster = cluster(nodes, pods);
    let framework = Framework::new(IpPolicy::Resource.into());
    let pod = PodInfo::new(&pod.pod(), &Default::default());
    let before: Vec<_> = cluster
        .nodes()
        .map(|node| node.pods().requested().clone())
        .collect();
    let found = preempt(&mut cluster, &framework, &pod, budgets, 0);
    let after: Vec<_> = cluster
        .nodes()
        .map(|node| node.pods().requested().clone())
        .collect();
    assert_eq!(before, after, "every pod is put back");
    found
        .map(|found| {
            let victims = found.victims.iter().map(|victim| victim.key.name.clone());
            (found.node.to_string(), victims.collect(), found.violations)
        })
        .map_err(|none| none.to_string())
}

fn victims(
    node: &str,
    names: &[&str],
    violations: usize,
) -> Result<(String, Vec<String>, usize), String> {
    let names = names.iter().map(|name| (*name).to_owned());
    Ok((node.to_owned(), names.collect(), violations))
}

#[test]
fn evicts_only_the_least_important_pods_that_are_in_the_way() {
    let pods = [
        pod("low", "1", 1).on("a"),
        pod("middle", "1", 5).on("a"),
        pod("high", "2", 50).on("a"),
    ];
    let nodes = [node("a")];
    assert_eq!(
        decide(&nodes, &pods, &[], &pod("p", "1", 10)),
        victims("a", &["low"], 0)
    );
    let both = decide(&nodes, &pods, &[], &pod("p", "2", 10));
    assert_eq!(both, victims("a", &["middle", "low"], 0));
    let none =
        "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.";
    assert_eq!(
        decide(&nodes, &pods, &[], &pod("p", "3", 10)),
        Err(none.to_owned())
    );
    assert_eq!(
        decide(&nodes, &pods, &[], &pod("p", "1", 1)),
        Err(none.to_owned())
    );
    let useless =
        "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
    assert_eq!(
        decide(&nodes, &pods, &[], &pod("p", "5", 10)),
        Err(useless.to_owned())
    );
    let never = pod("p", "1", 10).set("/spec/preemptionPolicy", json!("Never"));
    let policy = "preemption: not eligible due to preemptionPolicy=Never.";
    assert_eq!(decide(&nodes, &pods, &[], &never), Err(policy.to_owned()));
}

#[test]
fn of_equal_pods_the_longest_running_stay() {
    let started = |name: &str, time: &str| {
        let status = json!({"phase": "Running", "startTime": time});
        pod(name, "2", 1).set("/status", status).on("a")
    };
    let pods = [
        started("new", "2026-01-01T02:00:00Z"),
        started("old", "2026-01-01T01:00:00Z"),
    ];
    let found = decide(&[node("a")], &pods, &[], &pod("p", "2", 10));
    assert_eq!(found, victims("a", &["new"], 0));
}

#[test]
fn prefers_the_node_with_the_cheapest_victims() {
    let nodes = [node("a"), node("b"), node("c")];
    let wanted = pod("p", "4", 10);
    let decide = |pods: &[PodBuilder]| decide(&nodes, pods, &[], &wanted).unwrap().0;
    // The lowest highest priority.
    let pods = [
        pod("a", "4", 3).on("a"),
        pod("b", "4", 2).on("b"),
        pod("c", "4", 3).on("c"),
    ];
    assert_eq!(decide(&pods), "b");
    // Then the lowest sum, which more victims always raise.
    let pods = [
        pod("a1", "2", 3).on("a"),
        pod("a2", "2", -9).on("a"),
        pod("b1", "2", 3).on("b"),
        pod("b2", "2", 2).on("b"),
        pod("c", "4", 3).on("c"),
    ];
    assert_eq!(decide(&pods), "c");
    // Then the latest start.
    let started = |name: &str, on: &str, time: &str| {
        let status = json!({"phase": "Running", "startTime": time});
        pod(name, "4", 3).set("/status", status).on(on)
    };
    let pods = [
        started("a", "a", "2026-01-01T01:00:00Z"),
        started("b", "b", "2026-01-01T01:00:00Z"),
        started("c", "c", "2026-01-01T02:00:00Z"),
    ];
    assert_eq!(decide(&pods), "c");
}

#[test]
fn budgets_are_violated_last() {
    let app = |name: &str, on: &str| {
        pod(name, "2", 1)
            .set("/metadata/labels", json!({"app": name}))
            .on(on)
    };
    let budget = |name: &str, allowed| DisruptionBudget {
        namespace: "default".to_owned(),
        selector: format!("app={name}").parse().unwrap(),
        allowed,
        disrupted: BTreeSet::new(),
    };
    let one = [node("a")];
    let pods = [app("x", "a"), app("y", "a")];
    let wanted = pod("p", "2", 10);
    let found = decide(&one, &pods, &[budget("x", 0)], &wanted);
    assert_eq!(found, victims("a", &["y"], 0));
    let found = decide(&one, &pods, &[budget("y", 0), budget("x", 1)], &wanted);
    assert_eq!(found, victims("a", &["x"], 0));
    let found = decide(&one, &pods, &[budget("x", 0), budget("y", 0)], &wanted);
    assert_eq!(found.unwrap().2, 1);
    // Another node without a violation is better, even with a more important victim.
    let pods = [app("x", "a"), app("x", "a"), pod("z", "4", 5).on("b")];
    let mut pods = pods.to_vec();
    pods[1] = pods[1].clone().set("/metadata/uid", json!("x2"));
    let nodes = [node("a"), node("b")];
    let found = decide(&nodes, &pods, &[budget("x", 0)], &wanted);
    assert_eq!(found, victims("b", &["z"], 0));
}

#[test]
fn addresses_are_freed_by_victims_but_not_made() {
    let nodes = [NodeBuilder::new("a").block("10.0.0.0/30", 1)];
    let pods = [PodBuilder::new("low").on("a")];
    let wanted = PodBuilder::new("p").priority(10);
    assert_eq!(
        decide(&nodes, &pods, &[], &wanted),
        victims("a", &["low"], 0)
    );
    let homeless = [NodeBuilder::new("a")];
    let useless =
        "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
    assert_eq!(
        decide(&homeless, &pods, &[], &wanted),
        Err(useless.to_owned())
    );
}

#[test]
fn victims_of_anti_affinity_are_the_pods_that_repel() {
    let node = node("a").label("zone", "x");
    let term = json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "db"}}});
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let wanted = pod("p", "1", 10).set(
        "/spec/affinity",
        json!({"podAntiAffinity": {required: [term]}}),
    );
    let labelled = |name: &str, app: &str| {
        pod(name, "1", 1)
            .set("/metadata/labels", json!({"app": app}))
            .on("a")
    };
    let pods = [labelled("db", "db"), labelled("web", "web")];
    assert_eq!(
        decide(&[node], &pods, &[], &wanted),
        victims("a", &["db"], 0)
    );
}
