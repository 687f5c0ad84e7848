//! Random histories against a server that checks nothing but the UID and revision of a node, and that loses requests and answers: no two nodes
//! share an address at any moment, none gets what a gone one still has, and in the end everybody has a block for whom there is one.

use std::collections::VecDeque;

use podplane_api::jiff::Timestamp;
use podplane_ipam::RangeFlags;
use proptest::prelude::*;

use super::*;

/// Blocks there are.
const BLOCKS: usize = 4;
/// Names that nodes have.
const NAMES: usize = 6;
const HELD: Phase = Phase::Held(None);

#[derive(Clone, Copy, Debug)]
enum Fate {
    Answered,
    AnswerLost,
    RequestLost,
}

#[derive(Clone, Debug)]
enum Op {
    Create(usize),
    Delete(usize),
    /// The node changes without this controller.
    Touch(usize),
    /// The watch tells of so many changes.
    Tell(usize),
    /// A worker looks at the node, and its call has that fate.
    Work(usize, Fate),
    ReadRecords,
    /// An instance of the gone node holds what that had.
    Hold(usize),
    /// It does so no longer.
    EndHold(usize),
    /// Somebody else has the server release what is held.
    ReleaseHeld(usize),
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    let name = 0..NAMES;
    let fate = prop_oneof![
        3 => Just(Fate::Answered),
        1 => Just(Fate::AnswerLost),
        1 => Just(Fate::RequestLost),
    ];
    prop_oneof![
        3 => name.clone().prop_map(Op::Create),
        2 => name.clone().prop_map(Op::Delete),
        1 => name.clone().prop_map(Op::Touch),
        4 => (1..4_usize).prop_map(Op::Tell),
        6 => (name.clone(), fate).prop_map(|(name, fate)| Op::Work(name, fate)),
        2 => Just(Op::ReadRecords),
        2 => name.clone().prop_map(Op::Hold),
        1 => name.clone().prop_map(Op::EndHold),
        1 => name.clone().prop_map(Op::ReleaseHeld),
        1 => Just(Op::Restart),
    ]
}

#[derive(Debug)]
struct World {
    nodes: BTreeMap<String, NodeView>,
    records: BTreeMap<(IpNet, String), Record>,
    untold: VecDeque<(String, Option<NodeView>)>,
    writes: u64,
    sut: Allocator,
}

impl World {
    fn new() -> Self {
        Self {
            nodes: BTreeMap::new(),
            records: BTreeMap::new(),
            untold: VecDeque::new(),
            writes: 0,
            sut: Self::allocator(),
        }
    }

    fn allocator() -> Allocator {
        let flags = RangeFlags {
            cluster_cidr: "10.0.0.0/22".to_owned(),
            ..RangeFlags::default()
        };
        Allocator::new(&flags.validate().unwrap(), Duration::ZERO)
    }

    fn write(&mut self, name: &str, mut view: NodeView) {
        self.writes += 1;
        view.resource_version = self.writes.to_string();
        self.nodes.insert(name.to_owned(), view.clone());
        self.untold.push_back((name.to_owned(), Some(view)));
    }

    fn run(&mut self, op: Op) {
        let named = |index: usize| format!("n{index}");
        match op {
            Op::Create(index) => {
                if !self.nodes.contains_key(&named(index)) {
                    let view = NodeView {
                        uid: format!("u{}", self.writes),
                        ..NodeView::default()
                    };
                    self.write(&named(index), view);
                }
            }
            Op::Delete(index) => {
                if let Some(view) = self.nodes.remove(&named(index)) {
                    for record in self.records.values_mut() {
                        if record.uid == view.uid {
                            record.standing = Standing::Gone(Phase::Draining);
                        }
                    }
                    self.untold.push_back((named(index), None));
                }
            }
            Op::Touch(index) => {
                if let Some(view) = self.nodes.get(&named(index)).cloned() {
                    self.write(&named(index), view);
                }
            }
            Op::Tell(count) => {
                for (name, view) in self.untold.drain(..count.min(self.untold.len())) {
                    self.sut
                        .observe(BTreeMap::from([(name, view)]), BTreeMap::new());
                }
            }
            Op::Work(index, fate) => self.work(&named(index), fate),
            Op::ReadRecords => {
                let records = self.records.values().cloned().collect();
                self.sut.take_in(records);
            }
            Op::Hold(index) => self.held(&named(index), Phase::Draining, HELD),
            Op::EndHold(index) => self.held(&named(index), HELD, Phase::Draining),
            Op::ReleaseHeld(index) => self.records.retain(|(_, name), record| {
                *name != named(index) || record.standing != Standing::Gone(HELD)
            }),
            Op::Restart => {
                self.sut = Self::allocator();
                self.untold.clear();
                let nodes = self.nodes.iter();
                let listed = nodes.map(|(name, view)| (name.clone(), Some(view.clone())));
                self.sut.observe(listed.collect(), BTreeMap::new());
                self.run(Op::ReadRecords);
            }
        }
    }

    /// Moves the records of what gone nodes of that name had from one phase to the other.
    fn held(&mut self, name: &str, from: Phase, to: Phase) {
        for record in self.records.values_mut() {
            if record.node == name && record.standing == Standing::Gone(from) {
                record.standing = Standing::Gone(to);
            }
        }
    }

    fn work(&mut self, name: &str, fate: Fate) {
        if let Some(live) = self.nodes.get(name).cloned() {
            self.sut.reread(name, live);
        }
        let (work, _) = self.sut.work(name, Timestamp::UNIX_EPOCH);
        let sent = !matches!(fate, Fate::RequestLost);
        let answered = matches!(fate, Fate::Answered);
        for update in work.updates {
            assert_eq!(update.change, Change::Release, "nothing is foreign here");
            let key = (update.net, update.node.clone());
            let stored = self.records.get(&key).filter(|r| r.uid == update.uid);
            let stored = stored.map(|record| record.standing);
            // What is held is not released.
            if stored == Some(Standing::Gone(HELD)) {
                continue;
            }
            if let Some(standing) = stored.filter(|_| sent) {
                assert!(matches!(standing, Standing::Gone(_)), "{standing:?}");
                self.records.remove(&key);
            }
            if answered {
                self.sut.updated(&update, None);
            }
        }
        let Some(assignment) = work.assign.filter(|_| sent) else {
            return;
        };
        let fits = |view: &&mut NodeView| {
            view.uid == assignment.uid
                && view.resource_version == assignment.resource_version
                && view.pod_cidrs.is_empty()
        };
        let Some(view) = self.nodes.get_mut(name).filter(fits) else {
            return;
        };
        let mut view = view.clone();
        let cidrs = assignment.pod_cidrs.iter();
        view.pod_cidrs = cidrs.map(ToString::to_string).collect();
        for net in &assignment.pod_cidrs {
            let record = Record {
                net: *net,
                node: name.to_owned(),
                uid: view.uid.clone(),
                standing: Standing::Assigned,
            };
            let other = self.records.keys().find(|(held, _)| held == net);
            assert_eq!(other, None, "given twice: {record:?}");
            self.records.insert((*net, name.to_owned()), record);
        }
        self.write(name, view);
        if answered {
            self.sut.confirm(&assignment);
        }
    }

    /// Lets everything come to rest, with every call answered.
    fn settle(&mut self) {
        for _ in 0..10 {
            self.run(Op::Tell(usize::MAX));
            self.run(Op::ReadRecords);
            for index in 0..NAMES {
                self.run(Op::Work(index, Fate::Answered));
            }
        }
    }
}

proptest! {
    #[test]
    fn no_block_is_given_twice_and_none_is_lost(ops in prop::collection::vec(op(), 0..120)) {
        let mut world = World::new();
        for op in ops {
            world.run(op);
        }
        // What nobody had released is held until the end.
        (0..NAMES).for_each(|index| world.run(Op::EndHold(index)));
        world.settle();
        let served = world.nodes.values().filter(|view| !view.pod_cidrs.is_empty()).count();
        prop_assert_eq!(served, world.nodes.len().min(BLOCKS), "{:?}", world);
        prop_assert_eq!(world.records.len(), served, "what gone nodes had is released: {:?}", world);
    }
}
