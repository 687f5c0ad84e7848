use std::{collections::BTreeMap, sync::Arc};

use podplane_api::{
    Object as _,
    apps::{DaemonSet, DaemonSetStatus},
    core::{Node, Pod},
    jiff::{SignedDuration, Timestamp},
    meta::Time,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    Failures,
    nodes::{Placement, pod_for, target},
    plan::{DaemonSetInput, DaemonSetPlan, plan},
};

/// A DaemonSet on nodes, driven by plans; the writes of each step happen at once.
struct Simulation {
    set: DaemonSet,
    hash: &'static str,
    nodes: Vec<Arc<Node>>,
    pods: BTreeMap<String, Arc<Pod>>,
    now: Timestamp,
    made: usize,
}

fn node(name: &str, taints: Value, labels: Value) -> Arc<Node> {
    let node = json!({"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}});
    Arc::new(serde_json::from_value(node).unwrap())
}

fn set(spec: Value, strategy: Value) -> DaemonSet {
    let mut template = json!({"containers": [{"name": "c"}]});
    for (key, value) in spec.as_object().unwrap() {
        template[key] = value.clone();
    }
    serde_json::from_value(json!({
        "metadata": {"name": "agent", "namespace": "ns", "uid": "u", "generation": 4},
        "spec": {
            "selector": {"matchLabels": {"app": "agent"}},
            "updateStrategy": strategy,
            "template": {"metadata": {"labels": {"app": "agent"}}, "spec": template},
        },
    }))
    .unwrap()
}

fn rolling(unavailable: Value, surge: Value) -> Value {
    json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": unavailable, "maxSurge": surge}})
}

impl Simulation {
    fn new(nodes: usize, strategy: Value) -> Self {
        let nodes = (0..nodes).map(|at| node(&format!("node-{at}"), json!([]), json!({})));
        Self {
            set: set(json!({}), strategy),
            hash: "one",
            nodes: nodes.collect(),
            pods: BTreeMap::new(),
            now: Timestamp::from_second(1_000_000).unwrap(),
            made: 0,
        }
    }

    fn plan(&self, held: &BTreeMap<String, Timestamp>) -> DaemonSetPlan {
        let pods: Vec<_> = self.pods.values().cloned().collect();
        plan(DaemonSetInput {
            set: &self.set,
            hash: self.hash,
            nodes: &self.nodes,
            pods: &pods,
            held,
            may_manage: true,
            now: self.now,
        })
    }

    /// Carries out one step; returns whether it did anything.
    fn step(&mut self) -> bool {
        let plan = self.plan(&BTreeMap::new());
        let ended = plan.ended.iter().map(|(_, pod)| pod);
        let deleted: Vec<String> = plan
            .delete
            .iter()
            .chain(ended)
            .map(|pod| pod.name().to_owned())
            .collect();
        for name in &deleted {
            self.pods.remove(name);
        }
        for node in &plan.create {
            let mut pod = pod_for(&self.set, self.hash, node);
            pod.metadata.name = Some(format!("pod-{:03}", self.made));
            pod.metadata.creation_timestamp = Some(Time(self.now));
            self.made += 1;
            self.pods.insert(pod.name().to_owned(), Arc::new(pod));
        }
        self.set.status = Some(plan.status);
        !deleted.is_empty() || !plan.create.is_empty()
    }

    /// The scheduler and the kubelets: all pods that wait run and are ready.
    fn run(&mut self) {
        for pod in self.pods.values_mut() {
            let pod = Arc::make_mut(pod);
            if pod.status.is_none() {
                let node = target(pod).unwrap().to_owned();
                pod.spec.as_mut().unwrap().node_name = Some(node);
                pod.status = serde_json::from_value(json!({"phase": "Running", "conditions": [
                    {"type": "Ready", "status": "True", "lastTransitionTime": self.now}]}))
                .unwrap();
            }
        }
    }

    fn settle(&mut self) {
        for _ in 0..100 {
            let changed = self.step();
            self.run();
            if !changed {
                return;
            }
            self.now += SignedDuration::from_secs(1);
        }
        panic!("does not settle");
    }

    fn status(&mut self) -> DaemonSetStatus {
        self.step();
        self.set.status.clone().unwrap()
    }

    fn ready(&self) -> usize {
        let pods = self.pods.values();
        pods.filter(|pod| crate::pods::ready_since(pod).is_some())
            .count()
    }
}

#[test]
fn a_pod_for_each_eligible_node() {
    let plain = set(json!({}), json!({}));
    let taint = |key: &str, effect: &str| json!([{"key": key, "effect": effect}]);
    let labelled = json!({"nodeSelector": {"disk": "ssd"}});
    let host = json!({"hostNetwork": true});
    let unavailable = "node.kubernetes.io/network-unavailable";
    let required = json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}]}}}});
    let ssd = node("a", json!([]), json!({"disk": "ssd"}));
    let bare = node("a", json!([]), json!({}));
    for (what, set, node, want) in [
        ("plain", plain.clone(), bare.clone(), (true, true)),
        (
            "tainted",
            plain.clone(),
            node("a", taint("x", "NoSchedule"), json!({})),
            (false, true),
        ),
        (
            "evicting",
            plain.clone(),
            node("a", taint("x", "NoExecute"), json!({})),
            (false, false),
        ),
        (
            "preferring",
            plain.clone(),
            node("a", taint("x", "PreferNoSchedule"), json!({})),
            (true, true),
        ),
        (
            "cordoned",
            plain.clone(),
            node(
                "a",
                taint("node.kubernetes.io/unschedulable", "NoSchedule"),
                json!({}),
            ),
            (true, true),
        ),
        (
            "silent",
            plain.clone(),
            node(
                "a",
                taint("node.kubernetes.io/unreachable", "NoExecute"),
                json!({}),
            ),
            (true, true),
        ),
        (
            "no network",
            plain,
            node("a", taint(unavailable, "NoSchedule"), json!({})),
            (false, true),
        ),
        (
            "host network",
            set(host, json!({})),
            node("a", taint(unavailable, "NoSchedule"), json!({})),
            (true, true),
        ),
        (
            "selector",
            set(labelled.clone(), json!({})),
            ssd.clone(),
            (true, true),
        ),
        (
            "other labels",
            set(labelled, json!({})),
            bare.clone(),
            (false, false),
        ),
        (
            "affinity",
            set(required.clone(), json!({})),
            ssd,
            (true, true),
        ),
        (
            "other affinity",
            set(required, json!({})),
            bare,
            (false, false),
        ),
    ] {
        let found = Placement::of(&set).eligibility(&node);
        assert_eq!((found.should_run, found.may_stay), want, "{what}");
    }
}

#[test]
fn a_pod_names_its_node_by_affinity() {
    let required = json!({"affinity": {"nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}],
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": []}, {}]}}}});
    let pod = pod_for(&set(required, json!({})), "h", "node-7");
    assert_eq!(target(&pod), Some("node-7"));
    let spec = pod.spec.unwrap();
    let affinity = spec.affinity.unwrap().node_affinity.unwrap();
    assert!(
        affinity
            .preferred_during_scheduling_ignored_during_execution
            .is_some()
    );
    let terms = affinity
        .required_during_scheduling_ignored_during_execution
        .unwrap();
    assert_eq!(terms.node_selector_terms.len(), 1);
    assert_eq!(spec.tolerations.unwrap().len(), 6);
    assert_eq!(
        pod.metadata.labels.unwrap()["controller-revision-hash"],
        "h"
    );
}

#[test]
fn counts_nodes_by_their_oldest_pod() {
    let mut world = Simulation::new(3, json!({}));
    world.settle();
    let status = world.status();
    assert_eq!(
        status,
        DaemonSetStatus {
            current_number_scheduled: 3,
            desired_number_scheduled: 3,
            number_available: Some(3),
            number_ready: 3,
            observed_generation: Some(4),
            updated_number_scheduled: Some(3),
            ..DaemonSetStatus::default()
        }
    );
    // A node that leaves takes its pod with it; one that repels new pods keeps its own.
    world.nodes[0] = node(
        "node-0",
        json!([{"key": "x", "effect": "NoSchedule"}]),
        json!({}),
    );
    world.settle();
    assert_eq!(world.pods.len(), 3);
    assert_eq!(world.status().number_misscheduled, 1);
    world.nodes[0] = node(
        "node-0",
        json!([{"key": "x", "effect": "NoExecute"}]),
        json!({}),
    );
    world.settle();
    assert_eq!(world.pods.len(), 2);
}

#[test]
fn replaces_ended_pods_after_a_growing_delay() {
    let mut world = Simulation::new(1, json!({}));
    world.settle();
    let fail = |world: &mut Simulation| {
        for pod in world.pods.values_mut() {
            Arc::make_mut(pod).status.as_mut().unwrap().phase = Some("Failed".into());
        }
    };
    fail(&mut world);
    let failures = Failures::default();
    let key = world.set.key();
    for delay in [1, 2, 4] {
        let plan = world.plan(&failures.held(&key));
        assert_eq!(plan.ended.len(), 1, "{delay}");
        failures.failed(&key, "node-0", world.now);
        let plan = world.plan(&failures.held(&key));
        assert_eq!(plan.ended.len(), 0, "{delay}");
        assert_eq!(plan.wake, Some(SignedDuration::from_secs(delay)));
        world.now += SignedDuration::from_secs(delay);
    }
}

#[test]
fn waits_until_new_pods_are_available() {
    let mut world = Simulation::new(3, rolling(json!(1), json!(0)));
    world.settle();
    world.set.spec.as_mut().unwrap().min_ready_seconds = Some(10);
    world.now += SignedDuration::from_secs(60);
    world.hash = "two";
    assert!(world.step(), "one pod is deleted");
    assert!(world.step(), "and made again");
    world.run();
    assert!(!world.step(), "it is ready and not available");
    assert_eq!(world.status().updated_number_scheduled, Some(1));
    let wake = world.plan(&BTreeMap::new()).wake;
    assert_eq!(wake, Some(SignedDuration::from_secs(10)));
    world.now += SignedDuration::from_secs(10);
    assert!(world.step());
}

#[test]
fn on_delete_replaces_only_what_is_gone() {
    let mut world = Simulation::new(2, json!({"type": "OnDelete"}));
    world.settle();
    world.hash = "two";
    world.settle();
    assert_eq!(world.status().updated_number_scheduled, None);
    world.pods.pop_first();
    world.settle();
    assert_eq!(world.status().updated_number_scheduled, Some(1));
}

proptest! {
    /// No update takes more pods away than it may, or leaves an old one.
    #[test]
    fn updates_within_its_bounds(nodes in 1..8_usize, unavailable in 1..4_usize, surge in 0..4_usize) {
        let strategy = match surge {
            0 => rolling(json!(unavailable), json!(0)),
            _ => rolling(json!(0), json!(surge)),
        };
        let mut world = Simulation::new(nodes, strategy);
        world.settle();
        world.hash = "two";
        for _ in 0..100 {
            let changed = world.step();
            let lowest = if surge == 0 { nodes.saturating_sub(unavailable) } else { nodes };
            prop_assert!(world.ready() >= lowest, "{} of {nodes} are ready", world.ready());
            prop_assert!(world.pods.len() <= nodes + surge, "{} pods", world.pods.len());
            world.now += SignedDuration::from_secs(1);
            if !changed {
                break;
            }
            world.run();
        }
        let count = i32::try_from(nodes).unwrap();
        prop_assert_eq!(world.pods.len(), nodes);
        prop_assert_eq!(world.status().updated_number_scheduled, Some(count));
    }
}
