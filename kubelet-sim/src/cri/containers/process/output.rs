//! The output of a container: into its log, and to the clients that are attached.

use std::{
    io,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use podplane_error_chain::one_line;
use podplane_host::task;
use tokio::{io::AsyncReadExt as _, net::unix::pipe, sync::broadcast};

use super::{
    super::{
        super::sandboxes::lock,
        log::{ContainerLog, LineSplitter, LogStream},
    },
    io::is_end_of_terminal,
};

/// Pieces of output that an attached client may be behind. It is cut off then: it must not hold the
/// container up.
const BACKLOG: usize = 256;
const PIECE: usize = 32 << 10;

/// A piece of output.
pub type Output = (LogStream, Arc<[u8]>);

/// The output of a container.
#[derive(Debug)]
pub struct ContainerOutput {
    /// `None` if the client wants no log.
    log: Option<Mutex<ContainerLog>>,
    path: Option<PathBuf>,
    attached: broadcast::Sender<Output>,
}

impl ContainerOutput {
    /// Output into the log at `path`, if there is one.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn open(path: Option<PathBuf>) -> io::Result<Self> {
        let log = path.as_deref().map(ContainerLog::open).transpose()?;
        Ok(Self {
            log: log.map(Mutex::new),
            path,
            attached: broadcast::Sender::new(BACKLOG),
        })
    }

    /// Makes the log's file again, which the client has moved away.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn reopen(&self) -> io::Result<()> {
        if let (Some(log), Some(path)) = (&self.log, &self.path) {
            let opened = ContainerLog::open(path)?;
            *lock(log) = opened;
        }
        Ok(())
    }

    /// The output from now on.
    pub fn attach(&self) -> broadcast::Receiver<Output> {
        self.attached.subscribe()
    }

    /// Reads a stream to its end.
    pub async fn copy(self: Arc<Self>, reader: Option<pipe::Receiver>, stream: LogStream) {
        let Some(mut reader) = reader else {
            return;
        };
        let mut lines = LineSplitter::default();
        let mut piece = vec![0; PIECE];
        loop {
            let length = match reader.read(&mut piece).await {
                Ok(length) => length,
                Err(error) => {
                    if !is_end_of_terminal(&error) {
                        tracing::debug!(error = %one_line(&error), "failed to read a container's output");
                    }
                    0
                }
            };
            let read = &piece[..length];
            // Without a listener there is nobody to send to.
            _ = self.attached.send((stream, read.into()));
            let records = match length {
                0 => lines.finish().into_iter().collect(),
                _ => lines.push(read),
            };
            if !records.is_empty() {
                let output = Arc::clone(&self);
                let written = task::spawn_blocking(move || output.write(stream, &records)).await;
                // A log that cannot be written must not hold the container up.
                if let Ok(Err(error)) = written {
                    tracing::debug!(error = %one_line(&error), "failed to write a container's log");
                }
            }
            if length == 0 {
                return;
            }
        }
    }

    fn write(
        &self,
        stream: LogStream,
        records: &[(super::super::log::LogTag, Vec<u8>)],
    ) -> io::Result<()> {
        match &self.log {
            Some(log) => lock(log).write(stream, records),
            None => Ok(()),
        }
    }
}
