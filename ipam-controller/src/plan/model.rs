//! Random histories against a server that checks only the UID and revision of a node, and that
//! loses requests and answers: no two nodes ever share an address, none gets a block that a deleted
//! node still has, and in the end every node has a block, as far as there are blocks.

use std::collections::VecDeque;

use podplane_api::jiff::Timestamp;
use podplane_ipam::RangeFlags;
use proptest::prelude::{Just, Strategy, prop, prop_assert_eq, prop_oneof, proptest};

use super::*;

/// The number of blocks.
const BLOCKS: usize = 4;
/// The number of node names.
const NAMES: usize = 6;
const HELD: ReleasePhase = ReleasePhase::Held(None);

#[derive(Clone, Copy, Debug)]
enum CallResult {
    Answered,
    AnswerLost,
    RequestLost,
}

#[derive(Clone, Debug)]
enum ModelAction {
    Create(usize),
    Delete(usize),
    /// Another client changes the node.
    Touch(usize),
    /// The watch delivers this many changes.
    Tell(usize),
    /// A worker reconciles the node, and its call has this outcome.
    NodeWork(usize, CallResult),
    ReadRecords,
    /// The blocks of the deleted node are held.
    Hold(usize),
    /// The hold ends.
    EndHold(usize),
    /// An operator has the server release the held blocks.
    ReleaseHeld(usize),
    Restart,
}

fn op() -> impl Strategy<Value = ModelAction> {
    let name = 0..NAMES;
    let fate = prop_oneof![
        3 => Just(CallResult::Answered),
        1 => Just(CallResult::AnswerLost),
        1 => Just(CallResult::RequestLost),
    ];
    prop_oneof![
        3 => name.clone().prop_map(ModelAction::Create),
        2 => name.clone().prop_map(ModelAction::Delete),
        1 => name.clone().prop_map(ModelAction::Touch),
        4 => (1..4_usize).prop_map(ModelAction::Tell),
        6 => (name.clone(), fate).prop_map(|(name, fate)| ModelAction::NodeWork(name, fate)),
        2 => Just(ModelAction::ReadRecords),
        2 => name.clone().prop_map(ModelAction::Hold),
        1 => name.clone().prop_map(ModelAction::EndHold),
        1 => name.clone().prop_map(ModelAction::ReleaseHeld),
        1 => Just(ModelAction::Restart),
    ]
}

#[derive(Debug)]
struct PlanModel {
    nodes: BTreeMap<String, NodeView>,
    records: BTreeMap<(IpNet, String), BlockRecord>,
    untold: VecDeque<(String, Option<NodeView>)>,
    writes: u64,
    sut: Allocator,
}

impl PlanModel {
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

    fn run(&mut self, op: ModelAction) {
        let named = |index: usize| format!("n{index}");
        match op {
            ModelAction::Create(index) => {
                if !self.nodes.contains_key(&named(index)) {
                    let view = NodeView {
                        uid: format!("u{}", self.writes),
                        ..NodeView::default()
                    };
                    self.write(&named(index), view);
                }
            }
            ModelAction::Delete(index) => {
                if let Some(view) = self.nodes.remove(&named(index)) {
                    for record in self.records.values_mut() {
                        if record.uid == view.uid {
                            record.status = RecordStatus::Deleted(ReleasePhase::Draining);
                        }
                    }
                    self.untold.push_back((named(index), None));
                }
            }
            ModelAction::Touch(index) => {
                if let Some(view) = self.nodes.get(&named(index)).cloned() {
                    self.write(&named(index), view);
                }
            }
            ModelAction::Tell(count) => {
                for (name, view) in self.untold.drain(..count.min(self.untold.len())) {
                    self.sut
                        .observe(BTreeMap::from([(name, view)]), BTreeMap::new());
                }
            }
            ModelAction::NodeWork(index, fate) => self.work(&named(index), fate),
            ModelAction::ReadRecords => {
                let records = self.records.values().cloned().collect();
                self.sut.apply_records(records);
            }
            ModelAction::Hold(index) => self.move_held(&named(index), ReleasePhase::Draining, HELD),
            ModelAction::EndHold(index) => {
                self.move_held(&named(index), HELD, ReleasePhase::Draining)
            }
            ModelAction::ReleaseHeld(index) => self.records.retain(|(_, name), record| {
                *name != named(index) || record.status != RecordStatus::Deleted(HELD)
            }),
            ModelAction::Restart => {
                self.sut = Self::allocator();
                self.untold.clear();
                let nodes = self.nodes.iter();
                let listed = nodes.map(|(name, view)| (name.clone(), Some(view.clone())));
                self.sut.observe(listed.collect(), BTreeMap::new());
                self.run(ModelAction::ReadRecords);
            }
        }
    }

    /// Moves the records of deleted nodes of that name from one phase to another.
    fn move_held(&mut self, name: &str, from: ReleasePhase, to: ReleasePhase) {
        for record in self.records.values_mut() {
            if record.node == name && record.status == RecordStatus::Deleted(from) {
                record.status = RecordStatus::Deleted(to);
            }
        }
    }

    fn work(&mut self, name: &str, fate: CallResult) {
        if let Some(live) = self.nodes.get(name).cloned() {
            self.sut.reread(name, live);
        }
        let (work, _) = self.sut.work(name, Timestamp::UNIX_EPOCH);
        let sent = !matches!(fate, CallResult::RequestLost);
        let answered = matches!(fate, CallResult::Answered);
        for update in work.updates {
            assert_eq!(
                update.change,
                BlockChange::Release,
                "nothing is foreign here"
            );
            let key = (update.net, update.node.clone());
            let stored = self.records.get(&key).filter(|r| r.uid == update.uid);
            let stored = stored.map(|record| record.status);
            // A held block is not released.
            if stored == Some(RecordStatus::Deleted(HELD)) {
                continue;
            }
            if let Some(status) = stored.filter(|_| sent) {
                assert!(matches!(status, RecordStatus::Deleted(_)), "{status:?}");
                self.records.remove(&key);
            }
            if answered {
                self.sut.record_updated(&update, None);
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
            let record = BlockRecord {
                net: *net,
                node: name.to_owned(),
                uid: view.uid.clone(),
                status: RecordStatus::Assigned,
            };
            let other = self.records.keys().find(|(held, _)| held == net);
            assert_eq!(other, None, "given twice: {record:?}");
            self.records.insert((*net, name.to_owned()), record);
        }
        self.write(name, view);
        if answered {
            self.sut.assignment_confirmed(&assignment);
        }
    }

    /// Runs until nothing changes, with every call answered.
    fn settle(&mut self) {
        for _ in 0..10 {
            self.run(ModelAction::Tell(usize::MAX));
            self.run(ModelAction::ReadRecords);
            for index in 0..NAMES {
                self.run(ModelAction::NodeWork(index, CallResult::Answered));
            }
        }
    }
}

proptest! {
    #[test]
    fn assigns_no_block_twice_and_loses_none(ops in prop::collection::vec(op(), 0..120)) {
        let mut model = PlanModel::new();
        for op in ops {
            model.run(op);
        }
        // Holds that no operator ended last until here.
        (0..NAMES).for_each(|index| model.run(ModelAction::EndHold(index)));
        model.settle();
        let served = model.nodes.values().filter(|view| !view.pod_cidrs.is_empty()).count();
        prop_assert_eq!(served, model.nodes.len().min(BLOCKS), "{:?}", model);
        prop_assert_eq!(model.records.len(), served, "what gone nodes had is released: {:?}", model);
    }
}
