//! A watch, as a stream of events for a client.

use std::time::Duration;

use futures::{Stream, StreamExt as _, stream};
use podplane_host::clock::{self, Instant};
use podplane_proto::error::ApiError;
use podplane_store::Revision;

use super::KindRegistry;
use crate::{
    cache::{Query, WatchedChange, Watcher},
    error,
};

/// The interval between two bookmarks of a watch.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// The time before the watch's end at which it gets another bookmark, so that its client can resume
/// from there.
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);
/// The delay until a due bookmark is tried again, because the watch has not caught up.
const BOOKMARK_AGAIN: Duration = Duration::from_secs(1);

/// The starting point of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchStart {
    /// All present objects, at this revision or later; `None`: as new as every acknowledged write.
    Present(Option<Revision>),
    /// The changes after this revision.
    After(Revision),
    /// The changes from now on.
    Now,
}

impl WatchStart {
    /// Parses `resourceVersion`: if empty or 0, the watch begins with the present objects (at 0, in
    /// any state).
    pub(crate) fn parse(version: &str) -> Result<Self, ApiError> {
        match version {
            "" | "0" => Ok(Self::Present(None)),
            version => revision(version).map(Self::After),
        }
    }
}

/// Parses the `resourceVersion` of a watch.
pub(crate) fn revision(version: &str) -> Result<Revision, ApiError> {
    version.parse().map_err(|_| {
        error::bad_request(format!(
            "invalid resource version {version:?}: not a revision of this server"
        ))
    })
}

/// The options of a watch.
#[derive(Debug)]
pub(crate) struct WatchOptions {
    pub(crate) query: Query,
    pub(crate) start: WatchStart,
    /// True to send bookmarks.
    pub(crate) bookmarks: bool,
    /// The time at which the caller will end it.
    pub(crate) ends: Option<Instant>,
    /// True to send a bookmark when everything up to the beginning has been sent: after the present
    /// objects, or with [`WatchStart::After`] when the watch has caught up.
    pub(crate) announce_end: bool,
}

/// An event for a client.
#[derive(Clone, Debug)]
pub(crate) enum StreamEvent {
    /// A change.
    Change(WatchedChange),
    /// The revision that the watch has reached.
    Bookmark(Revision),
    /// The same, and all objects present at the beginning have been sent.
    InitialEnd(Revision),
}

impl KindRegistry {
    /// Opens a watch; it ends after an error.
    pub(crate) async fn watch(
        &self,
        options: WatchOptions,
    ) -> Result<impl Stream<Item = Result<StreamEvent, ApiError>> + Send + use<>, ApiError> {
        let WatchOptions {
            query,
            start,
            bookmarks,
            ends,
            announce_end,
        } = options;
        self.fresh().await?;
        let position = self.position.clone();
        let (watcher, phase) = match start {
            WatchStart::Present(at_least) => {
                if let Some(revision) = at_least {
                    self.of_this_store(revision).await?;
                }
                (self.cache.watch_all(query, position), StreamPhase::Present)
            }
            WatchStart::After(revision) => {
                self.not_of_another_store(revision)?;
                let watcher = self.cache.watch_after(revision, query, position)?;
                (watcher, StreamPhase::Following)
            }
            WatchStart::Now => {
                let now = self.position.current();
                let watcher = self.cache.watch_after(now, query, position)?;
                (watcher, StreamPhase::Following)
            }
        };
        let bookmark_at = bookmarks.then(|| match start {
            WatchStart::After(_) if announce_end => Instant::now(),
            _ => next_bookmark(ends),
        });
        Ok(event_stream(EventStream {
            watcher,
            bookmark_at,
            ends,
            announce_end,
            phase,
        }))
    }

    /// Refuses a revision that this store does not have yet. Kubernetes waits for it; here the
    /// server has every revision that any server gave out, so it comes from a store that no longer
    /// exists, and a client that waited for it would miss everything until then.
    fn not_of_another_store(&self, revision: Revision) -> Result<(), ApiError> {
        let current = self.newest();
        if revision.number() > current {
            let message = format!("too large resource version: {revision} ({current})");
            return Err(error::expired(message));
        }
        Ok(())
    }
}

/// The time of the next bookmark of a watch that ends at `ends`.
fn next_bookmark(ends: Option<Instant>) -> Instant {
    let now = Instant::now();
    let regular = now + BOOKMARK_EVERY;
    let last = ends.and_then(|ends| ends.checked_sub(BOOKMARK_BEFORE_END));
    last.filter(|last| *last > now)
        .map_or(regular, |last| last.min(regular))
}

/// The phase of a stream: `Present` → `Following` → `Ended`, or `Following` from the start. An
/// error ends any phase.
#[derive(Clone, Copy)]
enum StreamPhase {
    /// The objects present at the beginning are yet to be sent.
    Present,
    /// The present objects were sent; changes follow.
    Following,
    /// An error was sent; nothing follows.
    Ended,
}

struct EventStream {
    watcher: Watcher,
    /// The time at which the next bookmark is due.
    bookmark_at: Option<Instant>,
    ends: Option<Instant>,
    announce_end: bool,
    phase: StreamPhase,
}

fn event_stream(open: EventStream) -> impl Stream<Item = Result<StreamEvent, ApiError>> {
    let batches = stream::unfold(open, |mut open| async move {
        if matches!(open.phase, StreamPhase::Ended) {
            return None;
        }
        let batch = match open.next().await {
            Ok(batch) => batch.into_iter().map(Ok).collect(),
            Err(error) => {
                open.phase = StreamPhase::Ended;
                vec![Err(error)]
            }
        };
        Some((stream::iter(batch), open))
    });
    batches.flatten()
}

impl EventStream {
    async fn next(&mut self) -> Result<Vec<StreamEvent>, ApiError> {
        if matches!(self.phase, StreamPhase::Present) {
            self.phase = StreamPhase::Following;
            let present = self.watcher.present().into_iter().map(StreamEvent::Change);
            let end = self
                .announce_end
                .then(|| StreamEvent::InitialEnd(self.watcher.began()));
            return Ok(present.chain(end).collect());
        }
        loop {
            let seen = match self.bookmark_at {
                // Dropping `next` at the timeout loses nothing.
                Some(due) => clock::timeout_at(due, self.watcher.next()).await,
                None => Ok(self.watcher.next().await),
            };
            if let Ok(seen) = seen {
                return Ok(seen?.into_iter().map(StreamEvent::Change).collect());
            }
            if let Some(revision) = self.watcher.caught_up() {
                self.bookmark_at = Some(next_bookmark(self.ends));
                return Ok(vec![StreamEvent::Bookmark(revision)]);
            }
            self.bookmark_at = Some(Instant::now() + BOOKMARK_AGAIN);
        }
    }
}

#[cfg(test)]
mod tests;
