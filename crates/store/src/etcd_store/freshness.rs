//! How new the mirror is: which revision etcd has, and waiting for it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use podplane_etcd::{
    EtcdClient, EtcdError,
    wire::etcdserverpb::{PutRequest, RangeRequest, RequestOp, TxnRequest, request_op},
};
use podplane_host::clock;
use tokio::sync::{Mutex, Notify};

use super::{keys::KeySpace, mirror::Mirror};
use crate::{StoreError, store::Revision};

/// The time that events take normally. After it, the revision may be that of a key outside of the
/// store, which has no event, and progress is requested.
const NORMAL: Duration = Duration::from_millis(20);
/// The same, where a write has to make an event.
const BEFORE_WRITING: Duration = Duration::from_millis(200);
/// The limit of the wait for events: the watch may have to go on at another member.
const LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Freshness {
    /// Calls of [`revision`](Self::revision) so far.
    calls: AtomicU64,
    /// The last read, which answers all calls that came before it began.
    read: Mutex<LastRead>,
    has_progress: bool,
    /// Asks the follower to request progress.
    wanted: Arc<Notify>,
}

#[derive(Debug)]
struct LastRead {
    /// The number of calls before it began.
    answers: u64,
    revision: i64,
}

impl Freshness {
    pub(super) fn new(has_progress: bool) -> Self {
        let read = LastRead {
            answers: 0,
            revision: 0,
        };
        Self {
            calls: AtomicU64::new(0),
            read: Mutex::new(read),
            has_progress,
            wanted: Arc::new(Notify::new()),
        }
    }

    pub(super) fn wanted(&self) -> Arc<Notify> {
        Arc::clone(&self.wanted)
    }

    /// True if answers to progress requests, and progress notifications, can be trusted.
    pub(super) fn has_progress(&self) -> bool {
        self.has_progress
    }

    /// etcd's revision, as new as every write that was acknowledged before the call: a linearizable
    /// read. Calls at the same time share one that begins after all of them.
    pub(super) async fn revision(
        &self,
        client: &EtcdClient,
        keys: &KeySpace,
    ) -> Result<i64, EtcdError> {
        let call = self.calls.fetch_add(1, Ordering::AcqRel);
        let mut read = self.read.lock().await;
        if call < read.answers {
            return Ok(read.revision);
        }
        let answers = self.calls.load(Ordering::Acquire);
        let request = RangeRequest {
            key: keys.record(),
            keys_only: true,
            ..RangeRequest::default()
        };
        let revision = client
            .range(request)
            .await?
            .header
            .map_or(0, |it| it.revision);
        *read = LastRead { answers, revision };
        Ok(revision)
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
        let mut wait = async |time| {
            let reached = history.wait_for(|history| history.seen() >= revision);
            match clock::timeout(time, reached).await {
                Ok(Ok(_)) => Ok(true),
                Ok(Err(_closed)) => Err(StoreError::Unavailable),
                Err(_elapsed) => Ok(false),
            }
        };
        let begun = clock::Instant::now();
        let time = match self.has_progress {
            true => NORMAL,
            false => BEFORE_WRITING,
        };
        while begun.elapsed() < LIMIT {
            if wait(time).await? {
                return Ok(());
            }
            match self.has_progress {
                true => self.wanted.notify_one(),
                false => make_an_event(client, keys).await?,
            }
        }
        Err(StoreError::Unreachable {
            message: format!("etcd's watch did not come to revision {revision}"),
        })
    }
}

/// Writes a key of the store, so that the watch has an event after all earlier ones.
async fn make_an_event(client: &EtcdClient, keys: &KeySpace) -> Result<(), StoreError> {
    let put = request_op::Request::RequestPut(PutRequest {
        key: keys.progress(),
        ..PutRequest::default()
    });
    let request = TxnRequest {
        success: vec![RequestOp { request: Some(put) }],
        ..TxnRequest::default()
    };
    match client.txn(request).await {
        // A database without space has other writers' events, or none to wait for.
        Ok(_) | Err(EtcdError::NoAnswer { .. } | EtcdError::NoSpace) => Ok(()),
        Err(error) => Err(super::unanswered(error)),
    }
}
