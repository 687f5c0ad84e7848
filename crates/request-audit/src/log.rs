//! The log that lines are written to, by a thread of its own.
//!
//! A request never waits for the disk: its lines go to a queue of [`MAX_QUEUED_LINES`] and
//! [`MAX_QUEUED_BYTES`]. If that is full, or if the disk is, lines are lost; they are counted, and
//! the process's log says once when that begins and once when it ends. Lines are written as they
//! come, without waiting until they are durable: a killed process loses what is in the queue, a
//! machine without power also what the kernel has not written yet.

mod backups;
mod file;
mod metrics;

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, Receiver, SyncSender},
    },
    time::Duration,
};

use podplane_host::task;

use self::file::LogFile;
pub use self::metrics::AuditMetrics;

/// The number of lines that may wait for the disk.
pub const MAX_QUEUED_LINES: usize = 10_000;
/// The bytes that may wait for the disk.
pub const MAX_QUEUED_BYTES: usize = 32 << 20;
/// The bytes that are written at once, unless a single line has more.
const BATCH_BYTES: usize = 256 << 10;

/// The file of the log, and when it is rotated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogOptions {
    /// The file; `-` for the standard output.
    pub path: PathBuf,
    /// The size at which the file becomes a backup; `None`: never.
    pub max_bytes: Option<u64>,
    /// The number of backups that are kept; `None`: all.
    pub max_backups: Option<usize>,
    /// The age at which backups are removed; `None`: never.
    pub max_age: Option<Duration>,
}

/// The log cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenLogError {
    /// The file cannot be used.
    #[error("failed to {action} {}", path.display())]
    Io {
        /// The failed step.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// Another process writes the file.
    #[error("another process writes the audit log {}: choose another --audit-log-path", .0.display())]
    InUse(PathBuf),
    /// The path is not that of a file.
    #[error("the audit log {} is not a regular file", .0.display())]
    NotAFile(PathBuf),
}

fn failed<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> OpenLogError + use<'a> {
    move |source| OpenLogError::Io {
        action,
        path: path.to_owned(),
        source,
    }
}

/// The queue of the log. Clones share it.
#[derive(Clone, Debug)]
pub struct AuditLog {
    queue: SyncSender<Vec<u8>>,
    queued_bytes: Arc<AtomicUsize>,
    metrics: AuditMetrics,
}

/// The thread that writes the log. It ends once all [`AuditLog`]s are dropped.
#[derive(Debug)]
pub struct LogThread {
    ended: Receiver<()>,
}

impl AuditLog {
    /// Opens the log and starts its thread.
    ///
    /// # Errors
    ///
    /// [`OpenLogError`].
    pub fn open(
        options: LogOptions,
        metrics: AuditMetrics,
    ) -> Result<(Self, LogThread), OpenLogError> {
        let path = options.path.clone();
        let sink: Box<dyn Sink> = match path.as_os_str() == "-" {
            true => Box::new(Output(io::stdout())),
            false => Box::new(LogFile::open(options)?),
        };
        Self::start(sink, metrics).map_err(failed("start a thread for", &path))
    }

    fn start(sink: Box<dyn Sink>, metrics: AuditMetrics) -> io::Result<(Self, LogThread)> {
        let (queue, lines) = mpsc::sync_channel(MAX_QUEUED_LINES);
        let (end, ended) = mpsc::sync_channel(1);
        let queued_bytes = Arc::new(AtomicUsize::new(0));
        let writer = Writer {
            lines,
            queued_bytes: Arc::clone(&queued_bytes),
            sink,
            losses: Losses::default(),
            metrics: metrics.clone(),
        };
        task::thread("audit-log", move || {
            writer.run();
            // Dropped with the thread, whether anyone waits or not.
            drop(end);
        })?;
        let log = Self {
            queue,
            queued_bytes,
            metrics,
        };
        Ok((log, LogThread { ended }))
    }

    /// The counts of this log.
    pub fn metrics(&self) -> &AuditMetrics {
        &self.metrics
    }

    /// Queues a line, with its line end. Never waits: a line for which there is no room is lost,
    /// and counted.
    pub fn write(&self, line: Vec<u8>) {
        self.metrics.event();
        let bytes = line.len();
        let before = self.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        let has_room = before.saturating_add(bytes) <= MAX_QUEUED_BYTES;
        if !has_room || self.queue.try_send(line).is_err() {
            self.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            if self.metrics.overflow() {
                tracing::warn!(
                    "the disk of the audit log is too slow: lines are lost, and counted in apiserver_audit_error_total"
                );
            }
        }
    }
}

impl LogThread {
    /// Waits until the queue is written, for at most this time. Returns false if it is not: the
    /// rest is lost. All [`AuditLog`]s must be dropped before. Blocks the thread.
    pub fn finish(self, at_most: Duration) -> bool {
        // The thread sends nothing, and disconnects when it ends.
        self.ended.recv_timeout(at_most) != Err(mpsc::RecvTimeoutError::Timeout)
    }
}

/// The end of the queue: a file or the standard output.
trait Sink: Send {
    /// Writes whole lines.
    ///
    /// # Errors
    ///
    /// The number of lines that are lost, and why. What is written is whole lines all the same.
    fn write(&mut self, lines: &[Vec<u8>]) -> Result<(), LostLines>;
}

/// Lines that could not be written.
#[derive(Debug)]
struct LostLines {
    lines: usize,
    cause: io::Error,
}

/// The standard output.
struct Output<W>(W);

impl<W: Write + Send> Sink for Output<W> {
    fn write(&mut self, lines: &[Vec<u8>]) -> Result<(), LostLines> {
        let lost = |cause| LostLines {
            lines: lines.len(),
            cause,
        };
        self.0.write_all(&lines.concat()).map_err(lost)?;
        self.0.flush().map_err(lost)
    }
}

/// The lines lost since the last write that succeeded, so that it is said once.
#[derive(Debug, Default)]
struct Losses {
    lines: usize,
}

struct Writer {
    lines: Receiver<Vec<u8>>,
    queued_bytes: Arc<AtomicUsize>,
    sink: Box<dyn Sink>,
    losses: Losses,
    metrics: AuditMetrics,
}

impl Writer {
    fn run(mut self) {
        while let Ok(first) = self.lines.recv() {
            let mut bytes = first.len();
            let mut batch = vec![first];
            while bytes < BATCH_BYTES
                && let Ok(line) = self.lines.try_recv()
            {
                bytes += line.len();
                batch.push(line);
            }
            let written = self.sink.write(&batch);
            self.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.report(written);
        }
    }

    fn report(&mut self, written: Result<(), LostLines>) {
        match written {
            Ok(()) => {
                let overflowed = self.metrics.caught_up();
                let lines = std::mem::take(&mut self.losses.lines);
                if lines > 0 || overflowed > 0 {
                    let lost = u64::try_from(lines)
                        .unwrap_or(u64::MAX)
                        .saturating_add(overflowed);
                    tracing::warn!(lost, "the audit log is written again");
                }
            }
            Err(LostLines { lines, cause }) => {
                self.metrics.lost(lines);
                if self.losses.lines == 0 {
                    tracing::warn!(
                        error = &cause as &dyn std::error::Error,
                        "failed to write the audit log: lines are lost, and counted in apiserver_audit_error_total; later ones are tried"
                    );
                }
                self.losses.lines = self.losses.lines.saturating_add(lines);
            }
        }
    }
}

#[cfg(test)]
mod tests;
