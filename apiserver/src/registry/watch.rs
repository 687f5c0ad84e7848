//! A watch, as the stream of what a client is told.

use std::time::Duration;

use futures::{Stream, StreamExt as _, stream};
use podplane_proto::error::ApiError;
use podplane_store::Revision;
use tokio::time;

use super::Registry;
use crate::{
    cache::{Query, Seen, Watcher},
    error,
    strategy::Strategy,
};

/// How long a watch is idle before it gets a bookmark.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

/// What is asked of a watch.
#[derive(Debug)]
pub(crate) struct WatchOptions {
    pub(crate) query: Query,
    /// Changes after this revision; where it is empty or 0, all present objects first.
    pub(crate) after: String,
    /// Whether an idle watch is told how far it has come.
    pub(crate) bookmarks: bool,
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
            after,
            bookmarks,
            announce_end,
        } = options;
        self.position.reached(self.engine.acknowledged()).await?;
        // As in lists, 0 is any revision, and all objects are present at any.
        let (watcher, phase) = if after.is_empty() || after == "0" {
            let watcher = self.cache.watch_all(query, self.position.clone());
            (watcher, Phase::Present)
        } else {
            let revision: Revision = after.parse().map_err(|_| {
                error::bad_request(format!(
                    "invalid resource version {after:?}: not a revision of this server"
                ))
            })?;
            self.not_in_the_future(revision)?;
            let watcher = self
                .cache
                .watch_after(revision, query, self.position.clone())?;
            (watcher, Phase::Following)
        };
        Ok(told(Open {
            watcher,
            bookmarks,
            announce_end,
            phase,
        }))
    }
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
    bookmarks: bool,
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
            // Dropping `next` when the time is up loses nothing.
            match time::timeout(BOOKMARK_EVERY, self.watcher.next()).await {
                Ok(seen) => return Ok(seen?.into_iter().map(Told::Seen).collect()),
                Err(_elapsed) if self.bookmarks => {
                    if let Some(revision) = self.watcher.caught_up() {
                        return Ok(vec![Told::Bookmark(revision)]);
                    }
                }
                Err(_elapsed) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
