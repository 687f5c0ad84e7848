//! The Job controller: carries out the plans of [`mod@plan`].

mod indexes;
mod plan;
mod pods;
mod policy;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use podplane_api::{Object as _, ObjectKey, batch::Job, core::Pod};
use podplane_client::{ApiError, Client, DeleteParams, EventRecorder, Propagation, answered};

use self::{
    plan::{JobInput, JobPlan, plan},
    pods::{TRACKING, build, untracked},
};
use crate::{
    adopt::Adoption, pod_control::PodControl, time, unseen::UnobservedWrites, work::unless_gone,
    workloads::WorkloadCache,
};

pub(crate) use self::pods::is_tracked;

/// The delay before the next reconciliation while a write of our own is not in the cache.
const UNSEEN_AGAIN: Duration = Duration::from_secs(1);
/// The name of this controller in `spec.managedBy`.
const NAME: &str = "kubernetes.io/job-controller";

/// The Job controller.
#[derive(Debug)]
pub(crate) struct Jobs {
    control: PodControl,
    writes: UnobservedWrites,
}

impl Jobs {
    pub(crate) fn new(client: Client, events: EventRecorder) -> Self {
        Self {
            control: PodControl::new(client, events),
            writes: UnobservedWrites::of_statuses(),
        }
    }

    /// Takes one step of a Job; returns the delay until the next reconciliation, if one is due
    /// without a change.
    pub(crate) async fn reconcile(
        &self,
        cache: &WorkloadCache,
        key: &ObjectKey,
    ) -> Result<Option<Duration>, ApiError> {
        if key.name.is_empty() {
            self.release_orphans(cache, &key.namespace).await?;
            return Ok(None);
        }
        let Some(job) = cache.jobs.objects.get(key) else {
            self.control.forget(key);
            self.writes.forget(key);
            return Ok(None);
        };
        let manager = job
            .spec
            .as_ref()
            .and_then(|spec| spec.managed_by.as_deref());
        if manager.is_some_and(|manager| manager != NAME) {
            return Ok(None);
        }
        // An older status would count pods again that have lost their finalizer since.
        if !self.writes.is_settled(key, &cache.jobs.objects) {
            return Ok(Some(UNSEEN_AGAIN));
        }
        let is_observed = self.control.is_observed(&cache.pods, key).await?;
        let pods = self.claim(cache, &job).await?;
        let plan = plan(JobInput {
            job: &job,
            pods: &pods,
            may_manage: is_observed,
            now: time::now(),
        });
        let wake = plan.wake.map(|wake| wake.unsigned_abs());
        self.carry_out(&job, plan).await?;
        match is_observed {
            true => Ok(wake),
            false => Ok(Some(UNSEEN_AGAIN)),
        }
    }

    /// The pods of the Job, ended ones too.
    async fn claim(&self, cache: &WorkloadCache, job: &Job) -> Result<Vec<Arc<Pod>>, ApiError> {
        Adoption::new(&self.control.client, job)
            .with_finalizer(TRACKING)
            .claim_of(&cache.pods, |_| true)
            .await
    }

    async fn carry_out(&self, job: &Job, plan: JobPlan) -> Result<(), ApiError> {
        let JobPlan {
            release,
            delete,
            create,
            status,
            untrack,
            events,
            is_expired,
            wake: _,
        } = plan;
        if is_expired {
            tracing::info!(job = %job.key(), uid = job.uid(), "deleting a finished job: its time to live is over");
            let params = DeleteParams {
                uid: job.metadata.uid.clone(),
                propagation: Some(Propagation::Foreground),
                ..DeleteParams::default()
            };
            let api = self.control.client.namespaced::<Job>(job.namespace());
            return unless_gone(answered(api.delete(job.name(), &params)).await);
        }
        self.untrack(&release).await?;
        self.control
            .delete_all(job, release.iter().map(AsRef::as_ref))
            .await?;
        self.control
            .delete_all(job, delete.iter().map(AsRef::as_ref))
            .await?;
        let spec = job.spec.clone().unwrap_or_default();
        let new: Vec<Pod> = create
            .into_iter()
            .map(|new| build(job, &spec, new))
            .collect();
        let created = self.control.create_all(job, &new).await;
        if job.status.as_ref() != Some(&status) {
            let mut next = job.clone();
            next.status = Some(status);
            let api = self.control.client.namespaced::<Job>(job.namespace());
            let written = answered(api.update_status(&next)).await?;
            self.writes.changed(job, &written, job.resource_version());
        }
        for event in events {
            let (kind, reason) = (event.r#type, event.reason);
            self.control.event(job, kind, reason, event.message);
        }
        self.untrack(&untrack).await?;
        created
    }

    /// Removes the finalizer from pods.
    async fn untrack(&self, pods: &[Arc<Pod>]) -> Result<(), ApiError> {
        let writes = pods.iter().filter(|pod| is_tracked(pod));
        let writes = writes.map(|pod| async { self.control.update(&untracked(pod)).await });
        join_all(writes).await.into_iter().collect()
    }

    /// Removes the finalizer from the namespace's pods whose Job is gone.
    async fn release_orphans(
        &self,
        cache: &WorkloadCache,
        namespace: &str,
    ) -> Result<(), ApiError> {
        let mut orphans = cache.pods.namespace(namespace);
        orphans.retain(|pod| cache.is_orphan(pod));
        self.untrack(&orphans).await
    }
}
