use std::collections::BTreeSet;

use proptest::prelude::{Strategy, prop, prop_assert_eq, prop_oneof, proptest};

use super::*;
use crate::{
    resources::Resources,
    testing::{AsInfo as _, NodeBuilder, PodBuilder},
};

fn name(text: &str) -> NodeName {
    text.into()
}

#[test]
fn keeps_pods_of_an_unknown_node_until_it_appears() {
    let mut cache = NodeCache::default();
    cache.confirm(PodBuilder::new("p").info(), &name("n"));
    assert!(cache.cluster().is_empty());
    let node = Arc::new(NodeBuilder::new("n").node());
    assert_eq!(cache.apply_node(node.clone()), [NodeChange::Added]);
    assert_eq!(cache.node(&name("n")).unwrap().pods().len(), 1);
    cache.remove_node(&name("n"));
    assert_eq!(cache.apply_node(node), [NodeChange::Added]);
    assert_eq!(cache.node(&name("n")).unwrap().pods().len(), 1);
}

#[test]
fn recreated_node_is_new() {
    let mut cache = NodeCache::default();
    let first = NodeBuilder::new("n").block("10.0.0.0/30", 1);
    cache.apply_node(Arc::new(first.node()));
    cache.confirm(PodBuilder::new("p").info(), &name("n"));
    cache.refuse_for_ips(&name("n"));
    let second = first.uid("another").block("10.0.0.0/29", 5);
    assert_eq!(
        cache.apply_node(Arc::new(second.node())),
        [NodeChange::Added]
    );
    assert_eq!(cache.node(&name("n")).unwrap().free_pod_ips(), 4);
}

#[test]
fn forgets_only_assumptions() {
    let mut cache = NodeCache::default();
    let pod = PodBuilder::new("p").info();
    cache.assume(pod.clone(), &name("n"));
    assert_eq!(
        cache.placement(&pod.uid),
        Some((&name("n"), PlacementState::Assumed))
    );
    assert_eq!(cache.forget(&pod.uid).unwrap().node, name("n"));
    cache.assume(pod.clone(), &name("n"));
    assert!(cache.confirm(pod.clone(), &name("n")).is_none());
    assert!(cache.forget(&pod.uid).is_none());
    assert_eq!(
        cache.placement(&pod.uid),
        Some((&name("n"), PlacementState::Bound))
    );
}

#[test]
fn confirmation_frees_an_assumption_on_another_node() {
    let mut cache = NodeCache::default();
    let pod = PodBuilder::new("p").info();
    cache.assume(pod.clone(), &name("a"));
    assert_eq!(cache.confirm(pod, &name("b")).unwrap().node, name("a"));
}

#[test]
fn reports_the_kinds_of_a_change() {
    let mut cache = NodeCache::default();
    let node = NodeBuilder::new("n").block("10.0.0.0/30", 1);
    let mut change = |node: &NodeBuilder| cache.apply_node(Arc::new(node.node()));
    change(&NodeBuilder::new("n"));
    // It is Ready now, and so needs no block.
    let ready = NodeBuilder::new("n").heartbeat("2026-01-01T00:00:00Z");
    let capacity = [NodeChange::PodIpCapacity, NodeChange::PodIps];
    assert_eq!(change(&ready), capacity);
    assert_eq!(change(&ready), []);
    let block = NodeBuilder::new("n").pod_cidr("10.0.0.0/30");
    assert_eq!(change(&block), capacity);
    // The number of addresses in the block is reported now, too.
    let reported = [NodeChange::Allocatable, NodeChange::PodIpCapacity];
    assert_eq!(change(&node), reported);
    assert_eq!(change(&node.clone().allocated("1")), [NodeChange::PodIps]);
    assert_eq!(change(&node), [NodeChange::PodIps]);
    let node = node.label("k", "v");
    assert_eq!(change(&node), [NodeChange::Labels]);
    let node = node.taint("k", "v", "NoSchedule");
    assert_eq!(change(&node), [NodeChange::Taints]);
    assert_eq!(change(&node.cordon()), [NodeChange::Unschedulable]);
}

#[test]
fn node_without_addresses_is_full_until_it_reports() {
    let mut cache = NodeCache::default();
    let node = NodeBuilder::new("n").block("10.0.0.0/29", 5);
    cache.apply_node(Arc::new(node.node()));
    let free = |cache: &NodeCache| cache.node(&name("n")).unwrap().free_pod_ips();
    cache.refuse_for_ips(&name("n"));
    assert_eq!(free(&cache), 0);
    // Another client's change of the Node is not a report.
    assert_eq!(
        cache.apply_node(Arc::new(node.clone().label("k", "v").node())),
        [NodeChange::Labels]
    );
    assert_eq!(free(&cache), 0);
    let heartbeat = node
        .heartbeat("2026-01-01T00:00:00Z")
        .allocated("2")
        .label("k", "v");
    assert_eq!(
        cache.apply_node(Arc::new(heartbeat.node())),
        [NodeChange::PodIps]
    );
    assert_eq!(free(&cache), 3);
}

#[derive(Clone, Debug)]
enum CacheOp {
    AddNode(u8),
    RemoveNode(u8),
    Assume(u8, u8),
    Confirm(u8, u8),
    Forget(u8),
    RemovePod(u8),
}

fn op() -> impl Strategy<Value = CacheOp> {
    let (node, pod) = (|| 0..3_u8, || 0..6_u8);
    prop_oneof![
        2 => node().prop_map(CacheOp::AddNode),
        1 => node().prop_map(CacheOp::RemoveNode),
        3 => (pod(), node()).prop_map(|(pod, node)| CacheOp::Assume(pod, node)),
        3 => (pod(), node()).prop_map(|(pod, node)| CacheOp::Confirm(pod, node)),
        1 => pod().prop_map(CacheOp::Forget),
        1 => pod().prop_map(CacheOp::RemovePod),
    ]
}

/// Odd pods are on the host's network; all differ in their requests.
fn pod(n: u8) -> PodBuilder {
    let pod = PodBuilder::new(&n.to_string())
        .ask("cpu", &n.to_string())
        .ask("example.com/x", &(n / 2).to_string());
    if n % 2 == 1 { pod.host_network() } else { pod }
}

proptest! {
    /// The model is a list of pods with their nodes; everything else must follow from it.
    #[test]
    fn nodes_have_exactly_their_pods(ops in prop::collection::vec(op(), 1..60)) {
        let mut cache = NodeCache::default();
        let mut nodes = BTreeSet::new();
        let mut pods = BTreeMap::<u8, (u8, PlacementState)>::new();
        let node_name = |n: u8| name(&n.to_string());
        for op in ops {
            match op {
                CacheOp::AddNode(n) => {
                    cache.apply_node(Arc::new(NodeBuilder::new(&n.to_string()).node()));
                    nodes.insert(n);
                }
                CacheOp::RemoveNode(n) => {
                    cache.remove_node(&node_name(n));
                    nodes.remove(&n);
                }
                CacheOp::Assume(p, n) => {
                    cache.assume(pod(p).info(), &node_name(n));
                    pods.insert(p, (n, PlacementState::Assumed));
                }
                CacheOp::Confirm(p, n) => {
                    let freed = cache.confirm(pod(p).info(), &node_name(n)).map(|freed| freed.node);
                    let before = pods.insert(p, (n, PlacementState::Bound)).map(|(before, _)| before);
                    prop_assert_eq!(freed, before.filter(|before| *before != n).map(node_name));
                }
                CacheOp::Forget(p) => {
                    let assumed = pods.get(&p).is_some_and(|(_, placing)| *placing == PlacementState::Assumed);
                    prop_assert_eq!(cache.forget(&pod(p).info().uid).is_some(), assumed);
                    if assumed {
                        pods.remove(&p);
                    }
                }
                CacheOp::RemovePod(p) => {
                    let freed = cache.remove_pod(&pod(p).info().uid).map(|freed| freed.node);
                    prop_assert_eq!(freed, pods.remove(&p).map(|(n, _)| node_name(n)));
                }
            }
            let cluster = cache.cluster();
            let listed: Vec<_> = cluster.nodes().map(|node| node.name.clone()).collect();
            prop_assert_eq!(listed, nodes.iter().copied().map(node_name).collect::<Vec<_>>());
            for node in cluster.nodes() {
                let here = pods.iter().filter(|(_, (n, _))| node_name(*n) == node.name);
                let here: Vec<_> = here.map(|(p, _)| pod(*p).info()).collect();
                let mut requested = Resources::default();
                here.iter().for_each(|pod| requested.add(&pod.needs.requests));
                prop_assert_eq!(node.pods().len(), here.len());
                prop_assert_eq!(node.pods().requested(), &requested);
                let holding = here.iter().filter(|pod| pod.needs.needs_ip()).count();
                let holding = u64::try_from(holding).unwrap();
                prop_assert_eq!(node.pods().holding_ips(), holding);
                let free = node.addresses().free();
                prop_assert_eq!(u64::try_from(node.free_pod_ips()).unwrap(), free);
            }
        }
    }
}
