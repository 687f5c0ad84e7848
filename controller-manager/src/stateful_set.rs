//! The StatefulSet controller: carries out the plans of [`mod@plan`].

mod identity;
mod plan;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use podplane_api::{
    Object as _, ObjectKey,
    apps::{ControllerRevision, StatefulSet, StatefulSetStatus},
    core::{PersistentVolumeClaim, Pod},
};
use podplane_client::{ApiError, Client, EventRecorder, Reason, answered, events::EventType};

use self::{
    identity::{claim_keys, claims, identify, ordinal, own_claim, revision},
    plan::{PodChange, Revision, StatefulSetInput, plan},
};
use crate::{
    adopt::Adoption,
    history::{self, History, Present, template_of},
    owner::controller_of,
    pod_control::PodControl,
    pods::phase,
    time,
    unseen::UnobservedWrites,
    work::{is_ending, unless_gone},
    workloads::WorkloadCache,
};

/// The delay before the next reconciliation while a write of our own is not in the cache.
const UNSEEN_AGAIN: Duration = Duration::from_secs(1);
/// The label of revisions with their hash.
const REVISION_HASH: &str = "controller.kubernetes.io/hash";

/// The StatefulSet controller.
#[derive(Debug)]
pub(crate) struct StatefulSets {
    control: PodControl,
    writes: UnobservedWrites,
}

impl StatefulSets {
    pub(crate) fn new(client: Client, events: EventRecorder) -> Self {
        Self {
            control: PodControl::new(client, events),
            writes: UnobservedWrites::of_statuses(),
        }
    }

    /// Takes one step of a StatefulSet; returns the delay until the next reconciliation, if one is
    /// due without a change.
    pub(crate) async fn reconcile(
        &self,
        cache: &WorkloadCache,
        key: &ObjectKey,
    ) -> Result<Option<Duration>, ApiError> {
        let Some(set) = cache.stateful_sets.objects.get(key) else {
            self.control.forget(key);
            self.writes.forget(key);
            return Ok(None);
        };
        if set.is_deleting() {
            return Ok(None);
        }
        if !self.writes.is_settled(key, &cache.stateful_sets.objects) {
            return Ok(Some(UNSEEN_AGAIN));
        }
        let is_observed = self.control.is_observed(&cache.pods, key).await?;
        let adoption = Adoption::new(&self.control.client, &*set);
        // Only pods with its names are adopted.
        let counts =
            |pod: &Pod| controller_of(&pod.metadata).is_some() || ordinal(&set, pod).is_some();
        let pods = adoption.claim_of(&cache.pods, counts).await?;
        let spec = set.spec.clone().unwrap_or_default();
        let status = set.status.clone().unwrap_or_default();
        let history = History::new(&self.control.client, &*set, REVISION_HASH);
        let revisions = history.claim(&cache.revisions).await?;
        let collisions = status.collision_count;
        let present = history.present(&spec.template, collisions, &revisions);
        let update = match present.await? {
            Present::Stored(present) => present,
            Present::Collision => {
                let collision_count = Some(collisions.unwrap_or_default().saturating_add(1));
                let status = StatefulSetStatus {
                    collision_count,
                    ..status
                };
                self.write(&set, status).await?;
                return Err(history::collision());
            }
        };
        let update = with_template(&update)?;
        let former = status.current_revision.as_deref().unwrap_or_default();
        let former = revisions.iter().find(|revision| revision.name() == former);
        let current = match former {
            Some(former) => with_template(former)?,
            None => update.clone(),
        };
        let plan = plan(StatefulSetInput {
            set: &set,
            current: &current,
            update: &update,
            pods: &pods,
            may_manage: is_observed,
            now: time::now(),
        });
        let mut carried_out = Ok(());
        for change in plan.changes {
            if carried_out.is_ok() {
                carried_out = self.carry_out(cache, &set, change).await;
            }
        }
        self.write(&set, plan.status).await?;
        carried_out?;
        self.own_claims(cache, &set, &pods).await?;
        let live = pods.iter().map(|pod| revision(pod).to_owned());
        let live: BTreeSet<String> = live.chain([current.name, update.name]).collect();
        history
            .prune(&revisions, &live, spec.revision_history_limit)
            .await?;
        match is_observed {
            true => Ok(plan.wake.map(|wake| wake.unsigned_abs())),
            false => Ok(Some(UNSEEN_AGAIN)),
        }
    }

    async fn carry_out(
        &self,
        cache: &WorkloadCache,
        set: &StatefulSet,
        change: PodChange,
    ) -> Result<(), ApiError> {
        match change {
            PodChange::Create(pod) => self.create(cache, set, &pod).await,
            PodChange::Claim(pod) => self.create_claims(cache, set, &pod).await,
            PodChange::Identify(pod) => {
                let mut pod = Pod::clone(&pod);
                identify(set, &mut pod);
                self.control.update(&pod).await
            }
            PodChange::Delete(pod) => self.delete(set, &pod).await,
            PodChange::Recreate(pod) => {
                let (reason, state) = match phase(&pod) {
                    "Failed" => ("RecreatingFailedPod", "failed"),
                    _ => ("RecreatingTerminatedPod", "terminated"),
                };
                let message = format!(
                    "StatefulSet {} is recreating {state} Pod {}",
                    set.key(),
                    pod.name()
                );
                self.control.event(set, EventType::Warning, reason, message);
                self.delete(set, &pod).await
            }
            PodChange::Condemn(pod) => {
                // The claims go with the pod, if they are not to stay.
                for mut claim in self.cached_claims(cache, set, &pod) {
                    if own_claim(set, Some(&pod), &mut claim) {
                        self.update_claim(&claim).await?;
                    }
                }
                self.delete(set, &pod).await
            }
        }
    }

    async fn create(
        &self,
        cache: &WorkloadCache,
        set: &StatefulSet,
        pod: &Pod,
    ) -> Result<(), ApiError> {
        self.create_claims(cache, set, pod).await?;
        let created = self.control.create_quietly(set, pod).await;
        match created {
            Ok(()) => self.report(set, "create", pod, None),
            // It is not in the cache yet, or another's.
            Err(ref error) if error.is_already_exists() || is_ending(error) => return Ok(()),
            Err(ref error) => self.report(set, "create", pod, Some(error)),
        }
        created
    }

    async fn delete(&self, set: &StatefulSet, pod: &Pod) -> Result<(), ApiError> {
        let deleted = self.control.delete_quietly(set, pod).await;
        match &deleted {
            Ok(true) => self.report(set, "delete", pod, None),
            Ok(false) => {}
            Err(error) => self.report(set, "delete", pod, Some(error)),
        }
        deleted.map(drop)
    }

    fn report(&self, set: &StatefulSet, verb: &str, pod: &Pod, error: Option<&ApiError>) {
        let about = format!("{verb} Pod {} in StatefulSet {}", pod.name(), set.name());
        let (kind, message) = match error {
            None => (EventType::Normal, format!("{about} successful")),
            Some(error) => (EventType::Warning, format!("{about} failed error: {error}")),
        };
        let reason = match (verb, error) {
            ("create", None) => "SuccessfulCreate",
            ("create", Some(_)) => "FailedCreate",
            (_, None) => "SuccessfulDelete",
            (_, Some(_)) => "FailedDelete",
        };
        self.control.event(set, kind, reason, message);
    }

    /// The claims of the pod that the cache has.
    fn cached_claims(
        &self,
        cache: &WorkloadCache,
        set: &StatefulSet,
        pod: &Pod,
    ) -> Vec<PersistentVolumeClaim> {
        let keys = ordinal(set, pod).map(|ordinal| claim_keys(set, ordinal));
        let keys = keys.into_iter().flatten();
        let cached = keys.filter_map(|key| cache.claims.get(&key));
        cached
            .map(|claim| PersistentVolumeClaim::clone(&claim))
            .collect()
    }

    async fn create_claims(
        &self,
        cache: &WorkloadCache,
        set: &StatefulSet,
        pod: &Pod,
    ) -> Result<(), ApiError> {
        let wanted = ordinal(set, pod).map(|ordinal| claims(set, ordinal));
        for mut claim in wanted.into_iter().flatten() {
            if cache.claims.get(&claim.key()).is_some() {
                continue;
            }
            own_claim(set, None, &mut claim);
            let api = self
                .control
                .client
                .namespaced::<PersistentVolumeClaim>(set.namespace());
            let about = format!(
                "create Claim {} Pod {} in StatefulSet {}",
                claim.name(),
                pod.name(),
                set.name()
            );
            match answered(api.create(&claim)).await {
                Ok(_) => {
                    let message = format!("{about} success");
                    self.control
                        .event(set, EventType::Normal, "SuccessfulCreate", message);
                }
                Err(error) if error.is_already_exists() => {}
                Err(error) => {
                    let message = format!("{about} failed error: {error}");
                    self.control
                        .event(set, EventType::Warning, "FailedCreate", message);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Gives the claims of the pods that stay the owners of the policy, which may have changed.
    async fn own_claims(
        &self,
        cache: &WorkloadCache,
        set: &StatefulSet,
        pods: &[Arc<Pod>],
    ) -> Result<(), ApiError> {
        let spec = set.spec.as_ref();
        let count = spec.and_then(|spec| spec.replicas).unwrap_or(1);
        let wanted = identity::start(set)..identity::start(set).saturating_add(count);
        for pod in pods {
            if ordinal(set, pod).is_none_or(|ordinal| !wanted.contains(&ordinal)) {
                continue;
            }
            for mut claim in self.cached_claims(cache, set, pod) {
                if !claim.is_deleting() && own_claim(set, None, &mut claim) {
                    self.update_claim(&claim).await?;
                }
            }
        }
        Ok(())
    }

    async fn update_claim(&self, claim: &PersistentVolumeClaim) -> Result<(), ApiError> {
        let api = self
            .control
            .client
            .namespaced::<PersistentVolumeClaim>(claim.namespace());
        unless_gone(answered(api.update(claim)).await)
    }

    async fn write(&self, set: &StatefulSet, status: StatefulSetStatus) -> Result<(), ApiError> {
        if set.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let mut next = set.clone();
        next.status = Some(status);
        let api = self
            .control
            .client
            .namespaced::<StatefulSet>(set.namespace());
        let written = answered(api.update_status(&next)).await?;
        self.writes.changed(set, &written, set.resource_version());
        Ok(())
    }
}

fn with_template(revision: &ControllerRevision) -> Result<Revision, ApiError> {
    let name = revision.name().to_owned();
    match template_of(revision) {
        Some(template) => Ok(Revision { name, template }),
        None => {
            let message = format!("ControllerRevision {name} has no template: delete it");
            Err(ApiError::new(Reason::InternalError, message))
        }
    }
}
