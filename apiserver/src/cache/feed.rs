use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, stream::BoxStream};
use podplane_host::clock::{Instant, timeout_at};
use podplane_proto::error::{ApiError, Reason};
use podplane_store::{
    Commit, FIRST_REVISION, Item, KeyEvent, ListQuery, Prefix, Revision, StoreError,
};
use tokio::sync::{mpsc, oneshot, watch};

use super::Position;
use crate::engine::Engine;

/// The pause between two wake-ups, for each watch. Waking a watch costs much more than one more
/// event for it. While commits follow each other closely, watches are woken so rarely that about
/// half of the time is left for other work: a few watches are woken at each commit, a thousand
/// every ten milliseconds.
const PAUSE_FOR_EACH: Duration = Duration::from_micros(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// Shorter pauses are skipped, since timers do not measure them.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

/// The cache of a kind, as its feeder sees it.
pub(crate) trait Sink: Send + Sync {
    /// The prefix of the keys that it holds.
    fn prefix(&self) -> &Prefix;

    /// Loads these objects, as they were at a revision, in place of those that it has. The changes
    /// in between are not known.
    fn load(&self, items: &[Arc<Item>], at: Revision);

    /// Applies the part of a commit that is under the prefix.
    fn apply(&self, revision: Revision, events: &[KeyEvent]);

    /// The number of open watches.
    fn watches(&self) -> usize;

    /// Wakes the watches.
    fn wake(&self);
}

/// Carries every commit of the store to the caches, in order.
pub(crate) struct Feeder {
    sinks: Vec<SinkState>,
    position: watch::Sender<Revision>,
    changes: (
        mpsc::UnboundedSender<SinkChange>,
        mpsc::UnboundedReceiver<SinkChange>,
    ),
}

/// A change of the fed caches while they are fed.
enum SinkChange {
    /// Another cache; the sender is used once it has caught up.
    Add(Arc<dyn Sink>, oneshot::Sender<()>),
    /// The end of a cache.
    Remove(Arc<dyn Sink>),
}

/// Adds and removes caches while the feeder runs. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Sinks(mpsc::UnboundedSender<SinkChange>);

impl std::fmt::Debug for SinkChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SinkChange(..)")
    }
}

impl Sinks {
    /// Adds a cache, and waits until it has the present objects.
    ///
    /// # Errors
    ///
    /// `ServiceUnavailable` if the server stops before.
    pub(crate) async fn add(&self, sink: Arc<dyn Sink>) -> Result<(), ApiError> {
        let (filled, is_filled) = oneshot::channel();
        // Fails only if the feeder has ended, as the other end then does.
        _ = self.0.send(SinkChange::Add(sink, filled));
        is_filled.await.map_err(|_ended| {
            ApiError::new(Reason::ServiceUnavailable, "the server is shutting down")
        })
    }

    /// Feeds a cache no more.
    pub(crate) fn remove(&self, sink: Arc<dyn Sink>) {
        // Without a feeder nothing is fed.
        _ = self.0.send(SinkChange::Remove(sink));
    }
}

struct SinkState {
    sink: Arc<dyn Sink>,
    /// The time of the last wake-up of its watches.
    woken: Instant,
    /// True if a commit was applied since the last wake-up.
    stale: bool,
}

impl SinkState {
    fn new(sink: Arc<dyn Sink>) -> Self {
        Self {
            sink,
            woken: Instant::now(),
            stale: false,
        }
    }

    /// Loads the objects at a revision.
    async fn load(&mut self, engine: &Engine, at: Revision) -> Result<(), StoreError> {
        let query = ListQuery {
            prefix: self.sink.prefix().clone(),
            at: Some(at),
            ..ListQuery::default()
        };
        self.sink.load(&engine.list(query).await?.items, at);
        self.stale = true;
        Ok(())
    }

    /// Wakes the watches; if they were woken a moment ago, returns the time of the next wake-up
    /// instead.
    fn wake(&mut self, now: Instant) -> Option<Instant> {
        if !self.stale {
            return None;
        }
        let watches = u32::try_from(self.sink.watches()).unwrap_or(u32::MAX);
        let pause = PAUSE_FOR_EACH.saturating_mul(watches).min(LONGEST_PAUSE);
        let due = self.woken + pause;
        if pause >= SHORTEST_PAUSE && now < due {
            return Some(due);
        }
        self.woken = now;
        self.stale = false;
        self.sink.wake();
        None
    }
}

impl Feeder {
    pub(crate) fn new() -> Self {
        Self {
            sinks: Vec::new(),
            position: watch::Sender::new(FIRST_REVISION),
            changes: mpsc::unbounded_channel(),
        }
    }

    /// Adds and removes caches while the feeder runs.
    pub(crate) fn sinks(&self) -> Sinks {
        Sinks(self.changes.0.clone())
    }

    pub(crate) fn add(&mut self, sink: Arc<dyn Sink>) {
        self.sinks.push(SinkState::new(sink));
    }

    /// Loads the objects of all caches at a revision.
    async fn load(&mut self, engine: &Engine, at: Revision) -> Result<(), StoreError> {
        for fed in &mut self.sinks {
            fed.load(engine, at).await?;
        }
        self.position.send_replace(at);
        Ok(())
    }

    pub(crate) fn position(&self) -> Position {
        Position(self.position.subscribe())
    }

    /// Fills the caches from the store's oldest revision up to now, so that watches from before a
    /// restart can resume.
    pub(crate) async fn fill(mut self, engine: &Engine) -> Result<Feed, StoreError> {
        let oldest = engine.status().await?.oldest;
        self.load(engine, oldest).await?;
        let mut feed = Feed {
            engine: engine.clone(),
            commits: engine.watch(oldest).await?,
            feeder: self,
        };
        let acknowledged = engine.acknowledged().await?;
        while feed.feeder.position.borrow().number() < acknowledged {
            let commit = feed.commits.next().await;
            feed.apply(commit.ok_or(StoreError::Unavailable)??);
        }
        Ok(feed)
    }
}

/// The event that a feeder waited for.
enum Next {
    Commit(Option<Result<Commit, StoreError>>),
    Change(Option<SinkChange>),
}

/// A feeder that has caught up once.
pub(crate) struct Feed {
    engine: Engine,
    commits: BoxStream<'static, Result<Commit, StoreError>>,
    feeder: Feeder,
}

impl Feed {
    /// Feeds the caches until the store fails.
    ///
    /// # Errors
    ///
    /// The store's, when it was closed.
    pub(crate) async fn run(mut self) -> Result<(), StoreError> {
        loop {
            let now = Instant::now();
            let due = self.feeder.sinks.iter_mut().filter_map(|fed| fed.wake(now));
            let due = due.min();
            let commits = &mut self.commits;
            // Whichever of the two is dropped loses nothing.
            let next = async {
                tokio::select! {
                    commit = commits.next() => Next::Commit(commit),
                    change = self.feeder.changes.1.recv() => Next::Change(change),
                }
            };
            let next = match due {
                Some(due) => timeout_at(due, next).await,
                None => Ok(next.await),
            };
            match next {
                Ok(Next::Commit(commit)) => match commit.ok_or(StoreError::Unavailable)? {
                    Ok(commit) => self.apply(commit),
                    Err(StoreError::Compacted { .. }) => self.begin_again().await?,
                    Err(error) => return Err(error),
                },
                Ok(Next::Change(Some(change))) => self.change(change).await?,
                // The feeder itself has a sender.
                Ok(Next::Change(None)) | Err(_) => {}
            }
        }
    }

    /// Loads all caches anew, after a shared store has been compacted further than they have come.
    /// Their watches expire.
    async fn begin_again(&mut self) -> Result<(), StoreError> {
        loop {
            let current = self.engine.status().await?.current;
            let from = *self.feeder.position.borrow();
            match self.feeder.load(&self.engine, current).await {
                // It was compacted once more.
                Err(StoreError::Compacted { .. }) => continue,
                loaded => loaded?,
            }
            tracing::warn!(
                %from,
                to = %current,
                "the store was compacted further than the watch caches had come; loaded them anew"
            );
            self.commits = self.engine.watch(current).await?;
            return Ok(());
        }
    }

    /// Changes the fed caches. A new one gets the objects as they are at the position of the
    /// others; the commits after it follow.
    async fn change(&mut self, change: SinkChange) -> Result<(), StoreError> {
        match change {
            SinkChange::Add(sink, filled) => {
                let at = *self.feeder.position.borrow();
                let mut fed = SinkState::new(sink);
                fed.load(&self.engine, at).await?;
                self.feeder.sinks.push(fed);
                // Whoever waited may have given up.
                _ = filled.send(());
            }
            SinkChange::Remove(sink) => {
                let sinks = &mut self.feeder.sinks;
                sinks.retain(|fed| !Arc::ptr_eq(&fed.sink, &sink));
            }
        }
        Ok(())
    }

    fn apply(&mut self, commit: Commit) {
        let Commit { revision, events } = commit;
        for fed in &mut self.feeder.sinks {
            let prefix = fed.sink.prefix();
            let of_kind: Vec<KeyEvent> = events
                .iter()
                .filter(|event| prefix.contains(event.key()))
                .cloned()
                .collect();
            if !of_kind.is_empty() {
                fed.sink.apply(revision, &of_kind);
                fed.stale = true;
            }
        }
        self.feeder.position.send_replace(revision);
    }
}

#[cfg(test)]
mod tests {
    use podplane_api::core::Namespace;
    use podplane_store::{Key, MemStore, Txn};

    use super::*;
    use crate::{cache::Query, registry::Registry};

    /// Puts a namespace, and returns the revision.
    async fn put(engine: &Engine, name: &str) -> Revision {
        let key = Key::try_from(format!("/registry/namespaces/{name}")).unwrap();
        let value = format!(r#"{{"metadata": {{"name": "{name}"}}}}"#);
        let committed = engine.commit(Txn::new().put(key, value)).await;
        committed.unwrap().revision
    }

    #[tokio::test]
    async fn caches_that_fell_behind_the_store_are_loaded_anew_and_their_watches_expire() {
        let engine = Engine::new(MemStore::new()).await.unwrap();
        let cache = Registry::<Namespace>::cache();
        let mut feeder = Feeder::new();
        feeder.add(cache.clone());
        let position = feeder.position();
        put(&engine, "one").await;
        let feed = feeder.fill(&engine).await.unwrap();
        let mut watch = cache.watch_all(Query::default(), position.clone());
        put(&engine, "two").await;
        let last = put(&engine, "three").await;
        engine.compact(last).await.unwrap();

        tokio::select! {
            ended = feed.run() => panic!("{ended:?}"),
            reached = position.reached(last.number()) => reached.unwrap(),
        }
        assert_eq!(cache.len(), 3);
        assert_eq!(watch.next().await.unwrap_err().reason, Reason::Expired);
        let early = Revision::new(last.number() - 1).unwrap();
        let early = cache.watch_after(early, Query::default(), position.clone());
        assert_eq!(early.unwrap_err().reason, Reason::Expired);
        assert!(cache.watch_after(last, Query::default(), position).is_ok());
    }
}
