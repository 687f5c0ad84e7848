//! The watch cache, which serves lists and watches.
//!
//! One feeder ([`feed`]) follows the store and applies each commit to the cache of its kind
//! ([`KindCache`]): the present objects, each as its encoded message with the fields for selectors,
//! and the recent events. What this server writes itself is not decoded again: its writer hands it
//! over ([`pending`]). A watch is a cursor into the events ([`Watcher`]); it queues nothing, so a
//! slow one costs the others nothing, and one that falls behind the kept events ends with
//! `Expired`.

mod feed;
mod kind;
mod pending;
mod query;
mod watcher;

use podplane_proto::error::{ApiError, Reason};
use podplane_store::Revision;
use tokio::sync::watch;

pub(crate) use feed::{Feeder, Sink, Sinks};
pub(crate) use kind::{CachedObject, CachedPage, KindCache, entry};
pub(crate) use pending::PendingWrite;
pub(crate) use query::{Continue, Query};
pub(crate) use watcher::{WatchedChange, Watcher};

/// The annotation of a bookmark which says that all objects present at the beginning have been
/// sent.
pub(crate) const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// The revision that the caches of all kinds have reached. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Position(watch::Receiver<Revision>);

impl Position {
    /// The revision up to which every commit is in the cache of its kind.
    pub(crate) fn current(&self) -> Revision {
        *self.0.borrow()
    }

    /// Waits until the commits up to a revision are in the caches.
    ///
    /// # Errors
    ///
    /// `ServiceUnavailable` if the server stops before.
    pub(crate) async fn reached(&self, revision: u64) -> Result<(), ApiError> {
        let mut position = self.0.clone();
        let reached = position
            .wait_for(|position| position.number() >= revision)
            .await;
        reached.map(|_| ()).map_err(|_ended| {
            ApiError::new(Reason::ServiceUnavailable, "the server is shutting down")
        })
    }
}
