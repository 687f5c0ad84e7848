//! How nodes come to the same block: every fault of `docs/duplicates.md`, for each generation of the reference and for our own blocks.

use std::collections::{BTreeMap, VecDeque};

use ipnet::IpNet;
use podplane_ipam::net::parse_cidr;
use podplane_ipam::upstream::{
    BeforePatch, CidrSet, Deletion, Handled, NodeView, RangeAllocator, Reservation, Then, Work,
};
use podplane_ipam::{ClusterRange, Compat, Generation, NodeBlocks, Owner, RangeConfig};

/// What becomes of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Patch {
    /// Refused, or lost on the way.
    Fails,
    /// Carried out, and the answer is lost.
    TimesOut,
}

/// Who gives nodes their blocks.
#[derive(Debug)]
enum Allocator {
    Reference(RangeAllocator),
    Ours(Box<NodeBlocks>),
}

/// An API server, and a controller that is told of everything in order and at once.
#[derive(Debug)]
struct World {
    compat: Compat,
    service: Vec<IpNet>,
    nodes: BTreeMap<String, NodeView>,
    allocator: Allocator,
    channel: VecDeque<Reservation>,
    queue: VecDeque<String>,
    patches: Vec<Patch>,
    /// The controller's process has ended.
    crashed: bool,
}

fn net(text: &str) -> IpNet {
    parse_cidr(text).expect("a prefix")
}

fn owner(name: &str) -> Owner {
    Owner::new(name, name)
}

impl World {
    fn new(compat: Compat, ranges: &[(&str, u8)], service: Option<&str>) -> Self {
        let mut world = Self {
            compat,
            service: service.map(net).into_iter().collect(),
            nodes: BTreeMap::new(),
            allocator: Allocator::Ours(Box::new(NodeBlocks::without_sets(&[]))),
            channel: VecDeque::new(),
            queue: VecDeque::new(),
            patches: Vec::new(),
            crashed: false,
        };
        world.restart(ranges);
        world
    }

    /// The controller begins again, perhaps with other flags.
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

    fn tell(&mut self, event: impl FnOnce(&mut RangeAllocator) -> Handled, name: &str) {
        match &mut self.allocator {
            Allocator::Ours(_) => self.queue.push_back(name.to_owned()),
            Allocator::Reference(allocator) => {
                let Handled { then, error } = event(allocator);
                self.crashed |= error.is_some_and(|error| error.is_fatal());
                match then {
                    Then::Nothing => {}
                    Then::Send(reservation) => self.channel.push_back(reservation),
                    Then::Enqueue => self.queue.push_back(name.to_owned()),
                }
            }
        }
    }

    /// A node is created, with a block if one is named. Whether the API server takes it: ours does not, where the block is another's.
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

    /// Somebody changes the node.
    fn touch(&mut self, name: &str) {
        let node = self.nodes[name].clone();
        self.tell(|allocator| allocator.updated(&node), name);
        self.work();
    }

    /// The node has a finalizer and is deleted.
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

    /// Workers take what waits, and twice what comes back.
    fn work(&mut self) {
        for _ in 0..3 {
            for _ in 0..self.channel.len() + self.queue.len() {
                self.step();
            }
        }
    }

    /// One worker takes one thing.
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
                Ok(Work::Done) => true,
                Ok(Work::Assign(reservation)) => self.write(&reservation),
                Err(_) => false,
            },
            // A block is a node's from the moment when it is planned until the node is gone.
            Allocator::Ours(blocks) => {
                let Some(node) = node else { return true };
                if !node.pod_cidrs.is_empty() || node.deleting {
                    return true;
                }
                let mut cidrs = blocks.held_by(name);
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

    /// The API server's part of it: a node's blocks are never changed, and nobody compares them with another's.
    fn patched(&mut self, name: &str, cidrs: &[IpNet]) -> bool {
        let patch = self.patches.pop();
        let texts: Vec<String> = cidrs.iter().map(ToString::to_string).collect();
        let Some(node) = self.nodes.get_mut(name) else {
            return false;
        };
        if patch == Some(Patch::Fails) || (!node.pod_cidrs.is_empty() && node.pod_cidrs != texts) {
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
    let mut world = World::new(compat, &[("10.244.0.0/16", 24)], None);
    ["a", "b", "c"].iter().for_each(|name| world.join(name));
    world.restart(&[("10.244.0.0/16", 16)]);
    world.delete("a");
    world.join("d");
    let over = world.block("d") == "10.244.0.0/16";
    world.delete("b");
    world.join("e");
    assert_eq!(over, world.overlap());
    over && world.block("e") == world.block("d")
}

/// A longer mask: the end of a wide block frees the blocks of others in it.
fn d2(compat: Compat) -> bool {
    let mut world = World::new(compat, &[("10.244.0.0/22", 24)], None);
    ["a", "b"].iter().for_each(|name| world.join(name));
    world.restart(&[("10.244.0.0/22", 22)]);
    world.delete("a");
    world.join("wide");
    world.restart(&[("10.244.0.0/22", 24)]);
    world.delete("wide");
    ["c", "d"].iter().for_each(|name| world.join(name));
    assert_eq!(world.block("b"), "10.244.1.0/24");
    world.overlap() && world.block("d") == world.block("b")
}

/// Patches fail; the reservation is released, and tried again.
fn d3(compat: Compat) -> bool {
    let mut world = World::new(compat, &TWO, None);
    world.patches = vec![Patch::Fails; 3];
    ["a", "b", "c"].iter().for_each(|name| world.join(name));
    world.overlap()
}

/// A node that is being deleted loses its block while it lives, and again when it is gone.
fn d4(compat: Compat) -> bool {
    let mut world = World::new(compat, &ONE, None);
    world.join("a");
    world.begin_to_delete("a");
    world.join("b");
    let first = world.overlap();
    world.delete("a");
    world.join("c");
    assert_eq!(first, world.overlap());
    first
}

/// A node is created with a block that another has.
fn d5(compat: Compat) -> bool {
    let mut world = World::new(compat, &TWO, None);
    world.join("a");
    world.create("b", Some("10.0.0.0/24")) && world.overlap()
}

/// Two nodes have one block; the end of one frees it for a third.
fn d6(compat: Compat) -> bool {
    let mut world = World::new(compat, &ONE, None);
    world.join("a");
    // As it was before the API server refused it.
    let mut twin = world.nodes["a"].clone();
    twin.name = "b".to_owned();
    world.nodes.insert("b".to_owned(), twin);
    world.restart(&ONE);
    world.delete("a");
    world.join("c");
    world.overlap()
}

/// A node has had a block in which services are; its end frees that for the next.
fn d7(compat: Compat) -> bool {
    let mut world = World::new(compat, &TWO, Some("10.0.0.0/28"));
    if world.create("a", Some("10.0.0.0/24")) {
        world.work();
        world.delete("a");
    }
    world.join("b");
    world.block("b") == "10.0.0.0/24"
}

/// Patches are carried out, and their answers are lost.
fn d8(compat: Compat) -> bool {
    let mut world = World::new(compat, &TWO, None);
    world.patches = vec![Patch::TimesOut; 3];
    ["a", "b", "c"].iter().for_each(|name| world.join(name));
    world.overlap()
}

/// The second family has no block; the first one's is not given back.
fn l1(compat: Compat) -> bool {
    let ranges = [("10.0.0.0/22", 24), ("fd00::/64", 64)];
    let mut world = World::new(compat, &ranges, None);
    ["a", "b"].iter().for_each(|name| world.join(name));
    (0..3).for_each(|_| world.touch("b"));
    world.leaked() == 3
}

/// A node is deleted while its reservation waits.
fn l2(compat: Compat) -> bool {
    let mut world = World::new(compat, &TWO, None);
    world.create("a", None);
    world.delete("a");
    world.leaked() == 1
}

/// The watch has missed a deletion.
fn l3(compat: Compat) -> bool {
    let mut world = World::new(compat, &TWO, None);
    world.join("a");
    world.delete_as("a", Deletion::Tombstone);
    if world.crashed {
        // The process begins again.
        world.restart(&TWO);
    }
    world.work();
    world.leaked() == 1
}

type Scenario = fn(Compat) -> bool;

const SCENARIOS: [(&str, Scenario); 11] = [
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
fn faults_are_where_the_docs_say() {
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
