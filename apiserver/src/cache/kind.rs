use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
    sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use bytes::Bytes;
use podplane_api::{
    Object, ObjectKey,
    any::{AnyKind, DynObject},
    jiff::Timestamp,
    packed::PackedStrs,
    selector::FieldSet,
};
use podplane_proto::{codec, error::ApiError};
use podplane_store::{Item, Key, KeyEvent, Prefix, Revision};
use serde_json::Value;
use tokio::sync::watch;

use super::{
    Position, Query, Sink, Watcher,
    pending::{PendingObjects, PendingWrite},
    watcher::WatcherStart,
};
use crate::{error, fatal::or_abort, parallel, storage};

/// The state that a panic would leave half-changed, for the log.
const CACHE: &str = "watch cache";

/// An object in its served forms, with the fields for selectors.
#[derive(Debug)]
pub(crate) struct CachedObject {
    pub(super) labels: PackedLabels,
    pub(super) fields: FieldSet,
    /// The object as a message, for gRPC; empty for kinds without messages.
    pub(crate) message: Bytes,
    /// The object as it is in the store, with which it is shared.
    pub(super) item: Arc<Item>,
    /// [`Strategy::last_happened`](podplane_api::strategy::Strategy::last_happened)
    pub(super) last_happened: Option<Timestamp>,
}

impl CachedObject {
    /// The namespace and name.
    pub(crate) fn key(&self) -> ObjectKey {
        self.fields.key()
    }

    /// Decodes the object as a document, for REST.
    pub(crate) fn document(&self) -> Result<Value, ApiError> {
        self.document_at(self.item.modified)
    }

    /// Decodes the object.
    pub(crate) fn decode<K: Object>(&self) -> Result<K, ApiError> {
        let object = K::from_slice(&self.item.value());
        let mut object = object.map_err(|error| error::internal(&error))?;
        storage::set_revision(object.metadata_mut(), self.item.modified);
        Ok(object)
    }

    fn document_at(&self, revision: Revision) -> Result<Value, ApiError> {
        storage::document(&self.item.value(), revision).map_err(|error| error::internal(&error))
    }
}

/// Labels: each key, followed by its value.
#[derive(Debug)]
pub(super) struct PackedLabels(PackedStrs);

impl PackedLabels {
    pub(super) fn of(object: &DynObject) -> Self {
        let labels = object.metadata().labels.iter().flatten();
        Self(labels.flat_map(|(key, value)| [key, value]).collect())
    }

    pub(super) fn get(&self, key: &str) -> Option<&str> {
        let mut all = self.0.iter();
        while let (Some(other), Some(value)) = (all.next(), all.next()) {
            if other == key {
                return Some(value);
            }
        }
        None
    }
}

/// A change of one object.
#[derive(Debug)]
pub(crate) struct ObjectChange {
    pub(super) revision: Revision,
    pub(super) before: Option<Arc<CachedObject>>,
    pub(super) after: Option<Arc<CachedObject>>,
    /// The message of the previous state, at the revision of the change: the payload of a deletion
    /// event. The first watch that sends it encodes it.
    gone: OnceLock<Bytes>,
}

impl ObjectChange {
    /// The message of the previous state, at the revision of the change.
    pub(super) fn deletion_message(
        &self,
        kind: &dyn AnyKind,
        before: &CachedObject,
    ) -> Result<Bytes, ApiError> {
        if let Some(message) = self.gone.get() {
            return Ok(message.clone());
        }
        let message = codec::encode_any_at(kind, &before.item.value(), &self.revision.to_string())
            .map_err(|error| error::unencodable(&error))?;
        Ok(self.gone.get_or_init(|| message).clone())
    }

    /// The document of the previous state, at the revision of the change.
    pub(super) fn deletion_document(&self, before: &CachedObject) -> Result<Value, ApiError> {
        before.document_at(self.revision)
    }
}

/// The objects, and the changes kept for watches.
///
/// A cursor is the number of changes before a position, counted since the start of the process and
/// independent of those that were dropped since. Each watch keeps the cursor of its next change;
/// `changes[cursor - first]` is that change. A cursor below `first` has fallen behind: its change
/// is gone, and the watch expires. A cursor equal to [`end`](Self::end) has caught up.
#[derive(Debug)]
pub(super) struct KindState {
    /// The objects in the order of the store, which later pages of a list rely on.
    pub(super) objects: BTreeMap<Key, Arc<CachedObject>>,
    pub(super) changes: VecDeque<Arc<ObjectChange>>,
    /// The number of dropped changes: the cursor of the first kept one.
    pub(super) first: u64,
    /// Every change after this revision is kept.
    pub(super) oldest: Revision,
    /// The revision of the last change.
    pub(super) last: Revision,
}

impl KindState {
    /// The cursor after the last change.
    pub(super) fn end(&self) -> u64 {
        self.first.saturating_add(self.changes.len() as u64)
    }
}

/// All objects of a kind, and their recent changes.
#[derive(Debug)]
pub(crate) struct KindCache {
    kind: Arc<dyn AnyKind>,
    prefix: Prefix,
    state: RwLock<KindState>,
    pending: PendingObjects,
    /// The cursor after the last change, to wake watches.
    end: watch::Sender<u64>,
}

/// A page of a list.
#[derive(Debug)]
pub(crate) struct CachedPage {
    pub(crate) revision: Revision,
    pub(crate) items: Vec<Arc<CachedObject>>,
    /// The last object of the page, if more follow.
    pub(crate) last: Option<ObjectKey>,
    /// The number of objects that follow; `None` if a selector makes it expensive to count.
    pub(crate) remaining: Option<usize>,
}

impl KindCache {
    pub(crate) fn new(kind: Arc<dyn AnyKind>) -> Self {
        let state = KindState {
            objects: BTreeMap::new(),
            changes: VecDeque::new(),
            first: 0,
            oldest: podplane_store::FIRST_REVISION,
            last: podplane_store::FIRST_REVISION,
        };
        Self {
            prefix: storage::prefix_of(&*kind),
            kind,
            state: RwLock::new(state),
            pending: PendingObjects::default(),
            end: watch::Sender::new(0),
        }
    }

    /// The kind of the objects.
    pub(crate) fn kind(&self) -> &Arc<dyn AnyKind> {
        &self.kind
    }

    /// The object at a key.
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<CachedObject>> {
        self.read().objects.get(key).map(Arc::clone)
    }

    /// Announces the write of an object of the cache's own kind, whose stored form is `value`.
    pub(crate) fn announce(
        &self,
        key: &Key,
        object: &DynObject,
        value: &Bytes,
    ) -> Option<PendingWrite<'_>> {
        self.pending.announce(&*self.kind, key, object, value)
    }

    /// The message of the object that was committed at this revision, unless it has changed since.
    pub(crate) fn message(&self, key: &Key, revision: &str) -> Option<Bytes> {
        match self.get(key) {
            Some(entry) if entry.item.modified.to_string() == revision => {
                Some(entry.message.clone())
            }
            _ => self.pending.message(key, revision),
        }
    }

    /// The number of objects.
    pub(crate) fn len(&self) -> usize {
        self.read().objects.len()
    }

    /// The keys of all objects that match now.
    pub(crate) fn keys(&self, query: &Query) -> Vec<ObjectKey> {
        let state = self.read();
        self.matching(&state, query)
            .map(|entry| entry.key())
            .collect()
    }

    /// Lists up to `limit` objects that match.
    pub(crate) fn list(&self, query: &Query, limit: usize, position: &Position) -> CachedPage {
        // Read before the lock is taken, so that everything up to it is visible under the lock.
        let position = position.current();
        let state = self.read();
        let mut entries = self.matching(&state, query).peekable();
        let mut items = Vec::new();
        let mut last = None;
        while items.len() < limit
            && let Some(entry) = entries.next()
        {
            items.push(Arc::clone(entry));
            last = Some(entry);
        }
        let more = entries.peek().is_some();
        let remaining = (more && !query.selects()).then(|| entries.count());
        CachedPage {
            revision: state.last.max(position),
            items,
            last: last.filter(|_| more).map(|last| last.key()),
            remaining,
        }
    }

    /// Opens a watch that begins with all present objects.
    pub(crate) fn watch_all(self: &Arc<Self>, query: Query, position: Position) -> Watcher {
        let current = position.current();
        let beginning = {
            let state = self.read();
            let present = self.matching(&state, &query).map(Arc::clone).collect();
            WatcherStart {
                cursor: state.end(),
                revision: state.last.max(current),
                present,
            }
        };
        Watcher::new(Arc::clone(self), query, position, beginning)
    }

    /// Opens a watch of the changes after a revision.
    ///
    /// # Errors
    ///
    /// `Expired` if the revision is older than the kept changes.
    pub(crate) fn watch_after(
        self: &Arc<Self>,
        revision: Revision,
        query: Query,
        position: Position,
    ) -> Result<Watcher, ApiError> {
        let cursor = {
            let state = self.read();
            if revision < state.oldest {
                return Err(error::too_old_revision(revision, state.oldest));
            }
            let seen = state
                .changes
                .partition_point(|change| change.revision <= revision);
            state.first.saturating_add(seen as u64)
        };
        let beginning = WatcherStart {
            cursor,
            revision,
            present: Vec::new(),
        };
        Ok(Watcher::new(Arc::clone(self), query, position, beginning))
    }

    /// Drops changes up to a revision.
    pub(crate) fn trim(&self, oldest: Revision) {
        or_abort(CACHE, || self.forget(oldest));
    }

    fn forget(&self, oldest: Revision) {
        let mut state = self.write();
        let forgotten = state
            .changes
            .partition_point(|change| change.revision <= oldest);
        state.changes.drain(..forgotten);
        if state.changes.capacity() / 4 > state.changes.len() {
            let room = 2 * state.changes.len();
            state.changes.shrink_to(room);
        }
        state.first = state.first.saturating_add(forgotten as u64);
        state.oldest = state.oldest.max(oldest);
    }

    /// The objects that last occurred at `since` or before, with the time of the last occurrence.
    pub(crate) fn not_since(&self, since: Timestamp) -> Vec<(Timestamp, ObjectKey)> {
        let state = self.read();
        let dated = state.objects.values().filter_map(dated);
        let old = dated.filter(|(last, _)| *last <= since);
        old.map(|(last, entry)| (last, entry.key())).collect()
    }

    /// The oldest objects in excess of `most`, with the times of their last occurrence. Empty for
    /// kinds that do not expire.
    pub(crate) fn oldest_beyond(&self, most: usize) -> Vec<(Timestamp, ObjectKey)> {
        let state = self.read();
        let beyond = state.objects.len().saturating_sub(most);
        if beyond == 0 {
            return Vec::new();
        }
        let dated = state.objects.values().filter_map(dated);
        let mut dated: Vec<_> = dated.map(|(last, entry)| (last, entry.key())).collect();
        dated.sort_unstable();
        dated.truncate(beyond);
        dated
    }

    /// The objects that match a query, in the order of their keys.
    fn matching<'a>(
        &self,
        state: &'a KindState,
        query: &'a Query,
    ) -> impl Iterator<Item = &'a Arc<CachedObject>> + use<'a> {
        let prefix = query.prefix(&*self.kind);
        let from = (Bound::Included(prefix.as_bytes()), Bound::Unbounded);
        let under = state.objects.range::<[u8], _>(from);
        under
            .take_while(move |(key, _)| prefix.contains(key))
            .map(|(_, entry)| entry)
            .filter(|entry| query.matches(entry))
    }

    pub(super) fn ends(&self) -> watch::Receiver<u64> {
        self.end.subscribe()
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, KindState> {
        // A panic while the lock is held for writing ends the process, so the state is always
        // whole.
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, KindState> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An object and the time at which it last occurred; `None` for kinds that do not expire.
fn dated(entry: &Arc<CachedObject>) -> Option<(Timestamp, &CachedObject)> {
    Some((entry.last_happened?, entry))
}

/// Decodes an item. One that cannot be read is logged and left out: the others must still be
/// served.
pub(crate) fn entry(kind: &dyn AnyKind, item: &Arc<Item>) -> Option<Arc<CachedObject>> {
    let undecodable = |error: &(dyn std::error::Error + 'static)| tracing::error!(key = %item.key, error, "object in the store is not valid");
    let value = item.value();
    let object = kind
        .read(&value)
        .inspect_err(|error| undecodable(error))
        .ok()?;
    let message = match kind.service() {
        Some(_) => codec::encode_any_at(kind, &value, &item.modified.to_string())
            .inspect_err(|error| undecodable(error))
            .ok()?,
        None => Bytes::new(),
    };
    Some(Arc::new(CachedObject {
        fields: object.field_set(),
        last_happened: object.last_happened(),
        labels: PackedLabels::of(&*object),
        message,
        item: Arc::clone(item),
    }))
}

impl Sink for KindCache {
    fn prefix(&self) -> &Prefix {
        &self.prefix
    }

    fn load(&self, items: &[Arc<Item>], at: Revision) {
        // Their commits may be among the items, and no change would take them then.
        self.pending.clear();
        let entries = parallel::map(items, |item| entry(&*self.kind, item));
        let objects = items.iter().zip(entries);
        let objects = objects
            .filter_map(|(item, entry)| Some((item.key.clone(), entry?)))
            .collect();
        or_abort(CACHE, || {
            let mut state = self.write();
            state.objects = objects;
            // Open watches have missed changes, and expire.
            state.first = state.end().saturating_add(1);
            state.changes.clear();
            (state.oldest, state.last) = (at, at);
        });
    }

    fn apply(&self, revision: Revision, events: &[KeyEvent]) {
        // Decoded and encoded before the lock is taken.
        let changed: Vec<_> = events
            .iter()
            .map(|event| match event {
                KeyEvent::Put { item, .. } => {
                    let pending = self.pending.take(item);
                    let entry = match pending {
                        Some(pending) => Some(Arc::new(pending.committed(item))),
                        None => entry(&*self.kind, item),
                    };
                    (item.key.clone(), entry)
                }
                KeyEvent::Delete { previous } => (previous.key.clone(), None),
            })
            .collect();
        or_abort(CACHE, || {
            let mut state = self.write();
            for (key, after) in changed {
                let before = match &after {
                    Some(entry) => state.objects.insert(key, Arc::clone(entry)),
                    None => state.objects.remove(&key),
                };
                state.changes.push_back(Arc::new(ObjectChange {
                    revision,
                    before,
                    after,
                    gone: OnceLock::new(),
                }));
            }
            state.last = revision;
        });
    }

    fn watches(&self) -> usize {
        self.end.receiver_count()
    }

    fn wake(&self) {
        let end = self.read().end();
        self.end.send_replace(end);
    }
}
