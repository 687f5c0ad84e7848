//! What the scheduler knows of the cluster: nodes, the pods on them, and the pods it has just put there.
//!
//! A pod is *assumed* on a node from the moment of the decision, so that the next decision sees its share as taken, until
//! its binding is *confirmed* by the API server or *forgotten* because it failed. Nothing here survives the process: a successor
//! lists nodes and pods and has the same picture.

use std::{collections::BTreeMap, sync::Arc};

use podplane_api::{Object, core::Node};

use crate::{
    names::{NodeName, PodUid},
    node::{NodeChange, NodeInfo, NodePods},
    pod::PodInfo,
};

#[cfg(test)]
mod tests;

/// The nodes at one moment, by name. Taking one costs nothing; a node that changes while one is held is copied.
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

/// A pod that no longer takes anything from `node`.
#[derive(Clone, Debug)]
pub struct Freed {
    /// The pod.
    pub pod: Arc<PodInfo>,
    /// Where it was.
    pub node: NodeName,
}

/// How a pod came to be on its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placing {
    /// By our decision, which the API server has not confirmed yet.
    Assumed,
    /// As the API server says.
    Bound,
}

/// How much is known.
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
pub struct Cache {
    nodes: Snapshot,
    /// Pods of nodes that we have not seen, or that are gone: should the node appear, they are on it.
    imaginary: BTreeMap<NodeName, NodePods>,
    pods: BTreeMap<PodUid, (NodeName, Placing)>,
    assumed: usize,
}

impl Cache {
    /// The nodes as they are now.
    pub fn snapshot(&self) -> Snapshot {
        self.nodes.clone()
    }

    /// One node as it is now.
    pub fn node(&self, name: &NodeName) -> Option<&Arc<NodeInfo>> {
        let at = self.nodes.find(name).ok()?;
        self.nodes.0.get(at)
    }

    /// How much is known.
    pub fn size(&self) -> CacheSize {
        CacheSize {
            nodes: self.nodes.0.len(),
            pods: self.pods.len(),
            assumed: self.assumed,
        }
    }

    /// Where the pod is, and since whose word.
    pub fn placing(&self, uid: &PodUid) -> Option<(&NodeName, Placing)> {
        self.pods.get(uid).map(|(node, placing)| (node, *placing))
    }

    /// Adds the node or takes its new state, and says what is new.
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
                let info = Arc::new(NodeInfo::new(node, pods));
                Arc::make_mut(&mut self.nodes.0).insert(at, info);
                vec![NodeChange::Added]
            }
        }
    }

    /// Removes the node. Its pods are kept until they are deleted too: a node of its name may come back with them running.
    pub fn remove_node(&mut self, name: &NodeName) {
        let Ok(at) = self.nodes.find(name) else {
            return;
        };
        let info = Arc::make_mut(&mut self.nodes.0).remove(at);
        if !info.pods.is_empty() {
            self.imaginary.insert(name.clone(), info.pods.clone());
        }
    }

    /// The kubelet of the node refused a pod for want of an address.
    pub fn refuse_for_ips(&mut self, name: &NodeName) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.refuse_for_ips();
        }
    }

    /// Reserves the pod's share of the node, before anybody else knows of it.
    pub fn assume(&mut self, pod: Arc<PodInfo>, node: &NodeName) {
        self.place(pod, node, Placing::Assumed);
    }

    /// Takes the API server's word that the pod is on the node, whatever was assumed. If that was another node, says which share is free.
    pub fn confirm(&mut self, pod: Arc<PodInfo>, node: &NodeName) -> Option<Freed> {
        self.place(pod, node, Placing::Bound)
    }

    /// Takes an assumption back. Nothing happens if the pod was confirmed, or removed, meanwhile.
    pub fn forget(&mut self, uid: &PodUid) -> Option<Freed> {
        match self.pods.get(uid) {
            Some((_, Placing::Assumed)) => self.remove_pod(uid),
            Some((_, Placing::Bound)) | None => None,
        }
    }

    /// Removes a pod that was deleted or has ended.
    pub fn remove_pod(&mut self, uid: &PodUid) -> Option<Freed> {
        let (node, placing) = self.pods.remove(uid)?;
        self.note(Some(placing), None);
        let pod = self.with_pods(&node, |pods| pods.remove(uid))?;
        Some(Freed { pod, node })
    }

    fn place(&mut self, pod: Arc<PodInfo>, node: &NodeName, placing: Placing) -> Option<Freed> {
        let elsewhere = match self.pods.get(&pod.uid) {
            Some((known, _)) if known != node => self.remove_pod(&pod.uid),
            Some(_) | None => None,
        };
        let known = self.pods.insert(pod.uid.clone(), (node.clone(), placing));
        self.note(known.map(|(_, placing)| placing), Some(placing));
        self.with_pods(node, |pods| pods.insert(pod));
        elsewhere
    }

    /// Counts a change of how one pod is placed.
    fn note(&mut self, before: Option<Placing>, now: Option<Placing>) {
        let assumed = |placing| usize::from(placing == Some(Placing::Assumed));
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
