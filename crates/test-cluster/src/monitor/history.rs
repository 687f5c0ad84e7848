//! The events of watches, folded into the violations of invariants, with the revisions at which
//! they began and ended.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use podplane_api::{
    Object, ObjectKey,
    core::{Node, Pod},
    jiff::Timestamp,
};
use podplane_client::{ObjectEvent, ObjectList, WatcherEvent};
use podplane_ipam::invariants::{PodKey, Tracker, Violation};

use crate::{
    Result,
    pods::{node, phase},
    world::{self, PodLimit},
};

#[cfg(test)]
mod tests;

/// A revision, and the time at which this process saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedRevision {
    /// The revision.
    pub revision: String,
    /// The time at which it was seen, a little after it was written.
    pub at: Timestamp,
}

/// A violation of an invariant, from one revision to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViolationSpan {
    /// The number of the history's spans that had begun before this one.
    pub ordinal: usize,
    /// The violation.
    pub violation: Violation,
    /// The first revision with the violation.
    pub from: ObservedRevision,
    /// The first later revision without the violation; `None` if it lasts.
    pub to: Option<ObservedRevision>,
    /// The pods with the violation, as they were at the first revision.
    pub pods: Vec<String>,
}

impl fmt::Display for ViolationSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            violation,
            from,
            to,
            pods,
            ordinal: _,
        } = self;
        write!(
            f,
            "{violation}: from revision {} at {}",
            from.revision, from.at
        )?;
        match to {
            Some(to) => {
                let held = to.at.duration_since(from.at);
                write!(f, " to revision {}, {held:#}", to.revision)?;
            }
            None => write!(f, " on")?,
        }
        pods.iter().try_for_each(|pod| write!(f, "\n    {pod}"))
    }
}

/// Revisions of a kind that were not seen, because they had expired when the watch resumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchGap {
    /// The kind of object.
    pub kind: &'static str,
    /// The first revision that was seen again.
    pub until: ObservedRevision,
}

/// The revisions and keys of lists of pods and nodes, to compare a history with.
#[derive(Clone, Debug, Default)]
pub struct ListedRevisions(pub(super) Vec<ListedKind>);

/// The revisions and keys in a list of one kind.
#[derive(Clone, Debug)]
pub(super) struct ListedKind {
    kind: &'static str,
    /// The revision of the list.
    at: u64,
    /// The newest revision of an object in it.
    newest: u64,
    keys: BTreeSet<ObjectKey>,
    /// Returns the keys that a history has.
    known: fn(&Tracker) -> Vec<ObjectKey>,
}

impl ListedKind {
    pub(super) fn new<K: Watchable>(list: &ObjectList<K>) -> Result<Self> {
        let number = |revision: &str| world::parse::<u64>("a resource version", revision);
        let mut newest = 0;
        for item in &list.items {
            newest = number(item.resource_version())?.max(newest);
        }
        Ok(Self {
            kind: K::KIND,
            at: number(&list.resource_version)?,
            newest,
            keys: list.items.iter().map(Object::key).collect(),
            known: K::known,
        })
    }
}

/// The history of a pod, which is kept when the pod is gone.
#[derive(Debug, Default)]
struct PodTrail {
    /// The node that it was bound to first.
    node: String,
    ran: bool,
    gone: bool,
}

/// Everything that the watches have seen.
#[derive(Debug, Default)]
pub struct RevisionHistory {
    tracker: Tracker,
    /// The present pods: UID and summary.
    pods: BTreeMap<PodKey, (String, String)>,
    /// The history of every pod, by UID.
    lives: BTreeMap<String, PodTrail>,
    open: BTreeMap<Violation, ViolationSpan>,
    closed: Vec<ViolationSpan>,
    gaps: Vec<WatchGap>,
    problems: Vec<(Timestamp, String)>,
    /// The revision up to which each kind has been seen. Kinds that were not listed yet are
    /// missing.
    seen: BTreeMap<&'static str, u64>,
    revisions: u64,
    /// The number of violations that have begun.
    begun: usize,
}

impl RevisionHistory {
    /// All violations up to now: those that have ended in the order of their ends, then those that
    /// last.
    pub fn breaches(&self) -> impl Iterator<Item = &ViolationSpan> {
        self.closed.iter().chain(self.open.values())
    }

    /// The number of violations that have begun, which is the ordinal of the next one.
    #[must_use]
    pub fn begun(&self) -> usize {
        self.begun
    }

    /// Returns true if everything in these lists, and every earlier revision, has been seen.
    ///
    /// The revision of a list may belong to an object of another kind, which this watch never sees.
    /// It is enough to have seen everything in the list, and the deletion of everything that is not
    /// in it. The only exception is an object that was created and deleted after both: it is not
    /// awaited.
    #[must_use]
    pub fn has_reached(&self, listed: &ListedRevisions) -> bool {
        listed.0.iter().all(|list| {
            let Some(seen) = self.seen.get(list.kind) else {
                return false;
            };
            let is_listed = |key: &ObjectKey| list.keys.contains(key);
            *seen >= list.at
                || *seen >= list.newest && (list.known)(&self.tracker).iter().all(is_listed)
        })
    }

    /// The revisions that expired unseen.
    #[must_use]
    pub fn gaps(&self) -> &[WatchGap] {
        &self.gaps
    }

    /// Problems with single objects: one that cannot be parsed, a pod that was bound twice, a pod
    /// that exists again after it was deleted.
    #[must_use]
    pub fn problems(&self) -> &[(Timestamp, String)] {
        &self.problems
    }

    /// The number of revisions that were checked.
    #[must_use]
    pub fn revisions(&self) -> u64 {
        self.revisions
    }

    /// The number of pods that were Running at some revision.
    #[must_use]
    pub fn ran(&self) -> usize {
        self.lives.values().filter(|life| life.ran).count()
    }

    /// Returns true if a pod of that UID existed at some revision.
    #[must_use]
    pub fn has_seen(&self, uid: &str) -> bool {
        self.lives.contains_key(uid)
    }

    /// The present pods and nodes.
    #[must_use]
    pub fn tracker(&self) -> &Tracker {
        &self.tracker
    }

    /// Takes in an event of a watch, and returns it as lines of text.
    pub(super) fn observe<K: Watchable>(
        &mut self,
        at: Timestamp,
        watched: WatcherEvent<K>,
    ) -> Vec<String> {
        match watched {
            WatcherEvent::Listed(list) => {
                let until = ObservedRevision {
                    revision: list.resource_version,
                    at,
                };
                let line = self.list(list.items, &until);
                vec![line]
            }
            WatcherEvent::Event(ObjectEvent::Bookmark(revision)) => {
                self.has_seen_up_to::<K>(&revision);
                Vec::new()
            }
            WatcherEvent::Watching => Vec::new(),
            WatcherEvent::Event(event) => vec![self.event(at, event)],
            WatcherEvent::Interrupted(None) => vec![format!("watch of {} ended", K::PLURAL)],
            WatcherEvent::Interrupted(Some(error)) => {
                vec![format!("watch of {} interrupted: {error}", K::PLURAL)]
            }
        }
    }

    fn list<K: Watchable>(&mut self, items: Vec<K>, at: &ObservedRevision) -> String {
        let there: BTreeSet<_> = items.iter().map(Object::key).collect();
        let mut gone = K::known(&self.tracker);
        gone.retain(|key| !there.contains(key));
        for key in gone {
            K::remove(&key, self);
        }
        let number = items.len();
        for item in items {
            self.set(at.at, &item);
        }
        self.settle(at);
        let line = format!("{number} {} listed at revision {}", K::PLURAL, at.revision);
        let is_first = !self.seen.contains_key(K::KIND);
        self.has_seen_up_to::<K>(&at.revision);
        if is_first {
            return line;
        }
        let gap = WatchGap {
            kind: K::KIND,
            until: at.clone(),
        };
        self.gaps.push(gap);
        format!("{line}: the revisions before have expired and were not seen")
    }

    fn event<K: Watchable>(&mut self, at: Timestamp, event: ObjectEvent<K>) -> String {
        let (word, object) = match &event {
            ObjectEvent::Added(object) => ("added", object),
            ObjectEvent::Modified(object) => ("modified", object),
            ObjectEvent::Deleted(object) => ("deleted", object),
            ObjectEvent::Bookmark(_) => return String::new(),
        };
        match &event {
            ObjectEvent::Deleted(_) => K::remove(&object.key(), self),
            _ => self.set(at, object),
        }
        let seen = ObservedRevision {
            revision: object.resource_version().into(),
            at,
        };
        self.revisions += 1;
        self.settle(&seen);
        self.has_seen_up_to::<K>(&seen.revision);
        format!("{} {word}: {}", seen.revision, object.summary())
    }

    /// Records the revision that was seen. The revisions of one kind are growing numbers
    /// (KEP-5504).
    fn has_seen_up_to<K: Watchable>(&mut self, revision: &str) {
        let seen = self.seen.entry(K::KIND).or_default();
        *seen = revision
            .parse()
            .map_or(*seen, |revision| (*seen).max(revision));
    }

    fn set<K: Watchable>(&mut self, at: Timestamp, object: &K) {
        match object.set(self) {
            Ok(None) => {}
            Ok(Some(problem)) => self.problems.push((at, problem)),
            Err(error) => self.problems.push((at, error.to_string())),
        }
    }

    /// Begins and ends violations according to the present state. A violation that began and ended
    /// at one revision never existed.
    fn settle(&mut self, now: &ObservedRevision) {
        let broken = self.tracker.violations();
        if broken.is_empty() && self.open.is_empty() {
            return;
        }
        let ended = self
            .open
            .extract_if(.., |violation, _| !broken.contains(violation));
        for (_, mut breach) in ended {
            if breach.from.revision != now.revision {
                breach.to = Some(now.clone());
                self.closed.push(breach);
            }
        }
        for violation in broken {
            if self.open.contains_key(violation) {
                continue;
            }
            let about = match violation {
                Violation::DuplicateAddress { pods, .. } => pods.as_slice(),
                _ => &[],
            };
            let pods = about.iter().filter_map(|pod| self.pods.get(pod));
            let pods = pods.map(|(_, summary)| summary.clone());
            let breach = ViolationSpan {
                ordinal: self.begun,
                violation: violation.clone(),
                from: now.clone(),
                to: None,
                pods: pods.collect(),
            };
            self.begun += 1;
            self.open.insert(violation.clone(), breach);
        }
    }
}

/// A kind of object that a history tracks.
pub(super) trait Watchable: Object {
    /// Returns the keys that exist.
    fn known(tracker: &Tracker) -> Vec<ObjectKey>;
    /// Takes in a new state of the object. Returns a problem with it, if there is one.
    fn set(&self, history: &mut RevisionHistory) -> Result<Option<String>>;
    /// Removes an object.
    fn remove(key: &ObjectKey, history: &mut RevisionHistory);
    /// Describes the object in one line.
    fn summary(&self) -> String;
}

impl Watchable for Pod {
    fn known(tracker: &Tracker) -> Vec<ObjectKey> {
        let key = |pod: &PodKey| ObjectKey::new(&pod.namespace, &pod.name);
        tracker.pods().map(key).collect()
    }

    fn set(&self, history: &mut RevisionHistory) -> Result<Option<String>> {
        let pod = world::audited_pod(self)?;
        let summary = (pod.uid.clone(), self.summary());
        history.pods.insert(pod.key(), summary);
        history.tracker.set_pod(&pod);
        let life = history.lives.entry(pod.uid).or_default();
        life.ran |= phase(self) == "Running";
        if std::mem::take(&mut life.gone) {
            return Ok(Some(format!("deleted and there again: {}", self.summary())));
        }
        if life.node.is_empty() {
            life.node = node(self).into();
        }
        let is_bound_twice = life.node != node(self);
        Ok(is_bound_twice.then(|| format!("bound to {} before: {}", life.node, self.summary())))
    }

    fn remove(key: &ObjectKey, history: &mut RevisionHistory) {
        let key = PodKey {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
        };
        let gone = history.pods.remove(&key);
        if let Some(life) = gone.and_then(|(uid, _)| history.lives.get_mut(&uid)) {
            life.gone = true;
        }
        history.tracker.remove_pod(&key);
    }

    fn summary(&self) -> String {
        let status = self.status.as_ref();
        let ips = status.and_then(|status| status.pod_ips.as_ref());
        let ips: Vec<_> = ips.into_iter().flatten().map(|ip| ip.ip.as_str()).collect();
        let conditions = status.and_then(|status| status.conditions.as_ref());
        let mut conditions = conditions.into_iter().flatten();
        let sandbox = conditions.find(|condition| condition.type_ == "PodReadyToStartContainers");
        let mut line = format!("pod {} {} {}", self.key(), self.uid(), phase(self));
        for (name, value) in [
            ("node", node(self)),
            ("ips", &ips.join(",")),
            ("sandbox", sandbox.map_or("", |condition| &condition.status)),
            ("deleting", if self.is_deleting() { "yes" } else { "" }),
        ] {
            if !value.is_empty() {
                line = format!("{line} {name}={value}");
            }
        }
        let finalizers = self.metadata.finalizers.as_deref().unwrap_or_default();
        match finalizers {
            [] => line,
            some => format!("{line} finalizers={}", some.join(",")),
        }
    }
}

impl Watchable for Node {
    fn known(tracker: &Tracker) -> Vec<ObjectKey> {
        let key = |(name, _)| ObjectKey::new("", name);
        tracker.nodes().map(key).collect()
    }

    fn set(&self, history: &mut RevisionHistory) -> Result<Option<String>> {
        let node = world::audited_node(self, PodLimit::None)?;
        history.tracker.set_node(&node);
        Ok(None)
    }

    fn remove(key: &ObjectKey, history: &mut RevisionHistory) {
        history.tracker.remove_node(&key.name);
    }

    fn summary(&self) -> String {
        let blocks = podplane_api::pod_ips::pod_cidrs(self).join(",");
        format!("node {} {} block={blocks}", self.name(), self.uid())
    }
}
