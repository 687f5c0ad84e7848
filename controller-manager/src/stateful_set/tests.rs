use std::{collections::BTreeMap, sync::Arc};

use podplane_api::{
    Object as _,
    apps::{StatefulSet, StatefulSetStatus},
    core::Pod,
    jiff::{SignedDuration, Timestamp},
    meta::Time,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    identity::{self, claims, identify, is_identified, ordinal, own_claim, revision},
    plan::{PodChange, Revision, StatefulSetInput, plan},
};

/// A StatefulSet with its pods, driven by plans; the writes of each step happen at once.
struct Simulation {
    set: StatefulSet,
    current: Revision,
    update: Revision,
    pods: BTreeMap<String, Arc<Pod>>,
    now: Timestamp,
    made: usize,
    wake: Option<SignedDuration>,
}

fn set(spec: &Value) -> StatefulSet {
    let mut whole = json!({
        "replicas": 3,
        "serviceName": "db",
        "selector": {"matchLabels": {"app": "db"}},
        "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "c"}]}},
    });
    for (key, value) in spec.as_object().unwrap() {
        whole[key] = value.clone();
    }
    serde_json::from_value(json!({
        "metadata": {"name": "db", "namespace": "ns", "uid": "u", "generation": 2}, "spec": whole,
    }))
    .unwrap()
}

impl Simulation {
    fn new(spec: Value) -> Self {
        let set = set(&spec);
        let template = set.spec.as_ref().unwrap().template.clone();
        let first = Revision {
            name: "db-1".into(),
            template,
        };
        Self {
            set,
            current: first.clone(),
            update: first,
            pods: BTreeMap::new(),
            now: Timestamp::from_second(1_000_000).unwrap(),
            made: 0,
            wake: None,
        }
    }

    /// Carries out one step; returns its changes as text.
    fn step(&mut self) -> Vec<String> {
        let pods: Vec<_> = self.pods.values().cloned().collect();
        let plan = plan(StatefulSetInput {
            set: &self.set,
            current: &self.current,
            update: &self.update,
            pods: &pods,
            may_manage: true,
            now: self.now,
        });
        self.wake = plan.wake;
        let mut seen = Vec::new();
        for change in plan.changes {
            match change {
                PodChange::Create(pod) => {
                    let mut pod = *pod;
                    seen.push(format!("+{}", pod.name()));
                    pod.metadata.uid = Some(format!("uid-{}", self.made));
                    self.made += 1;
                    pod.status = serde_json::from_value(json!({"phase": "Pending"})).unwrap();
                    self.pods.insert(pod.name().to_owned(), Arc::new(pod));
                }
                PodChange::Claim(_) | PodChange::Identify(_) => {}
                PodChange::Delete(pod) | PodChange::Recreate(pod) | PodChange::Condemn(pod) => {
                    seen.push(format!("-{}", pod.name()));
                    let pod = self.pods.get_mut(pod.name()).unwrap();
                    Arc::make_mut(pod).metadata.deletion_timestamp = Some(Time(self.now));
                }
            }
        }
        if plan.status.current_revision.as_deref() == Some(&self.update.name) {
            self.current = self.update.clone();
        }
        self.set.status = Some(plan.status);
        seen
    }

    /// The kubelets: deleted pods go, and all others run and are ready.
    fn run(&mut self) {
        self.pods.retain(|_, pod| !pod.is_deleting());
        for pod in self.pods.values_mut().map(Arc::make_mut) {
            if pod.status.as_ref().unwrap().phase.as_deref() == Some("Pending") {
                pod.status = serde_json::from_value(json!({"phase": "Running", "conditions": [
                    {"type": "Ready", "status": "True", "lastTransitionTime": self.now}]}))
                .unwrap();
            }
        }
    }

    /// The changes of each step until nothing changes any more.
    fn settle(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        for _ in 0..100 {
            let seen = self.step();
            if seen.is_empty() && !self.pods.values().any(|pod| pod.is_deleting()) {
                return all;
            }
            all.extend((!seen.is_empty()).then(|| seen.join(" ")));
            self.run();
            self.now += SignedDuration::from_secs(1);
        }
        panic!("does not settle: {all:?}");
    }

    fn scale(&mut self, replicas: i32) -> Vec<String> {
        self.set.spec.as_mut().unwrap().replicas = Some(replicas);
        self.settle()
    }

    fn update(&mut self, name: &str) {
        self.update.name = name.into();
    }

    fn status(&self) -> StatefulSetStatus {
        self.set.status.clone().unwrap()
    }

    /// The revisions of the pods, by name.
    fn revisions(&self) -> Vec<&str> {
        self.pods.values().map(|pod| revision(pod)).collect()
    }
}

#[test]
fn pods_come_and_go_in_order() {
    let mut world = Simulation::new(json!({}));
    assert_eq!(world.settle(), ["+db-0", "+db-1", "+db-2"]);
    assert_eq!(
        world.status(),
        StatefulSetStatus {
            available_replicas: Some(3),
            current_replicas: Some(3),
            current_revision: Some("db-1".into()),
            observed_generation: Some(2),
            ready_replicas: Some(3),
            replicas: 3,
            update_revision: Some("db-1".into()),
            updated_replicas: Some(3),
            ..StatefulSetStatus::default()
        }
    );
    let pod = &world.pods["db-1"];
    let labels = pod.metadata.labels.clone().unwrap();
    assert_eq!(labels["statefulset.kubernetes.io/pod-name"], "db-1");
    assert_eq!(labels["apps.kubernetes.io/pod-index"], "1");
    assert_eq!(labels["controller-revision-hash"], "db-1");
    let spec = pod.spec.as_ref().unwrap();
    assert_eq!(spec.hostname.as_deref(), Some("db-1"));
    assert_eq!(spec.subdomain.as_deref(), Some("db"));
    assert_eq!(world.scale(5), ["+db-3", "+db-4"]);
    assert_eq!(world.scale(2), ["-db-4", "-db-3", "-db-2"]);
    assert_eq!(world.scale(0), ["-db-1", "-db-0"]);
}

#[test]
fn ordinals_start_where_they_are_told_to() {
    let mut world = Simulation::new(json!({"ordinals": {"start": 7}, "replicas": 2}));
    assert_eq!(world.settle(), ["+db-7", "+db-8"]);
    world
        .set
        .spec
        .as_mut()
        .unwrap()
        .ordinals
        .as_mut()
        .unwrap()
        .start = Some(8);
    assert_eq!(world.settle(), ["+db-9", "-db-7"]);
}

#[test]
fn in_parallel_all_come_and_go_at_once() {
    let mut world = Simulation::new(json!({"podManagementPolicy": "Parallel"}));
    assert_eq!(world.settle(), ["+db-0 +db-1 +db-2"]);
    assert_eq!(world.scale(1), ["-db-2 -db-1"]);
}

#[test]
fn waits_for_a_pod_that_is_not_ready() {
    let mut world = Simulation::new(json!({}));
    assert_eq!(world.step(), ["+db-0"]);
    assert_eq!(world.step(), [""; 0], "it is pending");
    world.run();
    world.set.spec.as_mut().unwrap().min_ready_seconds = Some(10);
    assert_eq!(world.step(), [""; 0], "it is not available");
    assert_eq!(world.wake, Some(SignedDuration::from_secs(10)));
    world.now += SignedDuration::from_secs(10);
    assert_eq!(world.step(), ["+db-1"]);
}

#[test]
fn ended_pods_are_made_again() {
    let mut world = Simulation::new(json!({}));
    world.settle();
    for phase in ["Failed", "Succeeded"] {
        let pod = Arc::make_mut(world.pods.get_mut("db-1").unwrap());
        pod.status.as_mut().unwrap().phase = Some(phase.into());
        assert_eq!(world.settle(), ["-db-1", "+db-1"], "{phase}");
    }
}

#[test]
fn updates_from_the_top_down_to_the_partition() {
    let mut world = Simulation::new(json!({}));
    world.settle();
    world.update("db-2");
    let steps = ["-db-2", "+db-2", "-db-1", "+db-1", "-db-0", "+db-0"];
    assert_eq!(world.settle(), steps);
    assert_eq!(world.status().current_revision.as_deref(), Some("db-2"));
    let rolling = |partition| {
        serde_json::from_value(
            json!({"type": "RollingUpdate", "rollingUpdate": {"partition": partition}}),
        )
        .unwrap()
    };
    world.set.spec.as_mut().unwrap().update_strategy = rolling(2);
    world.update("db-3");
    assert_eq!(world.settle(), ["-db-2", "+db-2"]);
    assert_eq!(world.revisions(), ["db-2", "db-2", "db-3"]);
    let status = world.status();
    assert_eq!(
        (status.current_replicas, status.updated_replicas),
        (Some(2), Some(1))
    );
    assert_eq!(status.current_revision.as_deref(), Some("db-2"));
    // A pod below the partition that goes comes back as it was.
    world.pods.remove("db-0");
    assert_eq!(world.settle(), ["+db-0"]);
    assert_eq!(world.revisions(), ["db-2", "db-2", "db-3"]);
    world.set.spec.as_mut().unwrap().update_strategy = rolling(0);
    world.settle();
    assert_eq!(world.revisions(), ["db-3"; 3]);
}

#[test]
fn updates_as_many_at_once_as_it_may() {
    let mut world = Simulation::new(json!({
        "replicas": 4, "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "50%"}},
    }));
    world.settle();
    world.update("db-2");
    let steps = ["-db-3 -db-2", "+db-2 +db-3", "-db-1 -db-0", "+db-0 +db-1"];
    assert_eq!(world.settle(), steps);
}

#[test]
fn on_delete_leaves_the_pods_to_others() {
    let mut world = Simulation::new(json!({"updateStrategy": {"type": "OnDelete"}}));
    world.settle();
    world.update("db-2");
    assert_eq!(world.settle(), [""; 0]);
    world.pods.remove("db-1");
    assert_eq!(world.settle(), ["+db-1"]);
    assert_eq!(world.revisions(), ["db-1", "db-2", "db-1"]);
}

#[test]
fn claims_are_owned_by_the_policy() {
    let spec = |policy: &Value| {
        set(&json!({
            "volumeClaimTemplates": [{"metadata": {"name": "data", "labels": {"x": "y"}}, "spec": {"accessModes": ["ReadWriteOnce"]}}],
            "persistentVolumeClaimRetentionPolicy": policy,
        }))
    };
    let mut pod = Pod::default();
    pod.metadata.name = Some("db-1".into());
    for (deleted, scaled, staying, going) in [
        ("Retain", "Retain", None, None),
        ("Delete", "Retain", Some("StatefulSet"), Some("StatefulSet")),
        ("Retain", "Delete", None, Some("Pod")),
        ("Delete", "Delete", Some("StatefulSet"), Some("Pod")),
    ] {
        let set = spec(&json!({"whenDeleted": deleted, "whenScaled": scaled}));
        let mut claim = claims(&set, 1).remove(0);
        assert_eq!(claim.name(), "data-db-1");
        let labels = claim.metadata.labels.clone().unwrap();
        assert_eq!((labels["app"].as_str(), labels["x"].as_str()), ("db", "y"));
        let mut owner = |condemned: Option<&Pod>| {
            own_claim(&set, condemned, &mut claim);
            assert!(
                !own_claim(&set, condemned, &mut claim),
                "nothing is left to change"
            );
            let owners = claim.metadata.owner_references.clone().unwrap_or_default();
            owners.first().map(|owner| owner.kind.clone())
        };
        assert_eq!(owner(None).as_deref(), staying, "{deleted} {scaled}");
        assert_eq!(owner(Some(&pod)).as_deref(), going, "{deleted} {scaled}");
    }
}

/// The API server has added a volume behind that of the claim. Volumes of a pod cannot change.
#[test]
fn a_label_that_was_lost_comes_back_alone() {
    let set = set(&json!({"volumeClaimTemplates": [{"metadata": {"name": "data"}}]}));
    let template = &set.spec.as_ref().unwrap().template;
    let mut pod = identity::pod(&set, template, "db-1", 0);
    let volumes = pod.spec.as_mut().unwrap().volumes.as_mut().unwrap();
    let claim = volumes[0].persistent_volume_claim.as_ref().unwrap();
    assert_eq!(claim.claim_name, "data-db-0");
    volumes.push(serde_json::from_value(json!({"name": "token", "projected": {}})).unwrap());
    let whole = pod.clone();
    pod.metadata.labels = None;
    assert!(!is_identified(&set, &pod));
    identify(&set, &mut pod);
    assert!(is_identified(&set, &pod));
    assert_eq!(pod.spec, whole.spec);
}

#[test]
fn names_have_one_ordinal() {
    let set = set(&json!({}));
    for (name, want) in [
        ("db-0", Some(0)),
        ("db-12", Some(12)),
        ("db-01", None),
        ("db-", None),
        ("db--1", None),
        ("db-x", None),
        ("dbs-1", None),
    ] {
        let mut pod = Pod::default();
        pod.metadata.name = Some(name.into());
        assert_eq!(ordinal(&set, &pod), want, "{name}");
    }
}

proptest! {
    /// Whatever is scaled and updated in the middle, the pods are in the end those that are wanted,
    /// and an ordered StatefulSet never misses two at once.
    #[test]
    fn ends_with_the_wanted_pods(
        ordered in any::<bool>(),
        changes in prop::collection::vec((0..6_i32, any::<bool>(), 0..4_usize), 1..8),
    ) {
        let policy = if ordered { "OrderedReady" } else { "Parallel" };
        let mut world = Simulation::new(json!({"podManagementPolicy": policy}));
        world.settle();
        let mut replicas = 3;
        for (number, (size, update, steps)) in changes.into_iter().enumerate() {
            replicas = size;
            world.set.spec.as_mut().unwrap().replicas = Some(size);
            if update {
                world.update(&format!("db-{}", number + 10));
            }
            for _ in 0..steps {
                let changed = world.step().len();
                prop_assert!(!ordered || changed <= 1, "{changed} at once");
                world.run();
                world.now += SignedDuration::from_secs(1);
            }
        }
        world.settle();
        let names: Vec<_> = world.pods.keys().cloned().collect();
        let want: Vec<_> = (0..replicas).map(|at| format!("db-{at}")).collect();
        prop_assert_eq!(names, want);
        let update = world.update.name.clone();
        prop_assert!(world.revisions().iter().all(|revision| *revision == update));
    }
}
