//! The node has the requested resources: a place for a pod, cpu, memory, storage, and extended
//! ones.

use std::borrow::Cow;

use podplane_ipam::{parse_cidr, pool::kubenet_allowed_pods};

use super::{NodeFilter, Objection, Resolvability};
use crate::{
    config::IpPolicy,
    node::{NodeChange, NodeInfo},
    pod::PodInfo,
    resources::Amount,
};

/// The filter `NodeResourcesFit`.
#[derive(Debug)]
pub struct Fit {
    policy: IpPolicy,
}

impl Fit {
    /// With [`IpPolicy::PodCidr`] a node's block bounds the number of its pods.
    pub fn new(policy: IpPolicy) -> Self {
        Self { policy }
    }

    fn allowed_pods(&self, node: &NodeInfo) -> Amount {
        let allowed = node.allowed_pods();
        match self.policy {
            IpPolicy::Resource | IpPolicy::Off => allowed,
            IpPolicy::PodCidr => {
                // That policy uses `podCIDR` alone, the block of the node's first family.
                let block = node.pod_cidrs().first();
                let block = block.and_then(|cidr| parse_cidr(cidr).ok());
                let allowed = u64::try_from(allowed).unwrap_or(0);
                kubenet_allowed_pods(block, allowed).into()
            }
        }
    }
}

impl NodeFilter for Fit {
    fn name(&self) -> &'static str {
        "NodeResourcesFit"
    }

    /// Reports all shortages, not only the first.
    fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Objection> {
        let mut reasons = Vec::new();
        let mut resolvable = Resolvability::ByPreemption;
        let pods = Amount::try_from(node.pods.len()).unwrap_or(Amount::MAX);
        if pods >= self.allowed_pods(node) {
            reasons.push(Cow::Borrowed("Too many pods"));
        }
        for (resource, wanted) in pod.requests.positive() {
            // `PodIPs` counts these for every pod.
            if self.policy == IpPolicy::Resource && resource == node.pod_ip_resource.as_str() {
                continue;
            }
            let allocatable = node.allocatable.get(resource);
            if wanted > allocatable - node.pods.requested().get(resource) {
                reasons.push(format!("Insufficient {resource}").into());
            }
            if wanted > allocatable {
                resolvable = Resolvability::Never;
            }
        }
        if reasons.is_empty() {
            return Ok(());
        }
        Err(Objection {
            reasons,
            resolvable,
            detail: None,
        })
    }

    fn heeds(&self, change: NodeChange) -> bool {
        // A block that arrives never allows more pods than its absence did, so it cannot help.
        change == NodeChange::Allocatable
    }

    /// Every pod that leaves makes room for another.
    fn freed_by(&self, _pod: &PodInfo, _freed: &PodInfo) -> bool {
        true
    }
}
