//! A pod with its needs, which are computed once.

use std::sync::Arc;

use podplane_api::{
    Object, ObjectKey,
    core::Pod,
    pod_ips::{self, OUT_OF_POD_IPS, PodIpResource},
    selector::NodeSelector,
};

use crate::{
    names::{NodeName, PodUid},
    resources::{MissingRequest, Resources},
};

/// The `spec.schedulerName` of this scheduler's pods, and its default.
pub const SCHEDULER_NAME: &str = "default-scheduler";

/// A pod and the values derived from its spec.
#[derive(Clone, Debug)]
pub struct PodInfo {
    /// The object.
    pub pod: Arc<Pod>,
    /// `metadata.uid`.
    pub uid: PodUid,
    /// Namespace and name.
    pub key: ObjectKey,
    /// Its requests for a node's resources.
    pub requests: Resources,
    /// Its requests as counted in scores.
    pub scoring_requests: Resources,
    /// The number of pod addresses that it needs: its request, and at least one, or none on the
    /// host's network.
    pub needed_ips: u64,
    /// The ports of the node that it needs.
    pub host_ports: Vec<HostPort>,
    /// The nodes that its affinity requires.
    pub required_nodes: Option<NodeSelector>,
}

/// A port of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// `None` means every address of the node.
    ip: Option<String>,
    protocol: String,
    port: i32,
}

impl HostPort {
    /// Returns whether two pods with these ports cannot share a node.
    pub fn conflicts(&self, other: &Self) -> bool {
        let addresses_meet = self.ip.is_none() || other.ip.is_none() || self.ip == other.ip;
        addresses_meet && self.port == other.port && self.protocol == other.protocol
    }
}

impl PodInfo {
    /// Derives the values from the object; `pod_ips` is the resource of pod addresses.
    pub fn new(pod: Arc<Pod>, pod_ips: &PodIpResource) -> Self {
        let spec = pod.spec.as_ref();
        let requests =
            |unset| spec.map_or_else(Resources::default, |s| Resources::of_pod(s, unset));
        Self {
            uid: pod.uid().into(),
            key: pod.key(),
            requests: requests(MissingRequest::Zero),
            scoring_requests: requests(MissingRequest::ScoringDefault),
            needed_ips: pod_ips.addresses_needed(&pod),
            host_ports: host_ports(&pod),
            required_nodes: required_nodes(&pod),
            pod,
        }
    }

    /// Returns whether the pod needs an address: all pods do but those on the host's network.
    pub fn needs_ip(&self) -> bool {
        self.needed_ips > 0
    }

    /// `spec.priority`, 0 if absent.
    pub fn priority(&self) -> i32 {
        let spec = self.pod.spec.as_ref();
        spec.and_then(|s| s.priority).unwrap_or(0)
    }

    /// The node that the pod is bound to.
    pub fn node_name(&self) -> Option<NodeName> {
        node_name(&self.pod)
    }

    /// Returns whether the pod has ended for good. Its address may still be in use.
    pub fn is_terminal(&self) -> bool {
        pod_ips::is_terminal(&self.pod)
    }

    /// Returns whether the pod has ended for good and holds no resources any more, its address
    /// included.
    pub fn is_released(&self) -> bool {
        self.is_terminal() && !pod_ips::holds_address(&self.pod)
    }

    /// Returns whether the kubelet refused the pod for want of an address.
    pub fn was_out_of_pod_ips(&self) -> bool {
        let reason = self.pod.status.as_ref().and_then(|s| s.reason.as_deref());
        self.is_terminal() && reason == Some(OUT_OF_POD_IPS)
    }

    /// Returns whether the pod waits for this scheduler.
    pub fn is_schedulable(&self) -> bool {
        let Some(spec) = &self.pod.spec else {
            return false;
        };
        let ours = spec
            .scheduler_name
            .as_deref()
            .is_none_or(|name| name == SCHEDULER_NAME);
        let gated = spec
            .scheduling_gates
            .as_ref()
            .is_some_and(|g| !g.is_empty());
        ours && !gated
            && !self.is_terminal()
            && !self.pod.is_deleting()
            && self.node_name().is_none()
    }

    /// Returns whether `other`, the same pod at another time, has other needs. The status does not
    /// matter.
    pub fn has_other_needs_than(&self, other: &Self) -> bool {
        self.pod.spec != other.pod.spec || self.pod.metadata.labels != other.pod.metadata.labels
    }
}

/// The node that a pod is bound to.
pub fn node_name(pod: &Pod) -> Option<NodeName> {
    let name = pod.spec.as_ref()?.node_name.as_deref()?;
    (!name.is_empty()).then(|| name.into())
}

fn required_nodes(pod: &Pod) -> Option<NodeSelector> {
    let affinity = pod
        .spec
        .as_ref()?
        .affinity
        .as_ref()?
        .node_affinity
        .as_ref()?;
    let required = &affinity.required_during_scheduling_ignored_during_execution;
    required.as_ref().map(NodeSelector::from)
}

fn host_ports(pod: &Pod) -> Vec<HostPort> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let sidecars = spec.init_containers.iter().flatten();
    let sidecars = sidecars.filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let ports = spec.containers.iter().chain(sidecars);
    ports
        .flat_map(|container| container.ports.iter().flatten())
        .filter_map(|port| {
            let ip = port.host_ip.as_deref();
            Some(HostPort {
                ip: ip
                    .filter(|ip| !matches!(*ip, "" | "0.0.0.0" | "::"))
                    .map(str::to_owned),
                protocol: port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()),
                port: port.host_port.filter(|port| *port > 0)?,
            })
        })
        .collect()
}
