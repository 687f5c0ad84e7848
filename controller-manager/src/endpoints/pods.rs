//! The pods behind a Service, and its ports on them.

use std::net::IpAddr;

use podplane_api::{
    IntOrString, Object as _,
    core::{Container, ObjectReference, Pod, Service, ServicePort},
    pod_ips,
};

use crate::pods::{node, ready_since};

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    pub(super) fn of(ip: &str) -> Option<Self> {
        match ip.parse().ok()? {
            IpAddr::V4(_) => Some(Self::V4),
            IpAddr::V6(_) => Some(Self::V6),
        }
    }

    /// The type of a slice's addresses.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

/// The families of a Service, the primary one first. A Service without them has those of its
/// cluster IPs, and a headless one both.
pub(super) fn families(service: &Service) -> Vec<Family> {
    let spec = service.spec.clone().unwrap_or_default();
    let named: Vec<_> = spec
        .ip_families
        .iter()
        .flatten()
        .filter_map(|family| match family.as_str() {
            "IPv4" => Some(Family::V4),
            "IPv6" => Some(Family::V6),
            _ => None,
        })
        .collect();
    if !named.is_empty() {
        return named;
    }
    let ips = spec
        .cluster_ips
        .into_iter()
        .flatten()
        .chain(spec.cluster_ip);
    let mut of_ips: Vec<_> = ips.filter_map(|ip| Family::of(&ip)).collect();
    of_ips.dedup();
    match of_ips.is_empty() {
        true => vec![Family::V4, Family::V6],
        false => of_ips,
    }
}

pub(super) fn is_headless(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    spec.and_then(|spec| spec.cluster_ip.as_deref()) == Some("None")
}

pub(super) fn publishes_not_ready(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    spec.and_then(|spec| spec.publish_not_ready_addresses) == Some(true)
}

/// A port of a Service on a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PodPort {
    pub(super) name: String,
    pub(super) protocol: String,
    pub(super) port: i32,
    pub(super) app_protocol: Option<String>,
}

/// The Service's ports on the pod: a target with a name that the pod does not have is left out.
pub(super) fn ports(service: &Service, pod: &Pod) -> Vec<PodPort> {
    let spec = service.spec.as_ref();
    let ports = spec
        .into_iter()
        .flat_map(|spec| spec.ports.iter().flatten());
    let mut ports: Vec<_> = ports.filter_map(|port| on_pod(port, pod)).collect();
    ports.sort();
    ports
}

fn on_pod(port: &ServicePort, pod: &Pod) -> Option<PodPort> {
    let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
    let number = match &port.target_port {
        None => port.port,
        Some(IntOrString::Int(0)) => port.port,
        Some(IntOrString::Int(number)) => *number,
        Some(IntOrString::String(name)) => named(pod, name, &protocol)?,
    };
    Some(PodPort {
        name: port.name.clone().unwrap_or_default(),
        protocol,
        port: number,
        app_protocol: port.app_protocol.clone(),
    })
}

/// The container port of that name; sidecars have ports, too.
fn named(pod: &Pod, name: &str, protocol: &str) -> Option<i32> {
    let spec = pod.spec.as_ref()?;
    let is_sidecar = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    let sidecars = spec.init_containers.iter().flatten().filter(is_sidecar);
    let containers = spec.containers.iter().chain(sidecars);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let found = ports.find(|port| {
        port.name.as_deref() == Some(name) && port.protocol.as_deref().unwrap_or("TCP") == protocol
    })?;
    Some(found.container_port)
}

/// The addresses of the pod of a family, if it is on the network and has not ended.
pub(super) fn addresses(pod: &Pod, family: Family) -> Vec<String> {
    if pod_ips::is_terminal(pod) {
        return Vec::new();
    }
    let status = pod.status.as_ref();
    let ips = status
        .into_iter()
        .flat_map(|status| status.pod_ips.iter().flatten());
    let ips = ips.filter(|ip| Family::of(&ip.ip) == Some(family));
    ips.map(|ip| ip.ip.clone()).collect()
}

/// The pod's host name, if it is a name in the Service's domain.
pub(super) fn hostname(service: &Service, pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let is_in_domain = spec.subdomain.as_deref() == Some(service.name());
    let name = spec.hostname.clone().filter(|name| !name.is_empty())?;
    is_in_domain.then_some(name)
}

pub(super) fn is_ready(pod: &Pod) -> bool {
    ready_since(pod).is_some()
}

pub(super) fn node_name(pod: &Pod) -> Option<String> {
    node(pod).map(str::to_owned)
}

/// The reference of an endpoint to its pod.
pub(super) fn reference(pod: &Pod) -> ObjectReference {
    ObjectReference {
        kind: Some("Pod".to_owned()),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}
