//! A watch, as the stream of what a client is told.

use std::time::Duration;

use futures::{Stream, StreamExt as _, stream};
use podplane_proto::error::ApiError;
use podplane_store::Revision;
use tokio::time::{self, Instant};

use super::Registry;
use crate::{
    cache::{Query, Seen, Watcher},
    error,
    strategy::Strategy,
};

/// How often a watch gets a bookmark.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// How long before its end it gets another, so that its client can go on from there.
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);
/// When a bookmark that is due is tried again, because the watch has not come to the end of what happened.
const BOOKMARK_AGAIN: Duration = Duration::from_secs(1);

/// Where a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// With all present objects, as they are at this revision or later; `None`: as new as every acknowledged write.
    Present(Option<Revision>),
    /// With the changes after this revision.
    After(Revision),
    /// With the changes that come.
    Now,
}

impl Start {
    /// As `resourceVersion` says it: present objects first where it is empty or 0, for at 0 any state will do.
    pub(crate) fn parse(version: &str) -> Result<Self, ApiError> {
        match version {
            "" | "0" => Ok(Self::Present(None)),
            version => revision(version).map(Self::After),
        }
    }
}

/// The revision of a `resourceVersion` of which a watch is asked.
pub(crate) fn revision(version: &str) -> Result<Revision, ApiError> {
    version.parse().map_err(|_| {
        error::bad_request(format!(
            "invalid resource version {version:?}: not a revision of this server"
        ))
    })
}

/// What is asked of a watch.
#[derive(Debug)]
pub(crate) struct WatchOptions {
    pub(crate) query: Query,
    pub(crate) start: Start,
    /// Whether it is told from time to time how far it has come.
    pub(crate) bookmarks: bool,
    /// When it will be ended by whoever asked for it.
    pub(crate) ends: Option<Instant>,
    /// Whether a bookmark ends the present objects.
    pub(crate) announce_end: bool,
}

/// What a client is told.
#[derive(Clone, Debug)]
pub(crate) enum Told {
    /// A change.
    Seen(Seen),
    /// How far the watch has come.
    Bookmark(Revision),
    /// The same, and that all that was present when the watch began has been sent.
    InitialEnd(Revision),
}

impl<K: Strategy> Registry<K> {
    /// A watch; it ends after an error.
    pub(crate) async fn watch(
        &self,
        options: WatchOptions,
    ) -> Result<impl Stream<Item = Result<Told, ApiError>> + Send + use<K>, ApiError> {
        let WatchOptions {
            query,
            start,
            bookmarks,
            ends,
            announce_end,
        } = options;
        self.position.reached(self.engine.acknowledged()).await?;
        let position = self.position.clone();
        let (watcher, phase) = match start {
            Start::Present(at_least) => {
                at_least.map_or(Ok(()), |revision| self.of_this_store(revision))?;
                (self.cache.watch_all(query, position), Phase::Present)
            }
            Start::After(revision) => {
                self.not_of_another_store(revision)?;
                let watcher = self.cache.watch_after(revision, query, position)?;
                (watcher, Phase::Following)
            }
            Start::Now => {
                let now = self.position.current();
                let watcher = self.cache.watch_after(now, query, position)?;
                (watcher, Phase::Following)
            }
        };
        Ok(told(Open {
            watcher,
            bookmark_at: bookmarks.then(|| next_bookmark(ends)),
            ends,
            announce_end,
            phase,
        }))
    }

    /// The reference waits for a revision that is not there yet. Here there is one server, so that such a revision comes from a store that is no
    /// more, and whoever waited for it would miss all that happens until then.
    fn not_of_another_store(&self, revision: Revision) -> Result<(), ApiError> {
        let current = self.newest();
        if revision.number() > current {
            let message = format!("too large resource version: {revision} ({current})");
            return Err(error::expired(message));
        }
        Ok(())
    }
}

/// When a watch that ends then gets its next bookmark.
fn next_bookmark(ends: Option<Instant>) -> Instant {
    let now = Instant::now();
    let regular = now + BOOKMARK_EVERY;
    let last = ends.and_then(|ends| ends.checked_sub(BOOKMARK_BEFORE_END));
    last.filter(|last| *last > now)
        .map_or(regular, |last| last.min(regular))
}

#[derive(Clone, Copy)]
enum Phase {
    /// What was there when the watch began is yet to be sent.
    Present,
    /// It was sent; changes follow.
    Following,
    /// An error was sent; nothing follows.
    Ended,
}

struct Open<K> {
    watcher: Watcher<K>,
    /// When the next bookmark is due.
    bookmark_at: Option<Instant>,
    ends: Option<Instant>,
    announce_end: bool,
    phase: Phase,
}

fn told<K: Strategy>(open: Open<K>) -> impl Stream<Item = Result<Told, ApiError>> {
    let batches = stream::unfold(open, |mut open| async move {
        if matches!(open.phase, Phase::Ended) {
            return None;
        }
        let batch = match open.next().await {
            Ok(batch) => batch.into_iter().map(Ok).collect(),
            Err(error) => {
                open.phase = Phase::Ended;
                vec![Err(error)]
            }
        };
        Some((stream::iter(batch), open))
    });
    batches.flatten()
}

impl<K: Strategy> Open<K> {
    async fn next(&mut self) -> Result<Vec<Told>, ApiError> {
        if matches!(self.phase, Phase::Present) {
            self.phase = Phase::Following;
            let present = self.watcher.present().into_iter().map(Told::Seen);
            let end = self
                .announce_end
                .then(|| Told::InitialEnd(self.watcher.began()));
            return Ok(present.chain(end).collect());
        }
        loop {
            let seen = match self.bookmark_at {
                // Dropping `next` when the time is up loses nothing.
                Some(due) => time::timeout_at(due, self.watcher.next()).await,
                None => Ok(self.watcher.next().await),
            };
            if let Ok(seen) = seen {
                return Ok(seen?.into_iter().map(Told::Seen).collect());
            }
            if let Some(revision) = self.watcher.caught_up() {
                self.bookmark_at = Some(next_bookmark(self.ends));
                return Ok(vec![Told::Bookmark(revision)]);
            }
            self.bookmark_at = Some(Instant::now() + BOOKMARK_AGAIN);
        }
    }
}

#[cfg(test)]
mod tests;
