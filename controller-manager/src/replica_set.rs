//! The ReplicaSet controller: creates and deletes pods until their number is the wanted one.

mod status;

use std::{sync::Arc, time::Duration};

use podplane_api::{Object as _, ObjectKey, apps::ReplicaSet, core::Pod, jiff::SignedDuration};
use podplane_client::{ApiError, Client, EventRecorder, answered};

use self::status::ReplicaFailure;
use crate::{
    adopt::Adoption,
    owner::controller_of,
    pod_control::{PodControl, new_pod},
    pods::is_active,
    rank, time,
    workloads::WorkloadCache,
};

/// The most pods created or deleted in one reconciliation, as in Kubernetes.
const BURST: usize = 500;
const AGAIN: Duration = Duration::from_secs(1);

/// The ReplicaSet controller.
#[derive(Debug)]
pub(crate) struct ReplicaSets {
    control: PodControl,
}

impl ReplicaSets {
    pub(crate) fn new(client: Client, events: EventRecorder) -> Self {
        Self {
            control: PodControl::new(client, events),
        }
    }

    /// Creates or deletes pods, and writes the status; returns the delay until the next
    /// reconciliation, if one is due without a change.
    pub(crate) async fn reconcile(
        &self,
        cache: &WorkloadCache,
        key: &ObjectKey,
    ) -> Result<Option<Duration>, ApiError> {
        let Some(set) = cache.sets.objects.get(key) else {
            self.control.forget(key);
            return Ok(None);
        };
        let is_observed = self.control.is_observed(&cache.pods, key).await?;
        let pods = self.claim(cache, &set).await?;
        let managed = if is_observed && !set.is_deleting() {
            self.manage(cache, &set, &pods).await
        } else {
            Ok(())
        };
        let failure = managed.as_ref().err().map(|error| ReplicaFailure {
            reason: if pods.len() < wanted_replicas(&set) {
                "FailedCreate"
            } else {
                "FailedDelete"
            },
            message: error.to_string(),
        });
        let now = time::now();
        let (status, available) = status::status(&set, &pods, failure, now);
        if set.status.as_ref() != Some(&status) {
            let mut next = (*set).clone();
            next.status = Some(status);
            let api = self.control.client.namespaced(&key.namespace);
            answered(api.update_status(&next)).await?;
        }
        managed?;
        if !is_observed {
            return Ok(Some(AGAIN));
        }
        // A ready pod becomes available without an event.
        let wait = available.map(|at| at.duration_since(now).max(SignedDuration::from_secs(1)));
        Ok(wait.map(|wait| wait.unsigned_abs()))
    }

    /// The active pods of the ReplicaSet.
    async fn claim(
        &self,
        cache: &WorkloadCache,
        set: &ReplicaSet,
    ) -> Result<Vec<Arc<Pod>>, ApiError> {
        Adoption::new(&self.control.client, set)
            .claim_of(&cache.pods, is_active)
            .await
    }

    async fn manage(
        &self,
        cache: &WorkloadCache,
        set: &ReplicaSet,
        pods: &[Arc<Pod>],
    ) -> Result<(), ApiError> {
        let wanted = wanted_replicas(set);
        if pods.len() < wanted {
            let template = set.spec.as_ref().and_then(|spec| spec.template.as_ref());
            let template = template.cloned().unwrap_or_default();
            let missing = 0..(wanted - pods.len()).min(BURST);
            let missing: Vec<Pod> = missing.map(|_| new_pod(set, &template)).collect();
            return self.control.create_all(set, &missing).await;
        }
        let surplus = (pods.len() - wanted).min(BURST);
        if surplus == 0 {
            return Ok(());
        }
        let related = related(cache, set);
        let ranked = rank::ranked(pods.iter().cloned(), &related, time::now());
        let surplus = ranked[..surplus].iter().map(AsRef::as_ref);
        self.control.delete_all(set, surplus).await
    }
}

fn wanted_replicas(set: &ReplicaSet) -> usize {
    let replicas = set
        .spec
        .as_ref()
        .and_then(|spec| spec.replicas)
        .unwrap_or(1);
    usize::try_from(replicas).unwrap_or_default()
}

/// The pods of all ReplicaSets with the same controller.
fn related(cache: &WorkloadCache, set: &ReplicaSet) -> Vec<Arc<Pod>> {
    let namespace = set.namespace();
    match controller_of(&set.metadata) {
        None => cache.pods.controlled(namespace, set.uid()),
        Some(owner) => {
            let sets = cache.sets.objects.controlled(namespace, &owner.uid);
            let pods = sets
                .iter()
                .flat_map(|set| cache.pods.controlled(namespace, set.uid()));
            pods.collect()
        }
    }
}
