//! Waiting on state.

use std::{fmt::Debug, future::Future};

/// [`podplane_testkit::eventually`], for tests.
///
/// # Panics
///
/// If it is not so in time.
pub async fn eventually<T: Debug, F: Future<Output = T>>(
    what: &str,
    observe: impl FnMut() -> F,
    enough: impl Fn(&T) -> bool,
) -> T {
    let seen = podplane_testkit::eventually(what, observe, enough).await;
    seen.unwrap_or_else(|error| panic!("{error}"))
}
