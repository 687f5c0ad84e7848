//! Which pods are bound to a node that does not exist.
//!
//! Pure: time is an argument. What it says is a suspicion, drawn from caches that know pods and nodes by separate streams, so the
//! shell asks the server before it deletes anything.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use podplane_api::ObjectKey;

/// The pods of each node, and since when a node that has some is missing.
#[derive(Debug)]
pub struct Orphans {
    quarantine: Duration,
    nodes: BTreeSet<String>,
    pods: BTreeMap<String, BTreeMap<ObjectKey, String>>,
    missing: BTreeMap<String, Instant>,
}

impl Orphans {
    /// Pods are suspected when their node has been missing for `quarantine`, which is what a node has to be deleted and applied
    /// again in.
    #[must_use]
    pub fn new(quarantine: Duration) -> Self {
        Self {
            quarantine,
            nodes: BTreeSet::new(),
            pods: BTreeMap::new(),
            missing: BTreeMap::new(),
        }
    }

    /// The node exists.
    pub fn node_present(&mut self, name: &str) {
        self.missing.remove(name);
        self.nodes.insert(name.to_owned());
    }

    /// The node is gone.
    pub fn node_gone(&mut self, name: &str, now: Instant) {
        self.nodes.remove(name);
        self.suspect(name, now);
    }

    /// The pod is bound to the node.
    pub fn pod_bound(&mut self, key: ObjectKey, uid: &str, node: &str, now: Instant) {
        self.pods
            .entry(node.to_owned())
            .or_default()
            .insert(key, uid.to_owned());
        if !self.nodes.contains(node) {
            self.suspect(node, now);
        }
    }

    /// The pod that was bound to the node is gone.
    pub fn pod_gone(&mut self, key: &ObjectKey, node: &str) {
        if let Some(pods) = self.pods.get_mut(node) {
            pods.remove(key);
            if pods.is_empty() {
                self.pods.remove(node);
                self.missing.remove(node);
            }
        }
    }

    /// The names of nodes that have been missing for long enough to be asked about.
    #[must_use]
    pub fn due(&self, now: Instant) -> Vec<String> {
        let due = self
            .missing
            .iter()
            .filter(|(_, since)| **since + self.quarantine <= now);
        due.map(|(node, _)| node.clone()).collect()
    }

    /// When [`Orphans::due`] will next have something to say, if nothing else changes.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.missing
            .values()
            .min()
            .map(|since| *since + self.quarantine)
    }

    /// The pods of a node, with their UIDs.
    #[must_use]
    pub fn pods_of(&self, node: &str) -> Vec<(ObjectKey, String)> {
        self.pods
            .get(node)
            .into_iter()
            .flatten()
            .map(|(key, uid)| (key.clone(), uid.clone()))
            .collect()
    }

    /// The node was asked about; suspicion begins anew, for whatever is left of it.
    pub fn asked(&mut self, node: &str, now: Instant) {
        if let Some(since) = self.missing.get_mut(node) {
            *since = now;
        }
    }

    fn suspect(&mut self, node: &str, now: Instant) {
        if self.pods.contains_key(node) {
            self.missing.entry(node.to_owned()).or_insert(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUARANTINE: Duration = Duration::from_secs(5);

    fn pod(name: &str) -> ObjectKey {
        ObjectKey::new("default", name)
    }

    /// Node n with pod a, and the moment.
    fn one_pod() -> (Orphans, Instant) {
        let (mut orphans, now) = (Orphans::new(QUARANTINE), Instant::now());
        orphans.node_present("n");
        orphans.pod_bound(pod("a"), "1", "n", now);
        (orphans, now)
    }

    #[test]
    fn pods_of_a_node_that_exists_are_left_alone() {
        let (orphans, now) = one_pod();
        assert_eq!(orphans.next_due(), None);
        assert_eq!(orphans.due(now + 100 * QUARANTINE), [""; 0]);
    }

    #[test]
    fn a_node_that_stays_away_is_due_after_the_quarantine() {
        let (mut orphans, now) = one_pod();
        orphans.node_gone("n", now);
        assert_eq!(orphans.next_due(), Some(now + QUARANTINE));
        assert_eq!(
            orphans.due(now + QUARANTINE - Duration::from_millis(1)),
            [""; 0]
        );
        assert_eq!(orphans.due(now + QUARANTINE), ["n"]);
        assert_eq!(orphans.pods_of("n"), [(pod("a"), "1".to_owned())]);
    }

    #[test]
    fn a_node_that_comes_back_in_time_keeps_its_pods() {
        let (mut orphans, now) = one_pod();
        orphans.node_gone("n", now);
        orphans.node_present("n");
        assert_eq!(orphans.due(now + QUARANTINE), [""; 0]);
    }

    #[test]
    fn a_pod_bound_to_a_node_never_seen_is_suspected_from_then_on() {
        let (mut orphans, now) = one_pod();
        orphans.pod_bound(pod("b"), "2", "other", now);
        orphans.pod_bound(pod("b"), "2", "other", now + QUARANTINE);
        assert_eq!(
            orphans.due(now + QUARANTINE),
            ["other"],
            "an update of the pod does not start it again"
        );
    }

    #[test]
    fn a_node_without_pods_is_nobodys_business() {
        let (mut orphans, now) = one_pod();
        orphans.pod_gone(&pod("a"), "n");
        orphans.node_gone("n", now);
        assert_eq!(orphans.next_due(), None);
        orphans.pod_bound(pod("a"), "1", "n", now);
        orphans.pod_gone(&pod("a"), "n");
        assert_eq!(orphans.next_due(), None);
    }

    #[test]
    fn what_is_left_after_asking_is_asked_about_again() {
        let (mut orphans, now) = one_pod();
        orphans.node_gone("n", now);
        orphans.asked("n", now + QUARANTINE);
        assert_eq!(orphans.due(now + QUARANTINE), [""; 0]);
        assert_eq!(orphans.due(now + 2 * QUARANTINE), ["n"]);
    }
}
