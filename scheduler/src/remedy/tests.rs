use podplane_api::{core::Node, pod_ips::PodIpResource};
use serde_json::json;

use super::*;
use crate::{
    cache::NodeCache,
    config::IpPolicy,
    testing::{AsInfo as _, NodeBuilder, PodBuilder},
};

/// The suggestions for the pod in a cluster with pods on nodes.
fn texts(nodes: &[NodeBuilder], pods: &[(&str, PodBuilder)], pod: &PodBuilder) -> Vec<String> {
    let nodes: Vec<Node> = nodes.iter().map(NodeBuilder::node).collect();
    let pods = pods
        .iter()
        .map(|(node, pod)| (*pod.clone().on(node).info()).clone());
    let cache = NodeCache::of(nodes, pods, &[], &PodIpResource::default());
    let framework = Framework::new(IpPolicy::Resource.into());
    let found = suggest(cache.cluster(), &framework, &pod.info());
    found.into_iter().map(|one| one.text).collect()
}

fn node(name: &str) -> NodeBuilder {
    NodeBuilder::new(name).block("10.0.0.0/24", 253)
}

#[test]
fn nothing_is_suggested_for_a_pod_that_fits() {
    let nodes = [node("a").cordon(), node("b")];
    assert!(texts(&nodes, &[], &PodBuilder::new("p")).is_empty());
    assert!(texts(&[], &[], &PodBuilder::new("p")).is_empty());
}

#[test]
fn counts_the_missing_addresses_and_names_their_nodes() {
    let small = |name: &str, orphaned: &str| {
        NodeBuilder::new(name)
            .block("10.0.0.0/30", 1)
            .orphaned(orphaned)
    };
    let nodes = [small("a", "0"), small("b", "1"), NodeBuilder::new("c")];
    let pods = [("a", PodBuilder::new("x"))];
    assert_eq!(
        texts(&nodes, &pods, &PodBuilder::new("p")),
        [
            "2 nodes: free an address (delete a pod on a), or release 1 orphaned address on b",
            "1 node: wait for the podCIDR of c",
        ]
    );
}

#[test]
fn names_the_largest_request_that_fits_among_nodes_that_lack_only_that() {
    let nodes = [
        node("a"),
        node("b"),
        node("c")
            .offer("cpu", "16")
            .taint("team", "red", "NoSchedule"),
    ];
    let pods = [
        ("a", PodBuilder::new("x").ask("cpu", "4500m")),
        ("b", PodBuilder::new("y").ask("cpu", "6")),
    ];
    let wanted = PodBuilder::new("p").ask("cpu", "9");
    assert_eq!(
        texts(&nodes, &pods, &wanted),
        [
            "2 nodes: lower the cpu request from 9 to 3500m or less (for a)",
            "1 node: tolerate {team: red}",
        ]
    );
    let wanted = PodBuilder::new("p").ask("cpu", "5");
    assert_eq!(
        texts(&nodes[..1], &pods[..1], &wanted),
        ["1 node: lower the cpu request from 5 to 3500m or less, or free 1500m of cpu"]
    );
}

#[test]
fn a_node_that_needs_several_changes_is_suggested_last() {
    let tainted = |name| node(name).taint("team", "red", "NoSchedule");
    let nodes = [tainted("a").cordon(), tainted("b"), tainted("c")];
    assert_eq!(
        texts(&nodes, &[], &PodBuilder::new("p")),
        [
            "2 nodes: tolerate {team: red}",
            "1 node: tolerate {team: red}; and uncordon a",
        ]
    );
}

#[test]
fn says_what_selectors_ports_and_spread_need() {
    let a = node("a").label("zone", "x");
    let selecting = PodBuilder::new("p").set("/spec/nodeSelector", json!({"disk": "ssd"}));
    assert_eq!(
        texts(std::slice::from_ref(&a), &[], &selecting),
        ["1 node: remove disk from nodeSelector or label the node with it"]
    );
    let listening = |name| PodBuilder::new(name).host_port("", 8080);
    assert_eq!(
        texts(
            std::slice::from_ref(&a),
            &[("a", listening("x"))],
            &listening("p")
        ),
        ["1 node: free the host port 8080/TCP on a"]
    );
    let spread = json!([{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}}}]);
    let web = |name| PodBuilder::new(name).set("/metadata/labels", json!({"app": "web"}));
    let spread = web("p").set("/spec/topologySpreadConstraints", spread);
    let nodes = [a, node("b").label("zone", "y").cordon(), node("c")];
    assert_eq!(
        texts(&nodes, &[("a", web("x"))], &spread),
        [
            "1 node: raise maxSkew for zone from 1 to 2",
            "1 node: label c with zone",
            "1 node: uncordon b",
        ]
    );
}

#[test]
fn many_nodes_are_counted_and_not_named() {
    let nodes: Vec<_> = (0..6).map(|n| node(&format!("n{n}")).cordon()).collect();
    let found = texts(&nodes, &[], &PodBuilder::new("p"));
    assert_eq!(found, ["6 nodes: uncordon n0, n1, n2 or 3 others"]);
}
