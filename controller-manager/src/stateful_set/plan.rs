//! One step of a StatefulSet: a function of the StatefulSet, its revisions, its pods and the time.
//!
//! Ordered, the step ends at the first pod that has to be waited for: each pod is created when its
//! predecessors are available, and deleted when its successors are gone. In parallel, all pods are
//! created and deleted at once. Updates go from the highest ordinal down, in both cases.

use std::{collections::BTreeMap, sync::Arc};

use podplane_api::{
    Object as _,
    apps::{RollingUpdateStatefulSetStrategy, StatefulSet, StatefulSetSpec, StatefulSetStatus},
    core::{Pod, PodTemplateSpec},
    jiff::{SignedDuration, Timestamp},
};

use super::identity::{self, is_identified, ordinal, revision, start};
use crate::{
    percent::{Rounding, scaled},
    pods::{available_from, phase, ready_since},
};

/// A revision with its template.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Revision {
    pub(super) name: String,
    pub(super) template: PodTemplateSpec,
}

/// The facts that a step depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct StatefulSetInput<'a> {
    pub(super) set: &'a StatefulSet,
    /// The revision that pods are updated from.
    pub(super) current: &'a Revision,
    /// The revision of the present template.
    pub(super) update: &'a Revision,
    /// The pods of the StatefulSet, ended ones too.
    pub(super) pods: &'a [Arc<Pod>],
    /// False while writes of this controller are not observed: then no pod is created or deleted.
    pub(super) may_manage: bool,
    pub(super) now: Timestamp,
}

/// A change of a pod.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PodChange {
    /// Create it, after its claims.
    Create(Box<Pod>),
    /// Create those of its claims that are missing: the pod waits for them.
    Claim(Arc<Pod>),
    /// Give it the labels of its name.
    Identify(Arc<Pod>),
    /// Delete it; another one takes its place.
    Delete(Arc<Pod>),
    /// Delete it because it ended; another one takes its place.
    Recreate(Arc<Pod>),
    /// Delete it: there are too many.
    Condemn(Arc<Pod>),
}

/// The writes of a step.
#[derive(Debug, Default, PartialEq)]
pub(super) struct StatefulSetPlan {
    /// In this order.
    pub(super) changes: Vec<PodChange>,
    pub(super) status: StatefulSetStatus,
    /// The time until something changes without an event.
    pub(super) wake: Option<SignedDuration>,
}

/// Plans the next step of a StatefulSet.
pub(super) fn plan(input: StatefulSetInput<'_>) -> StatefulSetPlan {
    let spec = input.set.spec.clone().unwrap_or_default();
    let mut step = Step {
        first: start(input.set),
        count: spec.replicas.unwrap_or(1).max(0),
        is_ordered: spec.pod_management_policy.as_deref() != Some("Parallel"),
        min_ready: SignedDuration::from_secs(
            spec.min_ready_seconds.unwrap_or_default().max(0).into(),
        ),
        input,
        spec: &spec,
        replicas: BTreeMap::new(),
        condemned: Vec::new(),
        plan: StatefulSetPlan::default(),
    };
    step.sort_pods();
    step.report();
    if input.may_manage && !input.set.is_deleting() {
        // Waiting for a pod ends the step.
        let _ = step.manage();
    }
    step.complete_update();
    step.plan
}

/// The step is over: a pod has to be waited for.
struct Waiting;

struct Step<'a> {
    input: StatefulSetInput<'a>,
    spec: &'a StatefulSetSpec,
    first: i32,
    count: i32,
    is_ordered: bool,
    min_ready: SignedDuration,
    /// The pods that the StatefulSet wants, by ordinal.
    replicas: BTreeMap<i32, Arc<Pod>>,
    /// The pods beyond them, the one with the highest ordinal first.
    condemned: Vec<Arc<Pod>>,
    plan: StatefulSetPlan,
}

impl Step<'_> {
    fn sort_pods(&mut self) {
        let mut beyond = BTreeMap::new();
        for pod in self.input.pods {
            match ordinal(self.input.set, pod) {
                Some(number) if self.is_wanted(number) => {
                    self.replicas.insert(number, pod.clone());
                }
                Some(number) => {
                    beyond.insert(number, pod.clone());
                }
                None => {}
            }
        }
        self.condemned = beyond.into_values().rev().collect();
    }

    fn is_wanted(&self, ordinal: i32) -> bool {
        (self.first..self.first.saturating_add(self.count)).contains(&ordinal)
    }

    fn report(&mut self) {
        let old = self.input.set.status.clone().unwrap_or_default();
        let mut status = StatefulSetStatus {
            collision_count: old.collision_count,
            conditions: old.conditions,
            current_revision: Some(self.input.current.name.clone()),
            update_revision: Some(self.input.update.name.clone()),
            observed_generation: self.input.set.metadata.generation,
            ..StatefulSetStatus::default()
        };
        let (mut ready, mut available, mut current, mut updated) = (0, 0, 0, 0);
        let pods: Vec<_> = self
            .replicas
            .values()
            .chain(&self.condemned)
            .cloned()
            .collect();
        for pod in pods {
            status.replicas += 1;
            ready += i32::from(is_ready(&pod));
            available += i32::from(self.is_available(&pod));
            if !pod.is_deleting() {
                current += i32::from(revision(&pod) == self.input.current.name);
                updated += i32::from(revision(&pod) == self.input.update.name);
            }
        }
        let counted = |count: i32| Some(count).filter(|count| *count > 0);
        status.ready_replicas = counted(ready);
        status.available_replicas = Some(available);
        status.current_replicas = counted(current);
        status.updated_replicas = counted(updated);
        self.plan.status = status;
    }

    /// Makes the update revision the current one, once all pods have it.
    fn complete_update(&mut self) {
        let (count, is_on_delete) = (self.count, self.is_on_delete());
        let status = &mut self.plan.status;
        let all = [
            status.replicas,
            status.ready_replicas.unwrap_or_default(),
            status.updated_replicas.unwrap_or_default(),
        ];
        if !is_on_delete && all.iter().all(|number| *number == count) {
            status.current_replicas = status.updated_replicas;
            status.current_revision.clone_from(&status.update_revision);
        }
    }

    fn is_available(&mut self, pod: &Pod) -> bool {
        let at = available_from(pod, self.min_ready).filter(|_| is_ready(pod));
        match at {
            Some(at) if at > self.input.now => {
                let wait = at.duration_since(self.input.now);
                let wait = wait.max(SignedDuration::from_secs(1));
                self.plan.wake = Some(self.plan.wake.map_or(wait, |wake| wake.min(wait)));
                false
            }
            at => at.is_some(),
        }
    }

    fn is_on_delete(&self) -> bool {
        let strategy = self.spec.update_strategy.as_ref();
        strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("OnDelete")
    }

    fn rolling(&self) -> RollingUpdateStatefulSetStrategy {
        let strategy = self.spec.update_strategy.as_ref();
        let rolling = strategy.and_then(|strategy| strategy.rolling_update.clone());
        rolling.unwrap_or_default()
    }

    /// The first ordinal that is updated.
    fn partition(&self) -> i32 {
        let partition = self.rolling().partition.unwrap_or_default();
        self.first.saturating_add(partition.max(0))
    }

    fn manage(&mut self) -> Result<(), Waiting> {
        for ordinal in self.first..self.first.saturating_add(self.count) {
            self.replica(ordinal)?;
        }
        self.scale_down()?;
        if self.is_on_delete() {
            return Ok(());
        }
        self.update()
    }

    /// Ends the step if pods are ordered.
    fn wait(&self) -> Result<(), Waiting> {
        match self.is_ordered {
            true => Err(Waiting),
            false => Ok(()),
        }
    }

    fn replica(&mut self, ordinal: i32) -> Result<(), Waiting> {
        let Some(pod) = self.replicas.get(&ordinal).cloned() else {
            let pod = self.new_pod(ordinal);
            self.plan.changes.push(PodChange::Create(Box::new(pod)));
            return self.wait();
        };
        if matches!(phase(&pod), "Failed" | "Succeeded") {
            if !pod.is_deleting() {
                self.plan.changes.push(PodChange::Recreate(pod));
            }
            return self.wait();
        }
        if pod.is_deleting() {
            return self.wait();
        }
        if phase(&pod) == "Pending" {
            self.plan.changes.push(PodChange::Claim(pod.clone()));
        }
        if !self.is_available(&pod) {
            self.wait()?;
        }
        if !is_identified(self.input.set, &pod) {
            self.plan.changes.push(PodChange::Identify(pod));
        }
        Ok(())
    }

    /// The pod of that ordinal: below the partition it has the current revision still.
    fn new_pod(&self, ordinal: i32) -> Pod {
        let is_current = !self.is_on_delete() && ordinal < self.partition();
        let revision = match is_current {
            true => self.input.current,
            false => self.input.update,
        };
        identity::pod(self.input.set, &revision.template, &revision.name, ordinal)
    }

    fn scale_down(&mut self) -> Result<(), Waiting> {
        let condemned = std::mem::take(&mut self.condemned);
        let mut sick = self.replicas.values().chain(condemned.iter().rev());
        let sick = sick
            .find(|pod| !is_healthy(pod))
            .map(|pod| pod.uid().to_owned());
        for pod in condemned {
            if pod.is_deleting() {
                self.wait()?;
                continue;
            }
            // An unhealthy pod may go only if it is the first one: the others need attention.
            let is_first = sick.as_deref() == Some(pod.uid());
            if !self.is_available(&pod) && !is_first {
                self.wait()?;
            }
            self.plan.changes.push(PodChange::Condemn(pod));
            self.wait()?;
        }
        Ok(())
    }

    /// Deletes pods of other revisions from the highest ordinal down, as long as no more than
    /// allowed are unavailable.
    fn update(&mut self) -> Result<(), Waiting> {
        let bound = self.rolling().max_unavailable;
        let bound = bound.map_or(1, |bound| scaled(&bound, self.count, Rounding::Up).max(1));
        let mut left = usize::try_from(bound).unwrap_or_default();
        let partition = self.partition();
        if left > 1 {
            // Pods below the partition are unavailable, too.
            let others = self.first..partition.min(self.first.saturating_add(self.count));
            let sick = others.filter(|ordinal| {
                let pod = self.replicas.get(ordinal);
                pod.is_none_or(|pod| !is_healthy(pod))
            });
            left = left.saturating_sub(sick.count());
        }
        for ordinal in (partition..self.first.saturating_add(self.count)).rev() {
            if left == 0 {
                return Err(Waiting);
            }
            let Some(pod) = self.replicas.get(&ordinal).cloned() else {
                left -= 1;
                continue;
            };
            let is_old = revision(&pod) != self.input.update.name;
            let is_available = is_healthy(&pod) && self.is_available(&pod);
            if is_old && !pod.is_deleting() {
                self.plan.changes.push(PodChange::Delete(pod));
                left -= 1;
            } else if !is_available {
                left -= 1;
            }
        }
        Ok(())
    }
}

fn is_ready(pod: &Pod) -> bool {
    phase(pod) == "Running" && ready_since(pod).is_some()
}

fn is_healthy(pod: &Pod) -> bool {
    is_ready(pod) && !pod.is_deleting()
}
