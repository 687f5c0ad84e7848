//! The nodes, pods and records that were read, in the form that the rules take.

use std::{borrow::Cow, collections::BTreeMap, fmt, io::Read, net::IpAddr};

use ipnet::IpNet;
use podplane_ipam::invariants::{self, DrainingBlock, PodKey, World};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::Value;

use crate::{
    expected::ControllerFlags,
    input::{self, InputError},
    item::{Annotations, ItemStatus, LenientValue, RawObject, Text},
    network::{BlockPlace, Evidence, Marker, Markers, NetworkKind},
    records::{Records, System},
    unread::UnreadResource,
};

mod node;
mod pod;
mod service;

pub use self::{
    node::{DumpedNode, NodeItem},
    pod::lacks_addresses,
    service::{DumpedService, ServiceRange},
};
use self::{
    node::{blocks, sorted},
    pod::ReadPod,
};

/// The part of the input that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpScope {
    /// The fields that the rules need.
    Fields,
    /// Also the whole Node objects without their status: a repair writes them anew.
    Nodes,
    /// Nothing: whole objects are passed on; see [`DumpCollector::passing`].
    Objects,
}

/// A whole object, as it was read.
#[derive(Clone, Debug)]
pub enum WholeObject<'a> {
    /// Its JSON, which the receiver decodes once.
    Json(&'a [u8]),
    /// The object of a YAML dump, or of one whose kinds are not in the objects.
    Value(Value),
}

/// Receives a whole object, with its kind.
type ReceiveObject = dyn FnMut(&str, WholeObject<'_>);

/// The kinds that are passed on.
const PASSED: [&str; 5] = ["Node", "Pod", "PriorityClass", "ReplicaSet", "Service"];

/// Returns true for the kinds that make a dump; the others only add to it.
fn is_dumped(kind: &str) -> bool {
    matches!(kind, "Node" | "Pod")
}

/// The fields of an object that tell whether it can be passed on as it stands.
#[derive(Deserialize)]
struct ObjectHeader<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
    items: Option<IgnoredAny>,
}

struct ObjectSink(Box<ReceiveObject>);

impl fmt::Debug for ObjectSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ObjectSink")
    }
}

/// The default name of the resource of nodes' addresses.
pub(crate) const POD_IPS: &str = "podplane.io/pod-ips";

/// A pod's address that is invalid.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OddAddress {
    pub(crate) pod: PodKey,
    pub(crate) text: String,
}

/// The nodes, pods and records of a cluster. Nodes and pods are sorted and unique.
#[derive(Debug)]
pub struct Dump {
    pub(crate) keep: DumpScope,
    sink: Option<ObjectSink>,
    pub(crate) network: NetworkKind,
    pub(crate) records: Records,
    pub(crate) unread: Vec<UnreadResource>,
    markers: Markers,
    notes: Vec<String>,
    pub(crate) nodes: Vec<DumpedNode>,
    pub(crate) world: World,
    /// Pods that could not be scheduled for want of addresses.
    pub(crate) starved: Vec<PodKey>,
    pub(crate) odd: Vec<OddAddress>,
    services: Vec<DumpedService>,
    service_ranges: Vec<ServiceRange>,
    /// Objects of a list whose kind was not known when they were read.
    pending: Vec<UntypedItem>,
    /// True if any node, pod or list of them was there, even an empty list.
    is_dump: bool,
    /// True if there was a pod, or an empty list that may be one of pods.
    lists_pods: bool,
    /// The number of items of any kind.
    items: usize,
}

/// Items whose kind is not known yet.
#[derive(Debug)]
pub(crate) struct UntypedItems(Vec<UntypedItem>);

/// An item, read as each kind that it can be of.
#[derive(Debug)]
struct UntypedItem {
    node: DumpedNode,
    pod: ReadPod,
    service: DumpedService,
}

/// Reads inputs, one after the other, into a [`Dump`].
#[derive(Debug)]
pub struct DumpCollector(Dump);

impl DumpCollector {
    /// Creates an empty collector.
    #[must_use]
    pub fn new(keep: DumpScope) -> Self {
        Self(Dump::new(keep))
    }

    /// Creates a collector that passes each Node, Pod, PriorityClass, ReplicaSet and Service on as
    /// a whole, with its kind, and keeps nothing. An item of a list without kinds is a Pod if it
    /// has containers, else a Node. A dump has at least one of these two.
    #[must_use]
    pub fn passing(sink: impl FnMut(&str, WholeObject<'_>) + 'static) -> Self {
        let mut dump = Dump::new(DumpScope::Objects);
        dump.sink = Some(ObjectSink(Box::new(sink)));
        Self(dump)
    }

    /// Reads kubectl's output: JSON or YAML, gzipped or not; lists of any size and single objects,
    /// one after the other.
    ///
    /// # Errors
    ///
    /// [`InputError`] if it cannot be read, is neither JSON nor YAML, or has nothing to do with
    /// nodes and pods.
    pub fn read(&mut self, reader: impl Read) -> Result<(), InputError> {
        self.0.is_dump = false;
        let items = self.0.items;
        input::read(reader, &mut self.0)?;
        self.0.lists_pods |= self.0.is_dump && self.0.items == items;
        if self.0.is_dump {
            Ok(())
        } else {
            Err(InputError::NoDump)
        }
    }

    /// Adds a Node or Pod as a server returned it. Other kinds are ignored.
    pub fn add(&mut self, object: &Value) {
        self.0.add_value(object, None);
    }

    /// Adds a Node that was read before.
    pub fn add_node(&mut self, NodeItem { node, markers }: &NodeItem) {
        self.0.mark(&node.name, markers.iter().copied());
        self.0.nodes.push(node.clone());
    }

    /// Adds a pod whose facts are known. `uid` may be empty.
    pub fn add_pod(&mut self, pod: invariants::Pod) {
        self.0.world.pods.push(pod);
    }

    /// Records that a pod could not be scheduled for want of addresses.
    pub fn add_starved(&mut self, pod: PodKey) {
        self.0.starved.push(pod);
    }

    /// Adds a block that its node no longer has, but that pods may still use.
    pub fn drain(&mut self, block: DrainingBlock) {
        self.0.world.draining.push(block);
    }

    /// Records that objects of the cluster could not be read.
    pub fn miss(&mut self, unread: UnreadResource) {
        self.0.unread.push(unread);
    }

    /// Sorts the objects, and detects the cluster's network. The cluster CIDR of the flags tells an
    /// address outside of all blocks from one of another network.
    #[must_use]
    pub fn finish(self, flags: &ControllerFlags) -> Dump {
        let Self(mut dump) = self;
        dump.settle();
        for node in &mut dump.nodes {
            let reported = Some(node.pod_ip_resource.as_str()).filter(|name| !name.is_empty());
            let resource = flags.pod_ip_resource.as_deref().or(reported);
            let amount = node.extended.get(resource.unwrap_or(POD_IPS));
            node.pod_ips = amount.map(|amount| node.pod_ips_total.unwrap_or(*amount));
        }
        dump.detect(flags);
        dump.fill_world();
        dump
    }
}

impl Dump {
    fn new(keep: DumpScope) -> Self {
        Self {
            keep,
            sink: None,
            network: NetworkKind::default(),
            records: Records::default(),
            unread: Vec::new(),
            markers: Markers::new(),
            notes: Vec::new(),
            nodes: Vec::new(),
            world: World::default(),
            starved: Vec::new(),
            odd: Vec::new(),
            services: Vec::new(),
            service_ranges: Vec::new(),
            pending: Vec::new(),
            is_dump: false,
            lists_pods: false,
            items: 0,
        }
    }

    /// Adds a remark on the input, unless it is there.
    pub(crate) fn note(&mut self, text: &str) {
        if !self.notes.iter().any(|note| note == text) {
            self.notes.push(text.to_owned());
        }
    }

    /// Remarks on how the input was read.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The Services, by name.
    #[must_use]
    pub fn services(&self) -> &[DumpedService] {
        &self.services
    }

    /// The ranges of Services, by name.
    #[must_use]
    pub fn service_ranges(&self) -> &[ServiceRange] {
        &self.service_ranges
    }

    /// Returns false if the input had no pod and no empty list that may be one of pods: nothing
    /// is known about addresses then.
    #[must_use]
    pub const fn lists_pods(&self) -> bool {
        self.lists_pods
    }

    /// Records that the input has a list, even if it is empty.
    pub(crate) fn note_list(&mut self, kind: &str) {
        self.is_dump = true;
        self.lists_pods |= kind == "PodList";
    }

    /// Adds an item that was decoded as a whole.
    pub(crate) fn add_value(&mut self, value: &Value, list_kind: Option<&str>) {
        let Ok(LenientValue(item)) = LenientValue::<RawObject<'_>>::deserialize(value) else {
            return;
        };
        self.add(&item, list_kind, || Some(value.clone()));
    }

    /// Passes on the object at the start of the text and returns its length, if it is one of a
    /// known kind; `None` if there is more to find out about it.
    pub(crate) fn pass_on(&mut self, text: &[u8]) -> Option<usize> {
        let ObjectSink(sink) = self.sink.as_mut()?;
        let mut objects = serde_json::Deserializer::from_slice(text).into_iter();
        let ObjectHeader { kind, items } = objects.next()?.ok()?;
        let is_passed = PASSED.contains(&&*kind) && items.is_none();
        let used = objects.byte_offset();
        is_passed.then(|| {
            self.is_dump |= is_dumped(&kind);
            sink(&kind, WholeObject::Json(&text[..used]));
            used
        })
    }

    /// Adds an item, if it is a node or a pod; `whole` returns the object, for those that are kept.
    pub(crate) fn add(
        &mut self,
        item: &RawObject<'_>,
        list_kind: Option<&str>,
        whole: impl FnOnce() -> Option<Value>,
    ) {
        let list_kind = list_kind.map(|kind| kind.strip_suffix("List").unwrap_or(kind));
        let kind = match item.kind.as_str() {
            "" => list_kind.unwrap_or_default(),
            kind => kind,
        };
        if kind.ends_with("List") || !item.items.0.is_empty() {
            return self.add_list(item, kind, whole);
        }
        self.items += 1;
        if let Some(ObjectSink(sink)) = &mut self.sink {
            if kind.is_empty() || PASSED.contains(&kind) {
                self.is_dump |= kind.is_empty() || is_dumped(kind);
                if let Some(object) = whole() {
                    let kind = match kind {
                        "" if object["spec"]["containers"].is_array() => "Pod",
                        "" => "Node",
                        kind => kind,
                    };
                    sink(kind, WholeObject::Value(object));
                }
            }
            return;
        }
        match kind {
            "Node" => {
                self.read_node(item);
                let node = self.node(item, whole);
                self.is_dump = true;
                self.nodes.push(node);
            }
            "Pod" => {
                self.is_dump = true;
                let pod = ReadPod::of(item);
                self.read_pod(item, &pod.pod);
                self.push_pod(pod);
            }
            "Service" => self.services.push(DumpedService::of(item)),
            "ServiceCIDR" => self.service_ranges.extend(ServiceRange::all_of(item)),
            // The list's kind may come after its items.
            "" => {
                let node = self.node(item, whole);
                self.pending.push(UntypedItem {
                    node,
                    pod: ReadPod::of(item),
                    service: DumpedService::of(item),
                });
            }
            _ => self.is_dump |= self.records.read(kind, item),
        }
    }

    /// Adds the items of a list within a list.
    fn add_list(
        &mut self,
        item: &RawObject<'_>,
        kind: &str,
        whole: impl FnOnce() -> Option<Value>,
    ) {
        self.note_list(kind);
        let kind = Some(kind).filter(|kind| !kind.is_empty() && *kind != "List");
        if self.keep == DumpScope::Fields {
            for LenientValue(each) in &item.items.0 {
                self.add(each, kind, no_object);
            }
        } else if let Some(Value::Array(items)) = whole().map(|mut list| list["items"].take()) {
            for each in &items {
                self.add_value(each, kind);
            }
        }
    }

    /// Takes the items without a known kind, to keep them apart from those of a nested list.
    pub(crate) fn take_pending(&mut self) -> UntypedItems {
        UntypedItems(std::mem::take(&mut self.pending))
    }

    pub(crate) fn put_pending(&mut self, outer: UntypedItems) {
        self.pending = outer.0;
    }

    /// The numbers of nodes and pods that were read.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.nodes.len(), self.world.pods.len())
    }

    fn read_node(&mut self, item: &RawObject<'_>) {
        self.records.read_node(item);
        let node = item.metadata.0.name.as_str();
        self.mark(node, Marker::of_node(item));
    }

    fn read_pod(&mut self, item: &RawObject<'_>, pod: &invariants::Pod) {
        let node = item.spec.0.node_name.as_str();
        if pod.host_network {
            self.mark(node, Marker::of_agent(&pod.key()).into_iter());
        } else if !pod.released {
            self.records.read_pod(item);
            let annotations = &item.metadata.0.annotations.0;
            let is_kube_ovn = annotations.kube_ovn_address.is_set();
            self.mark(node, is_kube_ovn.then_some(Marker::KubeOvn).into_iter());
        }
    }

    fn mark(&mut self, node: &str, markers: impl Iterator<Item = Marker>) {
        for marker in markers {
            self.markers
                .entry(node.to_owned())
                .or_default()
                .insert(marker);
        }
    }

    /// Adds a list's items without a kind, now that the list's kind is known.
    pub(crate) fn resolve(&mut self, list_kind: &str) {
        for item in std::mem::take(&mut self.pending) {
            match list_kind {
                "NodeList" => self.nodes.push(item.node),
                "PodList" => self.push_pod(item.pod),
                "ServiceList" => self.services.push(item.service),
                _ => {}
            }
        }
    }

    fn node(&self, item: &RawObject<'_>, whole: impl FnOnce() -> Option<Value>) -> DumpedNode {
        let RawObject {
            metadata: LenientValue(metadata),
            spec: LenientValue(spec),
            status: LenientValue(status),
            ..
        } = item;
        let object = match (
            self.keep,
            (self.keep == DumpScope::Nodes).then(whole).flatten(),
        ) {
            (DumpScope::Nodes, Some(Value::Object(mut object))) => {
                object.remove("status");
                if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
                    metadata.remove("managedFields");
                }
                Some(object)
            }
            _ => None,
        };
        let annotations = &metadata.annotations.0;
        DumpedNode {
            name: metadata.name.as_str().into(),
            created: metadata.creation_timestamp.as_str().into(),
            pod_cidr: spec.pod_cidr.as_str().into(),
            pod_cidrs: spec
                .pod_cidrs
                .0
                .iter()
                .map(|text| text.as_str().into())
                .collect(),
            pod_ips: None,
            orphaned: annotations.pod_ips_orphaned.as_str().parse().unwrap_or(0),
            pod_ip_resource: annotations.pod_ips_resource.as_str().into(),
            pod_ips_total: pod_ips_total(annotations, status),
            extended: extended(status),
            object,
            is_virtual: is_virtual(item),
            is_gke: metadata.labels.0.gke_nodepool.is_set(),
            addresses: internal_addresses(status),
            pod_ranges: blocks(annotations.pod_ranges.as_str().split(',').map(str::trim)),
            recorded: None,
            ipam: BlockPlace::default(),
        }
    }

    fn push_pod(
        &mut self,
        ReadPod {
            pod,
            is_starved,
            odd,
        }: ReadPod,
    ) {
        if is_starved || !odd.is_empty() {
            let key = PodKey {
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
            };
            let odd = odd.into_iter().map(|text| OddAddress {
                pod: key.clone(),
                text,
            });
            self.odd.extend(odd);
            self.starved.extend(is_starved.then_some(key));
        }
        self.lists_pods = true;
        self.world.pods.push(pod);
    }

    /// Sorts, and removes duplicates, as of a file that was put together from overlapping ones.
    fn settle(&mut self) {
        self.nodes.sort_by(|a, b| a.name.cmp(&b.name));
        self.nodes.dedup_by(|a, b| a.name == b.name);
        let key = |pod: &invariants::Pod, other: &invariants::Pod| {
            (pod.namespace.as_str(), pod.name.as_str()).cmp(&(&other.namespace, &other.name))
        };
        self.world.pods.sort_by(key);
        self.world.pods.dedup_by(|a, b| key(a, b).is_eq());
        self.starved.sort_unstable();
        self.starved.dedup();
        self.odd.sort_unstable();
        self.odd.dedup();
        self.services.sort_unstable();
        self.services.dedup_by(|a, b| a.name == b.name);
        self.service_ranges.sort_unstable();
        self.service_ranges.dedup();
        self.records.settle();
    }

    fn detect(&mut self, flags: &ControllerFlags) {
        let given = flags.cluster_cidr.as_deref().unwrap_or_default();
        let evidence = Evidence::new(
            &self.nodes,
            &self.world.pods,
            &self.records,
            &blocks(given.split(',').map(str::trim)),
            std::mem::take(&mut self.markers),
        );
        self.network = NetworkKind::detect(&evidence, &self.nodes, &self.records, flags.ipam);
        let mut recorded = BTreeMap::<(System, &str), Vec<String>>::new();
        let blocks = self.records.blocks.iter();
        for record in blocks.filter(|one| one.scope.is_empty()) {
            let node = record.node.as_deref().unwrap_or_default();
            recorded
                .entry((record.system, node))
                .or_default()
                .push(record.block.to_string());
        }
        for node in &mut self.nodes {
            node.ipam = self.network.ipam_of(&node.name);
            node.recorded = match node.ipam {
                BlockPlace::PodCidr if !node.is_virtual => None,
                BlockPlace::NodeBlocks(system) => {
                    recorded.get(&(system, node.name.as_str())).cloned()
                }
                _ => Some(Vec::new()),
            };
            if node.ipam != BlockPlace::PodCidr {
                node.recorded.get_or_insert_default();
            }
        }
    }

    /// Fills the input of the invariants, with nodes that are deleted but have recorded blocks.
    fn fill_world(&mut self) {
        // In a cluster with several networks a node may have blocks of each.
        let mut further = BTreeMap::<&str, Vec<IpNet>>::new();
        for record in &self.records.blocks {
            let is_in_use = record.scope.is_empty()
                && self
                    .network
                    .ipams()
                    .any(|ipam| ipam == BlockPlace::NodeBlocks(record.system));
            if let Some(node) = record.node.as_deref().filter(|_| is_in_use) {
                further.entry(node).or_default().push(record.block);
            }
        }
        let known = self.nodes.iter().map(|node| {
            let further = further.remove(node.name.as_str()).unwrap_or_default();
            invariants::Node {
                name: node.name.clone(),
                uid: String::new(),
                pod_cidrs: match node.is_virtual {
                    true => node.claims(),
                    false => sorted([node.claims(), further].concat()),
                },
                ip_capacity: self
                    .capacity(node)
                    .map(|capacity| u64::try_from(capacity).unwrap_or(u64::MAX)),
            }
        });
        let mut nodes: Vec<invariants::Node> = known.collect();
        nodes.extend(
            further
                .into_iter()
                .map(|(node, pod_cidrs)| invariants::Node {
                    name: node.to_owned(),
                    uid: String::new(),
                    pod_cidrs,
                    ip_capacity: None,
                }),
        );
        self.world.nodes = nodes;
    }

    /// The network that the cluster seems to have.
    #[must_use]
    pub fn network(&self) -> &NetworkKind {
        &self.network
    }

    /// The number of pods that the node's addresses serve, if that is limited and known.
    pub(crate) fn capacity(&self, node: &DumpedNode) -> Option<u128> {
        match self.network.grows || self.network.others.contains_key(&node.name) {
            true => node.pod_ips.map(u128::from),
            false => node.capacity(),
        }
    }

    pub(crate) fn node_named(&self, name: &str) -> Option<&DumpedNode> {
        let found = self
            .nodes
            .binary_search_by(|node| node.name.as_str().cmp(name));
        self.nodes.get(found.ok()?)
    }

    pub(crate) fn has_node(&self, name: &str) -> bool {
        self.node_named(name).is_some()
    }

    pub(crate) fn pod_named(&self, key: &PodKey) -> Option<&invariants::Pod> {
        let found = self.world.pods.binary_search_by(|pod| {
            (pod.namespace.as_str(), pod.name.as_str()).cmp(&(&key.namespace, &key.name))
        });
        self.world.pods.get(found.ok()?)
    }
}

/// Keeps no object. A closure would make each depth of lists a type of its own.
fn no_object() -> Option<Value> {
    None
}

/// Returns whether a provider runs the node's pods elsewhere.
fn is_virtual(item: &RawObject<'_>) -> bool {
    let labels = &item.metadata.0.labels.0;
    let is = |label: &Text<'_>, value: &str| label.as_str() == value;
    let mut taints = item.spec.0.taints.0.iter();
    let kubelet = item.status.0.node_info.0.kubelet_version.as_str();
    is(&labels.kind, "virtual-kubelet")
        || is(&labels.kind, "kwok")
        || is(&labels.eks_compute, "fargate")
        || is(&labels.liqo, "virtual-node")
        || is(&labels.interlink, "virtual-kubelet")
        || kubelet.contains("-vk-")
        || taints.any(|LenientValue(taint)| taint.key.as_str() == "virtual-kubelet.io/provider")
}

/// The number of addresses that a node agent says; `None` if a kubelet reports them itself.
fn pod_ips_total(annotations: &Annotations<'_>, status: &ItemStatus<'_>) -> Option<u64> {
    let mut conditions = status.conditions.0.iter().map(|LenientValue(one)| one);
    let by_kubelet =
        conditions.any(|it| it.kind.as_str() == "PodIPsReported" && it.status.as_str() != "False");
    let total = annotations.pod_ips_total.as_str().parse().ok();
    total.filter(|_| !by_kubelet)
}

/// The amounts of extended resources. A client that sets one may set `allocatable` alone.
fn extended(status: &ItemStatus<'_>) -> BTreeMap<String, u64> {
    let lists = [&status.allocatable.0, &status.capacity.0];
    let amounts = lists.into_iter().flat_map(|list| &list.0);
    let extended = amounts.filter(|(name, _)| name.contains('/'));
    extended
        .filter_map(|(name, amount)| Some((name.clone(), amount.as_str().parse().ok()?)))
        .collect()
}

fn internal_addresses(status: &ItemStatus<'_>) -> Vec<IpAddr> {
    let addresses = status.addresses.0.iter();
    let internal = addresses.filter(|LenientValue(one)| one.kind.as_str() == "InternalIP");
    internal
        .filter_map(|LenientValue(one)| one.address.as_str().parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{ExpectedBlocks, audit};

    #[test]
    fn facts_that_were_read_before_make_the_same_dump() {
        let node = json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "n", "annotations": {"podplane.io/pod-ips-orphaned": "2"}},
            "spec": {"podCIDR": "10.0.0.0/29", "podCIDRs": ["10.0.0.0/29"]},
            "status": {"capacity": {"podplane.io/pod-ips": "5"},
                "addresses": [{"type": "InternalIP", "address": "192.168.0.1"}]}});
        let pod = |name: &str| {
            json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"namespace": "default", "name": name},
                "spec": {"nodeName": "n"},
                "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.3"}]}})
        };
        let mut objects = DumpCollector::new(DumpScope::Fields);
        objects.add(&node);
        objects.add(&pod("p"));
        objects.add(&pod("q"));
        let mut facts = DumpCollector::new(DumpScope::Fields);
        facts.add_node(&NodeItem::of(&node));
        let pods = objects.0.world.pods.iter().cloned();
        pods.for_each(|pod| facts.add_pod(pod));
        let report = |collector: DumpCollector| {
            let flags = ControllerFlags::default();
            let dump = collector.finish(&flags);
            audit(&dump, &ExpectedBlocks::new(&flags, &dump).unwrap())
        };
        let (objects, facts) = (report(objects), report(facts));
        assert!(!objects.findings.is_empty(), "{objects:?}");
        assert_eq!(objects, facts);
    }

    #[test]
    fn the_total_of_a_node_agent_is_the_number_of_addresses() {
        let of = |conditions: Value| {
            let node = json!({"apiVersion": "v1", "kind": "Node",
                "metadata": {"name": "n", "annotations": {"podplane.io/pod-ips-total": "5"}},
                "status": {"capacity": {"podplane.io/pod-ips": "3"}, "conditions": conditions}});
            let mut collector = DumpCollector::new(DumpScope::Nodes);
            collector.read(node.to_string().as_bytes()).unwrap();
            let dump = collector.finish(&ControllerFlags::default());
            dump.nodes[0].pod_ips
        };
        assert_eq!(of(json!([])), Some(5));
        let by_kubelet = json!([{"type": "PodIPsReported", "status": "True"}]);
        assert_eq!(of(by_kubelet), Some(3));
    }
}
