//! A pod, as far as its addresses and its wait for them matter.

use std::{net::IpAddr, sync::Arc};

use podplane_api::{
    Object as _,
    core::Pod,
    pod_ips::{PodIpResource, is_host_network, is_terminal},
};

use crate::waiting::WaitingReason;

/// The control plane of a cluster, as far as the meaning of its objects depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ControlPlane {
    /// podplane's own: its kubelets report the end of a sandbox, and pods have addresses of their
    /// nodes' blocks.
    #[default]
    Podplane,
    /// Another one, with any kubelets and any network.
    Other,
}

impl ControlPlane {
    /// The number of addresses that a pod holds on its node. `resource` is that of pod addresses.
    #[must_use]
    pub fn addresses_held(self, pod: &Pod, resource: &PodIpResource) -> u64 {
        match self {
            // Not every kubelet reports the end of a sandbox (ADR 0019). Such a pod would hold its
            // address for as long as its object is there, and be a duplicate of the next pod that
            // has the address. The audit of dumps exempts finished pods for the same reason.
            Self::Other if is_terminal(pod) => 0,
            Self::Podplane | Self::Other => resource.addresses_held(pod),
        }
    }
}

/// The facts of a pod, for [`Cluster::insert_pod`](crate::Cluster::insert_pod).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFacts {
    /// `NAMESPACE/NAME`.
    pub(crate) key: Arc<str>,
    /// The node to which it is bound.
    pub(crate) node: Option<String>,
    /// The addresses of the pod network that it has.
    pub(crate) ips: Vec<IpAddr>,
    /// The number of addresses that it holds on its node.
    pub(crate) held: u64,
    pub(crate) is_running: bool,
    pub(crate) is_host_network: bool,
    /// True if it Succeeded or Failed.
    pub(crate) has_ended: bool,
    pub(crate) is_deleting: bool,
    pub(crate) waiting: Option<WaitingReason>,
}

impl PodFacts {
    /// The facts of a pod of podplane's API server. `resource` is that of pod addresses.
    #[must_use]
    pub fn of(pod: &Pod, resource: &PodIpResource) -> Self {
        Self::new(pod, resource, ControlPlane::Podplane)
    }

    pub(crate) fn new(pod: &Pod, resource: &PodIpResource, control_plane: ControlPlane) -> Self {
        let status = pod.status.as_ref();
        let held = control_plane.addresses_held(pod, resource);
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        Self {
            key: key(pod.namespace(), pod.name()),
            node: node.filter(|node| !node.is_empty()),
            ips: match held > 0 && !is_host_network(pod) {
                true => addresses(pod),
                false => Vec::new(),
            },
            held,
            is_running: status.and_then(|status| status.phase.as_deref()) == Some("Running"),
            is_host_network: is_host_network(pod),
            has_ended: is_terminal(pod),
            is_deleting: pod.metadata.deletion_timestamp.is_some(),
            waiting: WaitingReason::of(pod),
        }
    }
}

/// The name of an object in the facts.
pub(crate) fn key(namespace: &str, name: &str) -> Arc<str> {
    format!("{namespace}/{name}").into()
}

/// The addresses that the status has. What is not an address is left out.
fn addresses(pod: &Pod) -> Vec<IpAddr> {
    let Some(status) = &pod.status else {
        return Vec::new();
    };
    let listed = status.pod_ips.iter().flatten();
    let listed: Vec<_> = listed.map(|listed| listed.ip.as_str()).collect();
    let texts = match listed.is_empty() {
        true => status.pod_ip.as_deref().into_iter().collect(),
        false => listed,
    };
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}
