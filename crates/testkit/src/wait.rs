//! Waiting on state.

use std::{fmt::Debug, future::Future, time::Duration};

use tokio::time::{Instant, sleep};

use crate::{ClusterError, Result};

/// How long [`eventually`] waits: enough for a machine that is shared and noisy.
pub const DEADLINE: Duration = Duration::from_secs(60);
/// How often is looked.
const LOOK: Duration = Duration::from_millis(20);

/// Observes until `enough` says yes, and returns what was seen then. Gives up after [`DEADLINE`].
///
/// # Errors
///
/// [`ClusterError::TimedOut`], with what was waited for and what was seen last.
pub async fn eventually<T: Debug, F: Future<Output = T>>(
    what: &str,
    observe: impl FnMut() -> F,
    enough: impl Fn(&T) -> bool,
) -> Result<T> {
    within(DEADLINE, what, observe, enough).await
}

/// [`eventually`] with a deadline of the caller's. There is one look at least.
///
/// # Errors
///
/// [`ClusterError::TimedOut`], with what was waited for and what was seen last.
pub async fn within<T: Debug, F: Future<Output = T>>(
    deadline: Duration,
    what: &str,
    mut observe: impl FnMut() -> F,
    enough: impl Fn(&T) -> bool,
) -> Result<T> {
    let end = Instant::now() + deadline;
    loop {
        let seen = observe().await;
        if enough(&seen) {
            return Ok(seen);
        }
        if Instant::now() >= end {
            return Err(ClusterError::TimedOut {
                what: what.into(),
                deadline,
                last: format!("{seen:#?}"),
            });
        }
        sleep(LOOK).await;
    }
}
