//! A local copy of the objects of a kind, kept up to date by list and watch.
//!
//! [`watcher`] lists, then watches from the list's revision; when the stream ends it resumes at the
//! last revision it saw, and when that is too old it lists again; the cache is then given the
//! difference, deletions included. It never gives up; it backs off between failures.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    future::Future,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use backon::{BackoffBuilder as _, ExponentialBuilder};
use futures::StreamExt as _;
use podplane_api::{Object, ObjectKey};
use podplane_proto::error::ApiError;
use tokio::sync::{Notify, watch};

use crate::api::{Api, ListParams, ObjectList, WatchEvent};

/// What happened to an object in the cache.
#[derive(Clone, Debug, PartialEq)]
pub enum Change<K> {
    /// It is there, new or changed.
    Applied {
        /// What it was before, if it was there.
        old: Option<Arc<K>>,
        /// What it is.
        new: Arc<K>,
    },
    /// It is gone; its last known state.
    Deleted(Arc<K>),
}

/// How a change came to be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// The watch said so.
    Watched,
    /// A list was otherwise than the cache; what was between is not known. client-go calls such a deletion DeletedFinalStateUnknown.
    Listed,
}

/// The local copy. Cheap to clone; all clones see the same. Stale by nature.
pub struct Cache<K> {
    shared: Arc<Shared<K>>,
    synced: watch::Receiver<bool>,
}

struct Shared<K> {
    state: Mutex<State<K>>,
}

struct State<K> {
    objects: BTreeMap<ObjectKey, Arc<K>>,
    subscribers: Vec<Weak<Subscriber<K>>>,
}

/// Changes that a subscriber has not taken yet. It is unbounded, since a subscriber shares the process with the cache and
/// the objects are shared: what it costs is a pointer for each change.
struct Subscriber<K> {
    pending: Mutex<VecDeque<(Change<K>, Told)>>,
    woken: Notify,
}

/// The changes of a cache, beginning with all that was there, in order and none missed.
pub struct Changes<K>(Arc<Subscriber<K>>);

/// A cache of the objects that match, and the future that keeps it. The cache is empty until the future is polled, and stays
/// as it is when the future is dropped.
pub fn reflector<K: Object>(
    api: Api<K>,
    params: ListParams,
) -> (Cache<K>, impl Future<Output = ()> + Send + 'static) {
    let state = State {
        objects: BTreeMap::new(),
        subscribers: Vec::new(),
    };
    let shared = Arc::new(Shared {
        state: Mutex::new(state),
    });
    let (synced_tx, synced) = watch::channel(false);
    let cache = Cache {
        shared: shared.clone(),
        synced,
    };
    (cache, drive(api, params, shared, synced_tx))
}

impl<K: Object> Cache<K> {
    /// The object of that key.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.shared.lock().objects.get(key).cloned()
    }

    /// All objects, by namespace and name.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.shared.lock().objects.values().cloned().collect()
    }

    /// Whether the first list has been applied.
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Waits for the first list. For ever if the driver was dropped before.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub fn synced(&self) -> impl Future<Output = ()> + Send + use<K> {
        let mut synced = self.synced.clone();
        async move {
            if synced.wait_for(|synced| *synced).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// All objects as [`Change::Applied`], then every change. Dropping it unsubscribes.
    pub fn subscribe(&self) -> Changes<K> {
        let mut state = self.shared.lock();
        let present = state.objects.values().map(|new| {
            let new = new.clone();
            (Change::Applied { old: None, new }, Told::Listed)
        });
        let subscriber = Arc::new(Subscriber {
            pending: Mutex::new(present.collect()),
            woken: Notify::new(),
        });
        state.subscribers.push(Arc::downgrade(&subscriber));
        Changes(subscriber)
    }
}

impl<K> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            synced: self.synced.clone(),
        }
    }
}

impl<K> Changes<K> {
    /// The next change; waits until there is one.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a change is taken only when it is returned.
    pub async fn next(&mut self) -> Change<K> {
        self.next_told().await.0
    }

    /// The next change and how it came to be known; waits until there is one.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a change is taken only when it is returned.
    pub async fn next_told(&mut self) -> (Change<K>, Told) {
        loop {
            // A notification between the look and the wait is kept by `Notify`.
            if let Some(told) = self.take() {
                return told;
            }
            self.0.woken.notified().await;
        }
    }

    /// The next change, if there is one now.
    pub fn try_next(&mut self) -> Option<Change<K>> {
        self.take().map(|(change, _)| change)
    }

    fn take(&mut self) -> Option<(Change<K>, Told)> {
        lock(&self.0.pending).pop_front()
    }
}

impl<K> Shared<K> {
    fn lock(&self) -> MutexGuard<'_, State<K>> {
        lock(&self.state)
    }
}

/// What the mutexes guard is whole between any two statements, so a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<K: Object> State<K> {
    fn apply(&mut self, object: K, told: Told) {
        let new = Arc::new(object);
        let old = self.objects.insert(new.key(), new.clone());
        if old.as_ref().is_none_or(|old| *old != new) {
            self.tell(&Change::Applied { old, new }, told);
        }
    }

    fn remove(&mut self, key: &ObjectKey, told: Told) {
        if let Some(old) = self.objects.remove(key) {
            self.tell(&Change::Deleted(old), told);
        }
    }

    /// Makes the cache what a list says. An object that was deleted and made again between is told as both.
    fn replace(&mut self, items: Vec<K>) {
        let mut fresh: BTreeMap<_, _> = items.into_iter().map(|item| (item.key(), item)).collect();
        let is_same =
            |key: &ObjectKey, old: &K| fresh.get(key).is_some_and(|new| new.uid() == old.uid());
        let gone: Vec<_> = self
            .objects
            .iter()
            .filter(|(key, old)| !is_same(key, old))
            .map(|(key, _)| key.clone())
            .collect();
        gone.iter().for_each(|key| self.remove(key, Told::Listed));
        while let Some((_, object)) = fresh.pop_first() {
            self.apply(object, Told::Listed);
        }
    }

    fn tell(&mut self, change: &Change<K>, told: Told) {
        self.subscribers.retain(|subscriber| {
            let Some(subscriber) = subscriber.upgrade() else {
                return false;
            };
            lock(&subscriber.pending).push_back((change.clone(), told));
            subscriber.woken.notify_one();
            true
        });
    }
}

/// How long to wait between failures: from 50 ms, doubled up to half a second, with jitter, so that a restarted server is found within a second
/// and not by all clients at once.
fn backoff() -> backon::ExponentialBackoff {
    ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(50))
        .with_max_delay(Duration::from_millis(500))
        .with_jitter()
        .without_max_times()
        .build()
}

/// Progress or failure of a [`watcher`].
#[derive(Debug)]
pub enum Watched<K> {
    /// All objects: at the beginning, and again after what was between has expired.
    Listed(ObjectList<K>),
    /// The next event, in the order of revisions, none left out since the last list.
    Event(WatchEvent<K>),
    /// The server ended the watch, or could not be asked. If the error says that the revision has
    /// expired, a list follows; otherwise the watch is resumed at the last revision.
    Interrupted(Option<ApiError>),
}

/// Lists the objects that match and watches them for as long as it is polled, through failures of
/// the server and of the connection. [`reflector`] keeps the latest state of each object; this is
/// for those who want to see every revision.
pub async fn watcher<K: Object>(
    api: Api<K>,
    params: ListParams,
    mut tell: impl FnMut(Watched<K>) + Send,
) {
    let mut waits = backoff();
    let mut revision = None;
    loop {
        let mut progressed = |watched: Watched<K>| {
            if matches!(watched, Watched::Event(_)) {
                waits = backoff();
            }
            tell(watched);
        };
        let ended = follow(&api, &params, &mut revision, &mut progressed).await;
        match &ended {
            Ok(()) => tracing::debug!(kind = K::KIND, "watch ended; resuming"),
            Err(error) if error.is_expired() => {
                tracing::debug!(kind = K::KIND, %error, "revision too old; listing again");
                revision = None;
            }
            Err(error) => {
                tracing::warn!(kind = K::KIND, %error, "list and watch failed; trying again")
            }
        }
        tell(Watched::Interrupted(ended.err()));
        if let Some(wait) = waits.next() {
            tokio::time::sleep(wait).await;
        }
    }
}

/// Lists if there is no revision to go on from, then tells of a watch until it ends.
async fn follow<K: Object>(
    api: &Api<K>,
    params: &ListParams,
    revision: &mut Option<String>,
    tell: &mut (impl FnMut(Watched<K>) + Send),
) -> Result<(), ApiError> {
    let from = match revision {
        Some(from) => from.clone(),
        None => {
            let list = api.list(params).await?;
            let from = revision.insert(list.resource_version.clone()).clone();
            tell(Watched::Listed(list));
            from
        }
    };
    let mut events = pin!(api.watch(params, &from).await?);
    while let Some(event) = events.next().await {
        let event = event?;
        *revision = Some(match &event {
            WatchEvent::Added(object)
            | WatchEvent::Modified(object)
            | WatchEvent::Deleted(object) => object.resource_version().into(),
            WatchEvent::Bookmark(at) => at.clone(),
        });
        tell(Watched::Event(event));
    }
    Ok(())
}

async fn drive<K: Object>(
    api: Api<K>,
    params: ListParams,
    shared: Arc<Shared<K>>,
    synced: watch::Sender<bool>,
) {
    let apply = move |watched| match watched {
        Watched::Listed(list) => {
            shared.lock().replace(list.items);
            synced.send_replace(true);
        }
        Watched::Event(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
            shared.lock().apply(object, Told::Watched);
        }
        Watched::Event(WatchEvent::Deleted(object)) => {
            shared.lock().remove(&object.key(), Told::Watched);
        }
        Watched::Event(WatchEvent::Bookmark(_)) | Watched::Interrupted(_) => {}
    };
    watcher(api, params, apply).await;
}

impl<K> fmt::Debug for Cache<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("objects", &self.shared.lock().objects.len())
            .finish_non_exhaustive()
    }
}

impl<K> fmt::Debug for Changes<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes")
            .field("pending", &lock(&self.0.pending).len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use podplane_api::{core::Pod, meta::ObjectMeta};

    use super::*;

    fn pod(name: &str, uid: &str, version: &str) -> Pod {
        let metadata = ObjectMeta {
            name: Some(name.into()),
            uid: Some(uid.into()),
            resource_version: Some(version.into()),
            ..ObjectMeta::default()
        };
        Pod {
            metadata,
            ..Pod::default()
        }
    }

    fn cache() -> Cache<Pod> {
        let state = State {
            objects: BTreeMap::new(),
            subscribers: Vec::new(),
        };
        Cache {
            shared: Arc::new(Shared {
                state: Mutex::new(state),
            }),
            synced: watch::channel(true).1,
        }
    }

    fn told(changes: &mut Changes<Pod>) -> Vec<String> {
        std::iter::from_fn(|| changes.try_next())
            .map(|change| match change {
                Change::Applied { old, new } => {
                    format!(
                        "{}{}@{}",
                        if old.is_some() { "~" } else { "+" },
                        new.name(),
                        new.resource_version()
                    )
                }
                Change::Deleted(old) => format!("-{}@{}", old.name(), old.resource_version()),
            })
            .collect()
    }

    #[test]
    fn a_subscriber_starts_with_what_is_there_and_misses_nothing() {
        let cache = cache();
        cache.shared.lock().apply(pod("a", "1", "1"), Told::Watched);
        let mut changes = cache.subscribe();
        cache.shared.lock().apply(pod("b", "2", "2"), Told::Watched);
        cache.shared.lock().apply(pod("a", "1", "3"), Told::Watched);
        cache
            .shared
            .lock()
            .remove(&ObjectKey::new("", "b"), Told::Watched);
        assert_eq!(told(&mut changes), ["+a@1", "+b@2", "~a@3", "-b@2"]);
    }

    #[test]
    fn a_new_list_is_told_as_its_difference() {
        let cache = cache();
        let mut changes = cache.subscribe();
        cache.shared.lock().replace(vec![
            pod("a", "1", "1"),
            pod("b", "2", "2"),
            pod("c", "3", "3"),
        ]);
        assert_eq!(told(&mut changes), ["+a@1", "+b@2", "+c@3"]);
        // a is as it was, b was made again, c is gone, d is new.
        cache.shared.lock().replace(vec![
            pod("a", "1", "1"),
            pod("b", "9", "5"),
            pod("d", "4", "4"),
        ]);
        assert_eq!(told(&mut changes), ["-b@2", "-c@3", "+b@5", "+d@4"]);
    }

    #[tokio::test]
    async fn how_a_deletion_is_known_is_told() {
        let cache = cache();
        let both = vec![pod("a", "1", "1"), pod("b", "2", "2")];
        cache.shared.lock().replace(both);
        let mut changes = cache.subscribe();
        assert_eq!(told(&mut changes).len(), 2);
        let a = ObjectKey::new("", "a");
        cache.shared.lock().remove(&a, Told::Watched);
        cache.shared.lock().replace(Vec::new());
        let deletions = [changes.next_told().await.1, changes.next_told().await.1];
        assert_eq!(deletions, [Told::Watched, Told::Listed]);
    }

    #[tokio::test]
    async fn a_waiting_subscriber_is_woken() {
        let cache = cache();
        let mut changes = cache.subscribe();
        let (change, ()) = tokio::join!(changes.next(), async {
            cache.shared.lock().apply(pod("a", "1", "1"), Told::Watched)
        });
        assert!(matches!(change, Change::Applied { old: None, .. }));
    }
}
