//! Creation and deletion of pods by their controllers: with events, expectations, and a slow start.

use futures::future::join_all;
use podplane_api::{
    Object, ObjectKey,
    core::{Pod, PodTemplateSpec},
    meta::ObjectMeta,
    names,
};
use podplane_client::{ApiError, Client, DeleteParams, EventRecorder, answered, events::EventType};
use podplane_host::random;

use crate::{
    expectations::{Expectations, ExpectedChange},
    index::ObjectIndex,
    owner::controller_reference,
    work::{is_ending, unless_gone},
};

/// The means of a controller to write its pods.
#[derive(Debug)]
pub(crate) struct PodControl {
    pub(crate) client: Client,
    events: EventRecorder,
    expectations: Expectations,
}

impl PodControl {
    pub(crate) fn new(client: Client, events: EventRecorder) -> Self {
        Self {
            client,
            events,
            expectations: Expectations::default(),
        }
    }

    /// Returns whether all writes of pods for the owner are in the cache.
    pub(crate) async fn is_observed(
        &self,
        pods: &ObjectIndex<Pod>,
        owner: &ObjectKey,
    ) -> Result<bool, ApiError> {
        let Err(overdue) = self.expectations.check(owner, pods) else {
            return Ok(true);
        };
        let api = self.client.namespaced::<Pod>(&owner.namespace);
        for pod in overdue {
            match answered(api.get(&pod)).await {
                Ok(_) => {}
                Err(error) if error.is_not_found() => self.expectations.drop(owner, &pod),
                Err(error) => return Err(error),
            }
        }
        Ok(self.expectations.check(owner, pods).is_ok())
    }

    /// Forgets an owner that is gone.
    pub(crate) fn forget(&self, owner: &ObjectKey) {
        self.expectations.forget(owner);
    }

    /// Creates one pod, then twice as many each time, so that a persistent failure fails once and
    /// not once for each pod.
    pub(crate) async fn create_all<O: Object>(
        &self,
        owner: &O,
        pods: &[Pod],
    ) -> Result<(), ApiError> {
        let (mut missing, mut batch) = (pods, 1);
        while !missing.is_empty() {
            let (now, later) = missing.split_at(batch.min(missing.len()));
            let created = join_all(now.iter().map(|pod| self.create(owner, pod))).await;
            match created.into_iter().collect::<Result<(), ApiError>>() {
                Ok(()) => {}
                // Others empty the namespace; this owner is deleted with it.
                Err(error) if is_ending(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
            missing = later;
            batch *= 2;
        }
        Ok(())
    }

    async fn create<O: Object>(&self, owner: &O, pod: &Pod) -> Result<(), ApiError> {
        let name = pod.name();
        match self.create_quietly(owner, pod).await {
            Ok(()) => {
                let message = format!("Created pod: {name}");
                self.event(owner, EventType::Normal, "SuccessfulCreate", message);
                Ok(())
            }
            Err(error) => {
                // The pod of an unavailable server may exist or not.
                if !error.is_unavailable() && !is_ending(&error) {
                    let message = format!("Error creating: {error}");
                    self.event(owner, EventType::Warning, "FailedCreate", message);
                }
                Err(error)
            }
        }
    }

    /// Creates a pod, without an event.
    pub(crate) async fn create_quietly<O: Object>(
        &self,
        owner: &O,
        pod: &Pod,
    ) -> Result<(), ApiError> {
        let (key, name) = (owner.key(), pod.name());
        // Recorded before the call, else the pod could be observed before it is expected.
        self.expectations
            .expect(&key, name, ExpectedChange::Created);
        match answered(self.client.namespaced::<Pod>(owner.namespace()).create(pod)).await {
            Ok(_) => Ok(()),
            // The server is asked before anything else is decided.
            Err(error) if error.is_unavailable() => Err(error),
            Err(error) => {
                self.expectations.drop(&key, name);
                Err(error)
            }
        }
    }

    /// Deletes the pods, all at once.
    pub(crate) async fn delete_all<'a, O: Object>(
        &self,
        owner: &O,
        pods: impl IntoIterator<Item = &'a Pod>,
    ) -> Result<(), ApiError> {
        let deleted = join_all(pods.into_iter().map(|pod| self.delete(owner, pod))).await;
        deleted.into_iter().collect()
    }

    async fn delete<O: Object>(&self, owner: &O, pod: &Pod) -> Result<(), ApiError> {
        let name = pod.name();
        match self.delete_quietly(owner, pod).await {
            Ok(true) => {
                let message = format!("Deleted pod: {name}");
                self.event(owner, EventType::Normal, "SuccessfulDelete", message);
                Ok(())
            }
            Ok(false) => Ok(()),
            Err(error) => {
                let message = format!("Error deleting: {error}");
                self.event(owner, EventType::Warning, "FailedDelete", message);
                Err(error)
            }
        }
    }

    /// Deletes a pod, without an event. Returns false if it was gone.
    pub(crate) async fn delete_quietly<O: Object>(
        &self,
        owner: &O,
        pod: &Pod,
    ) -> Result<bool, ApiError> {
        let (key, name) = (owner.key(), pod.name());
        let params = DeleteParams {
            uid: pod.metadata.uid.clone(),
            ..DeleteParams::default()
        };
        self.expectations
            .expect(&key, name, ExpectedChange::Deleted(pod.uid().to_owned()));
        let api = self.client.namespaced::<Pod>(owner.namespace());
        match answered(api.delete(name, &params)).await {
            Ok(_) => Ok(true),
            // Deleted, or another pod of that name; the watch will report it.
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(false),
            Err(error) => {
                self.expectations.drop(&key, name);
                Err(error)
            }
        }
    }

    /// Writes a pod at the revision that it was read; one that is gone counts as written.
    pub(crate) async fn update(&self, pod: &Pod) -> Result<(), ApiError> {
        let api = self.client.namespaced::<Pod>(pod.namespace());
        unless_gone(answered(api.update(pod)).await)
    }

    pub(crate) fn event<O: Object>(
        &self,
        owner: &O,
        r#type: EventType,
        reason: &'static str,
        message: String,
    ) {
        self.events.record(owner, r#type, reason, "", message);
    }
}

/// A pod of the owner's template, under a new name.
pub(crate) fn new_pod<O: Object>(owner: &O, template: &PodTemplateSpec) -> Pod {
    let prefix = format!("{}-", owner.name());
    let mut pod = pod_of(owner, template);
    pod.metadata.name = Some(names::generated(&prefix, random::value()));
    pod.metadata.generate_name = Some(prefix);
    pod
}

/// A pod of the owner's template, without a name.
pub(crate) fn pod_of<O: Object>(owner: &O, template: &PodTemplateSpec) -> Pod {
    let of_template = template.metadata.clone().unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            namespace: owner.metadata().namespace.clone(),
            labels: of_template.labels,
            annotations: of_template.annotations,
            finalizers: of_template.finalizers,
            owner_references: Some(vec![controller_reference(owner)]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}
