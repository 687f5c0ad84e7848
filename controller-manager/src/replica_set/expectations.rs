//! What a ReplicaSet has done and has not been told yet.
//!
//! A decision that does not know of a pod just made would make it again. So none is taken until all is told. Pods are named here and not by the
//! server: one whose creation was not answered can be asked for.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use podplane_api::{Object as _, ObjectKey, core::Pod};

use crate::index::Index;

/// After this time the server is asked about a pod that should have been told of: it may have come and gone in between.
const ASK_AFTER: Duration = Duration::from_secs(1);

/// What is to be told of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// That it is there.
    Created,
    /// That the one of that UID is going, or gone.
    Deleted(String),
}

/// By ReplicaSet and name of the pod, and since when.
type All = BTreeMap<ObjectKey, BTreeMap<String, (Expected, Instant)>>;

/// What all ReplicaSets wait for.
#[derive(Debug, Default)]
pub(super) struct Expectations(Mutex<All>);

impl Expectations {
    pub(super) fn expect(&self, set: &ObjectKey, pod: &str, what: Expected) {
        let mut all = self.lock();
        let of_set = all.entry(set.clone()).or_default();
        of_set.insert(pod.to_owned(), (what, Instant::now()));
    }

    /// It was told otherwise that there is nothing to expect.
    pub(super) fn drop(&self, set: &ObjectKey, pod: &str) {
        if let Some(of_set) = self.lock().get_mut(set) {
            of_set.remove(pod);
        }
    }

    /// Whether all was told; if not, the pods to ask the server about.
    pub(super) fn check(&self, set: &ObjectKey, pods: &Index<Pod>) -> Result<(), Vec<String>> {
        let mut all = self.lock();
        let Some(of_set) = all.get_mut(set) else {
            return Ok(());
        };
        of_set.retain(|name, (what, _)| {
            let pod = pods.get(&ObjectKey::new(set.namespace.as_str(), name.as_str()));
            !is_met(what, pod.as_deref())
        });
        if of_set.is_empty() {
            all.remove(set);
            return Ok(());
        }
        let overdue = of_set
            .iter()
            .filter(|(_, (what, since))| *what == Expected::Created && since.elapsed() > ASK_AFTER);
        Err(overdue.map(|(name, _)| name.clone()).collect())
    }

    pub(super) fn forget(&self, set: &ObjectKey) {
        self.lock().remove(set);
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_met(what: &Expected, pod: Option<&Pod>) -> bool {
    match (what, pod) {
        (Expected::Created, pod) => pod.is_some(),
        (Expected::Deleted(_), None) => true,
        (Expected::Deleted(uid), Some(pod)) => pod.uid() != uid || pod.is_deleting(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use podplane_api::{jiff::Timestamp, meta::Time};
    use podplane_client::Change;

    use super::*;

    fn told(name: &str, uid: &str, is_deleting: bool) -> Change<Pod> {
        let mut pod = Pod::default();
        pod.metadata.namespace = Some("ns".into());
        pod.metadata.name = Some(name.into());
        pod.metadata.uid = Some(uid.into());
        pod.metadata.deletion_timestamp = is_deleting.then_some(Time(Timestamp::UNIX_EPOCH));
        Change::Applied {
            old: None,
            new: Arc::new(pod),
        }
    }

    #[test]
    fn nothing_is_decided_until_all_is_told() {
        let (set, pods, expectations) = (
            ObjectKey::new("ns", "web"),
            Index::default(),
            Expectations::default(),
        );
        assert_eq!(expectations.check(&set, &pods), Ok(()));
        pods.apply(&told("old", "1", false));
        expectations.expect(&set, "new", Expected::Created);
        expectations.expect(&set, "old", Expected::Deleted("1".into()));
        assert_eq!(
            expectations.check(&set, &pods),
            Err(vec![]),
            "it is too early to ask"
        );
        pods.apply(&told("new", "2", false));
        assert_eq!(expectations.check(&set, &pods), Err(vec![]));
        pods.apply(&told("old", "1", true));
        assert_eq!(expectations.check(&set, &pods), Ok(()));
    }

    #[test]
    fn another_pod_of_the_name_means_that_the_first_is_gone() {
        let (set, pods, expectations) = (
            ObjectKey::new("ns", "web"),
            Index::default(),
            Expectations::default(),
        );
        expectations.expect(&set, "a", Expected::Deleted("1".into()));
        pods.apply(&told("a", "2", false));
        assert_eq!(expectations.check(&set, &pods), Ok(()));
        expectations.expect(&set, "b", Expected::Created);
        expectations.drop(&set, "b");
        assert_eq!(expectations.check(&set, &pods), Ok(()));
    }
}
