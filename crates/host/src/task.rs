//! Tasks and threads.

use std::{
    io,
    thread::{self, JoinHandle, Scope, ScopedJoinHandle},
};

#[cfg(feature = "async")]
use tokio::task::{AbortHandle, JoinSet};

/// Starts a task, which the set owns.
#[cfg(feature = "async")]
#[inline]
pub fn spawn<T: Send + 'static>(
    tasks: &mut JoinSet<T>,
    task: impl Future<Output = T> + Send + 'static,
) -> AbortHandle {
    tasks.spawn(task)
}

/// Runs a function that blocks, on a thread for such.
#[cfg(feature = "async")]
#[inline]
pub fn spawn_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::task::spawn_blocking(work)
}

/// Starts a thread.
///
/// # Errors
///
/// The operating system's reason to have no more threads.
pub fn thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    thread::Builder::new().name(name.into()).spawn(work)
}

/// Starts a thread that yields the processors to all others: its nice value is 10 higher. Where
/// that is not permitted it is like others.
///
/// # Errors
///
/// The operating system's reason to have no more threads.
pub fn background_thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    thread(name, || {
        // On Linux a thread has a value of its own.
        if let Ok(nice) = rustix::process::getpriority_process(None) {
            _ = rustix::process::setpriority_process(None, nice.saturating_add(10).min(19));
        }
        work()
    })
}

/// Starts a thread that ends before its scope.
///
/// # Errors
///
/// The operating system's reason to have no more threads.
pub fn scoped_thread<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    thread::Builder::new().spawn_scoped(scope, work)
}
