//! Threads of a low priority that render long answers.
//!
//! A list of 20,000 pods takes half a second of processor time as JSON. On the threads that serve
//! requests all other requests would wait for it. So a long list is rendered by threads of its own,
//! which yield to those, and a part at a time: the parts of several lists take turns, and none is
//! rendered before the client has taken the one before.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::available_parallelism,
};

use bytes::Bytes;
use futures::{Stream, StreamExt as _, stream};
use podplane_host::task;
use podplane_proto::error::{ApiError, Reason};
use tokio::sync::oneshot;

/// The most objects of a list that is rendered at once, and of a part of a longer one: as JSON, two
/// or three milliseconds of processor time.
pub(crate) const PART: usize = 100;

/// A function that renders something.
type Work = Box<dyn FnOnce() + Send>;

/// Threads that render. Clones share them, and they end with the last clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Renderers(Arc<RenderThreads>);

#[derive(Debug, Default)]
struct RenderThreads(Arc<WorkQueue>);

#[derive(Default)]
struct WorkQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    work: VecDeque<Work>,
    threads: usize,
    is_closed: bool,
}

impl std::fmt::Debug for WorkQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkQueue").finish_non_exhaustive()
    }
}

impl Drop for RenderThreads {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.changed.notify_all();
    }
}

/// A long answer, which is rendered in parts.
pub(crate) trait Parts: Send + Sized + 'static {
    /// Renders the next part; `None` if there are no more.
    fn next(&mut self) -> Option<Result<Bytes, ApiError>>;
}

/// Half of the processors: the others are for requests.
fn most_threads() -> usize {
    available_parallelism().map_or(1, |count| count.get().div_ceil(2))
}

impl WorkQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // Only code that does not panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does the work of the queue until it is closed.
    fn run(&self) {
        loop {
            let work = {
                let mut state = self.lock();
                loop {
                    match state.work.pop_front() {
                        Some(work) => break work,
                        None if state.is_closed => return,
                        None => {
                            let woken = self.changed.wait(state);
                            state = woken.unwrap_or_else(PoisonError::into_inner);
                        }
                    }
                }
            };
            // Whoever waits for the result learns of a panic by its absence.
            _ = catch_unwind(AssertUnwindSafe(work));
        }
    }
}

impl Renderers {
    /// Runs `work` on one of the threads.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let (sender, result) = oneshot::channel();
        self.add(Box::new(move || _ = sender.send(work())));
        result.await.map_err(|_dropped| {
            let why = "failed to render the answer; the server's log has more";
            ApiError::new(Reason::InternalError, why)
        })
    }

    /// The parts of an answer. The first has been rendered: it decides whether the answer is an
    /// error.
    pub(crate) async fn stream(
        &self,
        parts: impl Parts,
    ) -> Result<impl Stream<Item = Result<Bytes, ApiError>> + Send + 'static, ApiError> {
        let (parts, first) = self.next(parts).await?;
        let renderers = self.clone();
        let rest = stream::unfold(Some(parts), move |parts| {
            let renderers = renderers.clone();
            async move {
                match renderers.next(parts?).await {
                    Ok((_, None)) => None,
                    Ok((parts, Some(part))) => Some((Ok(part), Some(parts))),
                    Err(error) => Some((Err(error), None)),
                }
            }
        });
        Ok(stream::iter(first.map(Ok)).chain(rest))
    }

    async fn next<P: Parts>(&self, mut parts: P) -> Result<(P, Option<Bytes>), ApiError> {
        let rendered = self.run(move || {
            let part = parts.next();
            (parts, part)
        });
        let (parts, part) = rendered.await?;
        Ok((parts, part.transpose()?))
    }

    fn add(&self, work: Work) {
        let queue = &self.0.0;
        let mut state = queue.lock();
        state.work.push_back(work);
        if state.threads < most_threads() {
            let shared = Arc::clone(queue);
            match task::background_thread("render", move || shared.run()) {
                Ok(_) => state.threads += 1,
                // The threads that there are do it.
                Err(error) if state.threads > 0 => {
                    tracing::debug!(%error, "failed to start a thread");
                }
                Err(error) => {
                    tracing::debug!(%error, "failed to start a thread");
                    // Dropped, so that its request fails.
                    state.work.clear();
                }
            }
        }
        drop(state);
        queue.changed.notify_one();
    }
}
