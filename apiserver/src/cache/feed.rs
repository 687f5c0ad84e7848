use std::sync::Arc;

use futures::{StreamExt as _, stream::BoxStream};
use podplane_store::{
    Commit, Event, FIRST_REVISION, Item, ListQuery, Prefix, Revision, StoreError,
};
use tokio::sync::watch;

use super::Position;
use crate::engine::Engine;

/// The cache of a kind, to its feeder.
pub(crate) trait Sink: Send + Sync {
    /// Which keys it holds.
    fn prefix(&self) -> &Prefix;

    /// Begins with these objects, as they were at a revision.
    fn load(&self, items: &[Item], at: Revision);

    /// Applies the part of a commit that is under the prefix.
    fn apply(&self, revision: Revision, events: &[Event]);
}

/// Carries every commit of the store to the caches, in order.
pub(crate) struct Feeder {
    sinks: Vec<Arc<dyn Sink>>,
    position: watch::Sender<Revision>,
}

impl Feeder {
    pub(crate) fn new() -> Self {
        Self {
            sinks: Vec::new(),
            position: watch::Sender::new(FIRST_REVISION),
        }
    }

    pub(crate) fn add(&mut self, sink: Arc<dyn Sink>) {
        self.sinks.push(sink);
    }

    pub(crate) fn position(&self) -> Position {
        Position(self.position.subscribe())
    }

    /// Fills the caches from the oldest revision that the store has, so that watches of before a restart can go on, up to now.
    pub(crate) async fn fill(self, engine: &Engine) -> Result<Feed, StoreError> {
        let oldest = engine.status().await?.oldest;
        for sink in &self.sinks {
            let query = ListQuery {
                prefix: sink.prefix().clone(),
                at: Some(oldest),
                ..ListQuery::default()
            };
            sink.load(&engine.list(query).await?.items, oldest);
        }
        self.position.send_replace(oldest);
        let mut feed = Feed {
            commits: engine.watch(oldest).await?,
            feeder: self,
        };
        while feed.feeder.position.borrow().number() < engine.acknowledged() {
            feed.step().await?;
        }
        Ok(feed)
    }
}

/// A feeder that has caught up once.
pub(crate) struct Feed {
    commits: BoxStream<'static, Result<Commit, StoreError>>,
    feeder: Feeder,
}

impl Feed {
    /// Feeds for ever.
    ///
    /// # Errors
    ///
    /// The store's, when it was closed, or compacted past what was fed: the caches then no longer follow it.
    pub(crate) async fn run(mut self) -> Result<(), StoreError> {
        loop {
            self.step().await?;
        }
    }

    async fn step(&mut self) -> Result<(), StoreError> {
        let Commit { revision, events } =
            self.commits.next().await.ok_or(StoreError::Unavailable)??;
        for sink in &self.feeder.sinks {
            let of_kind: Vec<Event> = events
                .iter()
                .filter(|event| sink.prefix().contains(event.key()))
                .cloned()
                .collect();
            if !of_kind.is_empty() {
                sink.apply(revision, &of_kind);
            }
        }
        self.feeder.position.send_replace(revision);
        Ok(())
    }
}
