//! Waits for conditions on observed state.

use std::{fmt::Debug, future::Future, time::Duration};

use tokio::time::{Instant, sleep};

use crate::{ClusterError, Result};

/// The time limit of [`eventually`]: enough for a machine that is shared and noisy.
pub const DEADLINE: Duration = Duration::from_secs(60);
/// The time between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// Observes until `enough` returns true, and returns the last observation. Gives up after
/// [`DEADLINE`].
///
/// # Errors
///
/// [`ClusterError::TimedOut`], with `what` and the last observation.
pub async fn eventually<T: Debug, F: Future<Output = T>>(
    what: &str,
    observe: impl FnMut() -> F,
    enough: impl Fn(&T) -> bool,
) -> Result<T> {
    within(DEADLINE, what, observe, enough).await
}

/// [`eventually`] with another deadline. Observes at least once.
///
/// # Errors
///
/// [`ClusterError::TimedOut`], with `what` and the last observation.
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
