//! A thread of the test cluster's own, for tasks that must go on while a test's threads block, and
//! for changes that must not affect those threads.

use std::{
    io,
    sync::mpsc,
    thread::{self, JoinHandle},
};

use tokio::{
    runtime::{Builder, Handle},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

/// A thread that runs tasks. Dropping this ends them, and the thread.
#[derive(Debug)]
pub(crate) struct Carrier {
    runtime: Handle,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Carrier {
    /// Starts the thread, runs `first` on it before anything else, and returns its result.
    pub(crate) fn start<T: Send + 'static>(
        name: &str,
        first: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<(Self, T)> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let stop = CancellationToken::new();
        let (handle, stopped) = (runtime.handle().clone(), stop.clone());
        let (sender, done) = mpsc::sync_channel(1);
        let thread = thread::Builder::new().name(name.into()).spawn(move || {
            // `start` waits for this result.
            _ = sender.send(first());
            runtime.block_on(stopped.cancelled());
        })?;
        let carrier = Self {
            runtime: handle,
            stop,
            thread: Some(thread),
        };
        let done = done.recv().map_err(io::Error::other)??;
        Ok((carrier, done))
    }

    /// The runtime of the thread, on which tasks can be started.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Runs a task on the thread, and returns its result. The task ends if this future, or the
    /// carrier, is dropped.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> io::Result<T> {
        let mut tasks = JoinSet::new();
        tasks.spawn_on(task, &self.runtime);
        let ended = tasks.join_next().await;
        ended.ok_or(io::ErrorKind::Interrupted)?.map_err(Into::into)
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed already.
            _ = thread.join();
        }
    }
}
