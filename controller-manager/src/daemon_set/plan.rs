//! One step of a DaemonSet: a function of the DaemonSet, the nodes, its pods and the time.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use podplane_api::{
    IntOrString, Object as _,
    apps::{DaemonSet, DaemonSetSpec, DaemonSetStatus},
    core::{Node, Pod},
    jiff::{SignedDuration, Timestamp},
};

use super::nodes::{NodeEligibility, Placement, target};
use crate::{
    history::{HASH_LABEL, hash},
    percent::{Rounding, scaled},
    pods::{available_from, node, phase, ready_since},
};

/// The most pods created or deleted in one step, as in Kubernetes.
const BURST: usize = 250;

/// The facts that a step depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct DaemonSetInput<'a> {
    pub(super) set: &'a DaemonSet,
    /// The hash of the present revision.
    pub(super) hash: &'a str,
    pub(super) nodes: &'a [Arc<Node>],
    /// The pods of the DaemonSet, ended ones too.
    pub(super) pods: &'a [Arc<Pod>],
    /// The nodes whose failed pods stay until the time.
    pub(super) held: &'a BTreeMap<String, Timestamp>,
    /// False while writes of this controller are not observed: then no pod is created or deleted.
    pub(super) may_manage: bool,
    pub(super) now: Timestamp,
}

/// The writes of a planner.
#[derive(Debug, Default, PartialEq)]
pub(super) struct DaemonSetPlan {
    pub(super) delete: Vec<Arc<Pod>>,
    /// Ended pods, which are deleted so that others take their place, and their nodes.
    pub(super) ended: Vec<(String, Arc<Pod>)>,
    /// The nodes that get a pod.
    pub(super) create: Vec<String>,
    pub(super) status: DaemonSetStatus,
    /// The time until something changes without an event.
    pub(super) wake: Option<SignedDuration>,
}

/// Plans the next step of a DaemonSet.
pub(super) fn plan(input: DaemonSetInput<'_>) -> DaemonSetPlan {
    let spec = input.set.spec.clone().unwrap_or_default();
    let mut on_node = BTreeMap::<&str, Vec<Arc<Pod>>>::new();
    for pod in input.pods {
        if let Some(node) = target(pod) {
            on_node.entry(node).or_default().push(pod.clone());
        }
    }
    let created = |pod: &Arc<Pod>| pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    for pods in on_node.values_mut() {
        pods.sort_by_key(|pod| (node(pod).is_none(), created(pod), pod.name().to_owned()));
    }
    let min_ready = spec.min_ready_seconds.unwrap_or_default().max(0);
    let eligible = input.nodes.iter();
    let placement = Placement::of(input.set);
    let eligible = eligible.map(|node| (node.name(), placement.eligibility(node)));
    let mut planner = Planner {
        input,
        min_ready: SignedDuration::from_secs(min_ready.into()),
        bounds: Bounds::default(),
        spec: &spec,
        eligible: eligible.collect(),
        on_node,
        plan: DaemonSetPlan::default(),
    };
    planner.bounds = planner.bounds();
    planner.report();
    if input.may_manage && !input.set.is_deleting() {
        planner.manage();
        let is_rolling = planner.plan.delete.is_empty()
            && planner.plan.create.is_empty()
            && planner.plan.ended.is_empty();
        if is_rolling && !is_on_delete(&spec) {
            planner.update();
        }
    }
    planner.plan.create.truncate(BURST);
    planner.plan.delete.truncate(BURST);
    planner.plan
}

/// The bounds of a rolling update. Exactly one of them is above 0.
#[derive(Clone, Copy, Debug, Default)]
struct Bounds {
    surge: usize,
    unavailable: usize,
}

struct Planner<'a> {
    input: DaemonSetInput<'a>,
    spec: &'a DaemonSetSpec,
    min_ready: SignedDuration,
    bounds: Bounds,
    eligible: BTreeMap<&'a str, NodeEligibility>,
    /// The pods by their node, the oldest first; those on a node before those that wait for it.
    on_node: BTreeMap<&'a str, Vec<Arc<Pod>>>,
    plan: DaemonSetPlan,
}

/// The pods of a node during an update.
#[derive(Default)]
struct NodePods<'p> {
    new: Option<&'p Arc<Pod>>,
    old: Option<&'p Arc<Pod>>,
}

impl Planner<'_> {
    fn bounds(&self) -> Bounds {
        let desired = self.eligible.values().filter(|node| node.should_run);
        let desired = number(desired.count());
        let rolling = self
            .spec
            .update_strategy
            .as_ref()
            .and_then(|strategy| strategy.rolling_update.clone())
            .unwrap_or_default();
        let bound = |bound: &IntOrString| {
            usize::try_from(scaled(bound, desired, Rounding::Up)).unwrap_or_default()
        };
        let surge = rolling.max_surge.as_ref().map_or(0, bound);
        let unavailable = rolling.max_unavailable.as_ref().map_or(1, bound);
        match surge {
            // Validation forbids both bounds to be 0, and shares of no node are.
            0 => Bounds {
                surge,
                unavailable: unavailable.max(1),
            },
            _ => Bounds {
                surge,
                unavailable: 0,
            },
        }
    }

    fn is_new(&self, pod: &Pod) -> bool {
        hash(pod, HASH_LABEL) == self.input.hash
    }

    fn is_available(&mut self, pod: &Pod) -> bool {
        match available_from(pod, self.min_ready) {
            Some(at) if at <= self.input.now => true,
            Some(at) => {
                self.wake_at(at);
                false
            }
            None => false,
        }
    }

    fn wake_at(&mut self, time: Timestamp) {
        let wait = time.duration_since(self.input.now);
        let wait = wait.max(SignedDuration::from_secs(1));
        self.plan.wake = Some(self.plan.wake.map_or(wait, |wake| wake.min(wait)));
    }

    /// Computes the status from the oldest pod of each node.
    fn report(&mut self) {
        let old = self.input.set.status.clone().unwrap_or_default();
        let mut status = DaemonSetStatus {
            collision_count: old.collision_count,
            conditions: old.conditions,
            observed_generation: self.input.set.metadata.generation,
            ..DaemonSetStatus::default()
        };
        let (mut updated, mut available) = (0, 0);
        for (name, eligible) in self.eligible.clone() {
            let pod = self
                .on_node
                .get(name)
                .and_then(|pods| pods.first())
                .cloned();
            match (eligible.should_run, pod) {
                (false, None) => {}
                (false, Some(_)) => status.number_misscheduled += 1,
                (true, None) => status.desired_number_scheduled += 1,
                (true, Some(pod)) => {
                    status.desired_number_scheduled += 1;
                    status.current_number_scheduled += 1;
                    status.number_ready += i32::from(ready_since(&pod).is_some());
                    available += i32::from(self.is_available(&pod));
                    updated += i32::from(self.is_new(&pod));
                }
            }
        }
        let counted = |count: i32| Some(count).filter(|count| *count > 0);
        status.updated_number_scheduled = counted(updated);
        status.number_available = counted(available);
        status.number_unavailable = counted(status.desired_number_scheduled - available);
        self.plan.status = status;
    }

    /// Gives each eligible node one pod, and the others none.
    fn manage(&mut self) {
        for (name, eligible) in self.eligible.clone() {
            match self.on_node.get(name).cloned() {
                None if eligible.should_run => self.plan.create.push(name.to_owned()),
                None => {}
                Some(pods) if eligible.may_stay => self.manage_node(name, pods),
                Some(pods) => self.delete(pods),
            }
        }
        let gone = self.on_node.iter();
        let gone = gone.filter(|(node, _)| !self.eligible.contains_key(*node));
        // A bound pod of a deleted node is collected with the node.
        let waiting = gone.flat_map(|(_, pods)| pods.clone());
        let waiting: Vec<_> = waiting.filter(|pod| node(pod).is_none()).collect();
        self.delete(waiting);
    }

    fn delete(&mut self, pods: Vec<Arc<Pod>>) {
        let pods = pods.into_iter().filter(|pod| !pod.is_deleting());
        self.plan.delete.extend(pods);
    }

    fn manage_node(&mut self, name: &str, pods: Vec<Arc<Pod>>) {
        let mut live = Vec::new();
        for pod in pods.into_iter().filter(|pod| !pod.is_deleting()) {
            match phase(&pod) {
                "Failed" => match self.input.held.get(name) {
                    Some(until) if *until > self.input.now => self.wake_at(*until),
                    _ => self.plan.ended.push((name.to_owned(), pod)),
                },
                "Succeeded" => self.plan.ended.push((name.to_owned(), pod)),
                _ => live.push(pod),
            }
        }
        if self.bounds.surge == 0 {
            self.plan.delete.extend(live.into_iter().skip(1));
            return;
        }
        let (new, old): (Vec<_>, Vec<_>) = live.into_iter().partition(|pod| self.is_new(pod));
        let (mut new, mut old) = (new.into_iter(), old.into_iter());
        let (first_new, first_old) = (new.next(), old.next());
        self.plan.delete.extend(new.chain(old));
        if let (Some(new), Some(old)) = (first_new, first_old)
            && (ready_since(&old).is_none() || self.is_available(&new))
        {
            self.plan.delete.push(old);
        }
    }

    /// Replaces pods of older revisions within the bounds.
    fn update(&mut self) {
        let nodes = self.on_node.iter();
        let nodes = nodes.map(|(name, pods)| ((*name).to_owned(), pods.clone()));
        let nodes: Vec<(String, Vec<Arc<Pod>>)> = nodes.collect();
        match self.bounds {
            Bounds {
                surge: 0,
                unavailable,
            } => self.replace(&nodes, unavailable),
            Bounds { surge, .. } => self.surge(&nodes, surge),
        }
    }

    /// The pods of a node; `None` if there are more than one of a revision.
    fn split<'p>(&self, pods: &'p [Arc<Pod>]) -> Option<NodePods<'p>> {
        let mut split = NodePods::default();
        for pod in pods.iter().filter(|pod| !pod.is_deleting()) {
            let place = match self.is_new(pod) {
                true => &mut split.new,
                false => &mut split.old,
            };
            if place.replace(pod).is_some() {
                return None;
            }
        }
        Some(split)
    }

    fn replace(&mut self, nodes: &[(String, Vec<Arc<Pod>>)], max: usize) {
        let (mut unavailable, mut candidates) = (0, Vec::new());
        for (_, pods) in nodes {
            match self.split(pods) {
                Some(NodePods {
                    new: Some(new),
                    old: None,
                }) => unavailable += usize::from(!self.is_available(new)),
                Some(NodePods {
                    new: None,
                    old: Some(old),
                }) => {
                    if self.is_available(old) {
                        candidates.push(old.clone());
                    } else {
                        // It costs nothing to replace it.
                        unavailable += 1;
                        self.plan.delete.push(old.clone());
                    }
                }
                // The next step deletes or creates a pod here.
                _ => unavailable += 1,
            }
        }
        candidates.truncate(max.saturating_sub(unavailable));
        self.plan.delete.extend(candidates);
    }

    fn surge(&mut self, nodes: &[(String, Vec<Arc<Pod>>)], max: usize) {
        let (mut surging, mut allowed, mut candidates) = (0, Vec::new(), Vec::new());
        let running = self.eligible.iter();
        let running = running.filter(|(_, eligible)| eligible.should_run);
        let running: BTreeSet<String> = running.map(|(name, _)| (*name).to_owned()).collect();
        for (name, pods) in nodes.iter().filter(|(name, _)| running.contains(name)) {
            match self.split(pods) {
                None => surging += 1,
                Some(NodePods { old: None, .. }) => {}
                Some(NodePods {
                    new: None,
                    old: Some(old),
                }) => match self.is_available(old) {
                    true => candidates.push(name.clone()),
                    false => allowed.push(name.clone()),
                },
                Some(NodePods {
                    new: Some(new),
                    old: Some(old),
                }) => match self.is_available(new) {
                    true => self.plan.delete.push(old.clone()),
                    false => surging += 1,
                },
            }
        }
        candidates.truncate(max.saturating_sub(surging));
        self.plan.create.extend(allowed);
        self.plan.create.extend(candidates);
    }
}

fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn is_on_delete(spec: &DaemonSetSpec) -> bool {
    let strategy = spec.update_strategy.as_ref();
    strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("OnDelete")
}
