//! The decision about bindings: counts the addresses of each node, those of pods that the watch has
//! shown and those reserved for bindings that it has not shown yet.
//!
//! It is pure: events, answers of the API server and the time are arguments. The counts are never
//! below those of the API server as long as one guard judges all bindings:
//!
//! - A reservation is made before the API server carries out the binding, and ends when the watch
//!   shows the pod bound, whose addresses count from then on, or deleted.
//! - A reservation does not end by time alone. After the time in which the API server has carried
//!   out or dropped the binding, the pod is read ([`BindGuard::due`], [`BindGuard::settle`]): if it
//!   is bound, the reservation waits for the watch.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use podplane_api::{
    ObjectKey,
    pod_ips::{AddressShortage, no_address_on},
};
use podplane_host::clock::Instant;
use podplane_ipam::{NodeAddresses, addresses::AddressReport};

use crate::pod::{PodAddresses, PodUid};

#[cfg(test)]
mod tests;

/// A binding to judge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindRequest {
    /// The pod's namespace and name.
    pub pod: ObjectKey,
    /// The UID that the pod must have, if the binding names one.
    pub uid: Option<PodUid>,
    /// The node.
    pub node: Arc<str>,
    /// True if the API server will not carry it out.
    pub is_dry_run: bool,
}

/// The decision about a binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindDecision {
    /// The binding may be carried out.
    Allowed(AllowReason),
    /// The node has no address for the pod; the text says why.
    Refused(String),
    /// The pod is not known. The caller reads it from the API server and asks again.
    UnknownPod,
}

/// The reason to allow a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowReason {
    /// The node has the addresses; they are reserved now.
    Reserved,
    /// The node has the addresses; a dry run reserves none.
    DryRun,
    /// The pod needs no address.
    NoAddress,
    /// The pod is bound or gone, or it is not the one that the binding names: the API server will
    /// refuse the binding.
    NotBindable,
}

/// The pod as the API server has it, for a request about a pod that the watch has not shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodRead {
    /// There is no pod of that name.
    Gone,
    /// The pod of that name.
    Found(PodAddresses),
}

/// A reservation whose pod should be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueReservation {
    /// The pod's namespace and name.
    pub pod: ObjectKey,
    /// The pod's UID.
    pub uid: PodUid,
    /// The node.
    pub node: Arc<str>,
    /// The number of the reservation, which a later binding of the pod to the node renews.
    number: u64,
}

/// The addresses of the pods of one node.
#[derive(Debug, Default)]
struct NodeLedger {
    /// Those of pods that the watch has shown bound.
    held: BTreeMap<PodUid, (ObjectKey, u64)>,
    reserved: BTreeMap<PodUid, Reservation>,
}

/// Addresses that a pod may get by a binding that was allowed.
#[derive(Clone, Debug)]
struct Reservation {
    pod: ObjectKey,
    addresses: u64,
    number: u64,
    /// From then on the binding has been carried out or dropped.
    due: Instant,
}

impl NodeLedger {
    fn taken(&self) -> u64 {
        let held = self.held.values().map(|(_, addresses)| *addresses);
        let reserved = self.reserved.values().map(|each| each.addresses);
        held.chain(reserved).fold(0, u64::saturating_add)
    }

    /// The pods, by name.
    fn holders(&self) -> Vec<ObjectKey> {
        let held = self.held.values().map(|(pod, _)| pod.clone());
        let reserved = self.reserved.values().map(|each| each.pod.clone());
        let all: BTreeSet<_> = held.chain(reserved).collect();
        all.into_iter().collect()
    }

    fn is_empty(&self) -> bool {
        self.held.is_empty() && self.reserved.is_empty()
    }
}

/// The guard.
#[derive(Debug)]
pub struct BindGuard {
    /// The time after which a binding that was allowed has been carried out or dropped.
    limit: Duration,
    /// The pods as the watch has shown them.
    pods: BTreeMap<ObjectKey, Arc<PodAddresses>>,
    nodes: BTreeMap<Arc<str>, NodeLedger>,
    /// The nodes with a reservation for the pod. A scheduler that tries one node after the other
    /// has several.
    reserved_on: BTreeMap<PodUid, BTreeSet<Arc<str>>>,
    /// The number of the last reservation.
    last: u64,
}

impl BindGuard {
    /// A guard that knows no pod. The API server has carried out or dropped a binding at most
    /// `limit` after the guard was asked.
    pub fn new(limit: Duration) -> Self {
        Self {
            limit,
            pods: BTreeMap::new(),
            nodes: BTreeMap::new(),
            reserved_on: BTreeMap::new(),
            last: 0,
        }
    }

    /// The number of reservations.
    pub fn reservations(&self) -> usize {
        self.reserved_on.values().map(BTreeSet::len).sum()
    }

    /// The watch shows a pod.
    pub fn apply(&mut self, pod: &Arc<PodAddresses>) {
        if let Some(old) = self.pods.insert(pod.key.clone(), Arc::clone(pod)) {
            self.unhold(&old);
            if old.uid != pod.uid {
                self.release(&old.uid);
            }
        }
        let Some(node) = &pod.node else { return };
        self.release(&pod.uid);
        if pod.held > 0 {
            let ledger = self.nodes.entry(Arc::clone(node)).or_default();
            let held = (pod.key.clone(), pod.held);
            ledger.held.insert(Arc::clone(&pod.uid), held);
        }
    }

    /// The watch shows the end of a pod.
    pub fn forget(&mut self, pod: &PodAddresses) {
        let is_known = self
            .pods
            .get(&pod.key)
            .is_some_and(|known| known.uid == pod.uid);
        if is_known && let Some(known) = self.pods.remove(&pod.key) {
            self.unhold(&known);
        }
        self.release(&pod.uid);
    }

    /// Reserves the addresses of pods that a list has bound and the watch has not shown so: those of
    /// bindings that another guard allowed. Returns their number.
    pub fn adopt(&mut self, pods: &[PodAddresses], now: Instant) -> usize {
        let mut adopted = 0;
        for pod in pods {
            let shown = self.pods.get(&pod.key);
            let is_shown = shown.is_some_and(|shown| shown.uid == pod.uid && shown.node.is_some());
            if let Some(node) = pod.node.clone().filter(|_| !is_shown && pod.held > 0) {
                self.reserve(pod, pod.held, node, now);
                adopted += 1;
            }
        }
        adopted
    }

    /// Decides about a binding. `report` is that of the node; `None` if there is no such node.
    /// `read` is the pod as the API server has it, if the caller has read it for this request.
    pub fn decide(
        &mut self,
        request: &BindRequest,
        report: Option<&AddressReport>,
        read: Option<&PodRead>,
        now: Instant,
    ) -> BindDecision {
        use BindDecision::{Allowed, Refused, UnknownPod};
        let is_named = |pod: &PodAddresses| request.uid.as_ref().is_none_or(|uid| *uid == pod.uid);
        // Without a UID the binding may be of a pod that has replaced the one that the watch has
        // shown.
        let shown = self
            .pods
            .get(&request.pod)
            .filter(|_| request.uid.is_some());
        let shown = shown.filter(|pod| is_named(pod)).map(Arc::as_ref);
        let pod = match (shown, read) {
            (Some(pod), _) => pod.clone(),
            (None, None) => return UnknownPod,
            (None, Some(PodRead::Found(pod))) if is_named(pod) => pod.clone(),
            (None, Some(_)) => return Allowed(AllowReason::NotBindable),
        };
        if pod.node.is_some() {
            // Bound by another guard's word, and not shown by the watch.
            self.adopt(std::slice::from_ref(&pod), now);
            return Allowed(AllowReason::NotBindable);
        }
        if pod.needed == 0 {
            return Allowed(AllowReason::NoAddress);
        }
        let Some(report) = report else {
            return Refused(no_address_on(&request.node, "it does not exist"));
        };
        let ledger = self.nodes.get(&request.node);
        let has_reservation = ledger.is_some_and(|node| node.reserved.contains_key(&pod.uid));
        let taken = ledger.map_or(0, NodeLedger::taken);
        let counts = NodeAddresses::of(report, taken);
        if !has_reservation && !counts.has_room_for(pod.needed) {
            let shortage = AddressShortage {
                counts,
                needed: pod.needed,
                holders: &ledger.map_or_else(Vec::new, NodeLedger::holders),
            };
            return Refused(no_address_on(&request.node, &shortage.to_string()));
        }
        if request.is_dry_run {
            return Allowed(AllowReason::DryRun);
        }
        self.reserve(&pod, pod.needed, Arc::clone(&request.node), now);
        Allowed(AllowReason::Reserved)
    }

    /// The first reservations, up to `count`, whose bindings have been carried out or dropped by
    /// now. None is returned again before it is due again.
    pub fn due(&mut self, now: Instant, count: usize) -> Vec<DueReservation> {
        let mut due = Vec::new();
        let all = self.reserved_on.iter();
        let all = all.flat_map(|(uid, nodes)| nodes.iter().map(move |node| (uid, node)));
        for (uid, node) in all {
            let ledger = self.nodes.get_mut(node);
            let Some(reservation) = ledger.and_then(|ledger| ledger.reserved.get_mut(uid)) else {
                continue;
            };
            if due.len() == count {
                break;
            }
            if reservation.due <= now {
                reservation.due = now + self.limit;
                due.push(DueReservation {
                    pod: reservation.pod.clone(),
                    uid: Arc::clone(uid),
                    node: Arc::clone(node),
                    number: reservation.number,
                });
            }
        }
        due
    }

    /// Ends a reservation that was due if the pod, read after that, is not bound to the node. A
    /// binding that was allowed meanwhile keeps it.
    pub fn settle(&mut self, due: &DueReservation, read: &PodRead) {
        let is_bound = match read {
            PodRead::Gone => false,
            PodRead::Found(pod) => pod.uid == due.uid && pod.node.as_ref() == Some(&due.node),
        };
        let ledger = self.nodes.get(&due.node);
        let reservation = ledger.and_then(|ledger| ledger.reserved.get(&due.uid));
        let is_same = reservation.is_some_and(|each| each.number == due.number);
        if !is_bound && is_same {
            self.release_on(&due.uid, &due.node);
        }
    }

    fn reserve(&mut self, pod: &PodAddresses, addresses: u64, node: Arc<str>, now: Instant) {
        self.last += 1;
        let reservation = Reservation {
            pod: pod.key.clone(),
            addresses,
            number: self.last,
            due: now + self.limit,
        };
        let ledger = self.nodes.entry(Arc::clone(&node)).or_default();
        ledger.reserved.insert(Arc::clone(&pod.uid), reservation);
        let nodes = self.reserved_on.entry(Arc::clone(&pod.uid)).or_default();
        nodes.insert(node);
    }

    /// Ends all reservations for the pod.
    fn release(&mut self, uid: &PodUid) {
        for node in self.reserved_on.remove(uid).unwrap_or_default() {
            self.change(&node, |ledger| {
                ledger.reserved.remove(uid);
            });
        }
    }

    fn release_on(&mut self, uid: &PodUid, node: &Arc<str>) {
        if let Some(nodes) = self.reserved_on.get_mut(uid) {
            nodes.remove(node);
            if nodes.is_empty() {
                self.reserved_on.remove(uid);
            }
        }
        self.change(node, |ledger| {
            ledger.reserved.remove(uid);
        });
    }

    fn unhold(&mut self, pod: &PodAddresses) {
        if let Some(node) = &pod.node {
            self.change(node, |ledger| {
                ledger.held.remove(&pod.uid);
            });
        }
    }

    fn change(&mut self, node: &Arc<str>, change: impl FnOnce(&mut NodeLedger)) {
        if let Some(ledger) = self.nodes.get_mut(node) {
            change(ledger);
            if ledger.is_empty() {
                self.nodes.remove(node);
            }
        }
    }
}
