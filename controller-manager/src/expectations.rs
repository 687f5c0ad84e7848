//! The writes of pods' controllers that are not in the cache yet.
//!
//! A decision that does not know of a pod just created would create it again, so none is made until
//! all writes have been observed. Pods get their names here and not from the server: the server can
//! be asked about one whose creation was not answered.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use podplane_api::{Object as _, ObjectKey, core::Pod};
use podplane_host::clock::Instant;

use crate::index::ObjectIndex;

/// The server is asked about a pod that has not been observed after this time: it may have been
/// created and deleted in between.
const ASK_AFTER: Duration = Duration::from_secs(1);

/// The change of a pod that is expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExpectedChange {
    /// The pod exists.
    Created,
    /// The pod of that UID is being deleted, or deleted.
    Deleted(String),
}

/// By the pods' controller and name of the pod, with the time of the write.
type ExpectedChanges = BTreeMap<ObjectKey, BTreeMap<String, (ExpectedChange, Instant)>>;

/// The expected changes of all pods' controllers of a kind.
#[derive(Debug, Default)]
pub(crate) struct Expectations(Mutex<ExpectedChanges>);

impl Expectations {
    pub(crate) fn expect(&self, owner: &ObjectKey, pod: &str, what: ExpectedChange) {
        let mut all = self.lock();
        let of_owner = all.entry(owner.clone()).or_default();
        of_owner.insert(pod.to_owned(), (what, Instant::now()));
    }

    /// Removes an expectation that cannot be met any more.
    pub(crate) fn drop(&self, owner: &ObjectKey, pod: &str) {
        if let Some(of_owner) = self.lock().get_mut(owner) {
            of_owner.remove(pod);
        }
    }

    /// Returns `Ok` if all expectations are met, else the pods to ask the server about.
    pub(crate) fn check(
        &self,
        owner: &ObjectKey,
        pods: &ObjectIndex<Pod>,
    ) -> Result<(), Vec<String>> {
        let mut all = self.lock();
        let Some(of_owner) = all.get_mut(owner) else {
            return Ok(());
        };
        of_owner.retain(|name, (what, _)| {
            let pod = pods.get(&ObjectKey::new(owner.namespace.as_str(), name.as_str()));
            !is_met(what, pod.as_deref())
        });
        if of_owner.is_empty() {
            all.remove(owner);
            return Ok(());
        }
        let overdue = of_owner.iter().filter(|(_, (what, since))| {
            *what == ExpectedChange::Created && since.elapsed() > ASK_AFTER
        });
        Err(overdue.map(|(name, _)| name.clone()).collect())
    }

    pub(crate) fn forget(&self, owner: &ObjectKey) {
        self.lock().remove(owner);
    }

    fn lock(&self) -> MutexGuard<'_, ExpectedChanges> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_met(what: &ExpectedChange, pod: Option<&Pod>) -> bool {
    match (what, pod) {
        (ExpectedChange::Created, pod) => pod.is_some(),
        (ExpectedChange::Deleted(_), None) => true,
        (ExpectedChange::Deleted(uid), Some(pod)) => pod.uid() != uid || pod.is_deleting(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use podplane_api::{jiff::Timestamp, meta::Time};
    use podplane_client::CacheChange;

    use super::*;

    fn pod_applied(name: &str, uid: &str, is_deleting: bool) -> CacheChange<Pod> {
        let mut pod = Pod::default();
        pod.metadata.namespace = Some("ns".into());
        pod.metadata.name = Some(name.into());
        pod.metadata.uid = Some(uid.into());
        pod.metadata.deletion_timestamp = is_deleting.then_some(Time(Timestamp::UNIX_EPOCH));
        CacheChange::Applied {
            old: None,
            new: Arc::new(pod),
        }
    }

    #[test]
    fn waits_until_all_expectations_are_met() {
        let (set, pods, expectations) = (
            ObjectKey::new("ns", "web"),
            ObjectIndex::default(),
            Expectations::default(),
        );
        assert_eq!(expectations.check(&set, &pods), Ok(()));
        pods.apply(&pod_applied("old", "1", false));
        expectations.expect(&set, "new", ExpectedChange::Created);
        expectations.expect(&set, "old", ExpectedChange::Deleted("1".into()));
        assert_eq!(
            expectations.check(&set, &pods),
            Err(vec![]),
            "it is too early to ask"
        );
        pods.apply(&pod_applied("new", "2", false));
        assert_eq!(expectations.check(&set, &pods), Err(vec![]));
        pods.apply(&pod_applied("old", "1", true));
        assert_eq!(expectations.check(&set, &pods), Ok(()));
    }

    #[test]
    fn a_pod_with_the_name_and_another_uid_confirms_the_deletion() {
        let (set, pods, expectations) = (
            ObjectKey::new("ns", "web"),
            ObjectIndex::default(),
            Expectations::default(),
        );
        expectations.expect(&set, "a", ExpectedChange::Deleted("1".into()));
        pods.apply(&pod_applied("a", "2", false));
        assert_eq!(expectations.check(&set, &pods), Ok(()));
        expectations.expect(&set, "b", ExpectedChange::Created);
        expectations.drop(&set, "b");
        assert_eq!(expectations.check(&set, &pods), Ok(()));
    }
}
