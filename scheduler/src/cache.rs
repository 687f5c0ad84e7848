//! The cluster's state: nodes, the pods on them, and the pods that were just assigned to them.
//!
//! A pod is *assumed* on a node from the moment of the decision, so that the next decision counts
//! its resources as taken, until its binding is *confirmed* by the API server or *forgotten*
//! because it failed. The cache does not survive the process: a successor lists nodes and pods and
//! has the same state.

use std::{collections::BTreeMap, sync::Arc};

use podplane_api::{Object, core::Node, pod_ips::PodIpResource};

use crate::{
    names::{NodeName, PodUid},
    node::{NodeChange, NodeInfo, NodePods},
    pod::PodInfo,
};

#[cfg(test)]
mod tests;

/// The nodes at one moment, by name. A snapshot is cheap; a node that changes while a snapshot
/// exists is copied.
#[derive(Clone, Debug, Default)]
pub struct Snapshot(Arc<Vec<Arc<NodeInfo>>>);

impl Snapshot {
    /// The nodes in the order of their names.
    pub fn nodes(&self) -> &[Arc<NodeInfo>] {
        &self.0
    }

    fn find(&self, name: &NodeName) -> Result<usize, usize> {
        self.0.binary_search_by(|info| info.name.cmp(name))
    }

    fn get_mut(&mut self, name: &NodeName) -> Option<&mut NodeInfo> {
        let at = self.find(name).ok()?;
        Arc::make_mut(&mut self.0).get_mut(at).map(Arc::make_mut)
    }
}

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
    nodes: Snapshot,
    /// Pods of nodes that are unknown or deleted: should the node appear, they are on it.
    imaginary: BTreeMap<NodeName, NodePods>,
    pods: BTreeMap<PodUid, (NodeName, PlacementState)>,
    assumed: usize,
    pod_ip_resource: PodIpResource,
}

impl NodeCache {
    /// An empty cache that counts this resource of pod addresses.
    pub fn new(pod_ip_resource: PodIpResource) -> Self {
        Self {
            pod_ip_resource,
            ..Self::default()
        }
    }

    /// The present nodes.
    pub fn snapshot(&self) -> Snapshot {
        self.nodes.clone()
    }

    /// One node in its present state.
    pub fn node(&self, name: &NodeName) -> Option<&Arc<NodeInfo>> {
        let at = self.nodes.find(name).ok()?;
        self.nodes.0.get(at)
    }

    /// The numbers of cached objects.
    pub fn size(&self) -> CacheSize {
        CacheSize {
            nodes: self.nodes.0.len(),
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
        match self.nodes.find(&name) {
            Ok(_) => {
                let known = self.nodes.get_mut(&name);
                known.map(|info| info.update(node)).unwrap_or_default()
            }
            Err(at) => {
                let pods = self.imaginary.remove(&name).unwrap_or_default();
                let resource = self.pod_ip_resource.clone();
                let info = Arc::new(NodeInfo::new(node, pods, resource));
                Arc::make_mut(&mut self.nodes.0).insert(at, info);
                vec![NodeChange::Added]
            }
        }
    }

    /// Removes the node. Its pods are kept until they are deleted too: a node of its name may come
    /// back with them running.
    pub fn remove_node(&mut self, name: &NodeName) {
        let Ok(at) = self.nodes.find(name) else {
            return;
        };
        let info = Arc::make_mut(&mut self.nodes.0).remove(at);
        if !info.pods.is_empty() {
            self.imaginary.insert(name.clone(), info.pods.clone());
        }
    }

    /// Records that the node's kubelet refused a pod for want of an address.
    pub fn refuse_for_ips(&mut self, name: &NodeName) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.refuse_for_ips();
        }
    }

    /// Records whether the API server refuses to bind pods to the node for want of an address.
    pub fn set_bind_refused(&mut self, name: &NodeName, refused: bool) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.set_bind_refused(refused);
        }
    }

    /// Expects orphaned addresses on the node: a pod was deleted before its sandbox.
    pub fn expect_orphans(&mut self, name: &NodeName) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.expect_orphans();
        }
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
        let pod = self.with_pods(&node, |pods| pods.remove(uid))?;
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
        self.with_pods(node, |pods| pods.insert(pod));
        elsewhere
    }

    /// Updates the count of assumed pods after a change of one pod's placing.
    fn note(&mut self, before: Option<PlacementState>, now: Option<PlacementState>) {
        let assumed = |placing| usize::from(placing == Some(PlacementState::Assumed));
        self.assumed = self.assumed + assumed(now) - assumed(before);
    }

    fn with_pods<T>(&mut self, node: &NodeName, change: impl FnOnce(&mut NodePods) -> T) -> T {
        if let Some(info) = self.nodes.get_mut(node) {
            return change(&mut info.pods);
        }
        let pods = self.imaginary.entry(node.clone()).or_default();
        let result = change(pods);
        if pods.is_empty() {
            self.imaginary.remove(node);
        }
        result
    }
}
