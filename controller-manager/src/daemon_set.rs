//! The DaemonSet controller: carries out the plans of [`mod@plan`].

mod nodes;
mod plan;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use podplane_api::{
    Object as _, ObjectKey,
    apps::{ControllerRevision, DaemonSet, DaemonSetStatus},
    core::Pod,
    jiff::{SignedDuration, Timestamp},
};
use podplane_client::{ApiError, Client, EventRecorder, answered, events::EventType};

use self::{
    nodes::pod_for,
    plan::{DaemonSetInput, DaemonSetPlan, plan},
};
use crate::{
    adopt::Adoption,
    history::{self, HASH_LABEL, History, Present, hash},
    pod_control::PodControl,
    pods::phase,
    time,
    unseen::UnobservedWrites,
    workloads::WorkloadCache,
};

/// The delay before the next reconciliation while a write of our own is not in the cache.
const UNSEEN_AGAIN: Duration = Duration::from_secs(1);
/// The time that the second failed pod of a node stays; each further one stays twice as long.
const FIRST_BACKOFF: SignedDuration = SignedDuration::from_secs(1);
/// The longest time that a failed pod stays.
const MAX_BACKOFF: SignedDuration = SignedDuration::from_mins(15);

/// The DaemonSet controller.
#[derive(Debug)]
pub(crate) struct DaemonSets {
    control: PodControl,
    writes: UnobservedWrites,
    failures: Failures,
}

impl DaemonSets {
    pub(crate) fn new(client: Client, events: EventRecorder) -> Self {
        Self {
            control: PodControl::new(client, events),
            writes: UnobservedWrites::of_statuses(),
            failures: Failures::default(),
        }
    }

    /// Takes one step of a DaemonSet; returns the delay until the next reconciliation, if one is
    /// due without a change.
    pub(crate) async fn reconcile(
        &self,
        cache: &WorkloadCache,
        key: &ObjectKey,
    ) -> Result<Option<Duration>, ApiError> {
        let Some(set) = cache.daemon_sets.objects.get(key) else {
            self.control.forget(key);
            self.writes.forget(key);
            self.failures.forget(key);
            return Ok(None);
        };
        if set.is_deleting() {
            return Ok(None);
        }
        if !self.writes.is_settled(key, &cache.daemon_sets.objects) {
            return Ok(Some(UNSEEN_AGAIN));
        }
        let is_observed = self.control.is_observed(&cache.pods, key).await?;
        let spec = set.spec.clone().unwrap_or_default();
        let history = History::new(&self.control.client, &*set, HASH_LABEL);
        let revisions = history.claim(&cache.revisions).await?;
        let status = set.status.clone().unwrap_or_default();
        let collisions = status.collision_count;
        let present = history.present(&spec.template, collisions, &revisions);
        let present = match present.await? {
            Present::Stored(present) => present,
            Present::Collision => {
                let collision_count = Some(collisions.unwrap_or_default().saturating_add(1));
                let status = DaemonSetStatus {
                    collision_count,
                    ..status
                };
                self.write(&set, status).await?;
                return Err(history::collision());
            }
        };
        let adoption = Adoption::new(&self.control.client, &*set);
        let pods = adoption.claim_of(&cache.pods, |_| true).await?;
        let now = time::now();
        let plan = plan(DaemonSetInput {
            set: &set,
            hash: hash(&*present, HASH_LABEL),
            nodes: &cache.nodes.namespace(""),
            pods: &pods,
            held: &self.failures.held(key),
            may_manage: is_observed,
            now,
        });
        let wake = plan.wake.map(|wake| wake.unsigned_abs());
        self.carry_out(&set, &present, plan, now).await?;
        let live = live(&revisions, &present, &pods);
        history
            .prune(&revisions, &live, spec.revision_history_limit)
            .await?;
        match is_observed {
            true => Ok(wake),
            false => Ok(Some(UNSEEN_AGAIN)),
        }
    }

    async fn carry_out(
        &self,
        set: &DaemonSet,
        present: &ControllerRevision,
        plan: DaemonSetPlan,
        now: Timestamp,
    ) -> Result<(), ApiError> {
        let DaemonSetPlan {
            delete,
            ended,
            create,
            status,
            wake: _,
        } = plan;
        for (node, pod) in &ended {
            self.report_ended(set, node, pod);
            if phase(pod) == "Failed" {
                self.failures.failed(&set.key(), node, now);
            }
        }
        let ended = ended.iter().map(|(_, pod)| pod);
        let delete = delete.iter().chain(ended).map(AsRef::as_ref);
        let deleted = self.control.delete_all(set, delete).await;
        let hash = hash(present, HASH_LABEL);
        let new: Vec<Pod> = create.iter().map(|node| pod_for(set, hash, node)).collect();
        let created = self.control.create_all(set, &new).await;
        self.write(set, status).await?;
        deleted.and(created)
    }

    fn report_ended(&self, set: &DaemonSet, node: &str, pod: &Pod) {
        let (kind, reason, state, verb) = match phase(pod) {
            "Failed" => (EventType::Warning, "FailedDaemonPod", "failed", "kill"),
            _ => (
                EventType::Normal,
                "SucceededDaemonPod",
                "succeeded",
                "delete",
            ),
        };
        let pod = pod.key();
        let message =
            format!("Found {state} daemon pod {pod} on node {node}, will try to {verb} it");
        self.control.event(set, kind, reason, message);
    }

    async fn write(&self, set: &DaemonSet, status: DaemonSetStatus) -> Result<(), ApiError> {
        if set.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let mut next = set.clone();
        next.status = Some(status);
        let api = self.control.client.namespaced::<DaemonSet>(set.namespace());
        let written = answered(api.update_status(&next)).await?;
        self.writes.changed(set, &written, set.resource_version());
        Ok(())
    }
}

/// The names of the revisions that pods have, and of the present one.
fn live(
    revisions: &[Arc<ControllerRevision>],
    present: &ControllerRevision,
    pods: &[Arc<Pod>],
) -> BTreeSet<String> {
    let hashes = pods.iter().map(|pod| hash(&**pod, HASH_LABEL));
    let hashes: BTreeSet<&str> = hashes.filter(|hash| !hash.is_empty()).collect();
    let used = revisions.iter();
    let used = used.filter(|revision| hashes.contains(hash(&***revision, HASH_LABEL)));
    let names = used.map(|revision| revision.name().to_owned());
    names.chain([present.name().to_owned()]).collect()
}

/// The failures of a DaemonSet's pods on each node.
type NodeFailures = BTreeMap<String, (SignedDuration, Timestamp)>;

/// The failed pods that were deleted, by DaemonSet: the delay of the next deletion, and the time of
/// the last one.
#[derive(Debug, Default)]
struct Failures(Mutex<BTreeMap<ObjectKey, NodeFailures>>);

impl Failures {
    /// The nodes whose failed pods stay, and until when.
    fn held(&self, set: &ObjectKey) -> BTreeMap<String, Timestamp> {
        let all = self.lock();
        let of_set = all.get(set).into_iter().flatten();
        let until = of_set.filter_map(|(node, (delay, since))| {
            Some((node.clone(), since.checked_add(*delay).ok()?))
        });
        until.collect()
    }

    /// Records the deletion of a failed pod. The delay starts over after twice the longest one.
    fn failed(&self, set: &ObjectKey, node: &str, now: Timestamp) {
        let mut all = self.lock();
        let of_set = all.entry(set.clone()).or_default();
        of_set.retain(|_, (_, since)| now.duration_since(*since) <= MAX_BACKOFF * 2);
        let former = of_set.get(node);
        let delay = former.map_or(FIRST_BACKOFF, |(delay, _)| (*delay * 2).min(MAX_BACKOFF));
        of_set.insert(node.to_owned(), (delay, now));
    }

    fn forget(&self, set: &ObjectKey) {
        self.lock().remove(set);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, NodeFailures>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
