//! Giving space back while the store is used: what is needed is copied into a new database, and the store goes on with that.
//!
//! A thread copies, round by round, while the committer writes on. Records are never changed, and new ones sort behind all
//! others, so a copy of everything up to some key lacks only what came after it, and has too much only of what was compacted
//! meanwhile, of which the committer keeps a list. When little is left to copy, the committer itself does the rest between two
//! batches and switches: that is all that a write ever waits for.
//!
//! Until `current` is replaced, the old database is complete and the only one that counts; from then on the new one is.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use sled::IVec;
use tokio::sync::mpsc;

use super::{
    committer::Request,
    disk::Disk,
    disk_bytes,
    error::OpenError,
    generation::{Generation, Unwritten},
    load::Meta,
    panics::COMMITTER,
    space,
};
use crate::{StoreError, history::Unreachable};

/// A file of this size is left as it is, the reserve included.
const SMALL_BYTES: u64 = 32 * 1024 * 1024;
/// How much larger than what the store holds its files may be.
const MOST_TIMES: u64 = 4;
/// What a rewrite writes, in times of what the store holds: sled writes a leaf several times while it fills.
const WRITTEN_TIMES: u64 = 4;
/// A rewrite that would gain less than this part of the file is not worth it.
const LEAST_GAIN: u64 = 5;
/// Under constant churn, at most one rewrite in this time.
const EVERY: Duration = Duration::from_secs(30);
/// What the committer copies itself: a few milliseconds.
const REST_BYTES: u64 = 1024 * 1024;
/// Rounds after which a writer that is faster than the copy has to wait for the rest.
const MOST_ROUNDS: usize = 10;

/// Why a rewrite came to nothing. The old database is as good as before.
#[derive(Debug, thiserror::Error)]
pub(super) enum RewriteError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("failed to read the old database")]
    Read(#[from] sled::Error),
    #[error("failed to write the new database")]
    Write(#[from] Unwritten),
    #[error("failed to begin the new database")]
    Begin(#[source] std::io::Error),
    #[error("the store was closed")]
    Stopped,
}

/// A new database that lacks only the last records.
#[derive(Debug)]
pub(super) struct Copied {
    next: Generation,
    last: Option<IVec>,
}

/// A rewrite that is under way.
#[derive(Debug)]
struct Running {
    thread: JoinHandle<()>,
    stop: Arc<AtomicBool>,
    /// What was compacted since it began.
    removed: Vec<Unreachable>,
}

/// What the committer knows of rewrites.
#[derive(Debug)]
pub(super) struct Rewrites {
    /// To tell the committer of the end of a copy; it does not keep the store open.
    requests: mpsc::WeakSender<Request>,
    running: Option<Running>,
    /// Removes the old files.
    cleaning: Option<JoinHandle<()>>,
    /// When the last one ended, and the bytes that it left on disk and held.
    last: Option<(Instant, u64, u64)>,
}

impl Rewrites {
    pub(super) fn new(requests: mpsc::WeakSender<Request>) -> Self {
        Self {
            requests,
            running: None,
            cleaning: None,
            last: None,
        }
    }

    /// Begins a rewrite if the files have become much larger than what they `hold`.
    pub(super) fn consider(&mut self, disk: &Disk, held: u64) {
        if self.running.is_some() || !self.is_worth_it(disk, held) {
            return;
        }
        let Ok(source) = disk.generation.db().cloned() else {
            return;
        };
        let stop = Arc::new(AtomicBool::new(false));
        let copy = Copy {
            source,
            dir: disk.dir.clone(),
            number: disk.generation.number.saturating_add(1),
            stop: Arc::clone(&stop),
        };
        let requests = self.requests.clone();
        // A panic of it is one below the store's interface.
        let thread = thread::Builder::new()
            .name(COMMITTER.into())
            .spawn(move || {
                let copied = copy.run();
                match requests.upgrade() {
                    // The channel is emptied until all senders are gone, so this does not wait for ever.
                    Some(requests) => _ = requests.blocking_send(Request::Switch { copied }),
                    None => drop(copied.and_then(Copied::abandon)),
                }
            });
        match thread {
            Ok(thread) => {
                let removed = Vec::new();
                self.running = Some(Running {
                    thread,
                    stop,
                    removed,
                });
            }
            Err(error) => tracing::warn!(%error, "failed to start rewriting the store"),
        }
    }

    fn is_worth_it(&self, disk: &Disk, held: u64) -> bool {
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

    /// Notes what a compaction removed.
    pub(super) fn removed(&mut self, changes: &[Unreachable]) {
        if let Some(running) = &mut self.running {
            running.removed.extend_from_slice(changes);
        }
    }

    /// Copies the rest and goes on with the new database. An error that is returned poisons the store.
    pub(super) fn switch(
        &mut self,
        copied: Result<Copied, RewriteError>,
        disk: &mut Disk,
        meta: Meta,
        held: u64,
    ) -> Result<(), StoreError> {
        let Some(Running {
            thread,
            stop: _,
            removed,
        }) = self.running.take()
        else {
            return Ok(());
        };
        // It has sent this, and ends.
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

    /// Removes the files that do not count.
    fn end(&mut self, disk: &Disk, old: Option<Generation>, held: u64) {
        self.finish_cleaning();
        let (dir, current) = (disk.dir.clone(), disk.generation.number);
        let clean = move || match old {
            Some(old) => old.discard(&dir, current),
            None => _ = super::generation::remove_others(&dir, current),
        };
        match thread::Builder::new().name(COMMITTER.into()).spawn(clean) {
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

    /// Ends whatever is under way, before the disk is closed.
    pub(super) fn stop(mut self) {
        if let Some(Running { thread, stop, .. }) = self.running.take() {
            stop.store(true, Ordering::Relaxed);
            if thread.join().is_err() {
                tracing::error!("the thread that rewrote the store panicked");
            }
        }
        self.finish_cleaning();
    }
}

struct Copy {
    source: sled::Db,
    dir: PathBuf,
    number: u64,
    stop: Arc<AtomicBool>,
}

impl Copy {
    /// Copies until little is left.
    fn run(self) -> Result<Copied, RewriteError> {
        let next = Generation::create(&self.dir, self.number)?;
        match self.copy_into(&next) {
            Ok(last) => Ok(Copied { next, last }),
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

/// Copies the records after a key, which becomes that of the last one. Returns how many bytes they have.
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

impl Copied {
    /// Closes it, for a store that cannot go on with it.
    pub(super) fn abandon(self) -> Result<Self, RewriteError> {
        self.next.abandon();
        Err(RewriteError::Stopped)
    }

    /// Makes it the same as the old database, and durable.
    fn finish(
        self,
        disk: &Disk,
        removed: &[Unreachable],
        meta: Meta,
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
