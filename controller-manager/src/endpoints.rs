//! The controllers of EndpointSlices and Endpoints: they list the addresses of the pods that a
//! Service selects.

mod pods;
mod slices;
mod subsets;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use podplane_api::{
    Object as _, ObjectKey,
    core::{Endpoints, Node, Pod, Service},
    discovery::EndpointSlice,
    names,
};
use podplane_client::{ApiError, Cache, CacheChange, Client, DeleteParams, WorkQueue, answered};
use podplane_host::random;

use self::slices::{MANAGED_BY, MANAGER, SERVICE_NAME, SlicesInput, SlicesPlan};
use crate::{
    index::ObjectIndex,
    unseen::UnobservedWrites,
    work::{Latch, is_ending, unless_gone},
};

/// The label of what belongs to a headless Service.
const HEADLESS: &str = "service.kubernetes.io/headless";
/// The annotation with the time of the change that a write follows.
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";
/// The label of a node with its zone.
const ZONE: &str = "topology.kubernetes.io/zone";
/// The delay before the next reconciliation while a write of our own is not in the cache.
const UNSEEN_AGAIN: Duration = Duration::from_secs(1);

/// The watched kinds.
#[derive(Debug)]
pub(crate) struct EndpointInputs {
    pub(crate) services: Cache<Service>,
    pub(crate) pods: Cache<Pod>,
    pub(crate) nodes: Cache<Node>,
    pub(crate) slices: Cache<EndpointSlice>,
    pub(crate) endpoints: Cache<Endpoints>,
}

/// The Services with what their endpoints depend on, and the queues of those to reconcile.
#[derive(Debug)]
pub(crate) struct EndpointCache {
    services: ObjectIndex<Service>,
    pods: ObjectIndex<Pod>,
    nodes: ObjectIndex<Node>,
    slices: ObjectIndex<EndpointSlice>,
    endpoints: ObjectIndex<Endpoints>,
    pub(crate) slice_queue: WorkQueue<ObjectKey>,
    pub(crate) endpoints_queue: WorkQueue<ObjectKey>,
}

impl EndpointCache {
    /// A cache without objects. Its queues are closed.
    pub(crate) fn new() -> Self {
        Self {
            services: ObjectIndex::default(),
            pods: ObjectIndex::default(),
            nodes: ObjectIndex::default(),
            slices: ObjectIndex::default(),
            endpoints: ObjectIndex::default(),
            slice_queue: WorkQueue::closed(),
            endpoints_queue: WorkQueue::closed(),
        }
    }

    /// Opens the queues, and queues all Services, and those whose Endpoints are left over.
    pub(crate) fn open(&self) {
        self.slice_queue.open();
        self.endpoints_queue.open();
        for key in self.services.keys() {
            self.queue(&key);
        }
        for key in self.endpoints.keys() {
            self.endpoints_queue.add(key);
        }
    }

    fn queue(&self, service: &ObjectKey) {
        self.slice_queue.add(service.clone());
        self.endpoints_queue.add(service.clone());
    }

    /// Observes changes, for ever; `ready` is notified when the first lists have been observed.
    pub(crate) async fn follow(&self, inputs: EndpointInputs, ready: &Latch) {
        let EndpointInputs {
            services,
            pods,
            nodes,
            slices,
            endpoints,
        } = inputs;
        tokio::join!(
            services.synced(),
            pods.synced(),
            nodes.synced(),
            slices.synced(),
            endpoints.synced()
        );
        let (mut services, mut pods) = (services.subscribe(), pods.subscribe());
        let (mut nodes, mut slices) = (nodes.subscribe(), slices.subscribe());
        let mut endpoints = endpoints.subscribe();
        while let Some(change) = nodes.try_next() {
            self.nodes.apply(&change);
        }
        while let Some(change) = slices.try_next() {
            self.slices.apply(&change);
        }
        while let Some(change) = endpoints.try_next() {
            self.endpoints.apply(&change);
        }
        while let Some(change) = pods.try_next() {
            self.pods.apply(&change);
        }
        while let Some(change) = services.try_next() {
            self.services.apply(&change);
        }
        ready.arrive();
        loop {
            // A change is consumed only when it is returned, so cancelling a wait loses nothing.
            tokio::select! {
                change = services.next() => self.service_changed(&change),
                change = pods.next() => self.pod_changed(&change),
                change = nodes.next() => self.nodes.apply(&change),
                change = slices.next() => self.slice_changed(&change),
                change = endpoints.next() => self.endpoints_changed(&change),
            }
        }
    }

    fn service_changed(&self, change: &CacheChange<Service>) {
        self.services.apply(change);
        let (CacheChange::Applied { new: service, .. } | CacheChange::Deleted(service)) = change;
        self.queue(&service.key());
    }

    /// Queues the Services that select the pod by its present or its former labels.
    fn pod_changed(&self, change: &CacheChange<Pod>) {
        self.pods.apply(change);
        let states = match change {
            CacheChange::Applied { old, new } => [Some(new), old.as_ref()],
            CacheChange::Deleted(old) => [Some(old), None],
        };
        for pod in states.into_iter().flatten() {
            for service in self.services.namespace(pod.namespace()) {
                if selects(&service, pod) {
                    self.queue(&service.key());
                }
            }
        }
    }

    /// Queues the Service of a slice that somebody changed.
    fn slice_changed(&self, change: &CacheChange<EndpointSlice>) {
        self.slices.apply(change);
        let (CacheChange::Applied { new: slice, .. } | CacheChange::Deleted(slice)) = change;
        if let Some(service) = service_of(slice) {
            self.slice_queue.add(service);
        }
    }

    fn endpoints_changed(&self, change: &CacheChange<Endpoints>) {
        self.endpoints.apply(change);
        let (CacheChange::Applied { new: object, .. } | CacheChange::Deleted(object)) = change;
        self.endpoints_queue.add(object.key());
    }

    /// The pods that the Service selects, by name.
    fn selected(&self, service: &Service) -> Vec<Arc<Pod>> {
        let mut pods = self.pods.namespace(service.namespace());
        pods.retain(|pod| selects(service, pod));
        pods
    }

    fn zones(&self, pods: &[Arc<Pod>]) -> BTreeMap<String, String> {
        let nodes = pods.iter().filter_map(|pod| pods::node_name(pod));
        let zones = nodes.filter_map(|name| {
            let node = self.nodes.get(&ObjectKey::new("", name.as_str()))?;
            let zone = node.metadata.labels.as_ref()?.get(ZONE)?.clone();
            Some((name, zone))
        });
        zones.collect()
    }
}

/// Returns whether the Service selects the pod. One without a selector selects none: its endpoints
/// are others' concern.
fn selects(service: &Service, pod: &Pod) -> bool {
    let Some(selector) = selector(service) else {
        return false;
    };
    let labels = pod.metadata.labels.as_ref();
    let mut wanted = selector.iter();
    wanted.all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
}

fn selector(service: &Service) -> Option<&BTreeMap<String, String>> {
    let spec = service.spec.as_ref()?;
    let selector = spec.selector.as_ref().filter(|all| !all.is_empty())?;
    (spec.type_.as_deref() != Some("ExternalName")).then_some(selector)
}

/// The Service of a slice that this controller manages.
fn service_of(slice: &EndpointSlice) -> Option<ObjectKey> {
    let labels = slice.metadata.labels.as_ref()?;
    let is_ours = labels.get(MANAGED_BY).map(String::as_str) == Some(MANAGER);
    let service = labels.get(SERVICE_NAME).filter(|_| is_ours)?;
    Some(ObjectKey::new(slice.namespace(), service.as_str()))
}

/// The controller of EndpointSlices.
#[derive(Debug)]
pub(crate) struct SliceController {
    client: Client,
    unseen: UnobservedWrites,
}

impl SliceController {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            unseen: UnobservedWrites::default(),
        }
    }

    /// Writes the slices of a Service.
    pub(crate) async fn reconcile(
        &self,
        cache: &EndpointCache,
        key: &ObjectKey,
    ) -> Result<Option<Duration>, ApiError> {
        // The slices of a deleted Service are garbage-collected.
        let service = cache.services.get(key);
        let Some(service) = service.filter(|service| !service.is_deleting()) else {
            self.unseen.forget(key);
            return Ok(None);
        };
        if selector(&service).is_none() {
            return Ok(None);
        }
        if !self.unseen.is_settled(key, &cache.slices) {
            return Ok(Some(UNSEEN_AGAIN));
        }
        let pods = cache.selected(&service);
        let mut slices = cache.slices.namespace(&key.namespace);
        slices.retain(|slice| !slice.is_deleting() && service_of(slice).as_ref() == Some(key));
        let plan = slices::plan(SlicesInput {
            service: &service,
            pods: &pods,
            zones: &cache.zones(&pods),
            slices: &slices,
        });
        self.carry_out(&service, plan).await?;
        Ok(None)
    }

    async fn carry_out(&self, service: &Service, plan: SlicesPlan) -> Result<(), ApiError> {
        let api = self.client.namespaced::<EndpointSlice>(service.namespace());
        let SlicesPlan {
            create,
            update,
            delete,
        } = plan;
        for mut slice in create {
            let prefix = format!("{}-", service.name());
            slice.metadata.name = Some(names::generated(&prefix, random::value()));
            match answered(api.create(&slice)).await {
                Ok(created) => self.unseen.created(service, &created),
                Err(error) if is_ending(&error) => return Ok(()),
                Err(error) => {
                    // The slice of an unavailable server may exist; then the next one is its
                    // duplicate until it is seen.
                    if error.is_unavailable() {
                        self.unseen.created(service, &slice);
                    }
                    return Err(error);
                }
            }
        }
        for slice in update {
            let written = answered(api.update(&slice)).await?;
            self.unseen
                .changed(service, &written, slice.resource_version());
        }
        for slice in delete {
            let params = DeleteParams {
                uid: slice.metadata.uid.clone(),
                ..DeleteParams::default()
            };
            unless_gone(answered(api.delete(slice.name(), &params)).await)?;
        }
        Ok(())
    }
}

/// The controller of Endpoints.
#[derive(Debug)]
pub(crate) struct EndpointsController {
    client: Client,
    writes: UnobservedWrites,
}

impl EndpointsController {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            writes: UnobservedWrites::of_statuses(),
        }
    }

    /// Writes the Endpoints of a Service, and deletes those of a deleted one.
    pub(crate) async fn reconcile(
        &self,
        cache: &EndpointCache,
        key: &ObjectKey,
    ) -> Result<Option<Duration>, ApiError> {
        let old = cache.endpoints.get(key);
        let api = self.client.namespaced::<Endpoints>(&key.namespace);
        let service = cache.services.get(key);
        let Some(service) = service.filter(|service| !service.is_deleting()) else {
            self.writes.forget(key);
            let Some(old) = old.filter(|old| is_managed(old)) else {
                return Ok(None);
            };
            let params = DeleteParams {
                uid: old.metadata.uid.clone(),
                ..DeleteParams::default()
            };
            unless_gone(answered(api.delete(&key.name, &params)).await)?;
            return Ok(None);
        };
        if selector(&service).is_none() {
            return Ok(None);
        }
        if !self.writes.is_settled(key, &cache.endpoints) {
            return Ok(Some(UNSEEN_AGAIN));
        }
        let pods = cache.selected(&service);
        let wanted = subsets::endpoints(&service, &pods, old.as_deref());
        match old {
            None => match answered(api.create(&wanted)).await {
                // It is not in the cache yet; its change brings the Service here again.
                Err(error) if error.is_already_exists() || is_ending(&error) => Ok(None),
                created => created.map(|_| None),
            },
            Some(old) if wanted == *old => Ok(None),
            Some(old) => {
                let written = answered(api.update(&wanted)).await?;
                self.writes.changed(&*old, &written, old.resource_version());
                Ok(None)
            }
        }
    }
}

/// Returns whether the Endpoints are of this controller, or of Kubernetes'.
fn is_managed(endpoints: &Endpoints) -> bool {
    let labels = endpoints.metadata.labels.as_ref();
    labels.is_some_and(|labels| labels.contains_key("endpoints.kubernetes.io/managed-by"))
}
