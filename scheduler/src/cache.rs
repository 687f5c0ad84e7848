//! The cluster's state: nodes, the pods on them, and the pods that were just assigned to them.
//!
//! A pod is *assumed* on a node from the moment of the decision, so that the next decision counts
//! its resources as taken, until its binding is *confirmed* by the API server or *forgotten*
//! because it failed. The cache does not survive the process: a successor lists nodes and pods and
//! has the same state.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use podplane_api::{
    Object,
    core::{Namespace, Node},
    pod_ips::PodIpResource,
};

use crate::{
    cluster::Cluster,
    names::{NodeName, PodUid},
    node::{NodeChange, NodeInfo, NodePods},
    pod::PodInfo,
};

#[cfg(test)]
mod tests;

/// A pod that no longer takes resources of `node`.
#[derive(Clone, Debug)]
pub struct FreedPod {
    /// The pod.
    pub pod: Arc<PodInfo>,
    /// The node that it was on.
    pub node: NodeName,
}

/// The source of a pod's assignment to its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementState {
    /// Our decision, which the API server has not confirmed yet.
    Assumed,
    /// The API server.
    Bound,
}

/// The numbers of cached objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheSize {
    /// Nodes.
    pub nodes: usize,
    /// Pods on nodes, assumed ones included.
    pub pods: usize,
    /// Assumed pods.
    pub assumed: usize,
}

/// Nodes and the pods on them.
#[derive(Debug, Default)]
pub struct NodeCache {
    cluster: Cluster,
    /// Pods of nodes that are unknown or deleted: should the node appear, they are on it.
    imaginary: BTreeMap<NodeName, NodePods>,
    pods: HashMap<PodUid, (NodeName, PlacementState)>,
    assumed: usize,
}

impl NodeCache {
    /// An empty cache that counts this resource of pod addresses.
    pub fn new(pod_ip_resource: PodIpResource) -> Self {
        Self {
            cluster: Cluster::new(pod_ip_resource),
            ..Self::default()
        }
    }

    /// The cache of a cluster of these objects. Pods are on the node that their spec names;
    /// released ones (see [`PodInfo::is_released`]) do not count.
    pub fn of(
        nodes: impl IntoIterator<Item = Node>,
        pods: impl IntoIterator<Item = PodInfo>,
        namespaces: &[Namespace],
        pod_ip_resource: &PodIpResource,
    ) -> Self {
        let mut cache = Self::new(pod_ip_resource.clone());
        for namespace in namespaces {
            cache.apply_namespace(namespace);
        }
        for node in nodes {
            cache.apply_node(Arc::new(node));
        }
        for pod in pods {
            if let Some(node) = pod.node_name.clone()
                && !pod.is_released()
            {
                cache.confirm(Arc::new(pod), &node);
            }
        }
        cache
    }

    /// Calls `examine` with the cluster as it is without the pod, if the pod is in the cache.
    pub fn without<T>(&mut self, uid: &PodUid, examine: impl FnOnce(&Cluster) -> T) -> T {
        let node = self.pods.get(uid).map(|(node, _)| node.clone());
        let taken = node.and_then(|node| Some((self.cluster.remove_pod(&node, uid)?, node)));
        let result = examine(&self.cluster);
        if let Some((pod, node)) = taken {
            self.cluster.add_pod(&node, pod);
        }
        result
    }

    /// The present nodes with their pods, and the namespaces.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The same, to be changed for a while, and for nominations and the selectors of workloads.
    pub fn cluster_mut(&mut self) -> &mut Cluster {
        &mut self.cluster
    }

    /// One node in its present state.
    pub fn node(&self, name: &NodeName) -> Option<&NodeInfo> {
        self.cluster.node(name)
    }

    /// Prepares decisions for the pod. They need no preparation, but are faster with it.
    pub fn prepare(&mut self, pod: &PodInfo) {
        self.cluster.cache_labels_of(pod);
    }

    /// Adds or updates a namespace. Returns true if its labels are new.
    pub fn apply_namespace(&mut self, namespace: &Namespace) -> bool {
        self.cluster.apply_namespace(namespace)
    }

    /// Removes a namespace.
    pub fn remove_namespace(&mut self, name: &str) {
        self.cluster.remove_namespace(name);
    }

    /// The numbers of cached objects.
    pub fn size(&self) -> CacheSize {
        CacheSize {
            nodes: self.cluster.len(),
            pods: self.pods.len(),
            assumed: self.assumed,
        }
    }

    /// The pod's node, and the source of that assignment.
    pub fn placement(&self, uid: &PodUid) -> Option<(&NodeName, PlacementState)> {
        self.pods.get(uid).map(|(node, placing)| (node, *placing))
    }

    /// Adds or updates the node, and returns its changes.
    pub fn apply_node(&mut self, node: Arc<Node>) -> Vec<NodeChange> {
        let name = NodeName::from(node.name());
        if let Some(known) = self.node(&name)
            && known.node.uid() != node.uid()
        {
            self.remove_node(&name); // Deleted and made again: another node, with another block perhaps.
        }
        if let Some(changes) = self.cluster.update_node(node.clone()) {
            return changes;
        }
        let pods = self.imaginary.remove(&name).unwrap_or_default();
        self.cluster.insert_node(node, pods);
        vec![NodeChange::Added]
    }

    /// Removes the node. Its pods are kept until they are deleted too: a node of its name may come
    /// back with them running.
    pub fn remove_node(&mut self, name: &NodeName) {
        if let Some(pods) = self.cluster.remove_node(name)
            && !pods.is_empty()
        {
            self.imaginary.insert(name.clone(), pods);
        }
    }

    /// Records that the node's kubelet refused a pod for want of an address.
    pub fn refuse_for_ips(&mut self, name: &NodeName) {
        self.cluster.refuse_for_ips(name);
    }

    /// Records whether the API server refuses to bind pods to the node for want of an address.
    pub fn set_bind_refused(&mut self, name: &NodeName, refused: bool) {
        self.cluster.set_bind_refused(name, refused);
    }

    /// Expects orphaned addresses on the node: a pod was deleted before its sandbox.
    pub fn expect_orphans(&mut self, name: &NodeName) {
        self.cluster.expect_orphans(name);
    }

    /// Reserves the pod's resources on the node.
    pub fn assume(&mut self, pod: Arc<PodInfo>, node: &NodeName) {
        self.place(pod, node, PlacementState::Assumed);
    }

    /// Records the pod's node according to the API server, whatever was assumed. If another node
    /// was assumed, returns the resources freed there.
    pub fn confirm(&mut self, pod: Arc<PodInfo>, node: &NodeName) -> Option<FreedPod> {
        self.place(pod, node, PlacementState::Bound)
    }

    /// Removes an assumption. Does nothing if the pod was confirmed or removed meanwhile.
    pub fn forget(&mut self, uid: &PodUid) -> Option<FreedPod> {
        match self.pods.get(uid) {
            Some((_, PlacementState::Assumed)) => self.remove_pod(uid),
            Some((_, PlacementState::Bound)) | None => None,
        }
    }

    /// Removes a pod that was deleted or has ended.
    pub fn remove_pod(&mut self, uid: &PodUid) -> Option<FreedPod> {
        let (node, placing) = self.pods.remove(uid)?;
        self.note(Some(placing), None);
        let pod = match self.cluster.remove_pod(&node, uid) {
            Some(pod) => pod,
            None => self.remove_imaginary(&node, uid)?,
        };
        Some(FreedPod { pod, node })
    }

    fn place(
        &mut self,
        pod: Arc<PodInfo>,
        node: &NodeName,
        placing: PlacementState,
    ) -> Option<FreedPod> {
        let elsewhere = match self.pods.get(&pod.uid) {
            Some((known, _)) if known != node => self.remove_pod(&pod.uid),
            Some(_) | None => None,
        };
        let known = self.pods.insert(pod.uid.clone(), (node.clone(), placing));
        self.note(known.map(|(_, placing)| placing), Some(placing));
        if !self.cluster.add_pod(node, pod.clone()) {
            self.imaginary.entry(node.clone()).or_default().insert(pod);
        }
        elsewhere
    }

    /// Updates the count of assumed pods after a change of one pod's placing.
    fn note(&mut self, before: Option<PlacementState>, now: Option<PlacementState>) {
        let assumed = |placing| usize::from(placing == Some(PlacementState::Assumed));
        self.assumed = self.assumed + assumed(now) - assumed(before);
    }

    fn remove_imaginary(&mut self, node: &NodeName, uid: &PodUid) -> Option<Arc<PodInfo>> {
        let pods = self.imaginary.get_mut(node)?;
        let pod = pods.remove(uid);
        if pods.is_empty() {
            self.imaginary.remove(node);
        }
        pod
    }
}
