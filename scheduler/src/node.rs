//! A node with its capacity, and the pods that are on it or assumed on it.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
};

use podplane_api::{
    Object, Quantity,
    core::{ContainerImage, Node, Taint},
    meta::Time,
    pod_ips::{self, PodIpResource},
};
use podplane_ipam::{NodeAddresses, addresses::AddressReport};

use crate::{
    constraints::LabelMap,
    images::NodeImages,
    names::{NodeName, NodeSlot, PodUid},
    plugins::pod_ips::detail,
    pod::{HostPort, PodInfo},
    resources::{MAX_AMOUNT, Resources},
};

/// The labels of an object without labels.
static NO_LABELS: LabelMap = LabelMap::new();

/// A kind of change of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeChange {
    /// The node is new.
    Added,
    /// `status.allocatable`.
    Allocatable,
    /// The number of pods that it has addresses for.
    PodIpCapacity,
    /// The number of its free pod IPs, as its kubelet reports.
    PodIps,
    /// `metadata.labels`.
    Labels,
    /// `spec.taints`.
    Taints,
    /// `spec.unschedulable`.
    Unschedulable,
}

/// A node and its pods.
#[derive(Clone, Debug)]
pub struct NodeInfo {
    /// `metadata.name`.
    pub name: NodeName,
    /// The object.
    pub node: Arc<Node>,
    /// `status.allocatable`.
    pub allocatable: Resources,
    /// The resource of pod addresses.
    pub pod_ip_resource: PodIpResource,
    /// The addresses that its kubelet reports.
    reported_ips: AddressReport,
    /// Addresses that are orphaned at least, until the kubelet reports again: those of a deleted
    /// pod's sandbox, which may still be there.
    expected_orphans: u64,
    pods: NodePods,
    slot: NodeSlot,
    taints: Vec<NodeTaint>,
    images: NodeImages,
    limits: NodeLimits,
    /// The kubelet refused a pod for want of an address and has not reported since, so no address
    /// is free, whatever the counts are.
    refused_for_ips: bool,
    /// The API server counts more addresses as taken than this cache, which lags behind.
    bind_refused: bool,
}

/// A taint of a node.
#[derive(Clone, Debug)]
pub struct NodeTaint {
    /// The taint.
    pub taint: Taint,
    /// True if the effect is NoSchedule or NoExecute.
    pub excludes: bool,
    /// A hash of key and value, the same on all nodes.
    pub hash: u64,
}

/// Numbers derived from a node and its pods, which are computed at each change of these, so that
/// the search reads them only.
#[derive(Clone, Copy, Debug, Default)]
struct NodeLimits {
    free_pod_ips: i64,
    pod_ip_capacity: i64,
    obtainable_pod_ips: i64,
    allowed_pods: i64,
    is_unschedulable: bool,
    is_shortage_unusual: bool,
}

impl NodeInfo {
    /// A node with the pods known to be on it.
    pub fn new(
        node: Arc<Node>,
        pods: NodePods,
        slot: NodeSlot,
        pod_ip_resource: PodIpResource,
    ) -> Self {
        let mut info = Self {
            name: node.name().into(),
            allocatable: allocatable(&node),
            reported_ips: pod_ip_resource.report(&node),
            pod_ip_resource,
            expected_orphans: 0,
            taints: parsed_taints(&node),
            images: NodeImages::of(&node),
            node,
            pods,
            slot,
            limits: NodeLimits::default(),
            refused_for_ips: false,
            bind_refused: false,
        };
        info.derive();
        info
    }

    /// Its place in the cluster's table.
    pub fn slot(&self) -> NodeSlot {
        self.slot
    }

    /// `metadata.labels`.
    pub fn labels(&self) -> &LabelMap {
        self.node.metadata.labels.as_ref().unwrap_or(&NO_LABELS)
    }

    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels().get(key).map(String::as_str)
    }

    /// `spec.taints`.
    pub fn taints(&self) -> &[NodeTaint] {
        &self.taints
    }

    /// The images that its kubelet reports.
    pub fn images(&self) -> &NodeImages {
        &self.images
    }

    /// The pods on it.
    pub fn pods(&self) -> &NodePods {
        &self.pods
    }

    /// The pods on it, without the node.
    pub fn into_pods(self) -> NodePods {
        self.pods
    }

    /// Adds or replaces a pod.
    pub fn add_pod(&mut self, pod: Arc<PodInfo>) {
        self.pods.insert(pod);
        self.derive_addresses();
    }

    /// Removes a pod, if it is there.
    pub fn remove_pod(&mut self, uid: &PodUid) -> Option<Arc<PodInfo>> {
        let removed = self.pods.remove(uid);
        self.derive_addresses();
        removed
    }

    /// The number of addresses that further pods can have, computed at the last change; 0 while the
    /// kubelet or the API server refuses pods for want of one.
    pub fn free_pod_ips(&self) -> i64 {
        self.limits.free_pod_ips
    }

    /// The number of pods that the node has addresses for, computed at the last change.
    pub fn pod_ip_capacity(&self) -> i64 {
        self.limits.pod_ip_capacity
    }

    /// The number of addresses that are free once all pods have left, computed at the last change.
    /// Pods that leave do not free orphaned addresses.
    pub fn obtainable_pod_ips(&self) -> i64 {
        self.limits.obtainable_pod_ips
    }

    /// Returns true if messages should explain a shortage of the node's addresses.
    pub fn is_shortage_unusual(&self) -> bool {
        self.limits.is_shortage_unusual
    }

    fn derive(&mut self) {
        let allowed_pods = self.allocatable.get("pods");
        let is_unschedulable = is_unschedulable(&self.node);
        self.limits = NodeLimits {
            allowed_pods,
            is_unschedulable,
            is_shortage_unusual: detail(self).is_in_message,
            ..self.limits
        };
        self.derive_addresses();
    }

    fn derive_addresses(&mut self) {
        let limited = |count: u64| i64::try_from(count).unwrap_or(MAX_AMOUNT).min(MAX_AMOUNT);
        let addresses = self.addresses();
        let capacity = addresses.capacity.count();
        self.limits.pod_ip_capacity = limited(capacity);
        self.limits.obtainable_pod_ips = limited(capacity.saturating_sub(addresses.orphaned));
        self.limits.free_pod_ips = match self.refused_for_ips || self.bind_refused {
            true => 0,
            false => limited(addresses.free()),
        };
    }

    /// Updates the object, and returns the changes that can matter to a waiting pod.
    pub fn update(&mut self, node: Arc<Node>) -> Vec<NodeChange> {
        let free_pod_ips = self.free_pod_ips();
        let old = std::mem::replace(&mut self.node, node);
        let new = Arc::clone(&self.node);
        self.allocatable = allocatable(&new);
        let before = std::mem::replace(&mut self.reported_ips, self.pod_ip_resource.report(&new));
        if before != self.reported_ips || NodeReport::of(&old) != NodeReport::of(&new) {
            self.refused_for_ips = false;
            self.expected_orphans = 0;
        }
        self.taints = parsed_taints(&new);
        if image_list(&old) != image_list(&new) {
            self.images = NodeImages::of(&new);
        }
        self.derive();
        let taints = |node: &Node| node.spec.as_ref().and_then(|s| s.taints.clone());
        let changes = [
            (
                NodeChange::Allocatable,
                allocatable_list(&old) != allocatable_list(&new),
            ),
            (
                NodeChange::PodIpCapacity,
                before.capacity != self.reported_ips.capacity,
            ),
            (NodeChange::PodIps, free_pod_ips != self.free_pod_ips()),
            (
                NodeChange::Labels,
                old.metadata.labels != new.metadata.labels,
            ),
            (NodeChange::Taints, taints(&old) != taints(&new)),
            (
                NodeChange::Unschedulable,
                is_unschedulable(&old) != is_unschedulable(&new),
            ),
        ];
        let changed = changes.into_iter().filter(|(_, changed)| *changed);
        changed.map(|(change, _)| change).collect()
    }

    /// Records that the kubelet has no address left, until it reports again.
    pub fn refuse_for_ips(&mut self) {
        self.refused_for_ips = true;
        self.derive_addresses();
    }

    /// Records whether the API server refuses to bind pods to the node for want of an address.
    pub fn set_bind_refused(&mut self, refused: bool) {
        self.bind_refused = refused;
        self.derive_addresses();
    }

    /// Expects that addresses which sandboxes have beyond those of the pods are orphaned, until the
    /// kubelet reports again: a pod was deleted before its sandbox.
    pub fn expect_orphans(&mut self) {
        let held = self.addresses().held;
        self.expected_orphans = self.reported_ips.surplus(held);
        self.derive_addresses();
    }

    /// `spec.unschedulable`.
    pub fn is_unschedulable(&self) -> bool {
        self.limits.is_unschedulable
    }

    /// `status.allocatable.pods`, 0 if absent.
    pub fn allowed_pods(&self) -> i64 {
        self.limits.allowed_pods
    }

    /// The blocks of the node, first the one that decides on its family.
    pub fn pod_cidrs(&self) -> &[String] {
        pod_ips::pod_cidrs(&self.node)
    }

    /// Returns true if the API server refused to bind a pod to the node for want of an address.
    pub fn is_bind_refused(&self) -> bool {
        self.bind_refused
    }

    /// Returns true if the kubelet refused a pod for want of an address and has not reported since.
    pub fn is_refused_for_ips(&self) -> bool {
        self.refused_for_ips
    }

    /// The addresses of the node, and their use by the pods that are bound or assumed.
    pub fn addresses(&self) -> NodeAddresses {
        let held = self.pods.holding_ips();
        let addresses = NodeAddresses::of(&self.reported_ips, held);
        NodeAddresses {
            orphaned: addresses.orphaned.max(self.expected_orphans),
            ..addresses
        }
    }
}

/// The parts of a kubelet's report of its node that change with it, beside the numbers of
/// addresses.
#[derive(PartialEq)]
struct NodeReport<'a> {
    pod_cidrs: &'a [String],
    heartbeat: Option<&'a Time>,
}

impl<'a> NodeReport<'a> {
    fn of(node: &'a Node) -> Self {
        let status = node.status.as_ref();
        let conditions = status.and_then(|s| s.conditions.as_ref());
        let heartbeats = conditions.into_iter().flatten();
        Self {
            pod_cidrs: pod_ips::pod_cidrs(node),
            heartbeat: heartbeats
                .filter_map(|condition| condition.last_heartbeat_time.as_ref())
                .max(),
        }
    }
}

fn allocatable_list(node: &Node) -> Option<&BTreeMap<String, Quantity>> {
    node.status.as_ref()?.allocatable.as_ref()
}

fn allocatable(node: &Node) -> Resources {
    allocatable_list(node).map_or_else(Resources::default, Resources::offered)
}

fn image_list(node: &Node) -> Option<&Vec<ContainerImage>> {
    node.status.as_ref()?.images.as_ref()
}

fn parsed_taints(node: &Node) -> Vec<NodeTaint> {
    let taints = node.spec.as_ref().and_then(|s| s.taints.as_ref());
    let taints = taints.into_iter().flatten();
    taints
        .map(|taint| {
            let mut hasher = DefaultHasher::new();
            (&taint.key, taint.value.as_deref().unwrap_or_default()).hash(&mut hasher);
            NodeTaint {
                taint: taint.clone(),
                excludes: matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"),
                hash: hasher.finish(),
            }
        })
        .collect()
}

fn is_unschedulable(node: &Node) -> bool {
    let spec = node.spec.as_ref();
    spec.and_then(|s| s.unschedulable).unwrap_or(false)
}

/// The pods on a node, with the sums of their requests.
#[derive(Clone, Debug, Default)]
pub struct NodePods {
    pods: BTreeMap<PodUid, Arc<PodInfo>>,
    requested: Resources,
    scoring_requested: Resources,
    holding_ips: u64,
    host_ports: Vec<HostPort>,
    priorities: PriorityCounts,
}

/// The number of pods of each priority.
#[derive(Clone, Debug, Default)]
pub struct PriorityCounts(BTreeMap<i32, usize>);

impl PriorityCounts {
    /// Counts a pod.
    pub fn add(&mut self, priority: i32) {
        *self.0.entry(priority).or_default() += 1;
    }

    /// Removes a pod that was counted.
    pub fn remove(&mut self, priority: i32) {
        if let Entry::Occupied(mut count) = self.0.entry(priority) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// The lowest priority of a pod; `None` without pods.
    pub fn lowest(&self) -> Option<i32> {
        self.0.keys().next().copied()
    }
}

impl NodePods {
    /// Adds or replaces the pod.
    pub fn insert(&mut self, pod: Arc<PodInfo>) {
        self.remove(&pod.uid);
        self.requested.add(&pod.needs.requests);
        let scoring = &pod.needs.placed_scoring_requests;
        self.scoring_requested.add(scoring);
        self.host_ports.extend_from_slice(&pod.needs.host_ports);
        self.priorities.add(pod.priority());
        self.holding_ips += pod.needs.ips;
        self.pods.insert(pod.uid.clone(), pod);
    }

    /// Removes the pod, if it is there.
    pub fn remove(&mut self, uid: &PodUid) -> Option<Arc<PodInfo>> {
        let pod = self.pods.remove(uid)?;
        self.requested.subtract(&pod.needs.requests);
        let scoring = &pod.needs.placed_scoring_requests;
        self.scoring_requested.subtract(scoring);
        for port in &pod.needs.host_ports {
            if let Some(at) = self.host_ports.iter().position(|used| used == port) {
                self.host_ports.swap_remove(at);
            }
        }
        self.holding_ips = self.holding_ips.saturating_sub(pod.needs.ips);
        self.priorities.remove(pod.priority());
        Some(pod)
    }

    /// The lowest priority of a pod; `None` without pods.
    pub fn lowest_priority(&self) -> Option<i32> {
        self.priorities.lowest()
    }

    /// The number of pods, those on the host's network included.
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// Returns whether there are no pods.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// The pods, in the order of their UIDs.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<PodInfo>> {
        self.pods.values()
    }

    /// The sum of their requests.
    pub fn requested(&self) -> &Resources {
        &self.requested
    }

    /// The sum of their requests as counted in scores.
    pub fn scoring_requested(&self) -> &Resources {
        &self.scoring_requested
    }

    /// The ports of the node that they use.
    pub fn host_ports(&self) -> &[HostPort] {
        &self.host_ports
    }

    /// The number of addresses that the pods hold, or will hold.
    pub fn holding_ips(&self) -> u64 {
        self.holding_ips
    }
}
