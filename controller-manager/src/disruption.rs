//! The disruption controller: computes the status of PodDisruptionBudgets, which evictions depend
//! on (source: Kubernetes' `pkg/controller/disruption`).

mod plan;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use podplane_api::{
    Object, ObjectKey,
    apps::{Deployment, ReplicaSet, StatefulSet},
    core::Pod,
    kinds::pod_disruption_budget::selects_labels,
    meta::OwnerReference,
    policy::PodDisruptionBudget,
};
use podplane_client::{
    ApiError, Cache, CacheChange, Client, EventRecorder, WorkQueue, answered, events::EventType,
};

use self::plan::{ControllerScale, DisruptionInput, DisruptionPlan, Notice, plan};
use crate::{index::ObjectIndex, owner::controller_of, time, work::Latch};

/// The disruption controller. It reconciles budgets by key, with the [`DisruptionWriter`] of a
/// leader; a standby only observes.
#[derive(Debug)]
pub(crate) struct Disruptions {
    budgets: ObjectIndex<PodDisruptionBudget>,
    pods: ObjectIndex<Pod>,
    sets: Cache<ReplicaSet>,
    deployments: Cache<Deployment>,
    stateful_sets: Cache<StatefulSet>,
    pub(crate) queue: WorkQueue<ObjectKey>,
}

/// The means of a leader to write.
#[derive(Debug)]
pub(crate) struct DisruptionWriter {
    pub(crate) client: Client,
    pub(crate) events: EventRecorder,
}

impl Disruptions {
    /// A controller whose queue is closed.
    pub(crate) fn new(
        sets: Cache<ReplicaSet>,
        deployments: Cache<Deployment>,
        stateful_sets: Cache<StatefulSet>,
    ) -> Self {
        Self {
            budgets: ObjectIndex::default(),
            pods: ObjectIndex::default(),
            sets,
            deployments,
            stateful_sets,
            queue: WorkQueue::closed(),
        }
    }

    /// Opens the queue, and queues all present budgets.
    pub(crate) fn open(&self) {
        self.queue.open();
        for key in self.budgets.keys() {
            self.queue.add(key);
        }
    }

    /// Observes changes, for ever; `ready` is notified when the first lists have been observed.
    pub(crate) async fn follow(
        &self,
        budgets: Cache<PodDisruptionBudget>,
        pods: Cache<Pod>,
        ready: &Latch,
    ) {
        tokio::join!(
            budgets.synced(),
            pods.synced(),
            self.sets.synced(),
            self.deployments.synced(),
            self.stateful_sets.synced()
        );
        let (mut budgets, mut pods) = (budgets.subscribe(), pods.subscribe());
        let (mut sets, mut deployments) = (self.sets.subscribe(), self.deployments.subscribe());
        let mut stateful_sets = self.stateful_sets.subscribe();
        while let Some(change) = budgets.try_next() {
            self.budget_changed(&change);
        }
        while let Some(change) = pods.try_next() {
            self.pods.apply(&change);
        }
        ready.arrive();
        loop {
            // A change is consumed only when it is returned, so cancelling a wait loses nothing.
            tokio::select! {
                change = budgets.next() => self.budget_changed(&change),
                change = pods.next() => self.pod_changed(&change),
                change = sets.next() => self.scale_changed(&change, |set| {
                    set.spec.as_ref().and_then(|spec| spec.replicas)
                }),
                change = deployments.next() => self.scale_changed(&change, |deployment| {
                    deployment.spec.as_ref().and_then(|spec| spec.replicas)
                }),
                change = stateful_sets.next() => self.scale_changed(&change, |set| {
                    set.spec.as_ref().and_then(|spec| spec.replicas)
                }),
            }
        }
    }

    fn budget_changed(&self, change: &CacheChange<PodDisruptionBudget>) {
        self.budgets.apply(change);
        let (CacheChange::Applied { new: budget, .. } | CacheChange::Deleted(budget)) = change;
        self.queue.add(budget.key());
    }

    /// Queues the budgets that select the pod by its present or its former labels.
    fn pod_changed(&self, change: &CacheChange<Pod>) {
        self.pods.apply(change);
        let states = match change {
            CacheChange::Applied { old, new } => [Some(new), old.as_ref()],
            CacheChange::Deleted(old) => [Some(old), None],
        };
        for pod in states.into_iter().flatten() {
            for budget in self.budgets.namespace(pod.namespace()) {
                if selects_labels(&budget, pod.metadata.labels.as_ref()) {
                    self.queue.add(budget.key());
                }
            }
        }
    }

    /// Queues the budgets of the namespace if the number of replicas changed: the share that may be
    /// disrupted is counted from it.
    fn scale_changed<K: Object>(
        &self,
        change: &CacheChange<K>,
        replicas: impl Fn(&K) -> Option<i32>,
    ) {
        let object = match change {
            CacheChange::Applied {
                old: Some(old),
                new,
            } if replicas(old) == replicas(new) => return,
            CacheChange::Applied { new: object, .. } | CacheChange::Deleted(object) => object,
        };
        for budget in self.budgets.namespace(object.namespace()) {
            self.queue.add(budget.key());
        }
    }

    /// Writes the status of a budget; returns the delay until the next reconciliation, if one is
    /// due without a change.
    pub(crate) async fn reconcile(
        &self,
        writer: &DisruptionWriter,
        key: &ObjectKey,
    ) -> Result<Option<Duration>, ApiError> {
        let Some(budget) = self.budgets.get(key) else {
            return Ok(None);
        };
        let mut pods = self.pods.namespace(&key.namespace);
        pods.retain(|pod| selects_labels(&budget, pod.metadata.labels.as_ref()));
        let DisruptionPlan {
            status,
            notices,
            again,
        } = plan(DisruptionInput {
            budget: &budget,
            pods: &pods,
            scale: &|owner| self.scale(&key.namespace, owner),
            now: time::now(),
        });
        for notice in notices {
            writer.record(&budget, notice);
        }
        if budget.status.as_ref() != Some(&status) {
            let mut next = (*budget).clone();
            next.status = Some(status);
            let budgets = writer.client.namespaced(&key.namespace);
            answered(budgets.update_status(&next)).await?;
        }
        Ok(again)
    }

    /// The workload behind a pod's controller, with the number of its replicas. A Deployment counts
    /// for all of its ReplicaSets.
    fn scale(&self, namespace: &str, owner: &OwnerReference) -> Option<ControllerScale> {
        let scale = |uid: &str, replicas: Option<i32>| ControllerScale {
            uid: uid.to_owned(),
            replicas: replicas.unwrap_or(1),
        };
        if let Some(set) = referenced(&self.stateful_sets, namespace, owner) {
            let replicas = set.spec.as_ref().and_then(|spec| spec.replicas);
            return Some(scale(set.uid(), replicas));
        }
        let set = referenced(&self.sets, namespace, owner)?;
        let deployment = controller_of(&set.metadata).filter(|owner| is_one::<Deployment>(owner));
        if let Some(owner) = deployment {
            let deployment = referenced(&self.deployments, namespace, owner)?;
            let replicas = deployment.spec.as_ref().and_then(|spec| spec.replicas);
            return Some(scale(deployment.uid(), replicas));
        }
        let replicas = set.spec.as_ref().and_then(|spec| spec.replicas);
        Some(scale(set.uid(), replicas))
    }
}

impl DisruptionWriter {
    fn record(&self, budget: &Arc<PodDisruptionBudget>, notice: Notice) {
        let warning = EventType::Warning;
        let (r#type, reason, message) = match notice {
            Notice::NoPods => (
                EventType::Normal,
                "NoPods",
                "No matching pods found".to_owned(),
            ),
            Notice::NotCounted(why) => (
                warning,
                "CalculateExpectedPodCountFailed",
                format!("Failed to calculate the number of expected pods: {why}"),
            ),
            Notice::Unmanaged(names) => (
                warning,
                "UnmanagedPods",
                format!(
                    "Pods selected by this PodDisruptionBudget have no controller and are not counted: {}. To count them, set \".spec.minAvailable\" to an integer",
                    names.join(", ")
                ),
            ),
            Notice::NotDeleted(pod) => {
                let message = format!(
                    "Pod was expected by PDB {} to be deleted but it wasn't",
                    budget.key()
                );
                return self
                    .events
                    .record(&*pod, warning, "NotDeleted", "", message);
            }
        };
        self.events.record(&**budget, r#type, reason, "", message);
    }
}

/// Returns true if the reference is to an object of the kind, of any version.
fn is_one<K: Object>(owner: &OwnerReference) -> bool {
    let group = owner
        .api_version
        .split_once('/')
        .map_or("", |(group, _)| group);
    owner.kind == K::KIND && group == K::GROUP
}

/// The object that a reference means, unless it is another one of that name.
fn referenced<K: Object>(
    cache: &Cache<K>,
    namespace: &str,
    owner: &OwnerReference,
) -> Option<Arc<K>> {
    if !is_one::<K>(owner) {
        return None;
    }
    let found = cache.get(&ObjectKey::new(namespace, owner.name.as_str()))?;
    (found.uid() == owner.uid).then_some(found)
}
