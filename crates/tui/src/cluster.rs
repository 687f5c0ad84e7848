//! The state of the cluster, as far as it is known.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::Arc,
};

use ipnet::IpNet;
use podplane_api::{ObjectKey, jiff::Timestamp};
use podplane_client::BlockList;
use podplane_map::{NodeBlock, PodRule};
use podplane_summary::BlockListing;

use crate::facts::{EventFact, Fact, NodeFact, PodFact};

/// A kind of facts, each from a list and watch of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// The nodes.
    Nodes,
    /// The pods.
    Pods,
    /// The records of node blocks.
    Blocks,
    /// The events. Followed once a view shows them.
    Events,
    /// The Services and the ranges of Services and pods, for the map. Followed once it is shown.
    Networks,
}

impl Source {
    pub(crate) const ALL: [Self; 5] = [
        Self::Nodes,
        Self::Pods,
        Self::Blocks,
        Self::Events,
        Self::Networks,
    ];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Nodes => "nodes",
            Self::Pods => "pods",
            Self::Blocks => "node blocks",
            Self::Events => "events",
            Self::Networks => "services",
        }
    }
}

/// The state of the connection by which a source is followed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Health {
    /// Nobody asked for it yet.
    #[default]
    Unused,
    /// The first list has not arrived.
    Loading,
    /// Everything is known.
    Live,
    /// The known facts are from before `since`.
    Lost { since: Timestamp, error: String },
    /// The server refuses it to this user.
    Denied { error: String },
}

/// The reason why a source is not up to date.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFailure {
    /// The server's message, or that of the connection.
    pub message: String,
    /// True if the user lacks a right.
    pub is_denied: bool,
}

/// A change of the objects of one kind.
#[derive(Clone, Debug)]
pub enum Change<T> {
    /// All objects.
    Listed(Vec<T>),
    /// An object is new or was changed.
    Applied(T),
    /// An object is gone.
    Deleted(ObjectKey),
    /// The connection is there again, without a new list.
    Resumed,
    /// The source is not up to date.
    Failed(SourceFailure),
}

/// The objects of one kind.
#[derive(Debug)]
pub(crate) struct Objects<T> {
    items: BTreeMap<ObjectKey, Arc<T>>,
    health: Health,
    /// Changes with each change of the objects.
    version: u64,
}

impl<T> Default for Objects<T> {
    fn default() -> Self {
        Self {
            items: BTreeMap::new(),
            health: Health::default(),
            version: 0,
        }
    }
}

impl<T: Fact> Objects<T> {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.items.values()
    }

    /// Takes in a change. `replaced` gets each former and new state of an object.
    fn apply(
        &mut self,
        change: Change<T>,
        now: Timestamp,
        mut replaced: impl FnMut(Option<&T>, Option<&T>),
    ) {
        match change {
            Change::Listed(items) => {
                self.items
                    .values()
                    .for_each(|old| replaced(Some(old), None));
                items.iter().for_each(|new| replaced(None, Some(new)));
                let items = items.into_iter();
                self.items = items
                    .map(|item| (item.key().clone(), Arc::new(item)))
                    .collect();
                self.health = Health::Live;
                self.version += 1;
            }
            Change::Applied(item) => {
                let item = Arc::new(item);
                let old = self.items.insert(item.key().clone(), item.clone());
                replaced(old.as_deref(), Some(&item));
                self.health = Health::Live;
                self.version += 1;
            }
            Change::Deleted(key) => {
                let old = self.items.remove(&key);
                replaced(old.as_deref(), None);
                self.health = Health::Live;
                self.version += 1;
            }
            Change::Resumed => self.health = Health::Live,
            Change::Failed(failure) => self.health.fail(failure, now),
        }
    }
}

impl Health {
    fn fail(&mut self, SourceFailure { message, is_denied }: SourceFailure, now: Timestamp) {
        let since = match self {
            Self::Lost { since, .. } => *since,
            _ => now,
        };
        *self = match is_denied {
            true => Self::Denied { error: message },
            false => Self::Lost {
                since,
                error: message,
            },
        };
    }
}

/// The addresses and pods of a node, by its pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeLoad {
    pub(crate) held: u64,
    pub(crate) pods: u64,
    /// The pods that have no address yet.
    pub(crate) waiting: u64,
    /// The pods that have one.
    pub(crate) addressed: u64,
}

/// Addresses in use, sorted. One that several pods have is there once, as on the map.
#[derive(Debug)]
pub(crate) struct AddressesInUse(Vec<IpAddr>);

impl AddressesInUse {
    /// The number of those in a prefix.
    pub(crate) fn within(&self, cidr: &IpNet) -> u128 {
        let before = self.0.partition_point(|ip| *ip < cidr.network());
        let until = self.0.partition_point(|ip| *ip <= cidr.broadcast());
        (until - before) as u128
    }
}

/// Everything that is known of the cluster.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    pub(crate) nodes: Objects<NodeFact>,
    pub(crate) pods: Objects<PodFact>,
    pub(crate) events: Objects<EventFact>,
    pub(crate) blocks: BlockObjects,
    networks: NetworkState,
    /// The rule about the addresses of pods.
    rule: PodRule,
    loads: HashMap<String, NodeLoad>,
    /// True once the server has answered.
    was_connected: bool,
}

/// The records of node blocks, as a server lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockRecords {
    /// The blocks.
    pub blocks: Vec<NodeBlock>,
    /// The last known addresses of the sandboxes in held blocks.
    pub held: Vec<IpAddr>,
}

impl BlockRecords {
    /// Those of a server's summary, which leaves the blocks of nodes to the Node objects.
    #[must_use]
    pub fn of_listing(listing: &BlockListing) -> Self {
        Self::new(listing.records(), listing)
    }

    /// The records that can be read.
    #[must_use]
    pub fn of(list: &BlockList) -> Self {
        let listing = BlockListing::of_records(&list.blocks);
        Self::new(listing.node_blocks(), &listing)
    }

    fn new(blocks: impl Iterator<Item = NodeBlock>, listing: &BlockListing) -> Self {
        Self {
            blocks: blocks.collect(),
            held: listing.held.iter().map(|held| held.ip).collect(),
        }
    }
}

/// The state of the records of node blocks.
#[derive(Debug, Default)]
pub(crate) struct BlockObjects {
    /// `None` for a cluster that keeps none, and while they are not known.
    pub(crate) records: Option<BlockRecords>,
    health: Health,
    version: u64,
}

/// The state of the networks, whose facts only the map needs: they are kept outside.
#[derive(Debug, Default)]
struct NetworkState {
    health: Health,
    version: u64,
}

impl Cluster {
    /// Sources that are followed from the beginning are loading.
    pub(crate) fn begin(&mut self, source: Source) {
        let health = self.health_mut(source);
        if *health == Health::Unused {
            *health = Health::Loading;
        }
    }

    pub(crate) fn change_nodes(&mut self, change: Change<NodeFact>, now: Timestamp) {
        self.nodes.apply(change, now, |_, _| {});
        self.note_connection();
    }

    pub(crate) fn change_pods(&mut self, change: Change<PodFact>, now: Timestamp) {
        let loads = &mut self.loads;
        self.pods.apply(change, now, |old, new| {
            for (pod, is_new) in old
                .map(|pod| (pod, false))
                .into_iter()
                .chain(new.map(|pod| (pod, true)))
            {
                count(loads, pod, is_new);
            }
        });
        self.note_connection();
    }

    pub(crate) fn change_events(&mut self, change: Change<EventFact>, now: Timestamp) {
        self.events.apply(change, now, |_, _| {});
        self.note_connection();
    }

    pub(crate) fn set_blocks(
        &mut self,
        blocks: Result<Option<BlockRecords>, SourceFailure>,
        now: Timestamp,
    ) {
        match blocks {
            Ok(records) => {
                if self.blocks.records != records {
                    self.blocks.records = records;
                    self.blocks.version += 1;
                }
                self.blocks.health = Health::Live;
            }
            Err(failure) => self.blocks.health.fail(failure, now),
        }
        self.note_connection();
    }

    /// Takes in that networks changed.
    pub(crate) fn change_networks(&mut self, change: Result<(), SourceFailure>, now: Timestamp) {
        match change {
            Ok(()) => {
                self.networks.version += 1;
                self.networks.health = Health::Live;
            }
            Err(failure) => self.networks.health.fail(failure, now),
        }
        self.note_connection();
    }

    /// Takes in the rule about the addresses of pods, on which the numbers of nodes depend.
    pub(crate) fn set_rule(&mut self, rule: PodRule) {
        self.rule = rule;
        self.nodes.version += 1;
    }

    /// Returns true if pods have addresses of their nodes' blocks.
    pub(crate) fn has_node_blocks(&self) -> bool {
        self.rule == PodRule::InNodeBlock
    }

    fn note_connection(&mut self) {
        let is_answer = |health: &Health| matches!(health, Health::Live | Health::Denied { .. });
        let mut sources = Source::ALL.into_iter();
        self.was_connected |= sources.any(|source| is_answer(self.health(source)));
    }

    /// Returns true once the server has answered.
    pub(crate) const fn was_connected(&self) -> bool {
        self.was_connected
    }

    pub(crate) fn health(&self, source: Source) -> &Health {
        match source {
            Source::Nodes => &self.nodes.health,
            Source::Pods => &self.pods.health,
            Source::Blocks => &self.blocks.health,
            Source::Events => &self.events.health,
            Source::Networks => &self.networks.health,
        }
    }

    fn health_mut(&mut self, source: Source) -> &mut Health {
        match source {
            Source::Nodes => &mut self.nodes.health,
            Source::Pods => &mut self.pods.health,
            Source::Blocks => &mut self.blocks.health,
            Source::Events => &mut self.events.health,
            Source::Networks => &mut self.networks.health,
        }
    }

    /// Returns true if the server gives the source to this user, as far as is known.
    pub(crate) fn is_permitted(&self, source: Source) -> bool {
        !matches!(self.health(source), Health::Denied { .. })
    }

    /// A number that differs if the objects of one of the sources do.
    pub(crate) fn version(&self, sources: &[Source]) -> u64 {
        let each = sources.iter().map(|source| match source {
            Source::Nodes => self.nodes.version,
            Source::Pods => self.pods.version,
            Source::Blocks => self.blocks.version,
            Source::Events => self.events.version,
            Source::Networks => self.networks.version,
        });
        each.sum()
    }

    pub(crate) fn load(&self, node: &str) -> NodeLoad {
        self.loads.get(node).copied().unwrap_or_default()
    }

    /// The addresses that pods and the last known sandboxes of held blocks have.
    pub(crate) fn addresses_in_use(&self) -> AddressesInUse {
        let pods = self.pods.iter().filter(|pod| pod.held > 0);
        let held = self.blocks.records.iter().flat_map(|records| &records.held);
        let mut ips: Vec<IpAddr> = pods.flat_map(|pod| &pod.ips).chain(held).copied().collect();
        ips.sort_unstable();
        ips.dedup();
        AddressesInUse(ips)
    }
}

fn count(loads: &mut HashMap<String, NodeLoad>, pod: &PodFact, is_new: bool) {
    let Some(node) = &pod.node else { return };
    let pods = u64::from(!pod.is_terminal);
    let waiting = u64::from(pod.waits.is_some());
    let addressed = u64::from(pod.held > 0 && !pod.ips.is_empty());
    let load = match loads.get_mut(node) {
        Some(load) => load,
        None => loads.entry(node.clone()).or_default(),
    };
    match is_new {
        true => {
            load.held = load.held.saturating_add(pod.held);
            load.pods += pods;
            load.waiting += waiting;
            load.addressed += addressed;
        }
        false => {
            load.held = load.held.saturating_sub(pod.held);
            load.pods = load.pods.saturating_sub(pods);
            load.waiting = load.waiting.saturating_sub(waiting);
            load.addressed = load.addressed.saturating_sub(addressed);
        }
    }
}
