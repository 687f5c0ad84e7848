//! A local copy of the objects of a kind, kept up to date by list and watch.
//!
//! [`watcher`] lists, then watches from the list's revision. When the stream ends it resumes at the
//! last revision it saw; when that is too old it lists again, and the cache gets the difference,
//! deletions included. It never gives up; it backs off between failures.
//!
//! As in client-go the list is not in pages: the server has the present objects in memory, and
//! reads those of a later page from its store.

mod index;
mod source;

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
use podplane_host::{clock, random};
use podplane_proto::error::ApiError;
use tokio::sync::{Notify, watch};

pub use self::source::ListWatch;
use self::{index::KeyIndex, source::Selected};
use crate::api::{Api, ListParams, ObjectEvent, ObjectList};

/// An item of a cache: an object, or what its reader needs of it ([`transforming_reflector`]).
pub trait CacheItem: Clone + PartialEq + Send + Sync + 'static {
    /// The namespace and name.
    fn key(&self) -> ObjectKey;

    /// `metadata.uid`.
    fn uid(&self) -> &str;
}

impl<K: Object> CacheItem for K {
    fn key(&self) -> ObjectKey {
        Object::key(self)
    }

    fn uid(&self) -> &str {
        Object::uid(self)
    }
}

/// A change of an object in the cache.
#[derive(Clone, Debug, PartialEq)]
pub enum CacheChange<K> {
    /// The object is new or was changed.
    Applied {
        /// The previous state, if there was one.
        old: Option<Arc<K>>,
        /// The new state.
        new: Arc<K>,
    },
    /// The object was deleted; its last known state.
    Deleted(Arc<K>),
}

/// The source of a change: a watch or a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeSource {
    /// The watch reported it.
    Watch,
    /// A list differed from the cache; the states between are not known. client-go calls such a
    /// deletion DeletedFinalStateUnknown.
    List,
}

/// The local copy of the objects. A clone shares the same data. It may lag behind the server.
pub struct Cache<K> {
    shared: Arc<SharedCache<K>>,
    synced: watch::Receiver<bool>,
}

struct SharedCache<K> {
    state: Mutex<CacheState<K>>,
}

struct CacheState<K> {
    objects: BTreeMap<ObjectKey, Arc<K>>,
    index: Option<KeyIndex<K>>,
    subscribers: Vec<Weak<Subscriber<K>>>,
}

/// A queue of the changes that a subscriber has not taken yet. It is unbounded, because a
/// subscriber must not miss a change and the cache must not wait for it. A subscriber that is stuck
/// keeps every superseded object alive.
struct Subscriber<K> {
    pending: Mutex<VecDeque<(CacheChange<K>, ChangeSource)>>,
    woken: Notify,
}

/// The changes of a cache, in order and without gaps, beginning with all present objects.
pub struct Changes<K>(Arc<Subscriber<K>>);

/// Returns a cache of the objects that match, and the future that keeps it up to date. The cache is
/// empty until the future is polled, and is frozen once the future is dropped.
pub fn reflector<K: Object>(
    api: Api<K>,
    params: ListParams,
) -> (Cache<K>, impl Future<Output = ()> + Send + 'static) {
    new_reflector(Selected { api, params }, None, |object| object)
}

/// Returns a [`reflector`] that keeps what `transform` makes of each object, and not the object
/// itself. client-go calls it a TransformFunc. Of a list, one object at a time is decoded.
pub fn transforming_reflector<K: Object, T: CacheItem>(
    api: Api<K>,
    params: ListParams,
    transform: impl FnMut(K) -> T + Send + 'static,
) -> (Cache<T>, impl Future<Output = ()> + Send + 'static) {
    source_reflector(Selected { api, params }, transform)
}

/// Returns a [`reflector`] of any source, which keeps what `transform` makes of each object.
pub fn source_reflector<S: ListWatch, T: CacheItem>(
    source: S,
    transform: impl FnMut(S::Object) -> T + Send + 'static,
) -> (Cache<T>, impl Future<Output = ()> + Send + 'static) {
    new_reflector(source, None, transform)
}

/// Returns a [`reflector`] whose cache can list the objects of one index key, such as the pods of
/// a node, without scanning all others: [`Cache::list_of`].
pub fn indexed_reflector<K: Object>(
    api: Api<K>,
    params: ListParams,
    index_key: fn(&K) -> Option<&str>,
) -> (Cache<K>, impl Future<Output = ()> + Send + 'static) {
    let index = KeyIndex::new(index_key);
    new_reflector(Selected { api, params }, Some(index), |object| object)
}

fn new_reflector<S: ListWatch, T: CacheItem>(
    source: S,
    index: Option<KeyIndex<T>>,
    transform: impl FnMut(S::Object) -> T + Send + 'static,
) -> (Cache<T>, impl Future<Output = ()> + Send + 'static) {
    let state = CacheState {
        objects: BTreeMap::new(),
        index,
        subscribers: Vec::new(),
    };
    let shared = Arc::new(SharedCache {
        state: Mutex::new(state),
    });
    let (synced_tx, synced) = watch::channel(false);
    let cache = Cache {
        shared: shared.clone(),
        synced,
    };
    let run = run_reflector(source, transform, shared, synced_tx);
    (cache, run)
}

impl<K: CacheItem> Cache<K> {
    /// The object with that key.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.shared.lock().objects.get(key).cloned()
    }

    /// All objects, by namespace and name.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.shared.lock().objects.values().cloned().collect()
    }

    /// The objects of that index key, by namespace and name. Empty unless the cache is that of an
    /// [`indexed_reflector`].
    pub fn list_of(&self, index_key: &str) -> Vec<Arc<K>> {
        let state = self.shared.lock();
        let keys = state.index.iter().flat_map(|index| index.keys(index_key));
        let objects = keys.filter_map(|key| state.objects.get(key));
        objects.cloned().collect()
    }

    /// Returns true once the first list has been applied.
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Waits for the first list. Never completes if the future that keeps the cache was dropped
    /// before.
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

    /// Subscribes to all objects as [`CacheChange::Applied`], then to every change. Dropping the
    /// value unsubscribes.
    pub fn subscribe(&self) -> Changes<K> {
        let mut state = self.shared.lock();
        let present = state.objects.values().map(|new| {
            let new = new.clone();
            (CacheChange::Applied { old: None, new }, ChangeSource::List)
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
    /// Waits for the next change.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a change is taken only when it is returned.
    pub async fn next(&mut self) -> CacheChange<K> {
        self.next_with_source().await.0
    }

    /// Waits for the next change and its source.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a change is taken only when it is returned.
    pub async fn next_with_source(&mut self) -> (CacheChange<K>, ChangeSource) {
        loop {
            // A notification between the check and the wait is kept by `Notify`.
            if let Some(change) = self.take() {
                return change;
            }
            self.0.woken.notified().await;
        }
    }

    /// The next change, or `None` if there is none yet.
    pub fn try_next(&mut self) -> Option<CacheChange<K>> {
        self.take().map(|(change, _)| change)
    }

    fn take(&mut self) -> Option<(CacheChange<K>, ChangeSource)> {
        lock(&self.0.pending).pop_front()
    }
}

impl<K> SharedCache<K> {
    fn lock(&self) -> MutexGuard<'_, CacheState<K>> {
        lock(&self.state)
    }
}

/// Locks, and ignores poisoning: the code under these locks is not expected to panic, and a reader
/// must not panic because another thread did.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<K: CacheItem> CacheState<K> {
    fn apply(&mut self, object: K, source: ChangeSource) {
        let new = Arc::new(object);
        let old = self.objects.insert(new.key(), new.clone());
        if let Some(index) = &mut self.index {
            index.change(old.as_deref(), Some(&new));
        }
        // A list repeats objects that have not changed.
        if old.as_ref().is_none_or(|old| *old != new) {
            self.notify(&CacheChange::Applied { old, new }, source);
        }
    }

    fn remove(&mut self, key: &ObjectKey, source: ChangeSource) {
        if let Some(old) = self.objects.remove(key) {
            if let Some(index) = &mut self.index {
                index.change(Some(&old), None);
            }
            self.notify(&CacheChange::Deleted(old), source);
        }
    }

    /// Makes the cache equal to a list. An object with the same key but another UID is reported as
    /// a deletion and a creation.
    fn replace(&mut self, items: Vec<K>) {
        let fresh: BTreeMap<_, _> = items.into_iter().map(|item| (item.key(), item)).collect();
        let is_same =
            |key: &ObjectKey, old: &K| fresh.get(key).is_some_and(|new| new.uid() == old.uid());
        let deleted: Vec<_> = self
            .objects
            .iter()
            .filter(|(key, old)| !is_same(key, old))
            .map(|(key, _)| key.clone())
            .collect();
        deleted
            .iter()
            .for_each(|key| self.remove(key, ChangeSource::List));
        for object in fresh.into_values() {
            self.apply(object, ChangeSource::List);
        }
    }

    fn notify(&mut self, change: &CacheChange<K>, source: ChangeSource) {
        self.subscribers.retain(|subscriber| {
            let Some(subscriber) = subscriber.upgrade() else {
                return false;
            };
            lock(&subscriber.pending).push_back((change.clone(), source));
            subscriber.woken.notify_one();
            true
        });
    }
}

/// The delays between attempts: from 50 ms, doubled up to half a second. Short, so that clients
/// reconnect within a second of a server's restart; the jitter spreads them.
fn backoff() -> backon::ExponentialBackoff {
    ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(50))
        .with_max_delay(Duration::from_millis(500))
        .with_jitter()
        .with_jitter_seed(random::value())
        .without_max_times()
        .build()
}

/// Progress or failure of a [`watcher`].
#[derive(Debug)]
pub enum WatcherEvent<K> {
    /// All objects: at the beginning, and again after the watched revision has expired.
    Listed(ObjectList<K>),
    /// The server has accepted the watch: the connection is there, even if nothing happens.
    Watching,
    /// The next event, in the order of revisions, with none left out since the last list.
    Event(ObjectEvent<K>),
    /// The watch ended: `None` if the server ended it in order, otherwise the error. If the
    /// error says that the revision has expired, or no list has succeeded yet, a list follows;
    /// otherwise the watch resumes at the last revision.
    Interrupted(Option<ApiError>),
}

/// Lists the objects that match and watches them for as long as the future is polled, through
/// failures of the server and of the connection. [`reflector`] keeps the latest state of each
/// object; this function delivers every event.
pub async fn watcher<K: Object>(
    api: Api<K>,
    params: ListParams,
    on_event: impl FnMut(WatcherEvent<K>) + Send,
) {
    transforming_watcher(api, params, |object| object, on_event).await;
}

/// As [`watcher`], of what `transform` makes of each object. Of a list, one object at a time is
/// decoded.
pub async fn transforming_watcher<K: Object, T: Send>(
    api: Api<K>,
    params: ListParams,
    transform: impl FnMut(K) -> T + Send,
    on_event: impl FnMut(WatcherEvent<T>) + Send,
) {
    source_watcher(Selected { api, params }, transform, on_event).await;
}

async fn source_watcher<S: ListWatch, T: Send>(
    source: S,
    mut transform: impl FnMut(S::Object) -> T + Send,
    mut on_event: impl FnMut(WatcherEvent<T>) + Send,
) {
    // Starts over with every event.
    let mut waits = backoff();
    let mut revision = None;
    // The failed attempts since the server last accepted a watch; an expired revision and an
    // orderly end are no failures.
    let mut failures = 0_u32;
    let kind = source.kind();
    loop {
        let mut on_progress = |event: WatcherEvent<T>| {
            match event {
                WatcherEvent::Watching if failures > 0 => {
                    tracing::info!(kind, failures, "watch resumed");
                    failures = 0;
                }
                WatcherEvent::Event(_) => waits = backoff(),
                _ => {}
            }
            on_event(event);
        };
        let ended =
            list_and_watch_once(&source, &mut revision, &mut transform, &mut on_progress).await;
        let wait = waits.next().unwrap_or_default();
        match &ended {
            Ok(()) => tracing::debug!(kind, "watch ended; resuming"),
            Err(error) if error.is_expired() => {
                tracing::debug!(kind, %error, "revision too old; listing again");
                revision = None;
            }
            Err(error) => {
                failures += 1;
                tracing::warn!(kind, %error, retry_in = ?wait, "failed to list and watch; trying again");
            }
        }
        on_event(WatcherEvent::Interrupted(ended.err()));
        clock::sleep(wait).await;
    }
}

/// Lists if there is no revision to resume from, then reports the events of a watch until it ends.
async fn list_and_watch_once<S: ListWatch, T: Send>(
    source: &S,
    revision: &mut Option<String>,
    transform: &mut (impl FnMut(S::Object) -> T + Send),
    on_progress: &mut (impl FnMut(WatcherEvent<T>) + Send),
) -> Result<(), ApiError> {
    let from = match revision {
        Some(from) => from.clone(),
        None => {
            let list = source.list_as(transform).await?;
            let from = revision.insert(list.resource_version.clone()).clone();
            on_progress(WatcherEvent::Listed(list));
            from
        }
    };
    let mut events = pin!(source.watch(&from).await?);
    on_progress(WatcherEvent::Watching);
    while let Some(event) = events.next().await {
        let event = event?;
        *revision = Some(match &event {
            ObjectEvent::Added(object)
            | ObjectEvent::Modified(object)
            | ObjectEvent::Deleted(object) => S::resource_version(object).into(),
            ObjectEvent::Bookmark(at) => at.clone(),
        });
        let event = event.map(&mut *transform);
        on_progress(WatcherEvent::Event(event));
    }
    Ok(())
}

async fn run_reflector<S: ListWatch, T: CacheItem>(
    source: S,
    transform: impl FnMut(S::Object) -> T + Send,
    shared: Arc<SharedCache<T>>,
    synced: watch::Sender<bool>,
) {
    let apply = move |event| match event {
        WatcherEvent::Listed(list) => {
            shared.lock().replace(list.items);
            synced.send_replace(true);
        }
        WatcherEvent::Event(ObjectEvent::Added(object) | ObjectEvent::Modified(object)) => {
            shared.lock().apply(object, ChangeSource::Watch);
        }
        WatcherEvent::Event(ObjectEvent::Deleted(object)) => {
            shared.lock().remove(&object.key(), ChangeSource::Watch);
        }
        WatcherEvent::Event(ObjectEvent::Bookmark(_))
        | WatcherEvent::Watching
        | WatcherEvent::Interrupted(_) => {}
    };
    source_watcher(source, transform, apply).await;
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
    use podplane_api::{
        core::{Pod, PodSpec},
        meta::ObjectMeta,
    };

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
        fn node(pod: &Pod) -> Option<&str> {
            pod.spec.as_ref()?.node_name.as_deref()
        }
        let state = CacheState {
            objects: BTreeMap::new(),
            index: Some(KeyIndex::new(node)),
            subscribers: Vec::new(),
        };
        Cache {
            shared: Arc::new(SharedCache {
                state: Mutex::new(state),
            }),
            synced: watch::channel(true).1,
        }
    }

    fn drain(changes: &mut Changes<Pod>) -> Vec<String> {
        std::iter::from_fn(|| changes.try_next())
            .map(|change| match change {
                CacheChange::Applied { old, new } => {
                    format!(
                        "{}{}@{}",
                        if old.is_some() { "~" } else { "+" },
                        new.name(),
                        new.resource_version()
                    )
                }
                CacheChange::Deleted(old) => format!("-{}@{}", old.name(), old.resource_version()),
            })
            .collect()
    }

    #[test]
    fn index_follows_apply_replace_and_remove() {
        let on = |name: &str, node: &str| Pod {
            spec: Some(PodSpec {
                node_name: Some(node.into()).filter(|node: &String| !node.is_empty()),
                ..PodSpec::default()
            }),
            ..pod(name, name, "1")
        };
        let cache = cache();
        let names = |node| -> Vec<_> {
            let pods = cache.list_of(node);
            pods.iter().map(|pod| pod.name().to_owned()).collect()
        };
        let apply = |pod| cache.shared.lock().apply(pod, ChangeSource::Watch);
        apply(on("b", "one"));
        apply(on("a", "one"));
        apply(on("waiting", ""));
        assert_eq!(names("one"), ["a", "b"]);
        apply(on("waiting", "two"));
        apply(on("a", "two"));
        assert_eq!(
            (names("one"), names("two")),
            (vec!["b".to_owned()], vec!["a".into(), "waiting".into()])
        );
        let key = ObjectKey::new("", "b");
        cache.shared.lock().remove(&key, ChangeSource::Watch);
        assert!(names("one").is_empty());
        cache.shared.lock().replace(vec![on("a", "one")]);
        assert_eq!(names("one"), ["a"]);
        assert!(names("two").is_empty());
    }

    #[test]
    fn subscriber_gets_present_objects_then_every_change() {
        let cache = cache();
        cache
            .shared
            .lock()
            .apply(pod("a", "1", "1"), ChangeSource::Watch);
        let mut changes = cache.subscribe();
        cache
            .shared
            .lock()
            .apply(pod("b", "2", "2"), ChangeSource::Watch);
        cache
            .shared
            .lock()
            .apply(pod("a", "1", "3"), ChangeSource::Watch);
        cache
            .shared
            .lock()
            .remove(&ObjectKey::new("", "b"), ChangeSource::Watch);
        assert_eq!(drain(&mut changes), ["+a@1", "+b@2", "~a@3", "-b@2"]);
    }

    #[test]
    fn reports_differences_to_a_new_list() {
        let cache = cache();
        let mut changes = cache.subscribe();
        cache.shared.lock().replace(vec![
            pod("a", "1", "1"),
            pod("b", "2", "2"),
            pod("c", "3", "3"),
        ]);
        assert_eq!(drain(&mut changes), ["+a@1", "+b@2", "+c@3"]);
        // a is unchanged, b was created again, c is gone, d is new.
        cache.shared.lock().replace(vec![
            pod("a", "1", "1"),
            pod("b", "9", "5"),
            pod("d", "4", "4"),
        ]);
        assert_eq!(drain(&mut changes), ["-b@2", "-c@3", "+b@5", "+d@4"]);
    }

    #[tokio::test]
    async fn reports_source_of_deletion() {
        let cache = cache();
        let both = vec![pod("a", "1", "1"), pod("b", "2", "2")];
        cache.shared.lock().replace(both);
        let mut changes = cache.subscribe();
        assert_eq!(drain(&mut changes).len(), 2);
        let a = ObjectKey::new("", "a");
        cache.shared.lock().remove(&a, ChangeSource::Watch);
        cache.shared.lock().replace(Vec::new());
        let deletions = [
            changes.next_with_source().await.1,
            changes.next_with_source().await.1,
        ];
        assert_eq!(deletions, [ChangeSource::Watch, ChangeSource::List]);
    }

    #[tokio::test]
    async fn wakes_waiting_subscriber() {
        let cache = cache();
        let mut changes = cache.subscribe();
        let (change, ()) = tokio::join!(changes.next(), async {
            cache
                .shared
                .lock()
                .apply(pod("a", "1", "1"), ChangeSource::Watch)
        });
        assert!(matches!(change, CacheChange::Applied { old: None, .. }));
    }
}
