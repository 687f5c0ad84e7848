//! Waiting for a state.

use std::{fmt::Debug, future::Future};

/// As [`podplane_test_cluster::eventually`], but panics.
///
/// # Panics
///
/// If the state is not reached in time.
pub async fn eventually<T: Debug, F: Future<Output = T>>(
    what: &str,
    observe: impl FnMut() -> F,
    enough: impl Fn(&T) -> bool,
) -> T {
    let seen = podplane_test_cluster::eventually(what, observe, enough).await;
    seen.unwrap_or_else(|error| panic!("{error}"))
}
