//! Waiting on state.

use std::{fmt::Debug, future::Future, time::Duration};

use tokio::time::{Instant, sleep};

/// How long anything may take on a machine that is shared and noisy.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Observes until `enough` says yes, and returns what was seen then.
///
/// # Panics
///
/// After [`DEADLINE`], with what was waited for and what was seen last.
pub async fn eventually<T: Debug, F: Future<Output = T>>(
    what: &str,
    observe: impl FnMut() -> F,
    enough: impl Fn(&T) -> bool,
) -> T {
    within(DEADLINE, what, observe, enough).await
}

/// [`eventually`] with a deadline of the caller's.
///
/// # Panics
///
/// After `deadline`, with what was waited for and what was seen last.
pub async fn within<T: Debug, F: Future<Output = T>>(
    deadline: Duration,
    what: &str,
    mut observe: impl FnMut() -> F,
    enough: impl Fn(&T) -> bool,
) -> T {
    let end = Instant::now() + deadline;
    loop {
        let seen = observe().await;
        if enough(&seen) {
            return seen;
        }
        assert!(
            Instant::now() < end,
            "after {deadline:?}, not yet: {what}; seen last: {seen:#?}"
        );
        sleep(Duration::from_millis(20)).await;
    }
}
