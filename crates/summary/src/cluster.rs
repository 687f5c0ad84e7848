//! The facts of a cluster, kept up to date object by object.

mod audit;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use ipnet::IpNet;
use podplane_api::{
    Object as _,
    core::{Node, Pod, Service},
    networking::{ClusterCIDR, ServiceCIDR},
    pod_ips::PodIpResource,
};
use podplane_audit::NodeItem;
use podplane_ipam::{addresses::NodeAddresses, parse_cidr};
use podplane_map::{
    AddressClaim, AddressSpace, BlockLayout, BlockState, Holder, Name, Network, NetworkRole,
    NodeBlock, PodRule, SpaceParts,
};
use podplane_proto::ipam::Block;

use crate::{
    documents::{BlockRow, ClusterSummary, NetworkRow, NodeRow, PodCounts},
    findings::FindingReport,
    listing::BlockListing,
    networks,
    node::{NodeFacts, addresses_used},
    pod::{ControlPlane, PodFacts, key},
    waiting::{self, WaitingReason},
};

/// The facts of a cluster's addresses. Objects come in any order, also before those that they
/// refer to.
///
/// A change of an object costs its own size. [`space_parts`](Self::space_parts) and
/// [`summary`](Self::summary) cost the size of the cluster.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    resource: PodIpResource,
    control_plane: ControlPlane,
    /// True if there are no findings.
    is_unaudited: bool,
    /// By `NAMESPACE/NAME`.
    pods: BTreeMap<Arc<str>, PodEntry>,
    /// The addresses of pods, each with the pod and its node.
    pod_ips: BTreeMap<(IpAddr, Arc<str>), Option<Arc<str>>>,
    /// By name: those with an object, and those that pods are bound to.
    nodes: BTreeMap<Arc<str>, NodeEntry>,
    /// The waiting pods, by `NAMESPACE/NAME`.
    waiting: BTreeMap<Arc<str>, WaitingReason>,
    running: u64,
    records: Vec<NodeBlock>,
    /// The last known addresses of the sandboxes of held blocks.
    held: Vec<AddressClaim>,
    /// By name; the ranges of a flag have the empty name.
    pod_ranges: BTreeMap<String, Vec<IpNet>>,
    service_ranges: BTreeMap<String, Vec<IpNet>>,
    /// By `NAMESPACE/NAME`.
    services: BTreeMap<String, Vec<IpAddr>>,
    /// The records and the blocks of nodes without one.
    blocks: Vec<NodeBlock>,
    /// True if `blocks` is older than the records or nodes.
    are_blocks_stale: bool,
}

#[derive(Clone, Debug)]
struct PodEntry {
    node: Option<Arc<str>>,
    ips: Box<[IpAddr]>,
    held: u64,
    is_running: bool,
    is_host_network: bool,
    has_ended: bool,
    is_deleting: bool,
    is_waiting: bool,
}

#[derive(Clone, Debug, Default)]
struct NodeEntry {
    /// `None` if there is no such object.
    facts: Option<NodeFacts>,
    /// As the audit takes it; `None` if there is no such object, or nothing needs it.
    item: Option<NodeItem>,
    /// The number of addresses that its pods hold.
    held: u64,
    /// The number of pods that are bound to it.
    pods: u64,
    /// The number of those that have ended.
    ended: u64,
    /// The number of those that have no address yet.
    waiting: u64,
    /// The number of those that have one.
    addressed: u64,
    blocks: Vec<BlockRow>,
    /// `None` if it has to be made anew.
    row: Option<Arc<NodeRow>>,
}

impl Cluster {
    /// Creates an empty cluster. `resource` is the resource of pod addresses.
    #[must_use]
    pub fn new(resource: PodIpResource) -> Self {
        Self {
            resource,
            ..Self::default()
        }
    }

    /// Creates an empty cluster without [findings](Self::findings): a change of a node costs a
    /// small part of what it does for the audit.
    #[must_use]
    pub fn unaudited(resource: PodIpResource) -> Self {
        Self {
            is_unaudited: true,
            ..Self::new(resource)
        }
    }

    /// Sets the control plane, which is podplane's by default. To be called before nodes and pods
    /// are added.
    pub fn set_control_plane(&mut self, control_plane: ControlPlane) {
        self.control_plane = control_plane;
    }

    /// Adds or replaces a pod.
    pub fn apply_pod(&mut self, pod: &Pod) {
        let facts = PodFacts::new(pod, &self.resource, self.control_plane);
        self.insert_pod(facts);
    }

    /// Adds or replaces a pod by its facts, which another thread may have read from the object.
    pub fn insert_pod(&mut self, facts: PodFacts) {
        self.remove_pod(&facts.key);
        let PodFacts {
            key,
            node,
            ips,
            held,
            is_running,
            is_host_network,
            has_ended,
            is_deleting,
            waiting,
        } = facts;
        let node = node.map(|name| {
            let (name, entry) = self.node_entry(&name);
            entry.held = entry.held.saturating_add(held);
            entry.pods += 1;
            entry.ended += u64::from(has_ended);
            entry.waiting += u64::from(waiting.is_some());
            entry.addressed += u64::from(!ips.is_empty());
            entry.row = None;
            name
        });
        self.running += u64::from(is_running);
        let is_waiting = waiting.is_some();
        if let Some(waiting) = waiting {
            self.waiting.insert(Arc::clone(&key), waiting);
        }
        for ip in &ips {
            let place = (ip.to_canonical(), Arc::clone(&key));
            self.pod_ips.insert(place, node.clone());
        }
        let entry = PodEntry {
            node,
            ips: ips.into(),
            held,
            is_running,
            is_host_network,
            has_ended,
            is_deleting,
            is_waiting,
        };
        self.pods.insert(key, entry);
    }

    /// Removes a pod, if it is there.
    pub fn delete_pod(&mut self, namespace: &str, name: &str) {
        self.remove_pod(&key(namespace, name));
    }

    fn remove_pod(&mut self, key: &str) {
        self.waiting.remove(key);
        let Some((key, old)) = self.pods.remove_entry(key) else {
            return;
        };
        for ip in &old.ips {
            let place = (ip.to_canonical(), Arc::clone(&key));
            self.pod_ips.remove(&place);
        }
        self.running -= u64::from(old.is_running);
        let Some(node) = old.node else {
            return;
        };
        if let Some(entry) = self.nodes.get_mut(&node) {
            entry.held = entry.held.saturating_sub(old.held);
            entry.pods = entry.pods.saturating_sub(1);
            entry.ended -= u64::from(old.has_ended);
            entry.waiting -= u64::from(old.is_waiting);
            entry.addressed -= u64::from(!old.ips.is_empty());
            entry.row = None;
        }
        self.forget_unused(&node);
    }

    /// Adds or replaces a node.
    pub fn apply_node(&mut self, node: &Node) {
        let facts = NodeFacts::of(node, &self.resource);
        // An object that the API has can be written as JSON.
        let needs_item = !self.is_unaudited || self.control_plane == ControlPlane::Other;
        let json = needs_item.then(|| node.to_json().ok()).flatten();
        let item = json.map(|json| NodeItem::of(&json));
        let (_, entry) = self.node_entry(node.name());
        entry.item = item;
        let old = entry.facts.replace(facts);
        let has_same_blocks = match (&old, &entry.facts) {
            (Some(old), Some(new)) => old.pod_cidrs == new.pod_cidrs && old.ranges == new.ranges,
            _ => false,
        };
        entry.row = None;
        self.are_blocks_stale |= !has_same_blocks;
    }

    /// Removes a node, if it is there.
    pub fn delete_node(&mut self, name: &str) {
        if let Some(entry) = self.nodes.get_mut(name) {
            entry.facts = None;
            entry.item = None;
            entry.row = None;
            self.are_blocks_stale = true;
        }
        self.forget_unused(name);
    }

    /// Replaces the records of blocks, as `ListBlocks` gives them. A cluster without records has
    /// those of its Node objects.
    pub fn set_blocks(&mut self, records: &[Block]) {
        let listing = BlockListing::of_records(records);
        self.records = listing.node_blocks().collect();
        self.held = listing.claims().collect();
        self.are_blocks_stale = true;
    }

    /// Replaces the records of blocks by those of a listing, for a client that cannot list records.
    pub fn set_block_listing(&mut self, listing: &BlockListing) {
        self.records = listing.records().collect();
        self.held = listing.claims().collect();
        self.are_blocks_stale = true;
    }

    /// Sets the ranges of a flag such as `--cluster-cidr`.
    pub fn set_cluster_cidrs(&mut self, ranges: &[IpNet]) {
        let ranges = ranges.iter().map(IpNet::trunc).collect();
        self.pod_ranges.insert(String::new(), ranges);
    }

    /// Adds or replaces ranges of pods.
    pub fn apply_cluster_cidr(&mut self, object: &ClusterCIDR) {
        let spec = object.spec.iter();
        let texts = spec.flat_map(|spec| spec.ipv4.iter().chain(&spec.ipv6));
        self.pod_ranges
            .insert(object.name().to_owned(), ranges(texts));
    }

    /// Removes ranges of pods, if they are there.
    pub fn delete_cluster_cidr(&mut self, name: &str) {
        self.pod_ranges.remove(name);
    }

    /// Adds or replaces ranges of Services.
    pub fn apply_service_cidr(&mut self, object: &ServiceCIDR) {
        let spec = object.spec.iter();
        let texts = spec.flat_map(|spec| spec.cidrs.iter().flatten());
        self.service_ranges
            .insert(object.name().to_owned(), ranges(texts));
    }

    /// Removes ranges of Services, if they are there.
    pub fn delete_service_cidr(&mut self, name: &str) {
        self.service_ranges.remove(name);
    }

    /// Adds or replaces a Service.
    pub fn apply_service(&mut self, service: &Service) {
        let spec = service.spec.iter();
        let texts = spec.flat_map(|spec| {
            let listed = spec.cluster_ips.iter().flatten();
            listed.chain(
                spec.cluster_ip
                    .as_ref()
                    .filter(|_| spec.cluster_ips.is_none()),
            )
        });
        // `None` is the address of a headless one.
        let addresses = texts.filter_map(|text| text.parse().ok()).collect();
        self.services.insert(service.key().to_string(), addresses);
    }

    /// Removes a Service, if it is there.
    pub fn delete_service(&mut self, namespace: &str, name: &str) {
        self.services.remove(&*key(namespace, name));
    }

    /// The resource of pod addresses.
    #[must_use]
    pub const fn resource(&self) -> &PodIpResource {
        &self.resource
    }

    /// The facts for the map.
    #[must_use]
    pub fn space_parts(&mut self) -> SpaceParts {
        self.refresh_blocks();
        let mut parts = SpaceParts {
            networks: self.networks(),
            blocks: self.blocks.clone(),
            claims: self.claims(),
            rule: self.pod_rule(),
            unlocated_orphans: Vec::new(),
            only_namespace: None,
        };
        for (name, entry) in &self.nodes {
            if let Some(facts) = &entry.facts {
                let addresses = NodeAddresses::of(&facts.report, entry.held);
                if addresses.orphaned > 0 {
                    let orphans = (name.to_string(), addresses.orphaned);
                    parts.unlocated_orphans.push(orphans);
                }
            }
        }
        parts
    }

    /// The summary. `space` is that of the [parts](Self::space_parts) of the same moment, and
    /// `revision` tells it; opaque, may be empty. `report` has the
    /// [findings](Self::findings), which may be of an earlier moment, if there are any yet.
    #[must_use]
    pub fn summary(
        &mut self,
        space: &AddressSpace,
        revision: &str,
        report: Option<&Arc<FindingReport>>,
    ) -> ClusterSummary {
        self.refresh_blocks();
        let mut nodes = BTreeMap::new();
        for (name, entry) in &mut self.nodes {
            let row = entry.row(name, space);
            nodes.extend(row.map(|row| (Arc::clone(name), row)));
        }
        let networks = space.networks().iter();
        ClusterSummary {
            revision: revision.to_owned(),
            networks: networks
                .map(|network| NetworkRow::of(space, network))
                .collect(),
            pods: PodCounts {
                total: u64::try_from(self.pods.len()).unwrap_or(u64::MAX),
                running: self.running,
                waiting: u64::try_from(self.waiting.len()).unwrap_or(u64::MAX),
            },
            nodes,
            waiting: waiting::groups(&self.waiting),
            report: report.map(Arc::clone),
        }
    }

    /// The entry of a node, and its shared name.
    fn node_entry(&mut self, name: &str) -> (Arc<str>, &mut NodeEntry) {
        let known = self
            .nodes
            .get_key_value(name)
            .map(|(name, _)| Arc::clone(name));
        let name = known.unwrap_or_else(|| Arc::from(name));
        let entry = self.nodes.entry(Arc::clone(&name)).or_default();
        (name, entry)
    }

    /// Removes the entry of a node that has neither object nor pods.
    fn forget_unused(&mut self, name: &str) {
        let is_unused = |entry: &NodeEntry| entry.facts.is_none() && entry.pods == 0;
        if self.nodes.get(name).is_some_and(is_unused) {
            self.nodes.remove(name);
        }
    }

    fn refresh_blocks(&mut self) {
        if !std::mem::take(&mut self.are_blocks_stale) {
            return;
        }
        let recorded: BTreeSet<(IpNet, &str)> = self
            .records
            .iter()
            .filter_map(|block| Some((block.cidr(), block.node()?)))
            .collect();
        let mut blocks = self.records.clone();
        for (name, entry) in &self.nodes {
            let Some(facts) = &entry.facts else {
                continue;
            };
            let assigned = |cidr: &IpNet| {
                NodeBlock::new(*cidr, BlockState::Assigned, Some(name.as_ref())).ok()
            };
            let is_new = |cidr: &&IpNet| !recorded.contains(&(**cidr, &**name));
            blocks.extend(facts.pod_cidrs.iter().filter(is_new).filter_map(assigned));
            let ranges = facts.ranges.iter().filter(is_new);
            let ranges = ranges.filter(|range| !facts.pod_cidrs.contains(range));
            blocks.extend(
                ranges
                    .filter_map(assigned)
                    .filter_map(|block| block.with_layout(BlockLayout::Whole).ok()),
            );
        }
        drop(recorded);
        let mut by_node = BTreeMap::<String, Vec<BlockRow>>::new();
        for block in &blocks {
            if let Some(node) = block.node() {
                let rows = by_node.entry(node.to_owned()).or_default();
                rows.push(BlockRow::of(block));
            }
        }
        for (name, entry) in &mut self.nodes {
            let rows = by_node.remove(&**name).unwrap_or_default();
            if rows != entry.blocks {
                entry.blocks = rows;
                entry.row = None;
            }
        }
        self.blocks = blocks;
    }

    /// The rule about the addresses of pods. Of a control plane other than podplane's it follows
    /// from where these are, which costs the size of the cluster.
    #[must_use]
    pub fn pod_rule(&self) -> PodRule {
        // Ranges that several nodes use are of a network with an IPAM of its own.
        let mut seen = BTreeSet::new();
        let facts = self.nodes.values().filter_map(|entry| entry.facts.as_ref());
        let mut ranges = facts.flat_map(|facts| &facts.ranges);
        let is_in_block = ranges.all(|range| seen.insert(range))
            && match self.control_plane {
                // An address outside is a fault there, however many there are.
                ControlPlane::Podplane => true,
                ControlPlane::Other => self.has_node_blocks(),
            };
        match is_in_block {
            true => PodRule::InNodeBlock,
            false => PodRule::Anywhere,
        }
    }

    fn networks(&self) -> Vec<Network> {
        let mut found: Vec<Network> = Vec::new();
        let mut add = |role, cidr: IpNet, name: &str| {
            let is_known = |known: &Network| (known.role(), known.cidr()) == (role, cidr);
            if !found.iter().any(is_known) {
                found.extend(Network::new(role, cidr, name));
            }
        };
        // Names of objects come before the flag, which has none.
        for (name, ranges) in self.pod_ranges.iter().rev() {
            for cidr in ranges {
                add(NetworkRole::Pods, *cidr, name);
            }
        }
        for (name, ranges) in &self.service_ranges {
            for cidr in ranges {
                add(NetworkRole::Services, *cidr, name);
            }
        }
        let reserved = |block: &&NodeBlock| block.state() == BlockState::Reserved;
        if self.service_ranges.is_empty() {
            for block in self.records.iter().filter(reserved) {
                add(NetworkRole::Services, block.cidr(), "");
            }
        }
        let of_nodes = self.blocks.iter().filter(|block| !reserved(block));
        let of_nodes: Vec<_> = of_nodes.cloned().collect();
        networks::infer_pods(&mut found, &of_nodes);
        networks::infer_services(&mut found, self.services.values().flatten().copied());
        let addresses = self.node_addresses().into_keys();
        networks::infer_nodes(&mut found, addresses);
        found
    }

    /// The addresses of nodes, each with its node.
    fn node_addresses(&self) -> BTreeMap<IpAddr, &Arc<str>> {
        networks::node_addresses(self.nodes.iter().flat_map(|(name, entry)| {
            let facts = entry.facts.iter();
            facts.flat_map(move |facts| facts.addresses.iter().map(move |ip| (name, *ip)))
        }))
    }

    fn claims(&self) -> Vec<AddressClaim> {
        let name = |name: &Arc<str>| Name::from(Arc::clone(name));
        let of_pods = self.pod_ips.iter().map(|((ip, pod), node)| {
            let node = node.as_ref().map(name);
            (
                *ip,
                Holder::Pod {
                    name: name(pod),
                    node,
                },
            )
        });
        let of_nodes = self.node_addresses().into_iter().map(|(ip, node)| {
            let name = name(node);
            (ip, Holder::Node { name })
        });
        let of_services = self.services.iter().flat_map(|(service, addresses)| {
            let name = Name::from(service.as_str());
            addresses
                .iter()
                .map(move |ip| (*ip, Holder::Service { name: name.clone() }))
        });
        let known = of_pods.chain(of_nodes).chain(of_services);
        let claims = known.filter_map(|(ip, holder)| AddressClaim::new(ip, holder).ok());
        claims.chain(self.held.iter().cloned()).collect()
    }
}

impl NodeEntry {
    /// The row; `None` if there is no such object.
    fn row(&mut self, name: &Arc<str>, space: &AddressSpace) -> Option<Arc<NodeRow>> {
        let used = self.used(space);
        let facts = self.facts.as_ref()?;
        // Pods of other nodes may have addresses of its blocks.
        if let Some(row) = self.row.as_ref().filter(|row| row.used == used) {
            return Some(Arc::clone(row));
        }
        let addresses = NodeAddresses::of(&facts.report, self.held);
        let row = Arc::new(NodeRow {
            name: name.to_string(),
            blocks: self.blocks.clone(),
            ready: facts.is_ready,
            unschedulable: facts.is_unschedulable,
            used,
            capacity: addresses.capacity.count(),
            orphaned: addresses.orphaned,
            pods: self.pods.saturating_sub(self.ended),
            waiting: self.waiting,
        });
        self.row = Some(Arc::clone(&row));
        Some(row)
    }

    /// The number of [addresses in use](addresses_used), as the map counts them. Former blocks do
    /// not count, as they are not of the capacity.
    fn used(&self, space: &AddressSpace) -> u64 {
        let facts = self.facts.as_ref();
        let has_ranges = facts.is_some_and(|facts| !facts.ranges.is_empty());
        let blocks = self
            .blocks
            .iter()
            .filter(|block| !has_ranges && !block.state.is_withheld());
        let blocks = blocks.map(|block| block.cidr);
        let in_use = |cidr: &IpNet| space.counts(NetworkRole::Pods, cidr).in_use();
        addresses_used(blocks, in_use, self.addressed)
    }
}

/// The ranges without host bits. What is not a range is left out.
fn ranges<'a>(texts: impl Iterator<Item = &'a String>) -> Vec<IpNet> {
    let parsed = texts.filter_map(|text| parse_cidr(text).ok());
    parsed.map(|net| net.trunc()).collect()
}

#[cfg(test)]
mod tests;
