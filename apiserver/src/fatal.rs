//! Wrappers for code in which a panic must end the process: below the store's interface, and where
//! the caches change.
//!
//! A panic there may leave state half-changed, and every later request would be answered from it.
//! The next process begins with the state on disk. Elsewhere a panic ends only its request:
//! `podplane_service_runtime::boundary`.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
};

use futures::Stream;

/// Calls `change`; a panic in it ends the process.
pub(crate) fn or_abort<T>(what: &'static str, change: impl FnOnce() -> T) -> T {
    // The hook has printed the panic's message and place.
    catch_unwind(AssertUnwindSafe(change)).unwrap_or_else(|_panic| {
        tracing::error!(
            what,
            "panic while state was being changed: ending the process"
        );
        std::process::abort()
    })
}

/// A future or stream whose panic ends the process.
#[derive(Debug)]
pub(crate) struct OrAbort<F>(pub(crate) F);

const STORE: &str = "store";

impl<F: Future + Unpin> Future for OrAbort<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        or_abort(STORE, || Pin::new(&mut self.0).poll(context))
    }
}

impl<S: Stream + Unpin> Stream for OrAbort<S> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<S::Item>> {
        or_abort(STORE, || Pin::new(&mut self.0).poll_next(context))
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::ExitStatusExt as _, process::Command};

    use futures::FutureExt as _;

    use super::*;

    const SIGABRT: i32 = 6;

    /// The environment variable of the process that is to abort.
    const ENDS: &str = "PODPLANE_TEST_ABORT";

    #[tokio::test]
    #[expect(clippy::panic, reason = "what is tested")]
    async fn a_panic_below_the_store_ends_the_process() {
        assert_eq!(OrAbort(async { 7 }.boxed()).await, 7);
        if std::env::var_os(ENDS).is_some() {
            let broken = OrAbort(async { panic!("a store that is broken") }.boxed());
            let caught = AssertUnwindSafe(broken).catch_unwind().await;
            let () = caught.expect("not reached");
            return;
        }
        let this = std::env::current_exe().unwrap();
        let name = "fatal::tests::a_panic_below_the_store_ends_the_process";
        let ended = Command::new(this)
            .args(["--exact", name])
            .env(ENDS, "1")
            .output()
            .unwrap();
        assert_eq!(ended.status.signal(), Some(SIGABRT), "{ended:?}");
    }
}
