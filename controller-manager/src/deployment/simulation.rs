//! A simulation of Deployments: ReplicaSets act late, and pods become ready in any order. Whatever
//! the order, the bounds hold and every rollout ends.

use std::collections::{BTreeMap, BTreeSet};

use podplane_api::{
    IntOrString, Object as _,
    apps::{Deployment, DeploymentSpec, DeploymentStrategy, ReplicaSet, RollingUpdateDeployment},
    core::{Container, PodSpec, PodTemplateSpec},
    jiff::{SignedDuration, Timestamp},
    meta::{LabelSelector, ObjectMeta, Time},
};
use proptest::prelude::{
    Just, ProptestConfig, Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest,
};

use super::{
    plan::{DeploymentPlan, PlanInput, SetUpdate, plan},
    replicas::{bounds, size, wanted},
};

/// An event of the simulation.
#[derive(Clone, Debug)]
pub(super) enum SimulatedEvent {
    /// The deployment controller reconciles.
    Look,
    /// The ReplicaSet of this index creates and deletes pods, and updates its status.
    Act(usize),
    /// A ReplicaSet only updates its status.
    Count(usize),
    /// The oldest unready pod of a ReplicaSet becomes ready.
    Ready(usize),
}

pub(super) struct Simulation {
    pub(super) deployment: Deployment,
    pub(super) sets: BTreeMap<String, ReplicaSet>,
    /// The pods of each ReplicaSet: true for a ready one.
    pub(super) pods: BTreeMap<String, Vec<bool>>,
    pub(super) now: Timestamp,
    pub(super) log: Vec<String>,
}

impl Simulation {
    pub(super) fn new(replicas: i32, strategy: DeploymentStrategy) -> Self {
        let metadata = ObjectMeta {
            name: Some("web".into()),
            namespace: Some("default".into()),
            uid: Some("deployment".into()),
            generation: Some(1),
            ..ObjectMeta::default()
        };
        let selector = LabelSelector {
            match_labels: Some([("app".to_owned(), "web".to_owned())].into()),
            ..LabelSelector::default()
        };
        let spec = DeploymentSpec {
            replicas: Some(replicas),
            revision_history_limit: Some(10),
            progress_deadline_seconds: Some(600),
            selector,
            strategy: Some(strategy),
            template: template("1"),
            ..DeploymentSpec::default()
        };
        Self {
            deployment: Deployment {
                metadata,
                spec: Some(spec),
                status: None,
            },
            sets: BTreeMap::new(),
            pods: BTreeMap::new(),
            now: "2026-11-21T10:00:00Z".parse().unwrap(),
            log: Vec::new(),
        }
    }

    pub(super) fn change(&mut self, change: impl FnOnce(&mut DeploymentSpec)) {
        change(self.deployment.spec.as_mut().unwrap());
        *self.deployment.metadata.generation.as_mut().unwrap() += 1;
    }

    pub(super) fn set_image(&mut self, image: &str) {
        self.change(|spec| spec.template = template(image));
    }

    /// The plan for the present state.
    pub(super) fn plan(&self) -> DeploymentPlan {
        let with_pods: BTreeSet<String> = self
            .pods
            .iter()
            .filter(|(_, pods)| !pods.is_empty())
            .map(|(name, _)| name.clone())
            .collect();
        plan(PlanInput {
            deployment: &self.deployment,
            sets: self.sets.values().cloned().collect(),
            with_pods,
            now: self.now,
        })
        .unwrap()
    }

    /// Plans and writes; returns whether there was something to write.
    pub(super) fn plan_and_write(&mut self) -> bool {
        let DeploymentPlan {
            create,
            update,
            delete,
            revision,
            status,
            wake: _,
        } = self.plan();
        let before = self.deployment.clone();
        let mut any = create.is_some() || !update.is_empty() || !delete.is_empty();
        if let Some(mut set) = create {
            self.log
                .push(format!("+{} {}", self.image(&set), size(&set)));
            // The name is used as the UID, since no two are equal.
            set.metadata.uid.clone_from(&set.metadata.name);
            set.metadata.creation_timestamp = Some(Time(
                self.now + SignedDuration::from_secs(i64::try_from(self.sets.len()).unwrap()),
            ));
            set.metadata.generation = Some(1);
            self.sets.insert(set.name().to_owned(), set);
        }
        for SetUpdate { mut set, from } in update {
            if let Some(from) = from {
                self.log
                    .push(format!("{} {from}-{}", self.image(&set), size(&set)));
                *set.metadata.generation.as_mut().unwrap() += 1;
            }
            self.sets.insert(set.name().to_owned(), set);
        }
        for set in delete {
            self.log.push(format!("-{}", self.image(&set)));
            self.sets.remove(set.name());
        }
        if let Some(revision) = revision {
            let annotations = self.deployment.metadata.annotations.get_or_insert_default();
            annotations.insert(super::revision::REVISION.to_owned(), revision);
        }
        self.deployment.status = Some(status);
        any |= self.deployment != before;
        any
    }

    fn name(&self, place: usize) -> Option<String> {
        self.sets
            .keys()
            .nth(place % self.sets.len().max(1))
            .cloned()
    }

    pub(super) fn act(&mut self, place: usize) -> bool {
        let Some(name) = self.name(place) else {
            return false;
        };
        let size = usize::try_from(size(&self.sets[&name])).unwrap();
        let pods = self.pods.entry(name).or_default();
        let before = pods.clone();
        // Unready pods are deleted first.
        pods.sort_by_key(|ready| !ready);
        pods.resize(size, false);
        let acted = *pods != before;
        self.count(place) | acted
    }

    pub(super) fn count(&mut self, place: usize) -> bool {
        let Some(name) = self.name(place) else {
            return false;
        };
        let pods = self.pods.get(&name).cloned().unwrap_or_default();
        let set = self.sets.get_mut(&name).unwrap();
        let before = set.status.clone();
        let number = |count: usize| i32::try_from(count).unwrap();
        let ready = number(pods.iter().filter(|ready| **ready).count());
        let status = set.status.get_or_insert_default();
        status.replicas = number(pods.len());
        status.ready_replicas = Some(ready);
        status.available_replicas = Some(ready);
        status.observed_generation = set.metadata.generation;
        set.status != before
    }

    pub(super) fn ready(&mut self, place: usize) -> bool {
        let Some(name) = self.name(place) else {
            return false;
        };
        let pods = self.pods.get_mut(&name).into_iter().flatten();
        let mut waiting = pods.filter(|ready| !**ready);
        waiting.next().map(|ready| *ready = true).is_some()
    }

    /// Runs until nothing changes.
    pub(super) fn settle(&mut self) {
        for _ in 0..10_000 {
            let mut any = self.plan_and_write();
            for place in 0..self.sets.len() {
                any |= self.act(place);
                while self.ready(place) {
                    any = true;
                }
                any |= self.count(place);
            }
            if !any {
                return;
            }
        }
        panic!("it never ends: {:?}", self.log);
    }

    pub(super) fn image(&self, set: &ReplicaSet) -> String {
        let template = set.spec.as_ref().unwrap().template.as_ref().unwrap();
        let container = &template.spec.as_ref().unwrap().containers[0];
        container.image.clone().unwrap()
    }

    /// Sizes by image.
    pub(super) fn sizes(&self) -> BTreeMap<String, i32> {
        self.sets
            .values()
            .map(|set| (self.image(set), size(set)))
            .collect()
    }

    fn step(&mut self, op: &SimulatedEvent) {
        match op {
            SimulatedEvent::Look => drop(self.plan_and_write()),
            SimulatedEvent::Act(place) => drop(self.act(*place)),
            SimulatedEvent::Count(place) => drop(self.count(*place)),
            SimulatedEvent::Ready(place) => drop(self.ready(*place)),
        }
    }
}

fn template(image: &str) -> PodTemplateSpec {
    let container = Container {
        name: "c".into(),
        image: Some(image.into()),
        ..Container::default()
    };
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some([("app".to_owned(), "web".to_owned())].into()),
            ..ObjectMeta::default()
        }),
        spec: Some(PodSpec {
            containers: vec![container],
            ..PodSpec::default()
        }),
    }
}

pub(super) fn rolling(surge: IntOrString, unavailable: IntOrString) -> DeploymentStrategy {
    DeploymentStrategy {
        type_: Some("RollingUpdate".into()),
        rolling_update: Some(RollingUpdateDeployment {
            max_surge: Some(surge),
            max_unavailable: Some(unavailable),
        }),
    }
}

pub(super) fn recreate() -> DeploymentStrategy {
    DeploymentStrategy {
        type_: Some("Recreate".into()),
        rolling_update: None,
    }
}

fn amount() -> impl Strategy<Value = IntOrString> {
    prop_oneof![
        (0..5).prop_map(IntOrString::Int),
        (0..=100).prop_map(|per_cent| IntOrString::String(format!("{per_cent}%"))),
    ]
}

fn op() -> impl Strategy<Value = SimulatedEvent> {
    prop_oneof![
        3 => Just(SimulatedEvent::Look),
        2 => (0..4_usize).prop_map(SimulatedEvent::Act),
        1 => (0..4_usize).prop_map(SimulatedEvent::Count),
        2 => (0..4_usize).prop_map(SimulatedEvent::Ready),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn rollout_keeps_its_bounds_and_ends(
        replicas in 0..12_i32,
        surge in amount(),
        unavailable in amount(),
        // Rollouts, each with the events before the next one begins.
        rollouts in prop::collection::vec((0..3_u8, prop::collection::vec(op(), 0..40)), 1..4),
    ) {
        let mut world = Simulation::new(replicas, rolling(surge, unavailable));
        world.settle();
        let bounds = bounds(&world.deployment);
        for (image, ops) in rollouts {
            world.set_image(&image.to_string());
            for op in ops {
                world.step(&op);
                let sizes: i32 = world.sets.values().map(size).sum();
                prop_assert!(sizes <= replicas + bounds.surge, "{sizes} of {replicas}+{}: {:?}", bounds.surge, world.log);
                let available: i32 = world.pods.values().flatten().map(|ready| i32::from(*ready)).sum();
                prop_assert!(available >= replicas - bounds.unavailable, "{available} of {replicas}-{}: {:?}", bounds.unavailable, world.log);
            }
        }
        world.settle();
        let image = world.deployment.spec.as_ref().unwrap().template.spec.as_ref().unwrap().containers[0].image.clone().unwrap();
        for (of, size) in world.sizes() {
            prop_assert_eq!(size, if of == image { replicas } else { 0 }, "{}", of);
        }
    }

    #[test]
    fn reaches_any_requested_state(
        strategy in prop_oneof![Just(recreate()), (amount(), amount()).prop_map(|(surge, unavailable)| rolling(surge, unavailable))],
        asked in prop::collection::vec((0..3_u8, 0..12_i32, any::<bool>(), prop::collection::vec(op(), 0..20)), 1..6),
    ) {
        let mut world = Simulation::new(3, strategy);
        for (image, replicas, paused, ops) in &asked {
            world.set_image(&image.to_string());
            world.change(|spec| { spec.replicas = Some(*replicas); spec.paused = Some(*paused); });
            ops.iter().for_each(|op| world.step(op));
        }
        world.change(|spec| spec.paused = None);
        world.settle();
        let (image, replicas) = asked.last().map(|(image, replicas, ..)| (image.to_string(), *replicas)).unwrap();
        prop_assert_eq!(wanted(&world.deployment), replicas);
        for (of, size) in world.sizes() {
            prop_assert_eq!(size, if of == image { replicas } else { 0 }, "{}", of);
        }
        let status = world.deployment.status.clone().unwrap();
        prop_assert_eq!(status.available_replicas.unwrap_or_default(), replicas);
        prop_assert_eq!(status.observed_generation, world.deployment.metadata.generation);
    }
}
