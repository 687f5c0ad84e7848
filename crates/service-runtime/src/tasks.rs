//! Ownership of tasks: every task has an owner that awaits it.

use std::{future::Future, time::Duration};

use podplane_host::{clock, task};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The time in which tasks must end once they are stopped.
const GRACE: Duration = Duration::from_secs(5);

/// The tasks of a process, which start and end together.
///
/// A task that ends before the shutdown, for whatever reason, stops the process in order: a process
/// with a part missing that looks alive is worse than a restart.
#[derive(Debug)]
pub struct Tasks {
    running: JoinSet<(&'static str, Result<(), TaskError>)>,
    stop: CancellationToken,
}

/// The error of a task, of any type.
pub type TaskError = Box<dyn std::error::Error + Send + Sync>;

/// The reasons why a process ended without a request to stop.
#[derive(Debug, thiserror::Error)]
pub enum TaskEnd {
    /// A task failed.
    #[error("{task} failed")]
    Failed {
        /// The name it was spawned under.
        task: &'static str,
        /// Its error.
        #[source]
        source: TaskError,
    },
    /// A task ended without an error before the shutdown.
    #[error("{task} ended unexpectedly")]
    Unexpected {
        /// The name it was spawned under.
        task: &'static str,
    },
    /// A task panicked.
    #[error("a task panicked")]
    Panicked(#[source] tokio::task::JoinError),
}

impl Tasks {
    /// Creates an owner without tasks. Cancelling `stop` ends the tasks; the owner may do so at any
    /// time.
    pub fn new(stop: CancellationToken) -> Self {
        Self {
            running: JoinSet::new(),
            stop,
        }
    }

    /// The token that tells the tasks to end.
    pub fn stop(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Starts a task; the name is for errors and logs. It should return soon after [`Tasks::stop`]
    /// is cancelled.
    pub fn spawn<E: Into<TaskError>>(
        &mut self,
        task: &'static str,
        future: impl Future<Output = Result<(), E>> + Send + 'static,
    ) {
        let named = async move { (task, future.await.map_err(Into::into)) };
        task::spawn(&mut self.running, named);
    }

    /// Starts a task that never ends by itself, and is dropped when it is stopped: it has nothing
    /// to finish, since the next process begins with a list.
    pub fn follow(&mut self, task: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop();
        self.spawn(task, async move {
            stop.run_until_cancelled_owned(work).await;
            Ok::<_, TaskError>(())
        });
    }

    /// Runs until the stop is requested or a task ends, then stops the other tasks and waits for
    /// them.
    ///
    /// # Errors
    ///
    /// [`TaskEnd`] if a task ended first.
    pub async fn run(mut self) -> Result<(), TaskEnd> {
        // Cancelling either wait loses nothing: the set keeps finished tasks, the token stays
        // cancelled.
        let first = tokio::select! {
            () = self.stop.cancelled() => Ok(()),
            Some(ended) = self.running.join_next() => match ended {
                Ok(_) if self.stop.is_cancelled() => Ok(()),
                Ok((task, Ok(()))) => Err(TaskEnd::Unexpected { task }),
                Ok((task, Err(source))) => Err(TaskEnd::Failed { task, source }),
                Err(panic) => Err(TaskEnd::Panicked(panic)),
            },
        };
        self.stop.cancel();
        let drain = async {
            while let Some(ended) = self.running.join_next().await {
                if let Ok((task, Err(error))) = ended {
                    tracing::warn!(task, error = &*error, "task failed while stopping");
                }
            }
        };
        if clock::timeout(GRACE, drain).await.is_err() {
            tracing::warn!(grace = ?GRACE, remaining = self.running.len(), "tasks still running; exiting anyway");
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks() -> Tasks {
        Tasks::new(CancellationToken::new())
    }

    #[tokio::test]
    async fn failed_task_stops_the_others() {
        let mut tasks = tasks();
        let stop = tasks.stop();
        tasks.spawn("loop", async move {
            stop.cancelled().await;
            Ok::<_, TaskError>(())
        });
        tasks.spawn("server", async { Err::<(), _>("port in use") });
        assert!(matches!(
            tasks.run().await,
            Err(TaskEnd::Failed { task: "server", .. })
        ));
    }

    #[tokio::test]
    async fn task_that_returns_early_is_an_error() {
        let mut tasks = tasks();
        tasks.spawn("loop", async { Ok::<_, TaskError>(()) });
        assert!(matches!(
            tasks.run().await,
            Err(TaskEnd::Unexpected { task: "loop" })
        ));
    }

    #[tokio::test]
    async fn shutdown_is_not_an_error() {
        let mut tasks = tasks();
        let stop = tasks.stop();
        tasks.spawn("loop", {
            let stop = stop.clone();
            async move {
                stop.cancelled().await;
                Ok::<_, TaskError>(())
            }
        });
        stop.cancel();
        assert!(tasks.run().await.is_ok());
    }
}
