//! The nodes with their pods, and the namespaces: all that a decision reads.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use podplane_api::{
    Object as _,
    apps::ReplicaSet,
    core::{Namespace, Node, Service},
    pod_ips::PodIpResource,
};

use crate::{
    columns::{LabelColumn, LabelColumns},
    constraints::{LabelMap, spread},
    framework::{ActiveFilters, PluginRefusal},
    images::ImageIndex,
    names::{NodeName, NodeSlot, PodUid},
    node::{NodeChange, NodeInfo, NodePods, PriorityCounts},
    pod::PodInfo,
    pod_index::PodIndex,
    workloads::WorkloadSelectors,
};

/// Nodes, the pods on them, namespaces, and the selectors of workloads.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    slots: Vec<Option<NodeInfo>>,
    free: Vec<NodeSlot>,
    names: HashMap<NodeName, NodeSlot>,
    /// The slots in the order of the nodes' names.
    order: Vec<NodeSlot>,
    columns: LabelColumns,
    pods: PodIndex,
    priorities: PriorityCounts,
    images: ImageIndex,
    namespaces: BTreeMap<String, LabelMap>,
    workloads: WorkloadSelectors,
    pod_ip_resource: PodIpResource,
    /// The waiting pods that other pods were evicted for, by the node on which they are to fit.
    nominated: BTreeMap<NodeName, Vec<Arc<PodInfo>>>,
}

impl Cluster {
    /// An empty cluster that counts this resource of pod addresses.
    pub fn new(pod_ip_resource: PodIpResource) -> Self {
        Self {
            pod_ip_resource,
            ..Self::default()
        }
    }

    /// The slots of all nodes, in the order of their names.
    pub fn order(&self) -> &[NodeSlot] {
        &self.order
    }

    /// The nodes in the order of their names.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeInfo> {
        self.order.iter().filter_map(|slot| self.node_at(*slot))
    }

    /// The number of nodes.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Returns true if there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// The length of an array with a place for each slot.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The node in a slot.
    pub fn node_at(&self, slot: NodeSlot) -> Option<&NodeInfo> {
        self.slots.get(slot.index())?.as_ref()
    }

    /// The node of that name.
    pub fn node(&self, name: &NodeName) -> Option<&NodeInfo> {
        self.node_at(*self.names.get(name)?)
    }

    /// The index of the pods on nodes.
    pub fn pods(&self) -> &PodIndex {
        &self.pods
    }

    /// The images that nodes have.
    pub fn images(&self) -> &ImageIndex {
        &self.images
    }

    /// The selectors of workloads.
    pub fn workloads(&self) -> &WorkloadSelectors {
        &self.workloads
    }

    /// The labels of a namespace; `None` if it is unknown.
    pub fn namespace(&self, name: &str) -> Option<&LabelMap> {
        self.namespaces.get(name)
    }

    /// The values of a label on all nodes.
    pub fn column(&self, key: &str) -> Cow<'_, LabelColumn> {
        match self.columns.get(key) {
            Some(column) => Cow::Borrowed(column),
            None => Cow::Owned(self.new_column(key)),
        }
    }

    /// The values of a label on all nodes, if they are cached.
    pub fn cached_column(&self, key: &str) -> Option<&LabelColumn> {
        self.columns.get(key)
    }

    /// Caches the labels that the pod's constraints name.
    pub fn cache_labels_of(&mut self, pod: &PodInfo) {
        for key in pod.needs.label_keys() {
            self.cache_label(key);
        }
        if pod.needs.spread.is_empty() && pod.needs.replica_set.is_some() {
            self.cache_default_labels();
        }
    }

    /// Caches the labels that the default constraints of pods name.
    fn cache_default_labels(&mut self) {
        for (key, _) in spread::DEFAULTS {
            self.cache_label(key);
        }
    }

    fn cache_label(&mut self, key: &str) {
        let mut columns = std::mem::take(&mut self.columns);
        columns.keep(key, || self.new_column(key));
        self.columns = columns;
    }

    fn new_column(&self, key: &str) -> LabelColumn {
        let mut column = LabelColumn::new(key);
        for node in self.nodes() {
            column.set(node.slot(), node.label(key));
        }
        column
    }

    /// Adds a node with the pods that are on it. A node of that name must not exist.
    pub fn insert_node(&mut self, node: Arc<Node>, pods: NodePods) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            NodeSlot::new(self.slots.len() - 1)
        });
        let info = NodeInfo::new(node, pods, slot, self.pod_ip_resource.clone());
        for pod in info.pods().iter() {
            self.index(slot, pod);
        }
        self.columns.update(slot, Some(info.labels()));
        self.images.add(info.images());
        self.names.insert(info.name.clone(), slot);
        let at = self.order.partition_point(|known| {
            self.node_at(*known)
                .is_some_and(|known| known.name < info.name)
        });
        self.order.insert(at, slot);
        if let Some(place) = self.slots.get_mut(slot.index()) {
            *place = Some(info);
        }
    }

    /// Updates the node of the object's name, and returns the changes. `None` if there is no such
    /// node.
    pub fn update_node(&mut self, node: Arc<Node>) -> Option<Vec<NodeChange>> {
        let slot = *self.names.get(node.name())?;
        let info = self.slots.get_mut(slot.index())?.as_mut()?;
        let images = info.images().clone();
        let changes = info.update(node);
        if images != *info.images() {
            self.images.remove(&images);
            self.images.add(info.images());
        }
        if changes.contains(&NodeChange::Labels) {
            self.columns.update(slot, Some(info.labels()));
        }
        Some(changes)
    }

    /// Removes the node, and returns the pods on it.
    pub fn remove_node(&mut self, name: &NodeName) -> Option<NodePods> {
        let slot = self.names.remove(name)?;
        let info = self.slots.get_mut(slot.index())?.take()?;
        for pod in info.pods().iter() {
            self.unindex(slot, pod);
        }
        self.columns.update(slot, None);
        self.images.remove(info.images());
        self.order.retain(|known| *known != slot);
        self.free.push(slot);
        Some(info.into_pods())
    }

    /// Records that the node's kubelet refused a pod for want of an address.
    pub fn refuse_for_ips(&mut self, name: &NodeName) {
        if let Some(info) = self.node_mut(name) {
            info.refuse_for_ips();
        }
    }

    /// Records whether the API server refuses to bind pods to the node for want of an address.
    pub fn set_bind_refused(&mut self, name: &NodeName, refused: bool) {
        if let Some(info) = self.node_mut(name) {
            info.set_bind_refused(refused);
        }
    }

    /// Expects orphaned addresses on the node: a pod was deleted before its sandbox.
    pub fn expect_orphans(&mut self, name: &NodeName) {
        if let Some(info) = self.node_mut(name) {
            info.expect_orphans();
        }
    }

    /// Adds or replaces a pod on the node. Returns false if there is no such node.
    pub fn add_pod(&mut self, name: &NodeName, pod: Arc<PodInfo>) -> bool {
        self.remove_pod(name, &pod.uid);
        let Some(slot) = self.names.get(name).copied() else {
            return false;
        };
        self.index(slot, &pod);
        if let Some(info) = self.node_mut(name) {
            info.add_pod(pod);
        }
        true
    }

    /// Removes a pod from the node.
    pub fn remove_pod(&mut self, name: &NodeName, uid: &PodUid) -> Option<Arc<PodInfo>> {
        let info = self.node_mut(name)?;
        let slot = info.slot();
        let pod = info.remove_pod(uid)?;
        self.unindex(slot, &pod);
        Some(pod)
    }

    /// The lowest priority of a pod on a node; `None` if there are no pods.
    pub fn lowest_priority(&self) -> Option<i32> {
        self.priorities.lowest()
    }

    /// Reserves the room that evictions make on the node for the pod.
    pub fn nominate(&mut self, pod: Arc<PodInfo>, node: NodeName) {
        self.withdraw_nomination(&pod.uid);
        self.nominated.entry(node).or_default().push(pod);
    }

    /// The pods below this priority that are nominated for the node.
    pub fn nominated_below(&self, priority: i32, node: &NodeName) -> Vec<Arc<PodInfo>> {
        let nominated = self.nominated.get(node).into_iter().flatten();
        let below = nominated.filter(|pod| pod.priority() < priority);
        below.cloned().collect()
    }

    /// Ends the reservation for the pod.
    pub fn withdraw_nomination(&mut self, uid: &PodUid) {
        self.nominated.retain(|_, pods| {
            pods.retain(|pod| pod.uid != *uid);
            !pods.is_empty()
        });
    }

    /// Checks the node with the pods that are nominated for it and have at least the pod's priority,
    /// and without them, since they may be bound elsewhere.
    ///
    /// # Errors
    ///
    /// The first refusal.
    pub fn check_with_nominated(
        &self,
        filters: &ActiveFilters<'_>,
        pod: &PodInfo,
        node: &NodeInfo,
    ) -> Result<(), PluginRefusal> {
        let nominated = self.nominated.get(&node.name).into_iter().flatten();
        let mut before = nominated
            .filter(|other| other.priority() >= pod.priority() && other.uid != pod.uid)
            .peekable();
        if before.peek().is_some() {
            let mut with_nominated = node.clone();
            before.for_each(|other| with_nominated.add_pod(other.clone()));
            filters.check(&with_nominated)?;
        }
        filters.check(node)
    }

    /// Adds or updates a namespace. Returns true if its labels are new.
    pub fn apply_namespace(&mut self, namespace: &Namespace) -> bool {
        let labels = namespace.metadata.labels.clone().unwrap_or_default();
        let known = self.namespaces.insert(namespace.name().to_owned(), labels);
        known.as_ref() != self.namespaces.get(namespace.name())
    }

    /// Removes a namespace.
    pub fn remove_namespace(&mut self, name: &str) {
        self.namespaces.remove(name);
    }

    /// Adds or updates a service.
    pub fn apply_service(&mut self, service: &Service) {
        self.workloads.apply_service(service);
        self.cache_default_labels();
    }

    /// Removes a service.
    pub fn remove_service(&mut self, service: &Service) {
        self.workloads.remove_service(&service.key());
    }

    /// Adds or updates a ReplicaSet.
    pub fn apply_replica_set(&mut self, set: &ReplicaSet) {
        self.workloads.apply_replica_set(set);
        self.cache_default_labels();
    }

    /// Removes a ReplicaSet.
    pub fn remove_replica_set(&mut self, set: &ReplicaSet) {
        self.workloads.remove_replica_set(&set.key());
    }

    /// Counts the pod. One that has ended may still have its address, but it is no pod that others
    /// want to be near to or away from.
    fn index(&mut self, slot: NodeSlot, pod: &Arc<PodInfo>) {
        self.priorities.add(pod.priority());
        if !pod.is_terminal() {
            self.pods.add(slot, pod);
        }
    }

    fn unindex(&mut self, slot: NodeSlot, pod: &Arc<PodInfo>) {
        self.priorities.remove(pod.priority());
        if !pod.is_terminal() {
            self.pods.remove(slot, pod);
        }
    }

    fn node_mut(&mut self, name: &NodeName) -> Option<&mut NodeInfo> {
        let slot = self.names.get(name)?;
        self.slots.get_mut(slot.index())?.as_mut()
    }
}
