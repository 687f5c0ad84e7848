use std::sync::Arc;

use podplane_api::meta::ObjectMeta;
use podplane_proto::{
    codec,
    error::{ApiError, Reason},
    wire::{WatchEvent, WatchEventType},
};
use podplane_store::Revision;
use tokio::sync::watch;

use super::{
    KindCache, Position, Query,
    kind::{Change, Entry},
};
use crate::{error, strategy::Strategy};

/// How many changes are looked at for each wake-up, so that one watch does not hold the lock for long.
const BATCH: usize = 64;

/// Says that the objects that were present at the beginning have all been sent.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// One client's watch of a kind.
#[derive(Debug)]
pub(crate) struct Watcher<K> {
    cache: Arc<KindCache<K>>,
    query: Query,
    position: Position,
    /// The next change to look at.
    cursor: u64,
    ends: watch::Receiver<u64>,
    /// The revision of the beginning.
    began: Revision,
    /// Present at the beginning and not sent yet.
    present: Vec<Arc<Entry>>,
}

/// Where a watch begins.
#[derive(Debug)]
pub(super) struct Beginning {
    pub(super) cursor: u64,
    pub(super) revision: Revision,
    pub(super) present: Vec<Arc<Entry>>,
}

impl<K: Strategy> Watcher<K> {
    pub(super) fn new(
        cache: Arc<KindCache<K>>,
        query: Query,
        position: Position,
        beginning: Beginning,
    ) -> Self {
        let Beginning {
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

    /// The objects that were present when the watch began, as additions. Empty from the second call on.
    pub(crate) fn present(&mut self) -> Vec<WatchEvent> {
        let present = std::mem::take(&mut self.present);
        present
            .into_iter()
            .map(|entry| event(WatchEventType::Added, entry.message.clone()))
            .collect()
    }

    /// Waits for changes that match.
    ///
    /// # Errors
    ///
    /// `Expired` if the watch fell behind the changes that are kept; `ServiceUnavailable` if the server ends.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Vec<WatchEvent>, ApiError> {
        loop {
            // Marked as seen before the changes are read, so that one in between wakes the wait below.
            self.ends.borrow_and_update();
            let changes = self.changes()?;
            let looked_at = changes.len() as u64;
            let events: Result<Vec<_>, _> = changes
                .iter()
                .filter_map(|change| self.show(change))
                .collect();
            self.cursor = self.cursor.saturating_add(looked_at);
            match events? {
                events if !events.is_empty() => return Ok(events),
                _ if looked_at > 0 => {}
                _ => {
                    let changed = self.ends.changed().await;
                    changed.map_err(|_ended| {
                        ApiError::new(Reason::ServiceUnavailable, "the server is shutting down")
                    })?;
                }
            }
        }
    }

    /// How far the watch has come, if it has come to the end.
    pub(crate) fn bookmark(&self) -> Result<Option<WatchEvent>, ApiError> {
        let Some(revision) = self.caught_up() else {
            return Ok(None);
        };
        bookmark::<K>(revision, None).map(Some)
    }

    /// The bookmark that ends the present objects.
    pub(crate) fn initial_end(&self) -> Result<WatchEvent, ApiError> {
        bookmark::<K>(self.began, Some(INITIAL_EVENTS_END))
    }

    fn caught_up(&self) -> Option<Revision> {
        // Read before the lock is taken, so that everything up to it is in what the lock shows.
        let position = self.position.current();
        let state = self.cache.read();
        (state.end() == self.cursor).then(|| state.last.max(position))
    }

    fn changes(&self) -> Result<Vec<Arc<Change>>, ApiError> {
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

    /// The change as this watch sees it: an object that begins to match was added, one that no longer does was deleted.
    fn show(&self, change: &Change) -> Option<Result<WatchEvent, ApiError>> {
        let matches = |entry: &&Arc<Entry>| {
            self.query
                .matches(&entry.key.namespace, &entry.labels, &entry.fields)
        };
        let before = change.before.as_ref().filter(matches);
        match (before, change.after.as_ref().filter(matches)) {
            (None, None) => None,
            (None, Some(after)) => Some(Ok(event(WatchEventType::Added, after.message.clone()))),
            (Some(_), Some(after)) => {
                Some(Ok(event(WatchEventType::Modified, after.message.clone())))
            }
            (Some(before), None) => {
                let message = change.gone::<K>(before);
                Some(message.map(|message| event(WatchEventType::Deleted, message)))
            }
        }
    }
}

fn event(r#type: WatchEventType, message: bytes::Bytes) -> WatchEvent {
    WatchEvent {
        r#type: r#type.into(),
        object: Some(message),
    }
}

fn bookmark<K: Strategy>(
    revision: Revision,
    annotation: Option<&str>,
) -> Result<WatchEvent, ApiError> {
    let mut object = K::default();
    *object.metadata_mut() = ObjectMeta {
        resource_version: Some(revision.to_string()),
        annotations: annotation.map(|name| [(name.to_owned(), "true".to_owned())].into()),
        ..ObjectMeta::default()
    };
    let message = codec::encode(&object).map_err(|error| error::unencodable(&error))?;
    Ok(event(WatchEventType::Bookmark, message))
}
