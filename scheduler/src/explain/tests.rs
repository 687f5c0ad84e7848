//! The scan of a decision and the detailed examination agree.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use proptest::prelude::{Strategy, any, prop, prop_assert, prop_assert_eq, proptest};
use serde_json::{Value, json};

use super::*;
use crate::{
    config::IpPolicy,
    plan::{Decision, plan},
    testing::{NodeBuilder, PodBuilder},
};

/// A node with labels, taints and room as the bits of a seed have it.
pub(crate) fn node(index: usize, seed: u32) -> NodeBuilder {
    let bit = |at: u32| seed >> at & 1 == 1;
    let name = format!("n{index}");
    let mut node = NodeBuilder::new(&name).label("kubernetes.io/hostname", &name);
    node = node.offer("cpu", if bit(0) { "2" } else { "1" });
    node = node.block(&format!("10.0.{index}.0/29"), if bit(1) { 5 } else { 2 });
    if !(bit(2) && bit(3)) {
        node = node.label("zone", if bit(4) { "x" } else { "y" });
    }
    if bit(5) {
        node = node.label("disk", "ssd");
    }
    match seed >> 6 & 7 {
        0 => node.taint("team", "red", "NoSchedule"),
        1 => node.taint("team", "red", "PreferNoSchedule"),
        2 => node.cordon(),
        _ => node,
    }
}

fn term(key: &str, app: &str) -> Value {
    json!({"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}})
}

/// A pod with constraints as the bits of a seed have it.
pub(crate) fn pod(name: &str, seed: u32) -> PodBuilder {
    let bit = |at: u32| seed >> at & 1 == 1;
    let app = ["web", "db", "cache"][usize::try_from(seed % 3).unwrap()];
    let other = ["db", "web", "web"][usize::try_from(seed >> 8 & 1).unwrap()];
    let key = if bit(3) {
        "zone"
    } else {
        "kubernetes.io/hostname"
    };
    let pod = PodBuilder::new(name).set("/metadata/labels", json!({"app": app}));
    let pod = pod.ask("cpu", if bit(4) { "100m" } else { "300m" });
    let pod = match bit(5) {
        true => pod.tolerate("team"),
        false => pod,
    };
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    let soft = |weight| json!([{"weight": weight, "podAffinityTerm": term(key, other)}]);
    match seed >> 9 & 7 {
        0 => pod.set(
            "/spec/affinity",
            json!({"podAntiAffinity": {required: [term(key, app)]}}),
        ),
        1 => pod.set(
            "/spec/affinity",
            json!({"podAffinity": {required: [term("zone", other)]}}),
        ),
        2 => pod.set(
            "/spec/affinity",
            json!({"podAffinity": {preferred: soft(7)}}),
        ),
        3 => pod.set(
            "/spec/affinity",
            json!({"podAntiAffinity": {preferred: soft(3)}}),
        ),
        4 | 5 => {
            let when = if bit(12) {
                "DoNotSchedule"
            } else {
                "ScheduleAnyway"
            };
            let selector = json!({"matchLabels": {"app": app}});
            let constraint = json!({"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": when,
                "labelSelector": selector});
            pod.set("/spec/topologySpreadConstraints", json!([constraint]))
        }
        6 => pod.set("/spec/nodeSelector", json!({"disk": "ssd"})),
        _ => pod.host_port("", 8080),
    }
}

pub(crate) fn seeds(most: usize) -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(any::<u32>(), 1..most)
}

proptest! {
    #[test]
    fn scan_and_examination_agree(
        nodes in seeds(12),
        pods in seeds(20),
        wanted in seeds(8),
        start in 0..20_usize,
    ) {
        let framework = Framework::new(IpPolicy::Resource.into());
        let seeded = nodes.iter().enumerate();
        let node_objects: Vec<_> = seeded.map(|(at, seed)| node(at, *seed).node()).collect();
        let mut cache = NodeCache::default();
        for node in &node_objects {
            cache.apply_node(Arc::new(node.clone()));
        }
        let mut placed = Vec::new();
        for (at, seed) in pods.iter().enumerate() {
            let on = usize::try_from(*seed >> 20).unwrap() % nodes.len();
            let pod = pod(&format!("q{at}"), *seed).on(&format!("n{on}"));
            cache.confirm(Arc::new(PodInfo::new(&pod.pod(), &Default::default())), &NodeName::from(&*format!("n{on}")));
            placed.push((*pod.pod()).clone());
        }
        // What is derived from nodes and pods follows their changes.
        placed.retain(|pod: &Pod| {
            let info = PodInfo::new(pod, &Default::default());
            let stays = info.uid.as_str().len() == 2;
            if !stays {
                cache.remove_pod(&info.uid);
            }
            stays
        });
        let first = node_objects[0].clone();
        cache.remove_node(&NodeName::from("n0"));
        let mut relabelled = first.clone();
        relabelled.metadata.labels = None;
        cache.apply_node(Arc::new(relabelled));
        cache.apply_node(Arc::new(first));
        for (at, seed) in wanted.iter().enumerate() {
            let pod = pod(&format!("p{at}"), *seed);
            let info = PodInfo::new(&pod.pod(), &Default::default());
            // The columns of labels are only a cache.
            if at % 2 == 0 {
                cache.prepare(&info);
            }
            let examined = examine(cache.cluster(), &framework, &info);
            let again = examine_objects(&node_objects, &placed, &[], IpPolicy::Resource.into(), &pod.pod());
            prop_assert_eq!(&examined, &again);
            let Decision { node, .. } = plan(cache.cluster(), &info, &framework, start);
            match node {
                Ok(choice) => {
                    prop_assert_eq!(choice.feasible, examined.scores().count());
                    let most = examined.scores().map(|score| score.total).max();
                    prop_assert_eq!(Some(choice.scores[0].total), most);
                    for score in &choice.scores {
                        prop_assert!(examined.scores().any(|one| one == score));
                    }
                    let placed_pod = pod.on(choice.node.as_str());
                    cache.confirm(Arc::new(PodInfo::new(&placed_pod.pod(), &Default::default())), &choice.node);
                    placed.push((*placed_pod.pod()).clone());
                }
                Err(error) => {
                    prop_assert_eq!(examined.scores().count(), 0);
                    let mut reasons = BTreeMap::new();
                    let mut by = BTreeSet::new();
                    for (_, refusal) in examined.refusals() {
                        by.insert(refusal.by);
                        for reason in &refusal.reasons {
                            *reasons.entry(reason.clone()).or_insert(0_usize) += 1;
                        }
                    }
                    prop_assert_eq!(&error.reasons, &reasons);
                    prop_assert_eq!(&error.rejected_by, &by);
                }
            }
        }
    }
}
