//! A pod with its needs, which are computed once.

use std::{fmt, sync::Arc};

use podplane_api::{
    Object, ObjectKey,
    core::{Pod, Toleration},
    pod_ips::{self, OUT_OF_POD_IPS, PodIpResource},
};

use crate::{
    constraints::{
        LabelMap,
        affinity::{self, AffinityEffect, AffinityRule, AffinityTerm},
        nodes::{self, NodeTerm, RequiredNodes},
        spread::SpreadConstraint,
    },
    images::{self, ImageId},
    names::{NodeName, PodUid},
    resources::{MissingRequest, Resources},
};

/// The labels of an object without labels.
static NO_LABELS: LabelMap = LabelMap::new();

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
    /// Its requests as counted in scores of nodes for it.
    pub scoring_requests: Resources,
    /// Its requests as counted in scores of its node for other pods.
    pub placed_scoring_requests: Resources,
    /// The number of pod addresses that it needs: its request, and at least one, or none on the
    /// host's network.
    pub needed_ips: u64,
    /// The ports of the node that it needs.
    pub host_ports: Vec<HostPort>,
    /// The nodes that it requires.
    pub required_nodes: RequiredNodes,
    /// The nodes that it prefers, with weights.
    pub preferred_nodes: Vec<(i64, NodeTerm)>,
    /// Its affinity to other pods.
    pub affinity: Vec<Arc<AffinityRule>>,
    /// Its `topologySpreadConstraints`.
    pub spread: Vec<SpreadConstraint>,
    /// The name of the ReplicaSet that controls it.
    pub replica_set: Option<String>,
    /// The images of its init containers and containers.
    pub images: Vec<ImageId>,
}

/// A port of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// `None` means every address of the node. As in the reference, `::` is one address.
    ip: Option<String>,
    protocol: String,
    port: i32,
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(ip) = &self.ip {
            write!(f, "{ip}:")?;
        }
        write!(f, "{}/{}", self.port, self.protocol)
    }
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
        let labels = pod.metadata.labels.as_ref();
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let spread = spec.and_then(|s| s.topology_spread_constraints.as_ref());
        Self {
            uid: pod.uid().into(),
            key: pod.key(),
            requests: requests(MissingRequest::Zero),
            scoring_requests: requests(MissingRequest::ScoringDefault),
            placed_scoring_requests: requests(MissingRequest::PlacedScoringDefault),
            // Limited, so that no sum of needs overflows.
            needed_ips: pod_ips.addresses_needed(&pod).min(u32::MAX.into()),
            host_ports: host_ports(&pod),
            required_nodes: spec.map(RequiredNodes::of).unwrap_or_default(),
            preferred_nodes: spec.map(nodes::preferred).unwrap_or_default(),
            affinity: spec
                .map(|spec| affinity::rules(spec, namespace, labels))
                .unwrap_or_default(),
            spread: spread
                .into_iter()
                .flatten()
                .map(|constraint| SpreadConstraint::new(constraint, labels))
                .collect(),
            replica_set: replica_set(&pod),
            images: spec.map(images::of_pod).unwrap_or_default(),
            pod,
        }
    }

    /// `metadata.namespace`.
    pub fn namespace(&self) -> &str {
        self.pod.metadata.namespace.as_deref().unwrap_or_default()
    }

    /// `metadata.labels`.
    pub fn labels(&self) -> &LabelMap {
        self.pod.metadata.labels.as_ref().unwrap_or(&NO_LABELS)
    }

    /// `spec.tolerations`.
    pub fn tolerations(&self) -> &[Toleration] {
        let spec = self.pod.spec.as_ref();
        let tolerations = spec.and_then(|s| s.tolerations.as_deref());
        tolerations.unwrap_or_default()
    }

    /// The terms of its affinity that have the effect.
    pub fn affinity_terms(&self, effect: AffinityEffect) -> impl Iterator<Item = &AffinityTerm> {
        let rules = self.affinity.iter();
        rules
            .filter(move |rule| rule.effect == effect)
            .map(|rule| &rule.term)
    }

    /// The keys of the node labels that its constraints name.
    pub fn label_keys(&self) -> impl Iterator<Item = &str> {
        let terms = self.required_nodes.terms.iter().flatten();
        let terms = terms.chain(self.preferred_nodes.iter().map(|(_, term)| term));
        let required = terms.flat_map(|term| &term.labels);
        let required = required.chain(&self.required_nodes.selector);
        let spread = self.spread.iter().map(|one| one.topology_key.as_str());
        let near = self
            .affinity
            .iter()
            .map(|rule| rule.term.topology_key.as_str());
        required
            .map(|one| one.key.as_str())
            .chain(spread)
            .chain(near)
    }

    /// Returns true if copies of the pod on other nodes can decide whether it fits a node.
    pub fn depends_on_copies(&self) -> bool {
        let is_preference = |rule: &Arc<AffinityRule>| match rule.effect {
            AffinityEffect::Preferred(_) => true,
            AffinityEffect::Required | AffinityEffect::Forbidden => false,
        };
        !self.affinity.iter().all(is_preference) || self.spread.iter().any(|one| one.is_required)
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

    /// `status.nominatedNodeName`.
    pub fn nominated_node(&self) -> Option<NodeName> {
        let name = self.pod.status.as_ref()?.nominated_node_name.as_deref()?;
        (!name.is_empty()).then(|| name.into())
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

/// The name of the ReplicaSet that controls the pod.
fn replica_set(pod: &Pod) -> Option<String> {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true))?;
    let is_set = owner.kind == "ReplicaSet" && owner.api_version == "apps/v1";
    is_set.then(|| owner.name.clone())
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
            let ip = ip.filter(|ip| !matches!(*ip, "" | "0.0.0.0"));
            let protocol = port.protocol.as_deref().filter(|name| !name.is_empty());
            Some(HostPort {
                ip: ip.map(str::to_owned),
                protocol: protocol.unwrap_or("TCP").to_owned(),
                port: port.host_port.filter(|port| *port > 0)?,
            })
        })
        .collect()
}
