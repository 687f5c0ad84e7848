//! The incremental judge.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use podplane_ipam::{
    addresses::NodeAddresses,
    capacity::NodeCapacity,
    invariants::{self, PodKey, Tracker, Violation},
};

use super::{HistoryCounts, HistoryFinding, HistoryRule, NodeState, PodState, StateChange};

/// Judges a history, revision by revision.
///
/// A pod may hold addresses of a node as long as all addresses that are taken there, its own
/// included, are not more than the node has. That is judged at the revision that binds the pod: a
/// node can lose addresses later, and then no binding is at fault.
#[derive(Clone, Debug, Default)]
pub struct HistoryJudge {
    tracker: Tracker,
    /// The violations of the tracker at the last revision.
    known: BTreeSet<Violation>,
    pods: BTreeMap<PodKey, PodState>,
    nodes: BTreeMap<String, NodeLedger>,
    counts: HistoryCounts,
}

/// A node and the addresses that pods hold there. The node may not exist.
#[derive(Clone, Debug, Default)]
struct NodeLedger {
    state: Option<NodeState>,
    /// The sum of the addresses that its pods hold.
    held: u64,
    /// The addresses when it was last judged.
    last: Option<NodeAddresses>,
}

/// The changes of one revision, as far as they are taken in.
#[derive(Debug)]
struct RevisionChanges {
    revision: u64,
    origin: ChangeOrigin,
    /// The nodes that changed or whose pods did, each with the pods that became holders there.
    affected: BTreeMap<String, Vec<PodState>>,
    found: Vec<HistoryFinding>,
}

/// The origin of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChangeOrigin {
    /// All changes of one revision.
    Watched,
    /// The difference to a list: the bindings in between were not seen.
    Listed,
}

impl HistoryJudge {
    /// Takes in the whole state at a revision: at the beginning, and again after revisions that
    /// were not seen. Bindings in between are not judged.
    pub fn list(
        &mut self,
        revision: u64,
        pods: Vec<PodState>,
        nodes: Vec<NodeState>,
    ) -> Vec<HistoryFinding> {
        let listed: BTreeSet<_> = pods.iter().map(|pod| &pod.key).collect();
        let gone = self.pods.keys().filter(|key| !listed.contains(key));
        let mut changes: Vec<_> = gone.cloned().map(StateChange::PodGone).collect();
        let listed: BTreeSet<_> = nodes.iter().map(|node| &node.node.name).collect();
        let known = self.nodes.iter().filter(|(_, node)| node.state.is_some());
        let gone = known.filter(|(name, _)| !listed.contains(name));
        changes.extend(gone.map(|(name, _)| StateChange::NodeGone(name.clone())));
        changes.extend(pods.into_iter().map(StateChange::Pod));
        changes.extend(nodes.into_iter().map(StateChange::Node));
        self.take_in(revision, changes, ChangeOrigin::Listed)
    }

    /// Takes in all changes of one revision. Revisions must come in order.
    pub fn apply(
        &mut self,
        revision: u64,
        changes: impl IntoIterator<Item = StateChange>,
    ) -> Vec<HistoryFinding> {
        self.counts.revisions += 1;
        self.take_in(revision, changes, ChangeOrigin::Watched)
    }

    /// The counts up to now.
    #[must_use]
    pub fn counts(&self) -> &HistoryCounts {
        &self.counts
    }

    fn take_in(
        &mut self,
        revision: u64,
        changes: impl IntoIterator<Item = StateChange>,
        origin: ChangeOrigin,
    ) -> Vec<HistoryFinding> {
        let mut at = RevisionChanges {
            revision,
            origin,
            affected: BTreeMap::new(),
            found: Vec::new(),
        };
        for change in changes {
            if origin == ChangeOrigin::Watched {
                self.counts.changes += 1;
            }
            match change {
                StateChange::Pod(pod) => self.set_pod(pod, &mut at),
                StateChange::PodGone(key) => {
                    self.tracker.remove_pod(&key);
                    if let Some(pod) = self.pods.remove(&key) {
                        self.release(&pod, &mut at);
                    }
                }
                StateChange::Node(state) => {
                    self.tracker.set_node(&state.node);
                    let name = state.node.name.clone();
                    at.affected.entry(name.clone()).or_default();
                    self.nodes.entry(name).or_default().state = Some(state);
                }
                StateChange::NodeGone(name) => {
                    self.tracker.remove_node(&name);
                    at.affected.entry(name.clone()).or_default();
                    self.nodes.entry(name).or_default().state = None;
                }
            }
        }
        for (name, holders) in std::mem::take(&mut at.affected) {
            self.judge_node(&name, &holders, &mut at);
        }
        self.compare_violations(&mut at);
        for finding in &at.found {
            *self.counts.findings.entry(finding.code).or_default() += 1;
        }
        at.found
    }

    fn set_pod(&mut self, pod: PodState, at: &mut RevisionChanges) {
        self.tracker.set_pod(&tracked(&pod));
        let before = self.pods.insert(pod.key.clone(), pod.clone());
        if let Some(before) = &before {
            self.release(before, at);
        }
        let Some(node) = &pod.node else { return };
        let ledger = self.nodes.entry(node.clone()).or_default();
        ledger.held = ledger.held.saturating_add(pod.held);
        at.affected.entry(node.clone()).or_default();
        // A pod with another UID is another pod.
        let node_before = before
            .filter(|before| before.uid == pod.uid)
            .and_then(|before| before.node);
        if let Some(other) = node_before {
            if other == *node {
                return;
            }
            let message = format!("pod {} was on node {other} and is on node {node}", pod.key);
            let objects = vec![pod_name(&pod), node_name(&other), node_name(node)];
            at.find(HistoryRule::PodRebound, objects, message, None);
        }
        if at.origin == ChangeOrigin::Listed {
            return;
        }
        let binds = &mut self.counts.binds;
        let count = match (pod.is_mirror, pod.held) {
            (true, _) => &mut binds.mirror,
            (false, 0) => &mut binds.without_address,
            (false, _) => &mut binds.with_address,
        };
        *count += 1;
        if pod.held > 0 {
            let holders = at.affected.entry(node.clone()).or_default();
            holders.push(pod.clone());
        }
    }

    /// Takes the addresses of a pod off those that are held on its node.
    fn release(&mut self, pod: &PodState, at: &mut RevisionChanges) {
        if let Some(node) = &pod.node {
            at.affected.entry(node.clone()).or_default();
            if let Some(ledger) = self.nodes.get_mut(node) {
                ledger.held = ledger.held.saturating_sub(pod.held);
            }
        }
    }

    /// Judges a node that changed, or whose pods did. `holders` are the pods that were bound to it.
    fn judge_node(&mut self, name: &str, holders: &[PodState], at: &mut RevisionChanges) {
        let Some(ledger) = self.nodes.get_mut(name) else {
            return;
        };
        let (mirrors, bound): (Vec<_>, Vec<_>) = holders.iter().partition(|pod| pod.is_mirror);
        let objects = |pods: &[&PodState]| {
            let pods = pods.iter().map(|pod| pod_name(pod));
            [node_name(name)].into_iter().chain(pods).collect()
        };
        let Some(state) = &ledger.state else {
            ledger.last = None;
            if ledger.held == 0 {
                self.nodes.remove(name);
            }
            if !bound.is_empty() {
                let message = format!(
                    "node {name} does not exist, at the bind of {}",
                    Keys(&bound)
                );
                at.find(HistoryRule::MissingNode, objects(&bound), message, None);
            }
            return;
        };
        let now = state.addresses(ledger.held);
        let before = ledger.last.replace(now);
        let taken = Taken(name, &now);
        if !is_over(&now) {
            if !bound.is_empty() && now.free() == 0 {
                self.counts.binds.of_last_address += 1;
            }
        } else if !bound.is_empty() {
            let message = format!("{taken}, by the bind of {}", Keys(&bound));
            let objects = objects(&bound);
            at.find(HistoryRule::BindOverCapacity, objects, message, Some(now));
        } else if !awaits_block(&now) && before.is_none_or(|it| !is_over(&it) || awaits_block(&it))
        {
            let cause = cause(before, now, &mirrors, at.origin);
            let message = format!("{taken}, {cause}");
            let objects = objects(&mirrors);
            at.find(HistoryRule::NodeOverCapacity, objects, message, Some(now));
        }
    }

    /// Reports the duplicate addresses and overlapping blocks that the last revision did not have.
    fn compare_violations(&mut self, at: &mut RevisionChanges) {
        let now = self.tracker.violations();
        if *now == self.known {
            return;
        }
        for violation in now.difference(&self.known) {
            let (rule, objects) = match violation {
                Violation::DuplicateAddress { pods, .. } => {
                    if self.known.iter().any(|known| is_rest(violation, known)) {
                        continue;
                    }
                    let objects = pods.iter().map(|pod| format!("Pod/{pod}"));
                    (HistoryRule::DuplicatePodIp, objects.collect())
                }
                Violation::OverlappingBlocks { wide, narrow } => {
                    let objects = vec![node_name(&wide.0), node_name(&narrow.0)];
                    (HistoryRule::OverlappingPodCidr, objects)
                }
                // The tracker has no others.
                _ => continue,
            };
            at.find(rule, objects, violation.to_string(), None);
        }
        self.known = now.clone();
    }
}

impl RevisionChanges {
    fn find(
        &mut self,
        code: HistoryRule,
        objects: Vec<String>,
        message: String,
        addresses: Option<NodeAddresses>,
    ) {
        self.found.push(HistoryFinding {
            code,
            severity: code.severity(),
            revision: self.revision,
            objects,
            message,
            addresses: addresses.map(Into::into),
        });
    }
}

/// Returns true if the pods of a duplicate address are some of those of a known one: the others
/// have released it.
fn is_rest(new: &Violation, known: &Violation) -> bool {
    use Violation::DuplicateAddress;
    match (new, known) {
        (
            DuplicateAddress { ip, pods },
            DuplicateAddress {
                ip: same,
                pods: all,
            },
        ) => ip == same && pods.iter().all(|pod| all.contains(pod)),
        _ => false,
    }
}

/// More addresses are taken than the node has. A node that waits for its block has none.
fn is_over(addresses: &NodeAddresses) -> bool {
    addresses.taken() > addresses.capacity.count()
}

/// Returns true if the node waits for its block, as the pods do that were bound to it by name.
fn awaits_block(addresses: &NodeAddresses) -> bool {
    addresses.capacity == NodeCapacity::AwaitsBlock
}

/// The reason why a node is over its capacity although no pod was bound to it.
fn cause(
    before: Option<NodeAddresses>,
    now: NodeAddresses,
    mirrors: &[&PodState],
    origin: ChangeOrigin,
) -> String {
    match before {
        _ if origin == ChangeOrigin::Listed => "by a revision that was not read".into(),
        _ if !mirrors.is_empty() => format!("by the mirror pods {}", Keys(mirrors)),
        None => "as it was created".into(),
        Some(before) if awaits_block(&before) => "as it got its podCIDR".into(),
        Some(before) if before.capacity.count() > now.capacity.count() => {
            format!("as its capacity fell from {}", before.capacity.count())
        }
        Some(before) if before.orphaned < now.orphaned => {
            format!("as orphaned ones grew from {}", before.orphaned)
        }
        Some(before) => format!("as those of its pods grew from {}", before.held),
    }
}

/// The pod as the tracker needs it: its addresses count only while it holds them.
fn tracked(pod: &PodState) -> invariants::Pod {
    invariants::Pod {
        namespace: pod.key.namespace.clone(),
        name: pod.key.name.clone(),
        uid: pod.uid.clone(),
        node: pod.node.clone(),
        host_network: false,
        released: pod.held == 0,
        deleting: false,
        ips: pod.ips.clone(),
    }
}

fn node_name(name: &str) -> String {
    format!("Node/{name}")
}

fn pod_name(pod: &PodState) -> String {
    format!("Pod/{}", pod.key)
}

/// "node n: 6 of 5 IPs taken: 6 pods, 0 orphaned"
struct Taken<'a>(&'a str, &'a NodeAddresses);

impl fmt::Display for Taken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(name, addresses) = self;
        let NodeCapacity::Pods { count, .. } = addresses.capacity else {
            return write!(f, "node {name}: {addresses}");
        };
        let (taken, held, orphaned) = (addresses.taken(), addresses.held, addresses.orphaned);
        let ips = if count == 1 { "IP" } else { "IPs" };
        let pods = if held == 1 { "pod" } else { "pods" };
        write!(
            f,
            "node {name}: {taken} of {count} {ips} taken: {held} {pods}, {orphaned} orphaned"
        )
    }
}

/// The names of pods, separated by commas.
struct Keys<'a>(&'a [&'a PodState]);

impl fmt::Display for Keys<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, pod) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{}", pod.key)?;
        }
        Ok(())
    }
}
