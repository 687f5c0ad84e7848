//! The part of a pod that its spec decides.

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use podplane_api::{
    core::{Pod, PodSpec, Toleration},
    pod_ips::PodIpResource,
};

use crate::{
    constraints::{
        affinity::{self, AffinityEffect, AffinityRule, AffinityTerm},
        nodes::{self, NodeTerm, RequiredNodes},
        spread::SpreadConstraint,
    },
    images::{self, ImageId},
    plugins::unsupported_fields,
    resources::{MissingRequest, Resources},
};

/// The needs of a pod, derived from its spec, its namespace and its labels.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodNeeds {
    /// Its requests for a node's resources.
    pub requests: Resources,
    /// Its requests as counted in scores of nodes for it.
    pub scoring_requests: Resources,
    /// Its requests as counted in scores of its node for other pods.
    pub placed_scoring_requests: Resources,
    /// The number of pod addresses that it needs: its request, and at least one, or none on the
    /// host's network.
    pub ips: u64,
    /// The ports of the node that it needs.
    pub host_ports: Vec<HostPort>,
    /// The nodes that it requires.
    pub required_nodes: RequiredNodes,
    /// The nodes that it prefers, with weights.
    pub preferred_nodes: Vec<(i64, NodeTerm)>,
    /// Its affinity to other pods.
    pub affinity: Vec<Arc<AffinityRule>>,
    /// `spec.topologySpreadConstraints`.
    pub spread: Vec<SpreadConstraint>,
    /// The name of the ReplicaSet that controls it.
    pub replica_set: Option<String>,
    /// The images of its init containers and containers.
    pub images: Vec<ImageId>,
    /// `spec.tolerations`.
    pub tolerations: Vec<Toleration>,
    /// `spec.priority`, 0 if absent.
    pub priority: i32,
    /// True if `spec.preemptionPolicy` is Never.
    pub never_preempts: bool,
    /// `spec.schedulerName`; `None` for the default.
    pub scheduler_name: Option<String>,
    /// The names in `spec.schedulingGates`.
    pub scheduling_gates: Vec<String>,
    /// The reason why the pod is not placed, if a field asks for what does not exist here.
    pub unsupported: Option<String>,
}

impl Eq for PodNeeds {}

impl Hash for PodNeeds {
    /// Leaves out what seldom tells two pods apart.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.requests.hash(state);
        self.ips.hash(state);
        self.host_ports.hash(state);
        self.required_nodes.hash(state);
        self.preferred_nodes.hash(state);
        self.affinity.hash(state);
        self.spread.hash(state);
        self.replica_set.hash(state);
        self.images.hash(state);
        self.tolerations.len().hash(state);
        self.priority.hash(state);
    }
}

impl PodNeeds {
    pub(super) fn of(pod: &Pod, pod_ips: &PodIpResource) -> Self {
        let Some(spec) = &pod.spec else {
            return Self {
                ips: needed_ips(pod, pod_ips),
                ..Self::default()
            };
        };
        let labels = pod.metadata.labels.as_ref();
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let spread = spec.topology_spread_constraints.iter().flatten();
        let gates = spec.scheduling_gates.iter().flatten();
        Self {
            requests: Resources::of_pod(spec, MissingRequest::Zero),
            scoring_requests: Resources::of_pod(spec, MissingRequest::ScoringDefault),
            placed_scoring_requests: Resources::of_pod(spec, MissingRequest::PlacedScoringDefault),
            ips: needed_ips(pod, pod_ips),
            host_ports: host_ports(spec),
            required_nodes: RequiredNodes::of(spec),
            preferred_nodes: nodes::preferred(spec),
            affinity: affinity::rules(spec, namespace, labels),
            spread: spread
                .map(|constraint| SpreadConstraint::new(constraint, labels))
                .collect(),
            replica_set: replica_set(pod),
            images: images::of_pod(spec),
            tolerations: spec.tolerations.clone().unwrap_or_default(),
            priority: spec.priority.unwrap_or(0),
            never_preempts: spec.preemption_policy.as_deref() == Some("Never"),
            scheduler_name: spec.scheduler_name.clone().filter(|name| !name.is_empty()),
            scheduling_gates: gates.map(|gate| gate.name.clone()).collect(),
            unsupported: unsupported_fields::reason(spec),
        }
    }

    /// Returns true if the pod needs an address: all pods do but those on the host's network.
    pub fn needs_ip(&self) -> bool {
        self.ips > 0
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
}

/// A port of the node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
    /// Returns true if two pods with these ports cannot share a node.
    pub fn conflicts(&self, other: &Self) -> bool {
        let addresses_meet = self.ip.is_none() || other.ip.is_none() || self.ip == other.ip;
        addresses_meet && self.port == other.port && self.protocol == other.protocol
    }
}

/// The name of the ReplicaSet that controls the pod.
fn replica_set(pod: &Pod) -> Option<String> {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true))?;
    let is_set = owner.kind == "ReplicaSet" && owner.api_version == "apps/v1";
    is_set.then(|| owner.name.clone())
}

/// Limited, so that no sum of needs overflows.
fn needed_ips(pod: &Pod, pod_ips: &PodIpResource) -> u64 {
    pod_ips.addresses_needed(pod).min(u32::MAX.into())
}

fn host_ports(spec: &PodSpec) -> Vec<HostPort> {
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
