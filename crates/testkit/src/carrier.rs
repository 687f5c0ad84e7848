//! A thread of the testkit's own, for what must go on while a test's threads wait, or must not be done to them.

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

/// A thread that carries what it is given, until this is dropped: it ends all of that then.
#[derive(Debug)]
pub(crate) struct Carrier {
    runtime: Handle,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Carrier {
    /// Starts it, and does something there before anything else, of which this returns what came.
    pub(crate) fn start<T: Send + 'static>(
        name: &str,
        first: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<(Self, T)> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let stop = CancellationToken::new();
        let (handle, stopped) = (runtime.handle().clone(), stop.clone());
        let (sender, done) = mpsc::sync_channel(1);
        let thread = thread::Builder::new().name(name.into()).spawn(move || {
            // Whoever started it waits for this.
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

    /// Where tasks are to be started that it carries.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Carries a task, and returns what comes of it; the task ends if this is dropped.
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
            // What it panicked with it has said.
            _ = thread.join();
        }
    }
}
