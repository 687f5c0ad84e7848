//! The ReplicaSet controller: creates and deletes pods until their number is the wanted one.

mod expectations;
mod pods;
mod rank;
mod status;

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use podplane_api::{
    Object as _, ObjectKey, apps::ReplicaSet, core::Pod, jiff::SignedDuration, meta::ObjectMeta,
    names, selector::LabelSelector,
};
use podplane_client::{ApiError, Client, DeleteParams, EventRecorder, answered, events::EventType};
use podplane_host::random;

use self::{
    expectations::{Expectations, ExpectedChange},
    pods::is_active,
    status::ReplicaFailure,
};
use crate::{
    adopt::Adoption,
    deployment::is_ending,
    owner::{controller_of, controller_reference},
    time,
    workloads::WorkloadCache,
};

/// The most pods created or deleted in one reconciliation, as in Kubernetes.
const BURST: usize = 500;
const AGAIN: Duration = Duration::from_secs(1);

/// The ReplicaSet controller.
#[derive(Debug)]
pub(crate) struct ReplicaSets {
    client: Client,
    events: EventRecorder,
    expectations: Expectations,
}

impl ReplicaSets {
    pub(crate) fn new(client: Client, events: EventRecorder) -> Self {
        Self {
            client,
            events,
            expectations: Expectations::default(),
        }
    }

    /// Creates or deletes pods, and writes the status; returns the delay until the next
    /// reconciliation, if one is due without a change.
    pub(crate) async fn reconcile(
        &self,
        cache: &WorkloadCache,
        key: &ObjectKey,
    ) -> Result<Option<Duration>, ApiError> {
        let Some(set) = cache.sets.get(key) else {
            self.expectations.forget(key);
            return Ok(None);
        };
        let is_observed = self.is_observed(cache, key).await?;
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
            answered(self.client.namespaced(&key.namespace).update_status(&next)).await?;
        }
        managed?;
        if !is_observed {
            return Ok(Some(AGAIN));
        }
        // A ready pod becomes available without an event.
        let wait = available.map(|at| at.duration_since(now).max(SignedDuration::from_secs(1)));
        Ok(wait.map(|wait| wait.unsigned_abs()))
    }

    /// Returns whether all writes of this controller for the ReplicaSet are in the cache.
    async fn is_observed(&self, cache: &WorkloadCache, key: &ObjectKey) -> Result<bool, ApiError> {
        let Err(overdue) = self.expectations.check(key, &cache.pods) else {
            return Ok(true);
        };
        let api = self.client.namespaced::<Pod>(&key.namespace);
        for pod in overdue {
            match answered(api.get(&pod)).await {
                Ok(_) => {}
                Err(error) if error.is_not_found() => self.expectations.drop(key, &pod),
                Err(error) => return Err(error),
            }
        }
        Ok(self.expectations.check(key, &cache.pods).is_ok())
    }

    /// The active pods of the ReplicaSet.
    async fn claim(
        &self,
        cache: &WorkloadCache,
        set: &ReplicaSet,
    ) -> Result<Vec<Arc<Pod>>, ApiError> {
        let selector = set
            .spec
            .as_ref()
            .map(|spec| LabelSelector::from(&spec.selector));
        let selector = selector.unwrap_or_default();
        if selector.is_empty() {
            return Ok(Vec::new());
        }
        let mut candidates = cache.pods.controlled(set.namespace(), set.uid());
        candidates.extend(cache.pods.controlled(set.namespace(), ""));
        candidates.retain(|pod| is_active(pod));
        Adoption::new(&self.client, set)
            .claim(&selector, candidates)
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
            return self.create(set, (wanted - pods.len()).min(BURST)).await;
        }
        let surplus = (pods.len() - wanted).min(BURST);
        if surplus == 0 {
            return Ok(());
        }
        let related = related(cache, set);
        let ranked = rank::ranked(pods.iter().cloned(), &related, time::now());
        let deleted = join_all(ranked[..surplus].iter().map(|pod| self.delete(set, pod))).await;
        deleted.into_iter().collect()
    }

    /// Creates one pod, then twice as many each time, so that a persistent failure fails once and
    /// not once for each pod.
    async fn create(&self, set: &ReplicaSet, mut missing: usize) -> Result<(), ApiError> {
        let mut batch = 1;
        while missing > 0 {
            batch = batch.min(missing);
            let created = join_all((0..batch).map(|_| self.create_one(set))).await;
            match created.into_iter().collect::<Result<(), ApiError>>() {
                Ok(()) => {}
                // Others empty the namespace; this ReplicaSet is deleted with it.
                Err(error) if is_ending(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
            missing -= batch;
            batch *= 2;
        }
        Ok(())
    }

    async fn create_one(&self, set: &ReplicaSet) -> Result<(), ApiError> {
        let pod = new_pod(set);
        let (key, name) = (set.key(), pod.name());
        // Recorded before the call, else the pod could be observed before it is expected.
        self.expectations
            .expect(&key, name, ExpectedChange::Created);
        match answered(self.client.namespaced::<Pod>(set.namespace()).create(&pod)).await {
            Ok(_) => {
                self.events.record(
                    set,
                    EventType::Normal,
                    "SuccessfulCreate",
                    "",
                    format!("Created pod: {name}"),
                );
                Ok(())
            }
            // The pod may exist or not; the server is asked before anything else is decided.
            Err(error) if error.is_unavailable() => Err(error),
            Err(error) => {
                self.expectations.drop(&key, name);
                if !is_ending(&error) {
                    self.events.record(
                        set,
                        EventType::Warning,
                        "FailedCreate",
                        "",
                        format!("Error creating: {error}"),
                    );
                }
                Err(error)
            }
        }
    }

    async fn delete(&self, set: &ReplicaSet, pod: &Pod) -> Result<(), ApiError> {
        let (key, name) = (set.key(), pod.name());
        let params = DeleteParams {
            uid: pod.metadata.uid.clone(),
            ..DeleteParams::default()
        };
        self.expectations
            .expect(&key, name, ExpectedChange::Deleted(pod.uid().to_owned()));
        match answered(
            self.client
                .namespaced::<Pod>(set.namespace())
                .delete(name, &params),
        )
        .await
        {
            Ok(_) => {
                self.events.record(
                    set,
                    EventType::Normal,
                    "SuccessfulDelete",
                    "",
                    format!("Deleted pod: {name}"),
                );
                Ok(())
            }
            // Deleted, or another pod of that name; the watch will report it.
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            Err(error) => {
                self.expectations.drop(&key, name);
                self.events.record(
                    set,
                    EventType::Warning,
                    "FailedDelete",
                    "",
                    format!("Error deleting: {error}"),
                );
                Err(error)
            }
        }
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
            let sets = cache.sets.controlled(namespace, &owner.uid);
            let pods = sets
                .iter()
                .flat_map(|set| cache.pods.controlled(namespace, set.uid()));
            pods.collect()
        }
    }
}

/// A pod of the ReplicaSet's template.
fn new_pod(set: &ReplicaSet) -> Pod {
    let template = set
        .spec
        .as_ref()
        .and_then(|spec| spec.template.clone())
        .unwrap_or_default();
    let of_template = template.metadata.unwrap_or_default();
    let prefix = format!("{}-", set.name());
    Pod {
        metadata: ObjectMeta {
            name: Some(names::generated(&prefix, random::value())),
            generate_name: Some(prefix),
            namespace: set.metadata.namespace.clone(),
            labels: of_template.labels,
            annotations: of_template.annotations,
            finalizers: of_template.finalizers,
            owner_references: Some(vec![controller_reference(set)]),
            ..ObjectMeta::default()
        },
        spec: template.spec,
        status: None,
    }
}
