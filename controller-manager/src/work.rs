//! The loop that hands keys to a controller.

use std::{
    convert::Infallible,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::try_join_all;
use podplane_client::{ApiError, Reason, WorkQueue, leader::LeadershipLost};
use tokio_util::sync::CancellationToken;

/// Opens once a given number of tasks have arrived.
#[derive(Debug)]
pub(crate) struct Latch {
    missing: AtomicUsize,
    open: CancellationToken,
}

impl Latch {
    pub(crate) fn new(missing: usize) -> Self {
        Self {
            missing: AtomicUsize::new(missing),
            open: CancellationToken::new(),
        }
    }

    /// The latch for one more task, which has to arrive.
    pub(crate) fn share(self: &Arc<Self>) -> Arc<Self> {
        self.missing.fetch_add(1, Ordering::AcqRel);
        Arc::clone(self)
    }

    /// Called once by each task.
    pub(crate) fn arrive(&self) {
        if self.missing.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.open.cancel();
        }
    }

    pub(crate) async fn opened(&self) {
        self.open.cancelled().await;
    }
}

/// Hands keys to `reconcile`, a limited number at once, until the API server refuses a write
/// because another process leads. A key is queued again after the time that `reconcile` returns, or
/// after a failure with a growing delay.
pub(crate) async fn work<Key, Done>(
    controller: &'static str,
    queue: &WorkQueue<Key>,
    workers: usize,
    reconcile: impl Fn(Key) -> Done,
) -> Result<(), LeadershipLost>
where
    Key: Clone + Ord + fmt::Display,
    Done: Future<Output = Result<Option<Duration>, ApiError>>,
{
    let worker = async || -> Result<Infallible, LeadershipLost> {
        loop {
            let key = queue.get().await;
            match reconcile(key.clone()).await {
                Ok(again) => {
                    queue.forget(&key);
                    if let Some(after) = again {
                        queue.add_after(key.clone(), after);
                    }
                }
                Err(error) if error.is_fence_lost() => return Err(LeadershipLost(error)),
                Err(error) => {
                    // Another client wrote in between: that is normal, and the next reconciliation
                    // sees its change.
                    let wait = queue.add_rate_limited(key.clone());
                    if error.is_conflict() || error.is_not_found() {
                        tracing::debug!(controller, %key, %error, "object has changed; reconciling again");
                    } else {
                        tracing::warn!(controller, %key, %error, retry_in = ?wait, "failed to reconcile; trying again");
                    }
                }
            }
            queue.done(&key);
        }
    };
    try_join_all((0..workers.max(1)).map(|_| worker()))
        .await
        .map(drop)
}

/// Turns "not found" into success: the object needs no deletion.
pub(crate) fn unless_gone<T>(deleted: Result<T, ApiError>) -> Result<(), ApiError> {
    match deleted {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

/// Returns whether the server refuses because the namespace is being deleted.
pub(crate) fn is_ending(error: &ApiError) -> bool {
    error.reason == Reason::Forbidden && error.message.contains("because it is being terminated")
}
