//! Ways in which two nodes get the same block: every fault of `docs/duplicates.md`, for each
//! generation of the reference and for our own blocks.

use std::collections::{BTreeMap, VecDeque};

use ipnet::IpNet;
use podplane_ipam::{
    ClusterRange, Compat, Generation, NodeBlocks, Owner, RangeConfig,
    net::parse_cidr,
    upstream::{
        BeforePatch, CidrSet, Deletion, EventOutcome, NextAction, NodeView, RangeAllocator,
        Reservation, SyncOutcome,
    },
};

/// The fate of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PatchFate {
    /// Refused, or lost before it was applied.
    Fails,
    /// Applied, but the answer is lost.
    TimesOut,
}

/// The allocator under test.
#[derive(Debug)]
enum Allocator {
    Reference(RangeAllocator),
    Ours(Box<NodeBlocks>),
}

/// An API server, and a controller that sees every event in order and at once.
#[derive(Debug)]
struct DuplicateCluster {
    compat: Compat,
    service: Vec<IpNet>,
    nodes: BTreeMap<String, NodeView>,
    allocator: Allocator,
    channel: VecDeque<Reservation>,
    queue: VecDeque<String>,
    patches: Vec<PatchFate>,
    /// True if the controller's process has ended.
    crashed: bool,
}

fn net(text: &str) -> IpNet {
    parse_cidr(text).expect("a prefix")
}

fn owner(name: &str) -> Owner {
    Owner::new(name, name)
}

impl DuplicateCluster {
    fn new(compat: Compat, ranges: &[(&str, u8)], service: Option<&str>) -> Self {
        let mut cluster = Self {
            compat,
            service: service.map(net).into_iter().collect(),
            nodes: BTreeMap::new(),
            allocator: Allocator::Ours(Box::new(NodeBlocks::without_sets(&[]))),
            channel: VecDeque::new(),
            queue: VecDeque::new(),
            patches: Vec::new(),
            crashed: false,
        };
        cluster.restart(ranges);
        cluster
    }

    /// Restarts the controller, perhaps with other flags.
    fn restart(&mut self, ranges: &[(&str, u8)]) {
        self.channel.clear();
        self.queue.clear();
        let views: Vec<_> = self.nodes.values().cloned().collect();
        self.allocator = match self.compat.generation() {
            Some(generation) => {
                let sets = ranges
                    .iter()
                    .map(|(cidr, mask)| CidrSet::new(net(cidr), *mask).expect("a range"));
                let sets = sets.collect();
                let allocator = RangeAllocator::new(generation, sets, &self.service, &views);
                Allocator::Reference(allocator.expect("the nodes fit"))
            }
            None => {
                let ranges = ranges
                    .iter()
                    .map(|(cidr, mask)| ClusterRange::new(net(cidr), *mask).expect("a range"));
                let mut blocks = NodeBlocks::new(&RangeConfig {
                    ranges: ranges.collect(),
                    service_ranges: self.service.clone(),
                    notices: Vec::new(),
                });
                for node in &views {
                    for cidr in &node.pod_cidrs {
                        blocks.adopt(&owner(&node.name), net(cidr));
                    }
                }
                Allocator::Ours(Box::new(blocks))
            }
        };
        for node in views {
            self.tell(|allocator| allocator.added(&node), &node.name);
        }
        self.work();
    }

    fn tell(&mut self, event: impl FnOnce(&mut RangeAllocator) -> EventOutcome, name: &str) {
        match &mut self.allocator {
            Allocator::Ours(_) => self.queue.push_back(name.to_owned()),
            Allocator::Reference(allocator) => {
                let EventOutcome { then, error } = event(allocator);
                self.crashed |= error.is_some_and(|error| error.is_fatal());
                match then {
                    NextAction::Nothing => {}
                    NextAction::Send(reservation) => self.channel.push_back(reservation),
                    NextAction::Enqueue => self.queue.push_back(name.to_owned()),
                }
            }
        }
    }

    /// Creates a node, with a block if one is named. Returns false if the API server refuses it:
    /// ours does, if the block belongs to another node.
    fn create(&mut self, name: &str, cidr: Option<&str>) -> bool {
        let node = NodeView {
            name: name.to_owned(),
            pod_cidr: cidr.unwrap_or_default().to_owned(),
            pod_cidrs: cidr.map(str::to_owned).into_iter().collect(),
            deleting: false,
        };
        if let (Allocator::Ours(blocks), Some(cidr)) = (&mut self.allocator, cidr) {
            if !blocks.overlapping(net(cidr)).is_empty() {
                return false;
            }
            blocks.adopt(&owner(name), net(cidr));
        }
        self.nodes.insert(name.to_owned(), node.clone());
        self.tell(|allocator| allocator.added(&node), name);
        true
    }

    fn join(&mut self, name: &str) {
        self.create(name, None);
        self.work();
    }

    /// Changes a node.
    fn touch(&mut self, name: &str) {
        let node = self.nodes[name].clone();
        self.tell(|allocator| allocator.updated(&node), name);
        self.work();
    }

    /// Deletes a node that has a finalizer.
    fn begin_to_delete(&mut self, name: &str) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.deleting = true;
        }
        self.touch(name);
    }

    fn delete_as(&mut self, name: &str, deletion: Deletion) {
        let node = self.nodes.remove(name).expect("the node is there");
        self.tell(|allocator| allocator.deleted(&node, deletion), name);
        if let Allocator::Ours(blocks) = &mut self.allocator {
            blocks.release(name);
        }
    }

    fn delete(&mut self, name: &str) {
        self.delete_as(name, Deletion::Watched);
        self.work();
    }

    /// Lets the workers process the queue, and retry failures twice.
    fn work(&mut self) {
        for _ in 0..3 {
            for _ in 0..self.channel.len() + self.queue.len() {
                self.step();
            }
        }
    }

    /// Lets one worker process one entry.
    fn step(&mut self) {
        if let Some(reservation) = self.channel.pop_front() {
            let written = self.write(&reservation);
            if let Allocator::Reference(allocator) = &mut self.allocator {
                allocator.finished(&reservation.node);
            }
            if !written {
                self.channel.push_back(reservation);
            }
        } else if let Some(name) = self.queue.pop_front()
            && !self.sync(&name)
        {
            self.queue.push_back(name);
        }
    }

    fn sync(&mut self, name: &str) -> bool {
        let node = self.nodes.get(name).cloned();
        match &mut self.allocator {
            Allocator::Reference(allocator) => match allocator.sync(node.as_ref()) {
                Ok(SyncOutcome::Done) => true,
                Ok(SyncOutcome::Assign(reservation)) => self.write(&reservation),
                Err(_) => false,
            },
            // A block belongs to a node from the moment when it is planned until the node is gone.
            Allocator::Ours(blocks) => {
                let Some(node) = node else { return true };
                if !node.pod_cidrs.is_empty() || node.deleting {
                    return true;
                }
                let mut cidrs = blocks.blocks_of(name);
                if cidrs.is_empty() {
                    match blocks.allocate(&owner(name)) {
                        Ok(given) => cidrs = given,
                        Err(_) => return false,
                    }
                }
                self.patched(name, &cidrs)
            }
        }
    }

    fn write(&mut self, reservation: &Reservation) -> bool {
        let node = self.nodes.get(&reservation.node).cloned();
        let Allocator::Reference(allocator) = &mut self.allocator else {
            return true;
        };
        match allocator.before_patch(reservation, node.as_ref()) {
            Ok(BeforePatch::Done) => return true,
            Ok(BeforePatch::Patch) => {}
            Err(_) => return false,
        }
        for _ in 0..RangeAllocator::PATCH_TRIES {
            if self.patched(&reservation.node, &reservation.cidrs) {
                return true;
            }
        }
        if let Allocator::Reference(allocator) = &mut self.allocator {
            allocator.patch_failed(reservation);
        }
        false
    }

    /// Applies a patch as the API server does: a node's blocks are never changed, and not compared
    /// with those of others.
    fn patched(&mut self, name: &str, cidrs: &[IpNet]) -> bool {
        let patch = self.patches.pop();
        let texts: Vec<String> = cidrs.iter().map(ToString::to_string).collect();
        let Some(node) = self.nodes.get_mut(name) else {
            return false;
        };
        if patch == Some(PatchFate::Fails)
            || (!node.pod_cidrs.is_empty() && node.pod_cidrs != texts)
        {
            return false;
        }
        if node.pod_cidrs.is_empty() {
            node.pod_cidrs = texts;
            let node = node.clone();
            self.tell(|allocator| allocator.updated(&node), name);
        }
        patch.is_none()
    }

    fn block(&self, name: &str) -> &str {
        let node = self.nodes.get(name);
        node.and_then(|node| node.pod_cidrs.first())
            .map_or("none", String::as_str)
    }

    fn overlap(&self) -> bool {
        let blocks: Vec<IpNet> = self
            .nodes
            .values()
            .flat_map(|node| node.pod_cidrs.iter().map(|cidr| net(cidr)))
            .collect();
        let shared = |(index, a): (usize, &IpNet)| {
            let others = &blocks[index + 1..];
            others.iter().any(|b| a.contains(b) || b.contains(a))
        };
        blocks.iter().enumerate().any(shared)
    }

    /// Used blocks of the first range that no node has.
    fn leaked(&self) -> usize {
        let used = match &self.allocator {
            Allocator::Reference(allocator) => allocator.sets()[0].used(),
            Allocator::Ours(blocks) => blocks.usage().next().expect("a range").used,
        };
        let assigned = self
            .nodes
            .values()
            .filter(|node| !node.pod_cidrs.is_empty());
        usize::try_from(used)
            .unwrap_or(usize::MAX)
            .saturating_sub(assigned.count())
    }
}

const TWO: [(&str, u8); 1] = [("10.0.0.0/23", 24)];
const ONE: [(&str, u8); 1] = [("10.0.0.0/24", 24)];

/// A shorter mask: the bit of a wide block stands for every old block in it.
fn d1(compat: Compat) -> bool {
    let mut cluster = DuplicateCluster::new(compat, &[("10.244.0.0/16", 24)], None);
    ["a", "b", "c"].iter().for_each(|name| cluster.join(name));
    cluster.restart(&[("10.244.0.0/16", 16)]);
    cluster.delete("a");
    cluster.join("d");
    let over = cluster.block("d") == "10.244.0.0/16";
    cluster.delete("b");
    cluster.join("e");
    assert_eq!(over, cluster.overlap());
    over && cluster.block("e") == cluster.block("d")
}

/// A longer mask: releasing a wide block frees the blocks of other nodes in it.
fn d2(compat: Compat) -> bool {
    let mut cluster = DuplicateCluster::new(compat, &[("10.244.0.0/22", 24)], None);
    ["a", "b"].iter().for_each(|name| cluster.join(name));
    cluster.restart(&[("10.244.0.0/22", 22)]);
    cluster.delete("a");
    cluster.join("wide");
    cluster.restart(&[("10.244.0.0/22", 24)]);
    cluster.delete("wide");
    ["c", "d"].iter().for_each(|name| cluster.join(name));
    assert_eq!(cluster.block("b"), "10.244.1.0/24");
    cluster.overlap() && cluster.block("d") == cluster.block("b")
}

/// Patches fail; the reservation is released and tried again.
fn d3(compat: Compat) -> bool {
    let mut cluster = DuplicateCluster::new(compat, &TWO, None);
    cluster.patches = vec![PatchFate::Fails; 3];
    ["a", "b", "c"].iter().for_each(|name| cluster.join(name));
    cluster.overlap()
}

/// A node that is being deleted loses its block while it lives, and again when it is gone.
fn d4(compat: Compat) -> bool {
    let mut cluster = DuplicateCluster::new(compat, &ONE, None);
    cluster.join("a");
    cluster.begin_to_delete("a");
    cluster.join("b");
    let first = cluster.overlap();
    cluster.delete("a");
    cluster.join("c");
    assert_eq!(first, cluster.overlap());
    first
}

/// A node is created with a block that another has.
fn d5(compat: Compat) -> bool {
    let mut cluster = DuplicateCluster::new(compat, &TWO, None);
    cluster.join("a");
    cluster.create("b", Some("10.0.0.0/24")) && cluster.overlap()
}

/// Two nodes have one block; the deletion of one frees it for a third.
fn d6(compat: Compat) -> bool {
    let mut cluster = DuplicateCluster::new(compat, &ONE, None);
    cluster.join("a");
    // The state before the API server refused such nodes.
    let mut twin = cluster.nodes["a"].clone();
    twin.name = "b".to_owned();
    cluster.nodes.insert("b".to_owned(), twin);
    cluster.restart(&ONE);
    cluster.delete("a");
    cluster.join("c");
    cluster.overlap()
}

/// A node had a block that overlaps the service range; its deletion frees that block for the next.
fn d7(compat: Compat) -> bool {
    let mut cluster = DuplicateCluster::new(compat, &TWO, Some("10.0.0.0/28"));
    if cluster.create("a", Some("10.0.0.0/24")) {
        cluster.work();
        cluster.delete("a");
    }
    cluster.join("b");
    cluster.block("b") == "10.0.0.0/24"
}

/// Patches are applied, and their answers are lost.
fn d8(compat: Compat) -> bool {
    let mut cluster = DuplicateCluster::new(compat, &TWO, None);
    cluster.patches = vec![PatchFate::TimesOut; 3];
    ["a", "b", "c"].iter().for_each(|name| cluster.join(name));
    cluster.overlap()
}

/// The second family has no block; the block of the first is not released.
fn l1(compat: Compat) -> bool {
    let ranges = [("10.0.0.0/22", 24), ("fd00::/64", 64)];
    let mut cluster = DuplicateCluster::new(compat, &ranges, None);
    ["a", "b"].iter().for_each(|name| cluster.join(name));
    (0..3).for_each(|_| cluster.touch("b"));
    cluster.leaked() == 3
}

/// A node is deleted while its reservation waits.
fn l2(compat: Compat) -> bool {
    let mut cluster = DuplicateCluster::new(compat, &TWO, None);
    cluster.create("a", None);
    cluster.delete("a");
    cluster.leaked() == 1
}

/// The watch has missed a deletion.
fn l3(compat: Compat) -> bool {
    let mut cluster = DuplicateCluster::new(compat, &TWO, None);
    cluster.join("a");
    cluster.delete_as("a", Deletion::Tombstone);
    if cluster.crashed {
        // The process restarts.
        cluster.restart(&TWO);
    }
    cluster.work();
    cluster.leaked() == 1
}

type DuplicateScenario = fn(Compat) -> bool;

const SCENARIOS: [(&str, DuplicateScenario); 11] = [
    ("D1", d1),
    ("D2", d2),
    ("D3", d3),
    ("D4", d4),
    ("D5", d5),
    ("D6", d6),
    ("D7", d7),
    ("D8", d8),
    ("L1", l1),
    ("L2", l2),
    ("L3", l3),
];

/// The columns of the table in the docs, in their order.
const COLUMNS: [Compat; 5] = [
    Compat::Upstream130,
    Compat::Upstream131,
    Compat::Upstream132,
    Compat::Gcp,
    Compat::None,
];

#[test]
fn each_mode_has_exactly_the_documented_faults() {
    let docs = include_str!("../../../docs/duplicates.md");
    let mut header = docs.lines().filter(|line| line.starts_with("| fault |"));
    let header: Vec<&str> = cells(header.next().expect("the table has a header"));
    assert_eq!(header[2..], COLUMNS.map(Compat::name));
    for (fault, scenario) in SCENARIOS {
        let row = docs
            .lines()
            .find(|line| line.starts_with(&format!("| {fault} |")));
        let row = cells(row.unwrap_or_else(|| panic!("{fault} is in the table")));
        let seen = COLUMNS.map(|compat| if scenario(compat) { "yes" } else { "no" });
        assert_eq!(row[2..], seen, "{fault}");
    }
    let newest = Compat::Upstream.generation();
    assert_eq!(newest, Compat::Upstream132.generation());
    assert_eq!(newest, Some(Generation::G3));
}

fn cells(row: &str) -> Vec<&str> {
    row.trim_matches('|').split('|').map(str::trim).collect()
}
