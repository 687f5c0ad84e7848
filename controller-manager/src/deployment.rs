//! The deployment controller: carries out the plans of [`mod@plan`].

mod conditions;
mod plan;
mod replicas;
mod revision;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use podplane_api::{
    Object as _, ObjectKey,
    apps::{Deployment, DeploymentStatus, ReplicaSet},
    pod_ips,
};
use podplane_client::{
    ApiError, Client, DeleteParams, EventRecorder, Reason, answered, events::EventType,
};

use self::plan::{DeploymentPlan, PlanInput, SetUpdate, plan};
use crate::{
    adopt::Adoption,
    owner::is_controlled_by,
    template, time,
    unseen::UnobservedWrites,
    work::{is_ending, unless_gone},
    workloads::WorkloadCache,
};

/// The delay before the next reconciliation while a write of our own is not in the cache.
const UNSEEN_AGAIN: Duration = Duration::from_secs(1);

/// Returns whether rollouts are paused.
fn is_paused(deployment: &Deployment) -> bool {
    replicas::spec(deployment).and_then(|spec| spec.paused) == Some(true)
}

/// Returns whether old pods end before new ones are created.
pub(crate) fn is_recreate(deployment: &Deployment) -> bool {
    !replicas::is_rolling(deployment)
}

/// The deployment controller.
#[derive(Debug)]
pub(crate) struct Deployments {
    client: Client,
    events: EventRecorder,
    unseen: UnobservedWrites,
}

impl Deployments {
    pub(crate) fn new(client: Client, events: EventRecorder) -> Self {
        Self {
            client,
            events,
            unseen: UnobservedWrites::default(),
        }
    }

    /// Takes one step of a Deployment's rollout; returns the delay until the next reconciliation,
    /// if one is due without a change.
    pub(crate) async fn reconcile(
        &self,
        cache: &WorkloadCache,
        key: &ObjectKey,
    ) -> Result<Option<Duration>, ApiError> {
        let Some(deployment) = cache.deployments.objects.get(key) else {
            self.unseen.forget(key);
            return Ok(None);
        };
        if !self.unseen.is_settled(key, &cache.sets.objects) {
            return Ok(Some(UNSEEN_AGAIN));
        }
        let sets = self.claim(cache, &deployment).await?;
        let has_pods = |set: &&ReplicaSet| {
            let pods = cache.pods.controlled(&key.namespace, set.uid());
            // A pod in deletion still runs, and an ended one is on the network while it has its
            // sandbox.
            pods.iter()
                .any(|pod| !pod_ips::is_terminal(pod) || pod_ips::holds_address(pod))
        };
        let with_pods = sets.iter().filter(has_pods);
        let with_pods: BTreeSet<String> = with_pods.map(|set| set.uid().to_owned()).collect();
        let plan = plan(PlanInput {
            deployment: &deployment,
            sets,
            with_pods,
            now: time::now(),
        });
        let plan = plan.map_err(|error| ApiError::new(Reason::InternalError, error.to_string()))?;
        Box::pin(self.carry_out(&deployment, plan)).await
    }

    /// The ReplicaSets of the Deployment: adopts matching ones without a controller, and releases
    /// those that no longer match.
    async fn claim(
        &self,
        cache: &WorkloadCache,
        deployment: &Deployment,
    ) -> Result<Vec<ReplicaSet>, ApiError> {
        let adoption = Adoption::new(&self.client, deployment);
        let claimed = adoption.claim_of(&cache.sets.objects, |_| true).await?;
        Ok(claimed.into_iter().map(Arc::unwrap_or_clone).collect())
    }

    async fn carry_out(
        &self,
        deployment: &Deployment,
        plan: DeploymentPlan,
    ) -> Result<Option<Duration>, ApiError> {
        let DeploymentPlan {
            create,
            update,
            delete,
            revision,
            status,
            wake,
        } = plan;
        let sets = self.client.namespaced::<ReplicaSet>(deployment.namespace());
        if let Some(set) = create {
            self.create(deployment, &set).await?;
        }
        for SetUpdate { set, from } in update {
            let written = answered(sets.update(&set)).await?;
            self.unseen
                .changed(deployment, &written, set.resource_version());
            tracing::debug!(deployment = %deployment.key(), set = %written.key(), size = replicas::size(&written), "wrote ReplicaSet");
            if let Some(from) = from {
                let to = replicas::size(&set);
                let direction = if to > from { "up" } else { "down" };
                let message = format!(
                    "Scaled {direction} replica set {} from {from} to {to}",
                    set.name()
                );
                self.event(deployment, EventType::Normal, "ScalingReplicaSet", message);
            }
        }
        for set in delete {
            let params = DeleteParams {
                uid: set.metadata.uid.clone(),
                ..DeleteParams::default()
            };
            unless_gone(answered(sets.delete(set.name(), &params)).await)?;
        }
        self.write(deployment, revision, status).await?;
        Ok(wake.map(|wake| wake.unsigned_abs()))
    }

    /// Creates the new ReplicaSet. An existing one of that name with the same template is used; one
    /// with another template means that the hashes collide.
    async fn create(&self, deployment: &Deployment, set: &ReplicaSet) -> Result<(), ApiError> {
        let sets = self.client.namespaced::<ReplicaSet>(deployment.namespace());
        let error = match answered(sets.create(set)).await {
            Ok(created) => {
                self.unseen.created(deployment, &created);
                let size = replicas::size(set);
                if size > 0 {
                    let message = format!("Scaled up replica set {} from 0 to {size}", set.name());
                    self.event(deployment, EventType::Normal, "ScalingReplicaSet", message);
                }
                return Ok(());
            }
            Err(error) => error,
        };
        let status = deployment.status.clone().unwrap_or_default();
        if error.is_already_exists() {
            let found = answered(sets.get(set.name())).await?;
            if is_controlled_by(&found.metadata, deployment) && has_same_template(&found, set) {
                self.unseen.created(deployment, &found);
                return Ok(());
            }
            let collisions = status.collision_count.unwrap_or_default().saturating_add(1);
            tracing::info!(deployment = %deployment.key(), set = set.name(), collisions, "hash collision: another ReplicaSet has that name");
            let status = DeploymentStatus {
                collision_count: Some(collisions),
                ..status
            };
            self.write(deployment, None, status).await?;
            return Err(error);
        }
        // An ending namespace is emptied by others; a conflict or an unreachable server is not a
        // failure of this Deployment.
        let is_its_own = !matches!(
            error.reason,
            Reason::ServiceUnavailable | Reason::Conflict | Reason::NotFound
        );
        if is_its_own && !is_ending(&error) && conditions::deadline(deployment).is_some() {
            let mut status = status;
            let message = format!("Failed to create new replica set {:?}: {error}", set.name());
            let failed = conditions::condition(
                conditions::PROGRESSING,
                "False",
                conditions::CREATE_FAILED,
                &message,
                time::now(),
            );
            conditions::set(&mut status, failed);
            self.write(deployment, None, status).await?;
            self.event(
                deployment,
                EventType::Warning,
                conditions::CREATE_FAILED,
                message,
            );
        }
        Err(error)
    }

    /// Writes the Deployment's revision and status, if they differ.
    async fn write(
        &self,
        deployment: &Deployment,
        revision: Option<String>,
        status: DeploymentStatus,
    ) -> Result<(), ApiError> {
        let api = self.client.namespaced::<Deployment>(deployment.namespace());
        let mut next = deployment.clone();
        if let Some(revision) = revision {
            let annotations = next.metadata.annotations.get_or_insert_default();
            annotations.insert(revision::REVISION.to_owned(), revision);
        }
        next.status = Some(status);
        if next.metadata == deployment.metadata && next.status == deployment.status {
            return Ok(());
        }
        // An update of the status writes the annotations too, so this does not increase the
        // generation.
        answered(api.update_status(&next)).await.map(drop)
    }

    fn event(
        &self,
        deployment: &Deployment,
        r#type: EventType,
        reason: &'static str,
        message: String,
    ) {
        self.events.record(deployment, r#type, reason, "", message);
    }
}

fn has_same_template(one: &ReplicaSet, other: &ReplicaSet) -> bool {
    let of = |set: &ReplicaSet| {
        set.spec
            .as_ref()
            .and_then(|spec| spec.template.clone())
            .unwrap_or_default()
    };
    template::same(&of(one), &of(other))
}
