//! Keys are worked on until they need nothing.

use std::{
    fmt,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use futures::future::join_all;
use podplane_client::{ApiError, WorkQueue};
use tokio_util::sync::CancellationToken;

/// Opens when so many have arrived.
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

    /// Called once by each that is waited for.
    pub(crate) fn arrive(&self) {
        if self.missing.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.open.cancel();
        }
    }

    pub(crate) async fn opened(&self) {
        self.open.cancelled().await;
    }
}

/// Hands keys to `reconcile`, so many at once, for ever. A key comes again after the time that it returns, and after a failure, later each time.
pub(crate) async fn work<Key, Done>(
    controller: &'static str,
    queue: &WorkQueue<Key>,
    workers: usize,
    reconcile: impl Fn(Key) -> Done,
) where
    Key: Clone + Ord + fmt::Display,
    Done: Future<Output = Result<Option<Duration>, ApiError>>,
{
    let worker = async || loop {
        let key = queue.get().await;
        match reconcile(key.clone()).await {
            Ok(again) => {
                queue.forget(&key);
                if let Some(after) = again {
                    queue.add_after(key.clone(), after);
                }
            }
            Err(error) => {
                // Somebody else wrote in between: nothing unusual, and the next look sees what.
                if error.is_conflict() || error.is_not_found() {
                    tracing::debug!(controller, %key, %error, "observing again");
                } else {
                    tracing::warn!(controller, %key, %error, "failed; trying again");
                }
                queue.add_rate_limited(key.clone());
            }
        }
        queue.done(&key);
    };
    join_all((0..workers.max(1)).map(|_| worker())).await;
}

/// What is gone needs no deletion.
pub(crate) fn unless_gone<T>(deleted: Result<T, ApiError>) -> Result<(), ApiError> {
    match deleted {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}
