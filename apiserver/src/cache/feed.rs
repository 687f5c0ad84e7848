use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, stream::BoxStream};
use podplane_store::{
    Commit, Event, FIRST_REVISION, Item, ListQuery, Prefix, Revision, StoreError,
};
use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

use super::Position;
use crate::engine::Engine;

/// Waking a watch costs much more than one event more for it. While commits follow each other closely, those who watch are woken so
/// seldom that about half of the time is left for other things; a few hear of each commit at once, a thousand every ten milliseconds.
const PAUSE_FOR_EACH: Duration = Duration::from_micros(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// What no timer measures is no pause.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

/// The cache of a kind, to its feeder.
pub(crate) trait Sink: Send + Sync {
    /// Which keys it holds.
    fn prefix(&self) -> &Prefix;

    /// Begins with these objects, as they were at a revision.
    fn load(&self, items: &[Item], at: Revision);

    /// Applies the part of a commit that is under the prefix.
    fn apply(&self, revision: Revision, events: &[Event]);

    /// How many watches there are.
    fn watches(&self) -> usize;

    /// Wakes the watches.
    fn wake(&self);
}

/// Carries every commit of the store to the caches, in order.
pub(crate) struct Feeder {
    sinks: Vec<Fed>,
    position: watch::Sender<Revision>,
}

struct Fed {
    sink: Arc<dyn Sink>,
    /// When its watches were woken.
    woken: Instant,
    /// Whether something was applied since.
    stale: bool,
}

impl Fed {
    /// Wakes the watches, or says when, if they were woken a moment ago.
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
        }
    }

    pub(crate) fn add(&mut self, sink: Arc<dyn Sink>) {
        self.sinks.push(Fed {
            sink,
            woken: Instant::now(),
            stale: false,
        });
    }

    pub(crate) fn position(&self) -> Position {
        Position(self.position.subscribe())
    }

    /// Fills the caches from the oldest revision that the store has, so that watches of before a restart can go on, up to now.
    pub(crate) async fn fill(self, engine: &Engine) -> Result<Feed, StoreError> {
        let oldest = engine.status().await?.oldest;
        for Fed { sink, .. } in &self.sinks {
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
            let commit = feed.commits.next().await;
            feed.apply(commit.ok_or(StoreError::Unavailable)??);
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
            let now = Instant::now();
            let due = self.feeder.sinks.iter_mut().filter_map(|fed| fed.wake(now));
            let commit = match due.min() {
                // A stream that was waited for in vain lost nothing.
                Some(due) => timeout_at(due, self.commits.next()).await,
                None => Ok(self.commits.next().await),
            };
            if let Ok(commit) = commit {
                self.apply(commit.ok_or(StoreError::Unavailable)??);
            }
        }
    }

    fn apply(&mut self, commit: Commit) {
        let Commit { revision, events } = commit;
        for fed in &mut self.feeder.sinks {
            let prefix = fed.sink.prefix();
            let of_kind: Vec<Event> = events
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
