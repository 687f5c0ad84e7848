//! The processes of containers, from their start to the record of their end.

use std::{pin::pin, sync::Arc, time::Duration};

use podplane_error_chain::one_line;
use podplane_host::{clock, task};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        ContainerError, NodeContainers,
        log::LogStream,
        record::{ContainerRecord, ContainerState},
        write_log,
    },
    ContainerProcess, LOST, ProcessExit, WatchedProcess,
};
use crate::cri::{
    id::ContainerId,
    record::SandboxRecord,
    sandboxes::{lock, now_nanos},
};

/// The time for the rest of a container's output after its end.
const OUTPUT_GRACE: Duration = Duration::from_secs(2);

impl NodeContainers {
    /// Starts the process of a container, if it has one.
    pub(in crate::cri::containers) fn begin(
        &self,
        record: &ContainerRecord,
        sandbox: &SandboxRecord,
    ) -> Result<(), ContainerError> {
        let Some(processes) = &self.processes else {
            return write_log(record, "started; no process runs for it");
        };
        let failed = |source| ContainerError::Process {
            action: "start",
            source,
        };
        let image = self.images.unpacked(&record.image.id);
        let image = image.map_err(|error| failed(error.into()))?;
        let missing = || ContainerError::ImageNotFound(record.image.image.clone());
        let image = image.ok_or_else(missing)?;
        processes.start(record, sandbox, &image).map_err(failed)
    }

    /// Records the end of a process, unless somebody who has waited for it has done so.
    pub(in crate::cri::containers) fn process_ended(
        &self,
        id: &ContainerId,
        exit: ProcessExit,
    ) -> Result<(), ContainerError> {
        if let Ok(operation) = self.operation(id.as_str()) {
            let _operation = lock(&operation);
            if let Ok(record) = self.get(id.as_str())
                && let ContainerState::Running { .. } = record.state
            {
                self.set_ended(&record, exit.at, (exit.code, ""))?;
            }
        }
        self.forget_process(id);
        Ok(())
    }

    fn forget_process(&self, id: &ContainerId) {
        if let Some(processes) = &self.processes {
            processes.remove(id);
        }
    }

    /// The process of a container, if it has one.
    pub(in crate::cri::containers) fn process(
        &self,
        record: &ContainerRecord,
    ) -> Option<Arc<ContainerProcess>> {
        self.processes.as_ref()?.get(&record.id)
    }

    /// Watches processes and records their ends, until `stop`; then kills them.
    ///
    /// # Errors
    ///
    /// The panic of a step.
    pub async fn run_processes(self: Arc<Self>, stop: CancellationToken) -> Result<(), JoinError> {
        let Some(processes) = &self.processes else {
            stop.cancelled().await;
            return Ok(());
        };
        let Some(mut started) = lock(&processes.unwatched).take() else {
            return Ok(());
        };
        let mut watched = JoinSet::new();
        loop {
            // Losing any of these waits loses nothing.
            let process = tokio::select! {
                () = stop.cancelled() => break,
                Some(process) = started.recv() => process,
                Some(ended) = watched.join_next() => {
                    ended?;
                    continue;
                }
            };
            let containers = Arc::clone(&self);
            task::spawn(&mut watched, containers.watch(process, stop.clone()));
        }
        started.close();
        while let Some(ended) = watched.join_next().await {
            ended?;
        }
        Ok(())
    }

    /// Waits for the end of a process, and records it.
    async fn watch(self: Arc<Self>, process: WatchedProcess, stop: CancellationToken) {
        let WatchedProcess {
            id,
            mut helper,
            control,
            mut streams,
            output,
            exit,
        } = process;
        let copied = async {
            match streams.take_readers() {
                Ok([stdout, stderr]) => {
                    let stdout = output.clone().copy(stdout, LogStream::Stdout);
                    let stderr = output.clone().copy(stderr, LogStream::Stderr);
                    _ = tokio::join!(stdout, stderr);
                }
                Err(error) => {
                    tracing::warn!(container = %id, error = %one_line(&error), "failed to read the container's output");
                }
            }
        };
        // The process is killed when this is dropped, and its end seen as any other.
        let mut control = Some(control);
        let waited = async {
            loop {
                tokio::select! {
                    status = helper.wait() => break status,
                    () = stop.cancelled(), if control.is_some() => control = None,
                }
            }
        };
        // With the first process all others of the container end, and so does the output, unless a
        // program outside has got hold of it.
        let status = {
            let (mut copied, mut waited) = (pin!(copied), pin!(waited));
            tokio::select! {
                status = &mut waited => {
                    if clock::timeout(OUTPUT_GRACE, copied).await.is_err() {
                        tracing::debug!(container = %id, "the container's output is still open elsewhere");
                    }
                    status
                }
                () = &mut copied => waited.await,
            }
        };
        let code = status.ok().and_then(|status| status.code());
        let ended = ProcessExit {
            at: now_nanos(),
            code: code.unwrap_or(LOST),
        };
        // Whoever waits for the end may have the container's operation locked.
        exit.send_replace(Some(ended));
        let recorded = task::spawn_blocking(move || {
            if let Err(error) = self.process_ended(&id, ended) {
                tracing::warn!(container = %id, error = %one_line(&error), "failed to record the exit of a container");
            }
        });
        if let Err(panic) = recorded.await {
            tracing::error!(error = %panic, "failed to record the exit of a container");
        }
    }
}
