use std::sync::Arc;

use bytes::Bytes;
use podplane_api::any::AnyKind;
use podplane_proto::{
    error::{ApiError, Reason},
    wire::WatchEventType,
};
use podplane_store::Revision;
use serde_json::Value;
use tokio::sync::watch;

use super::{
    KindCache, Position, Query,
    kind::{CachedObject, ObjectChange},
};
use crate::error;

/// The maximum number of changes examined per wake-up, so that one watch does not hold the lock for
/// long.
const BATCH: usize = 64;

/// One client's watch of a kind.
#[derive(Debug)]
pub(crate) struct Watcher {
    cache: Arc<KindCache>,
    query: Query,
    position: Position,
    /// The cursor of the next change.
    cursor: u64,
    ends: watch::Receiver<u64>,
    /// The revision at which the watch began.
    began: Revision,
    /// The objects present at the beginning and not sent yet.
    present: Vec<Arc<CachedObject>>,
}

/// The starting point of a watch.
#[derive(Debug)]
pub(super) struct WatcherStart {
    pub(super) cursor: u64,
    pub(super) revision: Revision,
    pub(super) present: Vec<Arc<CachedObject>>,
}

impl Watcher {
    pub(super) fn new(
        cache: Arc<KindCache>,
        query: Query,
        position: Position,
        beginning: WatcherStart,
    ) -> Self {
        let WatcherStart {
            cursor,
            revision: began,
            present,
        } = beginning;
        let ends = cache.ends();
        Self {
            cache,
            query,
            position,
            cursor,
            ends,
            began,
            present,
        }
    }

    /// The objects that were present when the watch began, as additions. Empty from the second call
    /// on.
    pub(crate) fn present(&mut self) -> Vec<WatchedChange> {
        let present = std::mem::take(&mut self.present);
        present.into_iter().map(WatchedChange::Added).collect()
    }

    /// Waits for changes that match.
    ///
    /// # Errors
    ///
    /// `Expired` if the watch fell behind the kept changes; `ServiceUnavailable` if the server
    /// stops.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Vec<WatchedChange>, ApiError> {
        loop {
            // Marked as seen before the changes are read, so that a change in between wakes the
            // wait below.
            self.ends.borrow_and_update();
            let changes = self.changes()?;
            let looked_at = changes.len() as u64;
            let seen: Vec<_> = changes
                .iter()
                .filter_map(|change| self.show(change))
                .collect();
            self.cursor = self.cursor.saturating_add(looked_at);
            match looked_at {
                _ if !seen.is_empty() => return Ok(seen),
                1.. => {}
                0 => {
                    let changed = self.ends.changed().await;
                    changed.map_err(|_ended| {
                        ApiError::new(Reason::ServiceUnavailable, "the server is shutting down")
                    })?;
                }
            }
        }
    }

    /// The revision at which the watch began.
    pub(crate) fn began(&self) -> Revision {
        self.began
    }

    /// The revision that the watch has reached; `None` while there are changes to send.
    pub(crate) fn caught_up(&self) -> Option<Revision> {
        // Read before the lock is taken, so that everything up to it is visible under the lock.
        let position = self.position.current();
        let state = self.cache.read();
        (state.end() == self.cursor).then(|| state.last.max(position))
    }

    fn changes(&self) -> Result<Vec<Arc<ObjectChange>>, ApiError> {
        let state = self.cache.read();
        let Some(skip) = self.cursor.checked_sub(state.first) else {
            return Err(error::expired(
                "too old resource version: the watch fell behind the history that is kept",
            ));
        };
        let skip = usize::try_from(skip)
            .unwrap_or(usize::MAX)
            .min(state.changes.len());
        Ok(state.changes.range(skip..).take(BATCH).cloned().collect())
    }

    /// The change as this watch sees it: an object that begins to match is added, one that no
    /// longer matches is deleted.
    fn show(&self, change: &Arc<ObjectChange>) -> Option<WatchedChange> {
        let matches = |entry: &&Arc<CachedObject>| self.query.matches(entry);
        let before = change.before.as_ref().filter(matches);
        match (before, change.after.as_ref().filter(matches)) {
            (None, None) => None,
            (None, Some(after)) => Some(WatchedChange::Added(Arc::clone(after))),
            (Some(_), Some(after)) => Some(WatchedChange::Modified(Arc::clone(after))),
            (Some(before), None) => Some(WatchedChange::Deleted(
                Arc::clone(change),
                Arc::clone(before),
            )),
        }
    }
}

/// A change as a watch reports it.
#[derive(Clone, Debug)]
pub(crate) enum WatchedChange {
    /// The object was created, or began to match.
    Added(Arc<CachedObject>),
    /// The object changed.
    Modified(Arc<CachedObject>),
    /// The change by which the object was deleted or no longer matches, and the previous object.
    Deleted(Arc<ObjectChange>, Arc<CachedObject>),
}

impl WatchedChange {
    pub(crate) fn event_type(&self) -> WatchEventType {
        match self {
            Self::Added(_) => WatchEventType::Added,
            Self::Modified(_) => WatchEventType::Modified,
            Self::Deleted(..) => WatchEventType::Deleted,
        }
    }

    /// The revision of the change.
    pub(crate) fn revision(&self) -> Revision {
        match self {
            Self::Added(entry) | Self::Modified(entry) => entry.item.modified,
            Self::Deleted(change, _) => change.revision,
        }
    }

    /// The object's message.
    pub(crate) fn message(&self, kind: &dyn AnyKind) -> Result<Bytes, ApiError> {
        match self {
            Self::Added(entry) | Self::Modified(entry) => Ok(entry.message.clone()),
            Self::Deleted(change, before) => change.deletion_message(kind, before),
        }
    }

    /// The object's document.
    pub(crate) fn document(&self) -> Result<Value, ApiError> {
        match self {
            Self::Added(entry) | Self::Modified(entry) => entry.document(),
            Self::Deleted(change, before) => change.deletion_document(before),
        }
    }
}
