//! The revision that etcd has, and waiting for the mirror to have it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use podplane_etcd::{EtcdClient, EtcdError, wire::etcdserverpb::RangeRequest};
use podplane_host::clock;
use tokio::sync::{Mutex, Notify};

use super::{keys::KeySpace, mirror::Mirror, request::put_empty};
use crate::{StoreError, store::Revision};

/// The time that events take normally. After it, the revision may be that of a key outside of the
/// store, which has no event, and progress is requested; no more often than that, whoever waits.
pub(super) const NORMAL: Duration = Duration::from_millis(5);
/// The same, where a write has to make an event.
const BEFORE_WRITING: Duration = Duration::from_millis(200);
/// The time without an answer after which a watch goes on at another member, if that has newer
/// revisions: its own may have stopped without closing the connection.
pub(super) const STALLED: Duration = Duration::from_secs(2);
/// The limit of the wait for the next event: the watch may have to go on at another member.
const LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Freshness {
    /// Calls of [`revision`](Self::revision) so far.
    calls: AtomicU64,
    /// The last read, which answers all calls that came before it began.
    read: Mutex<LastRead>,
    /// Answers to progress requests can be trusted: the member that serves the watch is new enough.
    has_progress: Arc<AtomicBool>,
    /// Asks the follower to request progress.
    wanted: Arc<Notify>,
    /// Tells the follower that etcd has newer revisions for longer than [`STALLED`].
    stalled: Arc<Notify>,
}

#[derive(Debug)]
struct LastRead {
    /// The number of calls before it began.
    answers: u64,
    revision: Result<i64, EtcdError>,
}

impl Freshness {
    pub(super) fn new() -> Self {
        let read = LastRead {
            answers: 0,
            revision: Ok(0),
        };
        Self {
            calls: AtomicU64::new(0),
            read: Mutex::new(read),
            has_progress: Arc::default(),
            wanted: Arc::new(Notify::new()),
            stalled: Arc::new(Notify::new()),
        }
    }

    pub(super) fn wanted(&self) -> Arc<Notify> {
        Arc::clone(&self.wanted)
    }

    pub(super) fn stalled(&self) -> Arc<Notify> {
        Arc::clone(&self.stalled)
    }

    /// The flag that the follower sets for each watch.
    pub(super) fn has_progress(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.has_progress)
    }

    /// etcd's revision, as new as every write that was acknowledged before the call: a linearizable
    /// read. Calls at the same time share one that begins after all of them, and its error.
    pub(super) async fn revision(
        &self,
        client: &EtcdClient,
        keys: &KeySpace,
    ) -> Result<i64, EtcdError> {
        let call = self.calls.fetch_add(1, Ordering::AcqRel);
        let mut read = self.read.lock().await;
        if call < read.answers {
            return read.revision.clone();
        }
        let answers = self.calls.load(Ordering::Acquire);
        let revision = current(client, keys).await;
        *read = LastRead {
            answers,
            revision: revision.clone(),
        };
        revision
    }

    /// Waits until the mirror has a revision that etcd had.
    pub(super) async fn reached(
        &self,
        mirror: &Mirror,
        client: &EtcdClient,
        keys: &KeySpace,
        revision: Revision,
    ) -> Result<(), StoreError> {
        let mut history = mirror.history();
        let mut seen = history.borrow().seen();
        let mut moved = clock::Instant::now();
        while moved.elapsed() < LIMIT {
            let has_progress = self.has_progress.load(Ordering::Relaxed);
            let time = match has_progress {
                true => NORMAL,
                false => BEFORE_WRITING,
            };
            let reached = history.wait_for(|history| history.seen() >= revision);
            match clock::timeout(time, reached).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(_closed)) => return Err(StoreError::Unavailable),
                Err(_elapsed) => {}
            }
            let now = history.borrow().seen();
            // A long history comes in many parts.
            let has_moved = now > seen;
            if has_moved {
                (seen, moved) = (now, clock::Instant::now());
            } else if moved.elapsed() >= STALLED {
                self.stalled.notify_one();
            }
            if has_progress {
                self.wanted.notify_one();
            } else if !has_moved {
                make_an_event(client, keys).await?;
            }
        }
        Err(StoreError::Unreachable {
            message: format!("etcd's watch did not come to revision {revision}"),
        })
    }
}

/// The revision that etcd has, as new as every write that was acknowledged before the call: a
/// linearizable read.
///
/// # Errors
///
/// Those of [`EtcdClient::range`].
pub(super) async fn current(client: &EtcdClient, keys: &KeySpace) -> Result<i64, EtcdError> {
    let request = RangeRequest {
        key: keys.record(),
        keys_only: true,
        ..RangeRequest::default()
    };
    let answer = client.range(request).await?;
    Ok(answer.header.map_or(0, |header| header.revision))
}

/// Writes a key of the store, so that the watch has an event after all earlier ones.
async fn make_an_event(client: &EtcdClient, keys: &KeySpace) -> Result<(), StoreError> {
    match client.txn(put_empty(keys.progress())).await {
        // A database without space has other writers' events, or none to wait for.
        Err(error) if !error.is_transient() && !matches!(error, EtcdError::NoSpace) => {
            Err(super::unanswered(error))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}
