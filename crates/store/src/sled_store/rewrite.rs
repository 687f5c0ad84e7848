//! Giving back space online: the live content is copied into a new database, and the store goes on
//! with that.
//!
//! A thread copies, round by round, while the committer writes on. Records never change, and new
//! ones sort after all others. A copy of everything up to some key therefore lacks only the records
//! after it, and has in excess only those that were compacted meanwhile, which the committer keeps
//! in a list. When little is left to copy, the committer itself copies the rest between two batches
//! and switches: no write ever waits for more than that.
//!
//! Until `current` is replaced, the old database is complete and the only one that counts; from
//! then on the new one is.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use podplane_host::{clock::Instant, task};
use sled::IVec;
use tokio::sync::mpsc;

use super::{
    committer::CommitterRequest,
    disk::StoreDisk,
    disk_bytes,
    error::OpenError,
    generation::{Generation, UnwrittenBatch},
    load::StoreMeta,
    panics::COMMITTER,
    space,
};
use crate::{StoreError, history::UnreachableChange};

/// Files of at most this size are not rewritten, the reserve included.
const SMALL_BYTES: u64 = 32 * 1024 * 1024;
/// A rewrite begins when the files are more than this many times as large as the content.
const MOST_TIMES: u64 = 4;
/// The bytes that a rewrite writes, as a multiple of the content: sled writes a leaf several times
/// while it fills.
const WRITTEN_TIMES: u64 = 4;
/// A rewrite must save at least one part in this many of the file.
const LEAST_GAIN: u64 = 5;
/// The least time between two rewrites under constant churn.
const EVERY: Duration = Duration::from_secs(30);
/// The most bytes that the committer copies itself, in a few milliseconds.
const REST_BYTES: u64 = 1024 * 1024;
/// The rounds after which a writer that is faster than the copy has to wait for the rest.
const MOST_ROUNDS: usize = 10;

/// An error of a rewrite. The old database stays in use.
#[derive(Debug, thiserror::Error)]
pub(super) enum RewriteError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("failed to read the old database")]
    Read(#[from] sled::Error),
    #[error("failed to write the new database")]
    Write(#[from] UnwrittenBatch),
    #[error("failed to begin the new database")]
    Begin(#[source] std::io::Error),
    #[error("the store was closed")]
    Stopped,
}

/// A new database that lacks only the last records.
#[derive(Debug)]
pub(super) struct RewriteCopy {
    next: Generation,
    last: Option<IVec>,
}

/// A rewrite in progress.
#[derive(Debug)]
struct RunningRewrite {
    thread: JoinHandle<()>,
    stop: Arc<AtomicBool>,
    /// Changes that were compacted since the rewrite began.
    removed: Vec<UnreachableChange>,
}

/// The committer's state of rewrites.
#[derive(Debug)]
pub(super) struct Rewrites {
    /// Reports the end of a copy to the committer. A weak sender, so it does not keep the store
    /// open.
    requests: mpsc::WeakSender<CommitterRequest>,
    running: Option<RunningRewrite>,
    /// The thread that removes the old files.
    cleaning: Option<JoinHandle<()>>,
    /// The time when the last rewrite ended, the bytes on disk then, and the bytes of content.
    last: Option<(Instant, u64, u64)>,
}

impl Rewrites {
    pub(super) fn new(requests: mpsc::WeakSender<CommitterRequest>) -> Self {
        Self {
            requests,
            running: None,
            cleaning: None,
            last: None,
        }
    }

    /// Begins a rewrite if the files have become much larger than their content of `held` bytes.
    pub(super) fn consider(&mut self, disk: &StoreDisk, held: u64) {
        if self.running.is_some() || !self.is_worth_it(disk, held) {
            return;
        }
        let Ok(source) = disk.generation.db().cloned() else {
            return;
        };
        let stop = Arc::new(AtomicBool::new(false));
        let copy = RewriteJob {
            source,
            dir: disk.dir.clone(),
            number: disk.generation.number.saturating_add(1),
            stop: Arc::clone(&stop),
        };
        let requests = self.requests.clone();
        // Its panics are handled by `panics`, since it calls sled.
        let thread = task::thread(COMMITTER, move || {
            let copied = copy.run();
            match requests.upgrade() {
                // The committer drains the channel until all senders are gone, so this cannot
                // block forever.
                Some(requests) => _ = requests.blocking_send(CommitterRequest::Switch { copied }),
                None => drop(copied.and_then(RewriteCopy::abandon)),
            }
        });
        match thread {
            Ok(thread) => {
                let removed = Vec::new();
                self.running = Some(RunningRewrite {
                    thread,
                    stop,
                    removed,
                });
            }
            Err(error) => tracing::warn!(%error, "failed to start rewriting the store"),
        }
    }

    fn is_worth_it(&self, disk: &StoreDisk, held: u64) -> bool {
        let Ok(found) = disk_bytes(&disk.dir) else {
            return false;
        };
        if found <= SMALL_BYTES.max(held.saturating_mul(MOST_TIMES)) {
            return false;
        }
        if let Some((ended, left, of)) = self.last {
            let expected = (left / of.max(1)).saturating_add(1).saturating_mul(held);
            let expected = expected.max(left.min(SMALL_BYTES));
            if ended.elapsed() < EVERY || found.saturating_sub(expected) < found / LEAST_GAIN {
                return false;
            }
        }
        space::has_room_for(&disk.dir, held.saturating_mul(WRITTEN_TIMES))
    }

    /// Records the changes that a compaction removed.
    pub(super) fn removed(&mut self, changes: &[UnreachableChange]) {
        if let Some(running) = &mut self.running {
            running.removed.extend_from_slice(changes);
        }
    }

    /// Copies the rest and goes on with the new database. A returned error poisons the store.
    pub(super) fn switch(
        &mut self,
        copied: Result<RewriteCopy, RewriteError>,
        disk: &mut StoreDisk,
        meta: StoreMeta,
        held: u64,
    ) -> Result<(), StoreError> {
        let Some(RunningRewrite {
            thread,
            stop: _,
            removed,
        }) = self.running.take()
        else {
            return Ok(());
        };
        // The thread has sent this request as its last act.
        if thread.join().is_err() {
            tracing::error!("the thread that rewrote the store panicked");
        }
        let began = Instant::now();
        let before = disk_bytes(&disk.dir).unwrap_or_default();
        let next = match copied.and_then(|copied| copied.finish(disk, &removed, meta)) {
            Ok(next) => next,
            Err(error) => {
                let error: &(dyn std::error::Error + 'static) = &error;
                tracing::warn!(
                    error,
                    "failed to rewrite the store; it stays as large as it is"
                );
                self.end(disk, None, held);
                return Ok(());
            }
        };
        let old = disk.switch(next)?;
        tracing::info!(
            before,
            waited = ?began.elapsed(),
            "rewrote the store to give space back"
        );
        self.end(disk, Some(old), held);
        Ok(())
    }

    /// Removes the files of the database that is not current.
    fn end(&mut self, disk: &StoreDisk, old: Option<Generation>, held: u64) {
        self.finish_cleaning();
        let (dir, current) = (disk.dir.clone(), disk.generation.number);
        let clean = move || match old {
            Some(old) => old.discard(&dir, current),
            None => _ = super::generation::remove_others(&dir, current),
        };
        match task::thread(COMMITTER, clean) {
            Ok(cleaning) => self.cleaning = Some(cleaning),
            Err(error) => tracing::warn!(%error, "failed to remove the old files of the store"),
        }
        let left = disk_bytes(&disk.generation.path).unwrap_or_default();
        self.last = Some((Instant::now(), left, held));
    }

    fn finish_cleaning(&mut self) {
        if let Some(cleaning) = self.cleaning.take()
            && cleaning.join().is_err()
        {
            tracing::error!("the thread that removed the old files of the store panicked");
        }
    }

    /// Stops a rewrite or a cleanup in progress, before the disk is closed.
    pub(super) fn stop(mut self) {
        if let Some(RunningRewrite { thread, stop, .. }) = self.running.take() {
            stop.store(true, Ordering::Relaxed);
            if thread.join().is_err() {
                tracing::error!("the thread that rewrote the store panicked");
            }
        }
        self.finish_cleaning();
    }
}

struct RewriteJob {
    source: sled::Db,
    dir: PathBuf,
    number: u64,
    stop: Arc<AtomicBool>,
}

impl RewriteJob {
    /// Copies until little is left.
    fn run(self) -> Result<RewriteCopy, RewriteError> {
        let next = Generation::create(&self.dir, self.number)?;
        match self.copy_into(&next) {
            Ok(last) => Ok(RewriteCopy { next, last }),
            Err(error) => {
                next.abandon();
                Err(error)
            }
        }
    }

    fn copy_into(&self, next: &Generation) -> Result<Option<IVec>, RewriteError> {
        let mut last = None;
        for _round in 0..MOST_ROUNDS {
            let copied = copy_after(&self.source, &mut last, next, || {
                self.stop.load(Ordering::Relaxed)
            })?;
            next.sync()?;
            if copied <= REST_BYTES {
                break;
            }
        }
        Ok(last)
    }
}

/// Copies the records after the key `last`, and sets it to the last key copied. Returns the bytes
/// copied.
fn copy_after(
    source: &sled::Db,
    last: &mut Option<IVec>,
    next: &Generation,
    is_stopped: impl Fn() -> bool,
) -> Result<u64, RewriteError> {
    let mut bytes = 0;
    let mut newest = last.clone();
    let records = Generation::records_after(source, last.as_ref()).map(|record| {
        let (key, value) = record?;
        if is_stopped() {
            return Err(RewriteError::Stopped);
        }
        bytes += u64::try_from(key.len() + value.len()).unwrap_or(u64::MAX);
        newest = Some(key.clone());
        Ok((key.to_vec(), value.to_vec()))
    });
    next.copy_in(records)?;
    *last = newest;
    Ok(bytes)
}

impl RewriteCopy {
    /// Closes the new database, for a store that cannot go on with it.
    pub(super) fn abandon(self) -> Result<Self, RewriteError> {
        self.next.abandon();
        Err(RewriteError::Stopped)
    }

    /// Brings the new database up to date with the old one and makes it durable.
    fn finish(
        self,
        disk: &StoreDisk,
        removed: &[UnreachableChange],
        meta: StoreMeta,
    ) -> Result<Generation, RewriteError> {
        let Self { next, mut last } = self;
        let finished = (|| {
            let source = disk.generation.db().map_err(RewriteError::Begin)?;
            copy_after(source, &mut last, &next, || false)?;
            next.remove(removed)?;
            next.begin(meta).map_err(RewriteError::Begin)?;
            next.announce(&disk.dir).map_err(RewriteError::Begin)
        })();
        match finished {
            Ok(()) => Ok(next),
            Err(error) => {
                next.abandon();
                Err(error)
            }
        }
    }
}
