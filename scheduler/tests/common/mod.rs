//! The state of the API server of the scheduler's tests.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use podplane_api::{
    Object,
    apps::ReplicaSet,
    coordination::Lease,
    core::{Event, Namespace, Node, Pod, Service},
    policy::PodDisruptionBudget,
};
use podplane_client::{ApiError, Reason};
use podplane_proto::{
    codec,
    wire::{self, WatchEventType},
};
use podplane_test_support::{ChangeLog, FakeState, NodeBuilder, PodBuilder, decode, encode};
use serde_json::json;

/// A fault of a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BindingFault {
    /// The write is done, and its answer is lost.
    AnswerLost,
    /// The write is not done, and the answer is the same as if it were lost.
    RequestLost,
    /// The pod changes just before the write.
    Conflict,
    /// Another client binds it just before, to this node.
    Usurped(&'static str),
    /// The write is not done, and no answer comes.
    Hang,
    /// The write is not done, because another scheduler leads.
    FenceLost,
}

#[derive(Debug, Default)]
pub(crate) struct SchedulerState {
    pub(crate) nodes: BTreeMap<String, Node>,
    pub(crate) services: BTreeMap<String, Service>,
    pub(crate) replica_sets: BTreeMap<String, ReplicaSet>,
    pub(crate) pods: BTreeMap<String, Pod>,
    pub(crate) events: Vec<Event>,
    /// The faults of the next bindings.
    pub(crate) faults: VecDeque<BindingFault>,
    /// The requests to bind a pod that has a node already: a correct scheduler makes none.
    pub(crate) bound_again: Vec<String>,
    pub(crate) bindings: u32,
    /// The number of writes of pods' status.
    pub(crate) status_writes: u32,
    /// The Lease of the election.
    pub(crate) lease: Option<Lease>,
    log: ChangeLog,
}

impl SchedulerState {
    pub(crate) fn put_node(&mut self, mut node: Node) {
        self.log.push(WatchEventType::Modified, &mut node);
        self.nodes.insert(node.name().to_owned(), node);
    }

    pub(crate) fn put_service(&mut self, mut service: Service) {
        self.log.push(WatchEventType::Modified, &mut service);
        self.services.insert(service.name().to_owned(), service);
    }

    pub(crate) fn put_replica_set(&mut self, mut set: ReplicaSet) {
        self.log.push(WatchEventType::Modified, &mut set);
        self.replica_sets.insert(set.name().to_owned(), set);
    }

    pub(crate) fn put_pod(&mut self, mut pod: Pod) -> Pod {
        self.log.push(WatchEventType::Modified, &mut pod);
        self.pods.insert(pod.name().to_owned(), pod.clone());
        pod
    }

    /// Writes the Lease; a holder without a name has released it.
    pub(crate) fn lead(&mut self, holder: &str) -> Lease {
        let mut lease = self.lease.take().unwrap_or_default();
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(holder.to_owned());
        spec.lease_duration_seconds = Some(1000);
        self.put_lease(lease)
    }

    fn put_lease(&mut self, mut lease: Lease) -> Lease {
        self.log.push(WatchEventType::Modified, &mut lease);
        self.lease.insert(lease).clone()
    }

    fn update_lease(&mut self, lease: Lease) -> Result<Lease, ApiError> {
        let stored = self.lease.as_ref().map(Object::resource_version);
        if stored != Some(lease.resource_version()) {
            return Err(ApiError::new(Reason::Conflict, "the lease has changed"));
        }
        Ok(self.put_lease(lease))
    }

    pub(crate) fn remove_pod(&mut self, name: &str) {
        let mut pod = self.pods.remove(name).unwrap();
        self.log.push(WatchEventType::Deleted, &mut pod);
    }

    fn pod(&self, name: &str) -> Result<Pod, ApiError> {
        let pod = self.pods.get(name).cloned();
        pod.ok_or_else(|| ApiError::not_found("pods", name))
    }

    fn bind(
        &mut self,
        request: &wire::BindPodRequest,
        fault: Option<BindingFault>,
    ) -> Result<Pod, ApiError> {
        let lost = || ApiError::new(Reason::ServiceUnavailable, "the connection broke");
        let mut pod = self.pod(&request.name)?;
        if node_of(&pod).is_some() {
            self.bound_again.push(request.name.clone());
        }
        match fault {
            Some(BindingFault::RequestLost | BindingFault::Hang) => return Err(lost()),
            Some(BindingFault::FenceLost) => {
                return Err(ApiError::new(Reason::FenceLost, "another leads"));
            }
            Some(BindingFault::Conflict) => pod = self.put_pod(pod),
            Some(BindingFault::Usurped(node)) => {
                pod.spec.get_or_insert_default().node_name = Some(node.to_owned());
                pod = self.put_pod(pod);
            }
            Some(BindingFault::AnswerLost) | None => {}
        }
        let expected = &request.resource_version;
        if node_of(&pod).is_some() || pod.uid() != request.uid || pod.resource_version() != expected
        {
            return Err(ApiError::new(Reason::Conflict, "the pod has changed"));
        }
        pod.spec.get_or_insert_default().node_name = Some(request.node_name.clone());
        let pod = self.put_pod(pod);
        self.bindings += 1;
        match fault {
            Some(BindingFault::AnswerLost) => Err(lost()),
            _ => Ok(pod),
        }
    }

    fn update_status(&mut self, pod: Pod) -> Result<Pod, ApiError> {
        let mut stored = self.pod(pod.name())?;
        if stored.resource_version() != pod.resource_version() {
            return Err(ApiError::new(Reason::Conflict, "the pod has changed"));
        }
        self.status_writes += 1;
        stored.status = pod.status;
        Ok(self.put_pod(stored))
    }

    fn put_event(&mut self, event: Event) -> Event {
        self.events.retain(|known| known.name() != event.name());
        self.events.push(event.clone());
        event
    }

    /// The names of the pods on the node.
    pub(crate) fn on(&self, node: &str) -> Vec<&str> {
        let pods = self.pods.values();
        let here = pods.filter(|pod| node_of(pod) == Some(node));
        here.map(Object::name).collect()
    }

    /// Reason and message of the PodScheduled condition of each waiting pod.
    pub(crate) fn waiting(&self) -> Vec<(String, String)> {
        let conditions = |pod: &Pod| pod.status.clone().unwrap_or_default().conditions;
        let waiting = self.pods.values().filter(|pod| node_of(pod).is_none());
        let conditions = waiting.flat_map(|pod| conditions(pod).unwrap_or_default());
        let conditions = conditions.filter(|c| c.type_ == "PodScheduled" && c.status == "False");
        conditions
            .map(|c| (c.reason.unwrap_or_default(), c.message.unwrap_or_default()))
            .collect()
    }

    /// The events with that reason.
    pub(crate) fn events(&self, reason: &str) -> Vec<&Event> {
        let events = self.events.iter();
        events
            .filter(|e| e.reason.as_deref() == Some(reason))
            .collect()
    }
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

/// A node that has plenty of everything but addresses.
pub(crate) fn node(name: &str, cidr: &str, pod_ips: u32) -> Node {
    NodeBuilder::new(name).block(cidr, pod_ips).node()
}

/// A pod that waits for a node, in `default`.
pub(crate) fn pod(name: &str) -> Pod {
    let pod = PodBuilder::new(name).set("/metadata/uid", json!(format!("uid-{name}")));
    Arc::unwrap_or_clone(pod.pod())
}

/// The API server of these tests.
pub(crate) type SchedulerApiserver = podplane_test_support::FakeApiserver<SchedulerState>;

impl FakeState for SchedulerState {
    fn log(&self) -> &ChangeLog {
        &self.log
    }

    async fn answer(
        fake: SchedulerApiserver,
        method: String,
        request: Bytes,
    ) -> Result<Bytes, ApiError> {
        let written = |request: &Bytes| decode::<wire::WriteRequest>(request).object.unwrap();
        match method.as_str() {
            "ListNodes" => Ok(fake.read(|state| state.log.list(state.nodes.values()))),
            "ListNamespaces" => {
                let none = std::iter::empty::<&Namespace>();
                Ok(fake.read(|state| state.log.list(none)))
            }
            "ListPodDisruptionBudgets" => {
                let none = std::iter::empty::<&PodDisruptionBudget>();
                Ok(fake.read(|state| state.log.list(none)))
            }
            "ListServices" => Ok(fake.read(|state| state.log.list(state.services.values()))),
            "ListReplicaSets" => Ok(fake.read(|state| state.log.list(state.replica_sets.values()))),
            "ListPods" => Ok(fake.read(|state| state.log.list(state.pods.values()))),
            "GetPod" => {
                let wire::GetRequest { name, .. } = decode(&request);
                fake.read(|state| state.pod(&name)).map(|pod| encode(&pod))
            }
            "BindPod" => {
                let fault = fake.change(|state| state.faults.pop_front());
                let bound = fake.change(|state| state.bind(&decode(&request), fault));
                if fault == Some(BindingFault::Hang) {
                    std::future::pending::<()>().await;
                }
                bound.map(|pod| encode(&pod))
            }
            "UpdatePodStatus" => {
                let pod = codec::decode(&written(&request)).unwrap();
                fake.change(|state| state.update_status(pod))
                    .map(|pod| encode(&pod))
            }
            "GetLease" => fake
                .read(|state| state.lease.clone())
                .map(|lease| encode(&lease))
                .ok_or_else(|| ApiError::not_found("leases", "podplane-scheduler")),
            "UpdateLease" => {
                let lease = codec::decode(&written(&request)).unwrap();
                fake.change(|state| state.update_lease(lease))
                    .map(|lease| encode(&lease))
            }
            "CreateEvent" | "UpdateEvent" => {
                let event = codec::decode(&written(&request)).unwrap();
                Ok(encode(&fake.change(|state| state.put_event(event))))
            }
            _ => Err(ApiError::new(
                Reason::BadRequest,
                format!("{method} is not faked"),
            )),
        }
    }
}
