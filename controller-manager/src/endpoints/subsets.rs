//! The Endpoints of a Service: computed from the Service, its pods and the existing object.

use std::{collections::BTreeMap, sync::Arc};

use podplane_api::{
    Object as _,
    core::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Pod, Service},
    meta::ObjectMeta,
};

use super::{
    HEADLESS, TRIGGER_TIME,
    pods::{
        PodPort, addresses, families, hostname, is_headless, is_ready, node_name, ports,
        publishes_not_ready, reference,
    },
    slices::changed,
};

/// The label with the name of the controller.
const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const MANAGER: &str = "endpoint-controller";
/// The annotation of Endpoints that lack some addresses.
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
/// The most addresses.
const FULL: usize = 1000;

/// The ready and the other addresses.
type Addresses = (Vec<EndpointAddress>, Vec<EndpointAddress>);

/// The Endpoints of a Service as they should be. They have the addresses of its primary family
/// alone.
pub(super) fn endpoints(
    service: &Service,
    pods: &[Arc<Pod>],
    old: Option<&Endpoints>,
) -> Endpoints {
    let mut groups = BTreeMap::<Vec<PodPort>, Addresses>::new();
    let families = families(service);
    let mut times = Vec::new();
    for pod in pods.iter().filter(|pod| is_listed(service, pod)) {
        // A headless Service without families has what its pods have.
        let of_pod = families.iter().map(|family| addresses(pod, *family));
        let Some(ip) = of_pod.flatten().next() else {
            continue;
        };
        times.extend(changed(pod));
        let (ready, not_ready) = groups.entry(ports(service, pod)).or_default();
        let place = match is_ready(pod) || publishes_not_ready(service) {
            true => ready,
            false => not_ready,
        };
        place.push(EndpointAddress {
            hostname: hostname(service, pod),
            ip,
            node_name: node_name(pod),
            target_ref: Some(reference(pod)),
        });
    }
    let is_truncated = truncate(&mut groups);
    let subsets = groups
        .into_iter()
        .filter_map(|(ports, addresses)| subset(&ports, addresses));
    let subsets: Vec<_> = subsets.collect();
    let mut endpoints = old.cloned().unwrap_or_else(|| Endpoints {
        metadata: ObjectMeta {
            name: service.metadata.name.clone(),
            namespace: service.metadata.namespace.clone(),
            ..ObjectMeta::default()
        },
        subsets: None,
    });
    let subsets = Some(subsets).filter(|subsets| !subsets.is_empty());
    let has_changed = endpoints.subsets != subsets;
    endpoints.subsets = subsets;
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS);
    if is_headless(service) {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    endpoints.metadata.labels = Some(labels);
    let mut annotations = endpoints.metadata.annotations.take().unwrap_or_default();
    if has_changed && let Some(time) = times.into_iter().max() {
        annotations.insert(TRIGGER_TIME.to_owned(), time.to_string());
    }
    match is_truncated {
        true => drop(annotations.insert(OVER_CAPACITY.to_owned(), "truncated".to_owned())),
        false => drop(annotations.remove(OVER_CAPACITY)),
    }
    endpoints.metadata.annotations = Some(annotations).filter(|all| !all.is_empty());
    endpoints
}

/// Returns whether the Endpoints show the pod. One that is being deleted is shown only if the
/// Service wants pods that are not ready, too.
fn is_listed(service: &Service, pod: &Pod) -> bool {
    !pod.is_deleting() || publishes_not_ready(service)
}

/// Leaves as many addresses as an object may have; those that are not ready go first.
fn truncate(groups: &mut BTreeMap<Vec<PodPort>, Addresses>) -> bool {
    let count = |groups: &BTreeMap<Vec<PodPort>, Addresses>| {
        let counts = groups.values();
        counts.fold((0, 0), |(ready, other), addresses| {
            (ready + addresses.0.len(), other + addresses.1.len())
        })
    };
    let (ready, other) = count(groups);
    let mut left_ready = ready.min(FULL);
    let mut left_other = other.min(FULL - left_ready);
    for (ready, other) in groups.values_mut() {
        ready.truncate(left_ready);
        left_ready -= ready.len();
        other.truncate(left_other);
        left_other -= other.len();
    }
    ready + other > FULL
}

fn subset(ports: &[PodPort], addresses: Addresses) -> Option<EndpointSubset> {
    let (mut ready, mut other) = addresses;
    if ready.is_empty() && other.is_empty() {
        return None;
    }
    for list in [&mut ready, &mut other] {
        list.sort_by(|one, another| one.ip.cmp(&another.ip));
    }
    let some = |list: Vec<EndpointAddress>| Some(list).filter(|list| !list.is_empty());
    let ports = ports.iter().map(|port| EndpointPort {
        app_protocol: port.app_protocol.clone(),
        name: Some(port.name.clone()).filter(|name| !name.is_empty()),
        port: port.port,
        protocol: Some(port.protocol.clone()),
    });
    let ports: Vec<_> = ports.collect();
    Some(EndpointSubset {
        addresses: some(ready),
        not_ready_addresses: some(other),
        ports: Some(ports).filter(|ports| !ports.is_empty()),
    })
}
