//! Finds pods that are bound to a node that does not exist.
//!
//! Pure: time is an argument. A result is only a suspicion, since pods and nodes come from separate
//! watches, so the shell asks the server before it deletes anything.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use podplane_api::ObjectKey;
use podplane_host::clock::Instant;

/// The pods of each node, and the time since which a node with pods is missing.
#[derive(Debug)]
pub struct Orphans {
    quarantine: Duration,
    nodes: BTreeSet<String>,
    pods: BTreeMap<String, BTreeMap<ObjectKey, String>>,
    missing: BTreeMap<String, Instant>,
}

impl Orphans {
    /// Pods are suspected once their node has been missing for `quarantine`, the time in which a
    /// node may be deleted and created again.
    #[must_use]
    pub fn new(quarantine: Duration) -> Self {
        Self {
            quarantine,
            nodes: BTreeSet::new(),
            pods: BTreeMap::new(),
            missing: BTreeMap::new(),
        }
    }

    /// Records that the node exists.
    pub fn node_present(&mut self, name: &str) {
        self.missing.remove(name);
        self.nodes.insert(name.to_owned());
    }

    /// Records that the node is deleted.
    pub fn node_gone(&mut self, name: &str, now: Instant) {
        self.nodes.remove(name);
        self.suspect(name, now);
    }

    /// Records that the pod is bound to the node.
    pub fn pod_bound(&mut self, key: ObjectKey, uid: &str, node: &str, now: Instant) {
        self.pods
            .entry(node.to_owned())
            .or_default()
            .insert(key, uid.to_owned());
        if !self.nodes.contains(node) {
            self.suspect(node, now);
        }
    }

    /// Records that the pod, which was bound to the node, is deleted.
    pub fn pod_gone(&mut self, key: &ObjectKey, node: &str) {
        if let Some(pods) = self.pods.get_mut(node) {
            pods.remove(key);
            if pods.is_empty() {
                self.pods.remove(node);
                self.missing.remove(node);
            }
        }
    }

    /// The names of nodes that have been missing for `quarantine` or longer.
    #[must_use]
    pub fn due(&self, now: Instant) -> Vec<String> {
        let due = self
            .missing
            .iter()
            .filter(|(_, since)| **since + self.quarantine <= now);
        due.map(|(node, _)| node.clone()).collect()
    }

    /// The next time at which [`Orphans::due`] changes, if nothing else happens.
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

    /// Records that the server was asked about the node; its quarantine starts again, for pods that
    /// are left.
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

    /// Node n with pod a, and the current time.
    fn one_pod() -> (Orphans, Instant) {
        let (mut orphans, now) = (Orphans::new(QUARANTINE), Instant::now());
        orphans.node_present("n");
        orphans.pod_bound(pod("a"), "1", "n", now);
        (orphans, now)
    }

    #[test]
    fn ignores_pods_of_existing_nodes() {
        let (orphans, now) = one_pod();
        assert_eq!(orphans.next_due(), None);
        assert_eq!(orphans.due(now + 100 * QUARANTINE), [""; 0]);
    }

    #[test]
    fn missing_node_is_due_after_the_quarantine() {
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
    fn node_that_returns_in_time_keeps_its_pods() {
        let (mut orphans, now) = one_pod();
        orphans.node_gone("n", now);
        orphans.node_present("n");
        assert_eq!(orphans.due(now + QUARANTINE), [""; 0]);
    }

    #[test]
    fn suspects_a_pod_of_an_unknown_node_from_its_binding_on() {
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
    fn ignores_missing_nodes_without_pods() {
        let (mut orphans, now) = one_pod();
        orphans.pod_gone(&pod("a"), "n");
        orphans.node_gone("n", now);
        assert_eq!(orphans.next_due(), None);
        orphans.pod_bound(pod("a"), "1", "n", now);
        orphans.pod_gone(&pod("a"), "n");
        assert_eq!(orphans.next_due(), None);
    }

    #[test]
    fn quarantine_restarts_for_pods_left_after_asking() {
        let (mut orphans, now) = one_pod();
        orphans.node_gone("n", now);
        orphans.asked("n", now + QUARANTINE);
        assert_eq!(orphans.due(now + QUARANTINE), [""; 0]);
        assert_eq!(orphans.due(now + 2 * QUARANTINE), ["n"]);
    }
}
