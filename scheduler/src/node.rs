//! A node with its capacity, and the pods that are on it or assumed on it.

use std::{collections::BTreeMap, sync::Arc};

use podplane_api::{
    Object, Quantity,
    core::Node,
    meta::Time,
    pod_ips::{self, POD_IPS, PodIpResource},
};
use podplane_ipam::capacity::NodeCapacity;

use crate::{
    names::{NodeName, PodUid},
    pod::PodInfo,
    resources::{Amount, Resources},
};

/// A kind of change of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeChange {
    /// The node is new.
    Added,
    /// `status.allocatable`.
    Allocatable,
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
    /// The number of pods that it has addresses for.
    pub pod_ips: NodeCapacity,
    /// The pods on it.
    pub pods: NodePods,
    /// The kubelet refused a pod for want of an address and has not reported since, so no address
    /// is free, whatever the counts are.
    refused_for_ips: bool,
}

impl NodeInfo {
    /// A node with the pods known to be on it.
    pub fn new(node: Arc<Node>, pods: NodePods) -> Self {
        Self {
            name: node.name().into(),
            allocatable: allocatable(&node),
            pod_ips: PodIpResource::of_node(&node).allocatable(&node),
            node,
            pods,
            refused_for_ips: false,
        }
    }

    /// Updates the object, and returns the changes that can matter to a waiting pod.
    pub fn update(&mut self, node: Arc<Node>) -> Vec<NodeChange> {
        let free_pod_ips = self.free_pod_ips();
        let old = std::mem::replace(&mut self.node, node);
        let new = Arc::clone(&self.node);
        self.allocatable = allocatable(&new);
        self.pod_ips = PodIpResource::of_node(&new).allocatable(&new);
        if NodeReport::of(&old) != NodeReport::of(&new) {
            self.refused_for_ips = false;
        }
        let taints = |node: &Node| node.spec.as_ref().and_then(|s| s.taints.clone());
        let changes = [
            (
                NodeChange::Allocatable,
                allocatable_list(&old) != allocatable_list(&new),
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
    }

    /// `spec.unschedulable`.
    pub fn is_unschedulable(&self) -> bool {
        is_unschedulable(&self.node)
    }

    /// `status.allocatable.pods`, 0 if absent.
    pub fn allowed_pods(&self) -> Amount {
        self.allocatable.get("pods")
    }

    /// The blocks of the node, first the one that decides on its family.
    pub fn pod_cidrs(&self) -> &[String] {
        pod_ips::pod_cidrs(&self.node)
    }

    /// The number of pods that the node has addresses for; 0 while it waits for its block.
    pub fn pod_ip_capacity(&self) -> Amount {
        self.pod_ips.count().into()
    }

    /// Returns true if the kubelet refused a pod for want of an address and has not reported since.
    pub fn is_refused_for_ips(&self) -> bool {
        self.refused_for_ips
    }

    /// The number of further pods that can have an address.
    ///
    /// The taken addresses are the larger of the pods known to be bound or assumed and the node's
    /// own count: an address outlives its pod until the sandbox is removed, and a newly bound pod
    /// has none yet.
    pub fn free_pod_ips(&self) -> Amount {
        if self.refused_for_ips {
            return 0;
        }
        (self.pod_ip_capacity() - self.taken_pod_ips()).max(0)
    }

    /// The number of taken addresses; see [`Self::free_pod_ips`].
    pub fn taken_pod_ips(&self) -> Amount {
        let reported = pod_ips::allocated(&self.node).map_or(0, Amount::from);
        self.pods.holding_ips().max(reported)
    }
}

/// The kubelet's report of its node's addresses, with its time.
#[derive(PartialEq)]
struct NodeReport<'a> {
    pod_cidrs: &'a [String],
    capacity: Option<&'a Quantity>,
    allocated: Option<u64>,
    heartbeat: Option<&'a Time>,
}

impl<'a> NodeReport<'a> {
    fn of(node: &'a Node) -> Self {
        let status = node.status.as_ref();
        let conditions = status.and_then(|s| s.conditions.as_ref());
        let heartbeats = conditions.into_iter().flatten();
        Self {
            pod_cidrs: pod_ips::pod_cidrs(node),
            capacity: allocatable_list(node).and_then(|list| list.get(POD_IPS)),
            allocated: pod_ips::allocated(node),
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
    holding_ips: Amount,
}

impl NodePods {
    /// Adds or replaces the pod.
    pub fn insert(&mut self, pod: Arc<PodInfo>) {
        self.remove(&pod.uid);
        self.requested += &pod.requests;
        self.scoring_requested += &pod.scoring_requests;
        self.holding_ips += Amount::from(pod.needs_ip());
        self.pods.insert(pod.uid.clone(), pod);
    }

    /// Removes the pod, if it is there.
    pub fn remove(&mut self, uid: &PodUid) -> Option<Arc<PodInfo>> {
        let pod = self.pods.remove(uid)?;
        self.requested -= &pod.requests;
        self.scoring_requested -= &pod.scoring_requests;
        self.holding_ips -= Amount::from(pod.needs_ip());
        Some(pod)
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

    /// The number of pods that hold, or will hold, an address of the node's block.
    pub fn holding_ips(&self) -> Amount {
        self.holding_ips
    }
}
