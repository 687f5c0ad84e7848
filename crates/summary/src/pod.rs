//! A pod, as far as its addresses and its wait for them matter.

use std::{net::IpAddr, sync::Arc};

use podplane_api::{
    Object as _,
    core::Pod,
    pod_ips::{PodIpResource, is_host_network, is_terminal},
};

use crate::waiting::WaitingReason;

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
    /// The facts of a pod. `resource` is that of pod addresses.
    #[must_use]
    pub fn of(pod: &Pod, resource: &PodIpResource) -> Self {
        let status = pod.status.as_ref();
        let held = resource.addresses_held(pod);
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
