use std::cmp::Reverse;

use podplane_api::{
    core::{Node, Pod},
    pod_ips::PodIpResource,
};
use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

use super::*;
use crate::{
    config::IpPolicy,
    explain::{
        examine_objects,
        tests::{node, pod, seeds},
    },
    testing::{AsInfo as _, NodeBuilder, PodBuilder},
};

/// A placement by examining all objects anew for each copy. The number of copies on each node.
fn brute_force(nodes: &[Node], pods: &[Pod], wanted: &PodBuilder) -> BTreeMap<NodeName, usize> {
    let mut placed = pods.to_vec();
    let mut fits = BTreeMap::new();
    for number in 0.. {
        let pod = wanted.pod();
        let examined = examine_objects(nodes, &placed, &[], IpPolicy::Resource.into(), &pod);
        // The first of equals, by name, as in a cluster that is searched completely.
        let rank = |score: &&crate::score::NodeScore| {
            (score.total, score.free_pod_ips, Reverse(score.pods))
        };
        let scores: Vec<_> = examined.scores().collect();
        let Some(best) = scores.into_iter().rev().max_by_key(rank) else {
            break;
        };
        let copy = wanted
            .clone()
            .set("/metadata/uid", format!("copy-{number}").into());
        placed.push((*copy.on(best.node.as_str()).pod()).clone());
        *fits.entry(best.node.clone()).or_default() += 1;
    }
    fits
}

/// The number of copies that fit the nodes one by one, each node filled alone.
fn one_by_one(nodes: &[Node], pods: &[Pod], wanted: &PodBuilder) -> usize {
    let fill = |index: usize| {
        let name = nodes[index].metadata.name.clone().unwrap();
        let mut placed = pods.to_vec();
        for number in 0.. {
            let pod = wanted.pod();
            let examined = examine_objects(nodes, &placed, &[], IpPolicy::Resource.into(), &pod);
            if !examined.scores().any(|score| score.node.as_str() == name) {
                return number;
            }
            let copy = wanted
                .clone()
                .set("/metadata/uid", format!("copy-{number}").into());
            placed.push((*copy.on(&name).pod()).clone());
        }
        0
    };
    (0..nodes.len()).map(fill).sum()
}

fn found(nodes: &[Node], pods: &[Pod], wanted: &PodBuilder, limit: usize) -> CapacityReport {
    let resource = PodIpResource::default();
    let mut cache = NodeCache::of(
        nodes.to_vec(),
        pods.iter().map(|pod| PodInfo::new(pod, &resource)),
        &[],
        &resource,
    );
    let framework = Framework::new(IpPolicy::Resource.into());
    capacity(&mut cache, &framework, &wanted.info(), limit)
}

proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(64))]
    #[test]
    fn is_the_number_that_a_placement_one_by_one_finds(
        nodes in seeds(6),
        pods in seeds(8),
        wanted in any::<u32>(),
    ) {
        let seeded = nodes.iter().enumerate();
        let objects: Vec<_> = seeded.map(|(at, seed)| node(at, *seed).node()).collect();
        let present = pods.iter().enumerate().map(|(at, seed)| {
            let on = usize::try_from(*seed >> 20).unwrap() % nodes.len();
            (*pod(&format!("q{at}"), *seed).on(&format!("n{on}")).pod()).clone()
        });
        let present: Vec<_> = present.collect();
        let wanted = pod("p", wanted);
        let report = found(&objects, &present, &wanted, 1000);
        prop_assert!(!report.is_limited);
        let in_turn = brute_force(&objects, &present, &wanted);
        for room in &report.nodes {
            prop_assert_eq!(room.fits, in_turn.get(&room.node).copied().unwrap_or(0));
            prop_assert!(room.refusal.is_some());
        }
        prop_assert_eq!(report.total, in_turn.values().sum::<usize>());
        if !wanted.info().needs.depends_on_copies() {
            prop_assert_eq!(report.total, one_by_one(&objects, &present, &wanted));
        }
    }
}

#[test]
fn names_the_limit_of_each_node() {
    let nodes = [
        NodeBuilder::new("a").block("10.0.0.0/29", 5).node(),
        NodeBuilder::new("b").block("10.0.1.0/24", 253).node(),
        NodeBuilder::new("c").node(),
    ];
    let present = [(*PodBuilder::new("x").on("a").pod()).clone()];
    let report = found(&nodes, &present, &PodBuilder::new("p").ask("cpu", "1"), 100);
    assert_eq!((report.total, report.is_limited), (12, false));
    let rooms = report.nodes.iter().map(|room| {
        let refusal = room.refusal.as_ref().unwrap();
        let detail = refusal.detail.as_ref().unwrap().text.as_str();
        (room.fits, &*refusal.reasons[0], detail.to_owned())
    });
    let rooms: Vec<_> = rooms.collect();
    assert_eq!((rooms[0].0, rooms[0].1), (4, "Insufficient pod IPs"));
    assert!(
        rooms[0]
            .2
            .starts_with("0 of 5 IPs free: 5 pods, 0 orphaned"),
        "{}",
        rooms[0].2
    );
    assert_eq!(
        rooms[1],
        (
            8,
            "Insufficient cpu",
            "0 of 8 cpu free, 1 requested".to_owned()
        )
    );
    assert_eq!((rooms[2].0, &*rooms[2].2), (0, "waits for its podCIDR"));
}

#[test]
fn ends_at_the_limit_and_says_so() {
    let nodes = ["a", "b"].map(|name| NodeBuilder::new(name).block("10.0.0.0/24", 253).node());
    let pod = PodBuilder::new("p");
    let report = found(&nodes, &[], &pod, 150);
    assert_eq!((report.total, report.is_limited), (150, true));
    let report = found(&nodes, &[], &pod, 220);
    assert_eq!((report.total, report.is_limited), (220, false));
    let spread = serde_json::json!([{"maxSkew": 1, "topologyKey": "name", "whenUnsatisfiable": "DoNotSchedule"}]);
    let spread = pod.set("/spec/topologySpreadConstraints", spread);
    let nodes = [NodeBuilder::new("a")
        .label("name", "a")
        .block("10.0.0.0/24", 253)
        .node()];
    let report = found(&nodes, &[], &spread, 10);
    assert_eq!((report.total, report.is_limited), (10, true));
}
