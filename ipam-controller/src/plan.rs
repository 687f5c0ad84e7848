//! What the allocator decides: which node gets which block, which block is free again, and what is wrong.
//!
//! Pure: it is told what changed and says whom to look at; asked about one of those, it answers with the calls to make; and it is told how they ended.
//! A block that was planned for a node stays that node's until the node is known to be gone, whatever became of the call that assigns it. So an answer that
//! never arrived cannot free a block that the server gave away. And then it drains: it is free only when no live pod has an address of it and the server
//! has taken its record out of the store.

mod former;
#[cfg(test)]
mod model;
mod occupancy;
mod sets;
#[cfg(test)]
mod tests;
mod waiting;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use podplane_api::ObjectKey;
use podplane_ipam::{Adoption, Claim, NodeBlocks, Owner, RangeConfig, parse_cidr};

use former::Formers;
pub use former::Phase;
use occupancy::Occupancy;
pub use occupancy::PodView;
pub use sets::SetView;
use sets::Sets;
use waiting::Waiting;
pub use work::{
    Assignment, Change, Foreign, Outcome, Problem, Record, Remains, Standing, Starved, Update,
    Verdict, Work,
};

/// What of a Node object matters here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`; an assignment is guarded by it.
    pub resource_version: String,
    /// `spec.podCIDRs`, as it is written there.
    pub pod_cidrs: Vec<String>,
    /// `metadata.labels`; ClusterCIDRs may select it by them.
    pub labels: BTreeMap<String, String>,
    /// It has a deletion timestamp: it keeps what it has and is given nothing.
    pub deleting: bool,
    /// The message of its condition that says that its blocks are foreign, if it has that.
    pub condition: Option<String>,
}

/// What may be in use no longer.
#[derive(Debug, Default)]
struct Left {
    addresses: Vec<IpAddr>,
    nodes: BTreeSet<String>,
}

/// The allocator's memory: who holds what, and how far each node is.
#[derive(Debug)]
pub struct Allocator {
    blocks: NodeBlocks,
    sets: Sets,
    /// Without a range nothing is given and nothing is judged; blocks are only known, and those of gone nodes released.
    allocates: bool,
    release_delay: Duration,
    nodes: BTreeMap<String, Known>,
    waiting: Waiting,
    formers: Formers,
    occupancy: Occupancy,
}

#[derive(Debug)]
struct Known {
    uid: String,
    resource_version: String,
    labels: BTreeMap<String, String>,
    deleting: bool,
    state: State,
    /// What is wrong with its blocks.
    problems: Vec<Problem>,
    /// What the records of its blocks say, where that is known.
    recorded: BTreeMap<IpNet, Standing>,
    /// The message of its condition.
    condition: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// Has no block.
    Bare,
    /// Blocks are set aside for it. The server may or may not have written them.
    Reserved(Vec<IpNet>),
    /// The node has these, as it writes them. They can never change while it lives.
    Assigned(Vec<String>),
}

impl Allocator {
    /// Nothing is known yet but the configuration. Before anything is given, [`Allocator::take_in`] must bring the records and [`Allocator::observe`] all nodes and
    /// pods. Blocks of gone nodes are kept back for `release_delay` after their last use.
    #[must_use]
    pub fn new(config: &RangeConfig, release_delay: Duration) -> Self {
        Self {
            blocks: NodeBlocks::new(config),
            sets: Sets::default(),
            allocates: !config.ranges.is_empty(),
            release_delay,
            nodes: BTreeMap::new(),
            waiting: Waiting::default(),
            formers: Formers::default(),
            occupancy: Occupancy::default(),
        }
    }

    /// The same without a range: those come with [`Allocator::observe_sets`].
    #[must_use]
    pub fn without_sets(service_ranges: &[IpNet], release_delay: Duration) -> Self {
        Self {
            blocks: NodeBlocks::without_sets(service_ranges),
            allocates: true,
            ..Self::new(&RangeConfig::none(), release_delay)
        }
    }

    /// Who holds what.
    #[must_use]
    pub fn blocks(&self) -> &NodeBlocks {
        &self.blocks
    }

    /// The blocks of gone nodes, with the name of the node.
    pub fn formers(&self) -> impl Iterator<Item = (&str, IpNet, Phase)> {
        self.formers.iter()
    }

    /// How far a block of a gone node is on its way back.
    #[must_use]
    pub fn phase(&self, owner: &Owner, net: IpNet) -> Option<Phase> {
        self.formers.phase(owner.name(), owner.uid(), net)
    }

    /// Names of nodes that should have a block and have none.
    pub fn without_blocks(&self) -> impl Iterator<Item = &str> {
        let wanting = self
            .nodes
            .iter()
            .filter(|(_, known)| self.allocates && !matches!(known.state, State::Assigned(_)));
        wanting.map(|(name, _)| name.as_str())
    }

    /// Name and UID of the nodes for which there was no block, those that wait longest first.
    pub fn waiting(&self) -> impl Iterator<Item = (&str, &str)> {
        let known = |name| self.nodes.get(name).map(|known| (name, known.uid.as_str()));
        self.waiting.names().filter_map(known)
    }

    /// Names of nodes with what is wrong with their blocks.
    pub fn problems(&self) -> impl Iterator<Item = (&str, &Problem)> {
        self.nodes.iter().flat_map(|(name, known)| {
            known
                .problems
                .iter()
                .map(move |problem| (name.as_str(), problem))
        })
    }

    /// Whether a node waits for a block that sandboxes of a gone node still hold, as far as is known.
    #[must_use]
    pub fn is_pressed(&self) -> bool {
        !self.waiting.is_empty() && self.formers.any_held()
    }

    /// The blocks of gone nodes that instances of them hold.
    pub fn held(&self) -> impl Iterator<Item = Remains> {
        self.formers.held()
    }

    /// Takes in what changed, nodes by name; `None` is a node that does not exist, or a pod that is not a live one. Blocks of gone
    /// nodes drain first, then blocks found in nodes are recorded, then pods, and only then is it judged what is in use no longer.
    pub fn observe(
        &mut self,
        nodes: BTreeMap<String, Option<NodeView>>,
        pods: BTreeMap<ObjectKey, Option<PodView>>,
    ) -> Outcome {
        let mut out = Outcome::default();
        let mut left = Left::default();
        for (name, view) in &nodes {
            self.forget_unless(name, view.as_ref(), &mut out);
        }
        for (name, view) in nodes {
            if let Some(view) = view {
                self.take_node(&name, view, &mut out);
            }
            left.nodes.insert(name);
        }
        for (key, pod) in pods {
            self.pod_changed(key, pod, &mut left, &mut out);
        }
        self.unused(left, &mut out);
        self.wake(&mut out);
        self.empty_sets(&mut out);
        out
    }

    /// Takes in what the server says of a node whose assignment did not come through.
    ///
    /// Such a read is ahead of the changes that [`Allocator::observe`] takes, so it must not say which nodes exist: a later, older
    /// change would undo it, and free what a live node has. Nothing is returned, and nothing taken in, if it is not the node that is known.
    pub fn reread(&mut self, name: &str, live: NodeView) -> Option<Outcome> {
        self.nodes.get(name).filter(|known| known.uid == live.uid)?;
        let mut out = Outcome::default();
        self.take_node(name, live, &mut out);
        // Whoever asked looks at it now.
        out.look.retain(|looked| looked != name);
        Some(out)
    }

    /// Takes in the records of the store, all of them: blocks of nodes that are gone are used until
    /// they are released, and what the records of live nodes say is known. Records of nodes that
    /// are not known yet are left to the watch.
    pub fn take_in(&mut self, records: Vec<Record>) -> Outcome {
        let mut out = Outcome::default();
        let stored = records.iter().map(|record| (&*record.uid, record.net));
        let stored = stored.collect();
        out.look.extend(self.formers.end_holds_without(&stored));
        for record in records {
            let Record {
                net,
                node,
                uid,
                standing,
            } = record;
            match standing {
                Standing::Gone(phase) => {
                    if self.nodes.get(&node).is_some_and(|known| known.uid == uid) {
                        // The watch has not told yet that it is gone.
                        continue;
                    }
                    let before = self.formers.learn(&node, &uid, net, phase);
                    if before.is_none() {
                        self.blocks.adopt(&Owner::new(&uid, &node), net);
                        self.blocks.drain(&uid);
                    }
                    let is_held = |phase: &Phase| matches!(phase, Phase::Held(_));
                    if is_held(&phase) && !before.as_ref().is_some_and(is_held) {
                        out.held.push(Remains {
                            node: node.clone(),
                            uid,
                            pod_cidrs: vec![net],
                        });
                    }
                    out.look.push(node);
                }
                Standing::Assigned | Standing::Foreign => {
                    if let Some(known) = self.nodes.get_mut(&node)
                        && known.uid == uid
                    {
                        known.recorded.insert(net, standing);
                        if self.allocates && known.wants_marks() {
                            out.look.push(node);
                        }
                    }
                }
            }
        }
        out
    }

    /// The server has written the blocks that were planned for the node of this UID.
    pub fn confirm(&mut self, assignment: &Assignment) {
        if let Some(known) = self.nodes.get_mut(&assignment.node)
            && known.uid == assignment.uid
        {
            let texts = assignment.pod_cidrs.iter().map(ToString::to_string);
            known.state = State::Assigned(texts.collect());
            let recorded = assignment.pod_cidrs.iter();
            known.recorded = recorded.map(|net| (*net, Standing::Assigned)).collect();
        }
    }

    /// The server refuses the blocks that were planned for the node of this UID: something is there that is not known here, or not yet. They are
    /// given up, and the next look gives others. A call that was never answered cannot bring them back beside those: the node takes
    /// blocks once, and the server compares them with what is there then.
    pub fn refused(&mut self, assignment: &Assignment) {
        if let Some(known) = self.nodes.get_mut(&assignment.node)
            && known.uid == assignment.uid
            && known.state == State::Reserved(assignment.pod_cidrs.clone())
        {
            self.blocks.release(&known.uid);
            known.state = State::Bare;
        }
    }

    /// The server has carried out the update.
    pub fn updated(&mut self, update: &Update, record: Option<Record>) -> Outcome {
        let mut out = Outcome::default();
        let Update {
            net,
            node,
            uid,
            change,
        } = update;
        match change {
            Change::Mark(standing) => {
                if let Some(known) = self.nodes.get_mut(node)
                    && known.uid == *uid
                {
                    known.recorded.insert(*net, *standing);
                }
            }
            Change::Quarantine(_) if record.is_some() => {
                if let Some(Record {
                    standing: Standing::Gone(phase),
                    ..
                }) = record
                {
                    self.formers.learn(node, uid, *net, phase);
                    out.look.push(node.clone());
                }
            }
            // It was not there to be quarantined.
            Change::Quarantine(_) | Change::Release => self.gone(node, uid, *net, &mut out),
        }
        self.wake(&mut out);
        self.empty_sets(&mut out);
        out
    }

    /// The node's condition says this now.
    pub fn conditioned(&mut self, node: &str, uid: &str, verdict: Option<&Verdict>) {
        if let Some(known) = self.nodes.get_mut(node)
            && known.uid == uid
        {
            known.condition = verdict.map(|verdict| verdict.message.clone());
        }
    }

    fn forget_unless(&mut self, name: &str, view: Option<&NodeView>, out: &mut Outcome) {
        let same = |known: &Known| view.is_some_and(|view| view.uid == known.uid);
        if self.nodes.get(name).is_none_or(same) {
            return;
        }
        self.waiting.remove(name);
        if let Some(known) = self.nodes.remove(name) {
            let pod_cidrs = self.blocks.drain(&known.uid);
            if !pod_cidrs.is_empty() {
                self.formers.add(name, &known.uid, &pod_cidrs);
                out.draining.push(Remains {
                    node: name.to_owned(),
                    uid: known.uid,
                    pod_cidrs,
                });
            }
        }
    }

    /// Takes in a node that exists, and says whether there is something to do for it.
    fn take_node(&mut self, name: &str, view: NodeView, out: &mut Outcome) {
        let known = self
            .nodes
            .entry(name.to_owned())
            .or_insert_with(|| Known::new(&view.uid));
        known.resource_version = view.resource_version;
        known.deleting = view.deleting;
        if known.labels != view.labels {
            known.labels = view.labels;
            if self.sets.select() {
                // There may be one for it now.
                self.waiting.remove(name);
            }
        }
        known.condition = view.condition;
        // Blocks are never taken out of a spec, so a view without those that were written is an old one.
        if !view.pod_cidrs.is_empty() && known.state != State::Assigned(view.pod_cidrs.clone()) {
            known.state = State::Assigned(view.pod_cidrs);
            // What was set aside for it is not what it has; and only now is it certain that it never will have it.
            let uid = known.uid.clone();
            let before = self.blocks.release(&uid);
            self.waiting.remove(name);
            self.adopt(name, out);
            if !before.is_empty() && before != self.blocks.held_by(&uid) {
                self.freed(&before, out);
            }
        }
        if self.has_work(name) {
            out.look.push(name.to_owned());
        }
    }

    /// Records the blocks that the node has, and judges them.
    fn adopt(&mut self, name: &str, out: &mut Outcome) {
        let Some(Known {
            uid,
            state: State::Assigned(pod_cidrs),
            problems,
            labels,
            ..
        }) = self.nodes.get_mut(name)
        else {
            return;
        };
        let owner = Owner::new(uid, name);
        let before = std::mem::take(problems);
        let mut nets = Vec::new();
        for text in pod_cidrs {
            match parse_cidr(text) {
                Ok(net) => nets.push(net.trunc()),
                Err(invalid) => problems.push(Problem::Unreadable(invalid)),
            }
        }
        let matched = self.sets.matched(name, labels);
        let adopted = self.blocks.adopt_from(&owner, &nets, matched);
        for (net, adoption) in nets.into_iter().zip(adopted) {
            if let Adoption::Foreign(misfit) = adoption {
                problems.push(Problem::Misfit { net, misfit });
            }
        }
        if !self.allocates {
            problems.clear();
        }
        let told = problems.iter().filter(|problem| !before.contains(problem));
        out.foreign.extend(told.map(|problem| Foreign {
            node: name.to_owned(),
            uid: uid.clone(),
            problem: problem.clone(),
        }));
        if problems.is_empty() && !before.is_empty() {
            out.fits.push((name.to_owned(), uid.clone()));
        }
    }

    fn pod_changed(
        &mut self,
        key: ObjectKey,
        pod: Option<PodView>,
        left: &mut Left,
        out: &mut Outcome,
    ) {
        // Its node may have been gone before this process began, and its block with it.
        for address in pod.iter().flat_map(|pod| &pod.addresses) {
            if let Some(net) = self.blocks.hold(*address) {
                out.draining.push(Remains::unknown(net));
            }
        }
        if let Some(old) = self.occupancy.update(key, pod) {
            left.addresses.extend(old.addresses);
            left.nodes.insert(old.node);
        }
    }

    /// Frees what was held for pods only, and has a look at the gone nodes whose blocks nobody uses any more.
    fn unused(&mut self, left: Left, out: &mut Outcome) {
        let mut former = left.nodes;
        for address in left.addresses {
            for block in self.blocks.holders(address) {
                match block.claim {
                    Claim::Draining(Some(owner)) => {
                        former.insert(owner.name().to_owned());
                    }
                    Claim::Draining(None) if !self.occupancy.any_in(&block.net) => {
                        self.blocks.unhold(block.net);
                        let held = Remains::unknown(block.net);
                        out.draining.retain(|remains| *remains != held);
                        out.released.push(held);
                        self.freed(&[block.net], out);
                    }
                    _ => {}
                }
            }
        }
        let due = former.into_iter().filter(|name| self.has_leftovers(name));
        out.look.extend(due.collect::<Vec<_>>());
    }

    /// The record of a gone node's block is out of the store.
    fn gone(&mut self, name: &str, uid: &str, net: IpNet, out: &mut Outcome) {
        if self.formers.remove(name, uid, net) {
            let pod_cidrs = self.blocks.release(uid);
            self.freed(&pod_cidrs, out);
            out.draining.retain(|remains| remains.uid != uid);
            out.released.push(Remains {
                node: name.to_owned(),
                uid: uid.to_owned(),
                pod_cidrs,
            });
        }
    }

    /// Something is free that was not: whoever waits may be served, and what overlapped it may fit.
    fn freed(&mut self, nets: &[IpNet], out: &mut Outcome) {
        self.waiting.freed();
        let foreign: BTreeSet<String> = nets
            .iter()
            .flat_map(|net| self.blocks.overlapping(*net))
            .filter_map(|block| match block.claim {
                Claim::Foreign(owner) => Some(owner.name().to_owned()),
                _ => None,
            })
            .collect();
        for name in foreign {
            self.adopt(&name, out);
            if self.has_work(&name) {
                out.look.push(name);
            }
        }
    }

    fn wake(&mut self, out: &mut Outcome) {
        let free = self.blocks.usage().map(|usage| usage.free).sum();
        out.look.extend(self.waiting.wake(free));
    }
}

impl Known {
    fn new(uid: &str) -> Self {
        Self {
            uid: uid.to_owned(),
            resource_version: String::new(),
            labels: BTreeMap::new(),
            deleting: false,
            state: State::Bare,
            problems: Vec::new(),
            recorded: BTreeMap::new(),
            condition: None,
        }
    }
}
