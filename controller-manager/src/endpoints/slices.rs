//! The EndpointSlices of a Service: a function of the Service, its pods, their nodes and the slices
//! that there are.
//!
//! Endpoints stay in their slice as long as they can: a change of a pod changes one slice.

use std::{collections::BTreeMap, sync::Arc};

use podplane_api::{
    Object as _,
    core::{Pod, Service},
    discovery::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice},
    jiff::Timestamp,
    meta::ObjectMeta,
};

use super::{
    HEADLESS, TRIGGER_TIME,
    pods::{
        Family, PodPort, addresses, families, hostname, is_headless, is_ready, node_name, ports,
        publishes_not_ready, reference,
    },
};
use crate::owner::controller_reference;

/// The label of a slice with the name of its Service.
pub(super) const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The label of a slice with the name of its controller.
pub(super) const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
/// The name of this controller there, which is Kubernetes': clients look for it.
pub(super) const MANAGER: &str = "endpointslice-controller.k8s.io";
/// The most endpoints of a slice.
const FULL: usize = 100;

/// The facts that the slices depend on.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlicesInput<'a> {
    pub(super) service: &'a Service,
    /// The pods that it selects.
    pub(super) pods: &'a [Arc<Pod>],
    /// The zones of their nodes, by name.
    pub(super) zones: &'a BTreeMap<String, String>,
    /// The slices of the Service that this controller manages.
    pub(super) slices: &'a [Arc<EndpointSlice>],
}

/// The writes, in this order.
#[derive(Debug, Default, PartialEq)]
pub(super) struct SlicesPlan {
    /// Slices without a name.
    pub(super) create: Vec<EndpointSlice>,
    pub(super) update: Vec<EndpointSlice>,
    pub(super) delete: Vec<Arc<EndpointSlice>>,
}

/// The properties that all endpoints of a slice have.
type Group = (Family, Vec<PodPort>);

/// An endpoint that is wanted, and the time of the pod's last change.
#[derive(Clone, Debug)]
struct Wanted {
    endpoint: Endpoint,
    changed: Option<Timestamp>,
}

/// Plans the slices of a Service.
pub(super) fn plan(input: SlicesInput<'_>) -> SlicesPlan {
    let families = families(input.service);
    let mut groups = BTreeMap::<Group, BTreeMap<String, Wanted>>::new();
    for pod in input.pods {
        let ports = ports(input.service, pod);
        for family in &families {
            if let Some(wanted) = endpoint(input, pod, *family) {
                let group = groups.entry((*family, ports.clone())).or_default();
                group.insert(identity(&wanted.endpoint), wanted);
            }
        }
    }
    let mut plan = SlicesPlan::default();
    let mut slices: BTreeMap<Family, Vec<Arc<EndpointSlice>>> = BTreeMap::new();
    for slice in input.slices {
        let family = families
            .iter()
            .find(|family| family.name() == slice.address_type);
        match family {
            Some(family) => slices.entry(*family).or_default().push(slice.clone()),
            None => plan.delete.push(slice.clone()),
        }
    }
    for family in families {
        let of_family = |(group, wanted): (&Group, &BTreeMap<_, _>)| {
            (group.0 == family).then(|| (group.1.clone(), wanted.clone()))
        };
        let mut wanted: Vec<(Vec<PodPort>, BTreeMap<String, Wanted>)> =
            groups.iter().filter_map(of_family).collect();
        if wanted.is_empty() {
            // One empty slice says that the Service has no endpoints.
            wanted.push((Vec::new(), BTreeMap::new()));
        }
        let mut left = slices.remove(&family).unwrap_or_default();
        for (ports, endpoints) in wanted {
            let ports = endpoint_ports(&ports);
            let (same, others) = left.into_iter().partition(|slice| has_ports(slice, &ports));
            left = others;
            fill(input.service, family, &ports, endpoints, same, &mut plan);
        }
        plan.delete.extend(left);
    }
    plan
}

/// Puts the endpoints of a group into the slices with its ports.
fn fill(
    service: &Service,
    family: Family,
    ports: &[EndpointPort],
    mut wanted: BTreeMap<String, Wanted>,
    slices: Vec<Arc<EndpointSlice>>,
    plan: &mut SlicesPlan,
) {
    let is_empty = wanted.is_empty();
    let mut kept: Vec<(Arc<EndpointSlice>, Vec<Endpoint>, Option<Timestamp>)> = Vec::new();
    for slice in slices {
        let (mut endpoints, mut changed) = (Vec::new(), None);
        for endpoint in slice.endpoints.iter().flatten() {
            if let Some(wanted) = wanted.remove(&identity(endpoint)) {
                if wanted.endpoint != *endpoint {
                    changed = earliest(changed, wanted.changed);
                }
                endpoints.push(wanted.endpoint);
            }
        }
        kept.push((slice, endpoints, changed));
    }
    // The fullest slices with room come first, so that few slices have to be read.
    kept.sort_by_key(|(slice, endpoints, _)| {
        (std::cmp::Reverse(endpoints.len()), slice.name().to_owned())
    });
    let mut new = wanted.into_values();
    for (_, endpoints, changed) in &mut kept {
        for wanted in new.by_ref().take(FULL.saturating_sub(endpoints.len())) {
            *changed = earliest(*changed, wanted.changed);
            endpoints.push(wanted.endpoint);
        }
    }
    let mut has_slice = false;
    for (slice, endpoints, changed) in kept {
        if endpoints.is_empty() && (!is_empty || has_slice) {
            plan.delete.push(slice);
            continue;
        }
        has_slice = true;
        let written = written(service, family, ports, endpoints, changed, Some(&slice));
        if written != *slice {
            plan.update.push(written);
        }
    }
    let new: Vec<Wanted> = new.collect();
    for chunk in new.chunks(FULL) {
        let changed = chunk
            .iter()
            .fold(None, |time, wanted| earliest(time, wanted.changed));
        let endpoints = chunk.iter().map(|wanted| wanted.endpoint.clone()).collect();
        plan.create
            .push(written(service, family, ports, endpoints, changed, None));
        has_slice = true;
    }
    if !has_slice {
        let created = service
            .metadata
            .creation_timestamp
            .as_ref()
            .map(|time| time.0);
        plan.create
            .push(written(service, family, ports, Vec::new(), created, None));
    }
}

fn earliest(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// A slice as it should be; `old` is what is stored.
fn written(
    service: &Service,
    family: Family,
    ports: &[EndpointPort],
    endpoints: Vec<Endpoint>,
    changed: Option<Timestamp>,
    old: Option<&EndpointSlice>,
) -> EndpointSlice {
    let mut slice = old.cloned().unwrap_or_else(|| EndpointSlice {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", service.name())),
            namespace: service.metadata.namespace.clone(),
            owner_references: Some(vec![controller_reference(service)]),
            ..ObjectMeta::default()
        },
        ..EndpointSlice::default()
    });
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS);
    if is_headless(service) {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    labels.insert(SERVICE_NAME.to_owned(), service.name().to_owned());
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    slice.metadata.labels = Some(labels);
    if let Some(changed) = changed {
        let annotations = slice.metadata.annotations.get_or_insert_default();
        annotations.insert(TRIGGER_TIME.to_owned(), changed.to_string());
    }
    slice.address_type = family.name().to_owned();
    slice.endpoints = list(endpoints, slice.endpoints.is_none() && old.is_some());
    slice.ports = list(ports.to_vec(), slice.ports.is_none() && old.is_some());
    slice
}

/// The list of a slice. One that is empty may be absent in the stored slice, which is no change.
fn list<T>(list: Vec<T>, was_absent: bool) -> Option<Vec<T>> {
    Some(list).filter(|list| !list.is_empty() || !was_absent)
}

fn endpoint_ports(ports: &[PodPort]) -> Vec<EndpointPort> {
    let port = |port: &PodPort| EndpointPort {
        name: Some(port.name.clone()),
        protocol: Some(port.protocol.clone()),
        port: Some(port.port),
        app_protocol: port.app_protocol.clone(),
    };
    ports.iter().map(port).collect()
}

fn has_ports(slice: &EndpointSlice, ports: &[EndpointPort]) -> bool {
    slice.ports.as_deref().unwrap_or_default() == ports
}

/// The property by which an endpoint is found again: its pod and addresses.
fn identity(endpoint: &Endpoint) -> String {
    let pod = endpoint.target_ref.as_ref();
    let uid = pod.and_then(|pod| pod.uid.as_deref()).unwrap_or_default();
    format!("{uid} {}", endpoint.addresses.join(" "))
}

/// The endpoint of a pod in a family, if it has an address of it.
fn endpoint(input: SlicesInput<'_>, pod: &Pod, family: Family) -> Option<Wanted> {
    let addresses = addresses(pod, family);
    if addresses.is_empty() {
        return None;
    }
    let (is_serving, is_terminating) = (is_ready(pod), pod.is_deleting());
    let is_ready = publishes_not_ready(input.service) || (is_serving && !is_terminating);
    let node = node_name(pod);
    let zone = node.as_ref().and_then(|node| input.zones.get(node));
    Some(Wanted {
        changed: changed(pod),
        endpoint: Endpoint {
            addresses,
            conditions: Some(EndpointConditions {
                ready: Some(is_ready),
                serving: Some(is_serving),
                terminating: Some(is_terminating),
            }),
            hostname: hostname(input.service, pod),
            zone: zone.cloned(),
            node_name: node,
            target_ref: Some(reference(pod)),
            ..Endpoint::default()
        },
    })
}

/// The time at which the pod became ready, or not ready, or was deleted.
pub(super) fn changed(pod: &Pod) -> Option<Timestamp> {
    if let Some(deleted) = &pod.metadata.deletion_timestamp {
        return Some(deleted.0);
    }
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    let ready = conditions.find(|condition| condition.type_ == "Ready")?;
    ready.last_transition_time.as_ref().map(|time| time.0)
}
