//! sled, made durable: what was written is on disk when [`StoreDisk::write`] returns, in the
//! [log](super::wal) or in sled.
//!
//! sled 0.34's own flush stops at `sync_file_range`, which survives a killed process but not a
//! power cut (spacejam/sled#1452), so the data file is synced here after each flush. sled never
//! syncs the files of values that spill out of a segment; large segments and splitting of values
//! ([`record`]) prevent that, and a store where it happened is refused.

use std::{
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    sync::Arc,
};

use podplane_host::{
    fs::{self, File, OpenOptions, TryLockError},
    random,
};
use sled::Batch;

use super::{
    error::{Damage, OpenError},
    generation::{self, Generation, UnwrittenBatch},
    load::{LoadedStore, OnDamage, OnItem, StoreMeta, load},
    panics::guarded,
    record::{self, FORMAT, FORMAT_VERSION, OLDEST, RawRecord},
    space::{self, FreeSpace},
    undo::{Files, Undo},
    wal::{self, LoggedRecords, Wal},
};
use crate::{
    FIRST_REVISION, StoreError,
    history::{Changes, History, UnreachableChange},
    store::Revision,
};

#[derive(Debug)]
pub(super) struct StoreDisk {
    pub(super) dir: PathBuf,
    pub(super) generation: Generation,
    /// `None` until the first write.
    log: Option<Wal>,
    /// The records that are in the log, and not yet in sled.
    unsettled: Unsettled,
    /// Held while the store is open. sled locks its file too, but releases that lock some time
    /// after closing.
    lock: File,
}

/// Records that are durable in the log alone.
#[derive(Debug, Default)]
struct Unsettled {
    batch: Batch,
    bytes: usize,
}

impl Unsettled {
    fn add(&mut self, records: Vec<RawRecord>) {
        for (key, value) in records {
            self.bytes += key.len() + value.len();
            self.batch.insert(key, value);
        }
    }
}

/// A store whose files are open but whose content is not checked yet. It must be accepted or
/// refused.
#[derive(Debug)]
pub(super) struct OpeningStore {
    disk: StoreDisk,
    /// A revision that the store is known to have reached.
    reached: Option<Revision>,
    logged: LoggedRecords,
    undo: Undo,
}

impl OpeningStore {
    /// Opens the files in `dir`, creating them if they are missing, without looking at their
    /// content.
    pub(super) fn begin(dir: &Path) -> Result<Self, OpenError> {
        let failed = |step| failed(dir, step);
        fs::create_private_dir_all(dir).map_err(failed("create the directory"))?;
        let lock = lock(dir)?;
        let reached = read_watermark(dir).map_err(failed("read the watermark"))?;
        let logged = wal::read(dir).map_err(failed("read the log"))?;
        let number = generation::current(dir).map_err(failed("read `current`"))?;
        let path = generation::path_of(dir, number);
        if !is_empty(&path.join("blobs")).map_err(failed("read blobs/"))? {
            return Err(corrupt(dir, Damage::Blobs));
        }
        let spare =
            space::release_to_open(dir, &path).map_err(failed("make the reserve smaller"))?;
        probe_lock(&path.join("db")).map_err(|err| not_locked(dir, "open the data file", err))?;
        let undo = Undo::prepare(&path, spare).map_err(failed("copy the files"))?;
        let opened = guarded(broken(dir), restoring(&undo), || {
            Generation::open(dir, number)
        });
        let generation = match opened {
            Ok(generation) => generation,
            Err(error) => return Err(put_back(undo, error)),
        };
        let disk = StoreDisk {
            dir: dir.to_owned(),
            generation,
            log: None,
            unsettled: Unsettled::default(),
            lock,
        };
        Ok(Self {
            disk,
            reached,
            logged,
            undo,
        })
    }

    pub(super) fn is_new(&self) -> Result<bool, OpenError> {
        Ok(self.reached.is_none() && self.disk.db()?.is_empty())
    }

    /// Reads the whole content.
    pub(super) fn load(
        &self,
        on_damage: OnDamage<'_>,
        on_item: OnItem<'_>,
    ) -> Result<LoadedStore, OpenError> {
        let (dir, reached) = (&self.disk.dir, self.reached);
        let db = self.disk.db()?;
        if db.is_empty() {
            let (found, reached) = (FIRST_REVISION, reached.unwrap_or(FIRST_REVISION));
            return Err(corrupt(dir, Damage::Truncated { found, reached }));
        }
        guarded(broken(dir), restoring(&self.undo), || {
            load(dir, db, &self.logged, reached, on_damage, on_item)
        })
    }

    pub(super) fn accept(self) -> StoreDisk {
        self.disk
    }

    /// Closes the files and restores them to what they were before opening. Returns `reason`.
    pub(super) fn refuse(self, reason: OpenError) -> OpenError {
        let Self { disk, undo, .. } = self;
        disk.abandon();
        put_back(undo, reason)
    }

    /// Closes the files and restores them to what they were before opening.
    pub(super) fn leave(self) -> Result<(), OpenError> {
        let Self { disk, undo, .. } = self;
        let dir = disk.dir.clone();
        let _lock = guarded(broken(&dir), restoring(&undo), || {
            disk.release().map_err(failed(&dir, "close the database"))
        })?;
        undo.files()
            .put_back()
            .map_err(failed(&dir, "put the files back"))
    }
}

fn put_back(undo: Undo, reason: OpenError) -> OpenError {
    restore(&undo.files());
    reason
}

fn restore(files: &Files) {
    if let Err(error) = files.put_back() {
        tracing::error!(%error, "failed to restore the files of the store to what they were before it was opened");
    }
}

impl StoreDisk {
    /// Opens the store in `dir`, or creates one. Also returns the changes that an interrupted
    /// compaction left to be removed.
    pub(super) fn open(dir: &Path) -> Result<(Self, History, Vec<UnreachableChange>), OpenError> {
        let failed = |step| failed(dir, step);
        let opening = OpeningStore::begin(dir)?;
        if opening.is_new()? {
            let disk = opening.accept();
            let meta = StoreMeta::new(random::uuid());
            disk.begin(meta)
                .map_err(failed("write the first records"))?;
            disk.grow_reserve();
            return Ok((disk, History::new(meta.id), Vec::new()));
        }
        let mut refuse = |damage| Err(corrupt(dir, damage));
        let loaded = match opening.load(&mut refuse, &mut |_| {}) {
            Ok(loaded) => loaded,
            Err(error) => return Err(opening.refuse(error)),
        };
        let mut disk = opening.accept();
        let LoadedStore {
            history,
            unreachable,
            unsettled,
            format,
        } = loaded;
        disk.unsettled.add(unsettled);
        if format < FORMAT_VERSION {
            // Before the first value that the older version cannot read.
            disk.write_format()
                .map_err(|UnwrittenBatch { step, source }| failed(step)(source))?;
        }
        generation::remove_others(dir, disk.generation.number)
            .map_err(failed("remove what a rewrite left"))?;
        disk.mark(history.current())
            .or_else(unless_full)
            .map_err(failed("write the watermark"))?;
        if disk.has_room_to_settle() {
            disk.settle()
                .map_err(|UnwrittenBatch { step, source }| failed(step)(source))?;
        }
        if history.status(None).memory_bytes > generation::CACHE_BYTES {
            disk = disk.reopened()?;
        }
        disk.grow_reserve();
        Ok((disk, history, unreachable))
    }

    /// The same without what sled has cached: it begins to count that against the size of its cache
    /// only when it has been used for a while, and reading the whole content caches all of it.
    fn reopened(self) -> Result<Self, OpenError> {
        let Self {
            dir,
            generation,
            log,
            unsettled,
            lock,
        } = self;
        let generation = guarded(broken(&dir), || (), || generation.reopen(&dir))?;
        Ok(Self {
            dir,
            generation,
            log,
            unsettled,
            lock,
        })
    }

    fn db(&self) -> Result<&sled::Db, OpenError> {
        self.generation
            .db()
            .map_err(failed(&self.dir, "open the database"))
    }

    /// Writes the records that make this database a store. From here on it can be opened.
    pub(super) fn begin(&self, meta: StoreMeta) -> io::Result<()> {
        self.generation.begin(meta)
    }

    /// All records of changes in key order, as stored.
    pub(super) fn records(
        &self,
    ) -> Result<impl Iterator<Item = Result<RawRecord, OpenError>>, OpenError> {
        let records = Generation::records_after(self.db()?, None);
        Ok(records.map(|entry| {
            let (key, value) = entry.map_err(|err| engine_error(&self.dir, err))?;
            Ok((key.to_vec(), value.to_vec()))
        }))
    }

    /// Writes records as they are. They are durable only after [`begin`](Self::begin).
    pub(super) fn copy_in<E: From<OpenError>>(
        &self,
        records: impl Iterator<Item = Result<RawRecord, E>>,
    ) -> Result<(), E> {
        /// An error of reading or of writing.
        enum SyncFailure<E> {
            Read(E),
            Write(UnwrittenBatch),
        }
        impl<E> From<UnwrittenBatch> for SyncFailure<E> {
            fn from(failure: UnwrittenBatch) -> Self {
                Self::Write(failure)
            }
        }
        let records = records.map(|record| record.map_err(SyncFailure::Read));
        self.generation
            .copy_in(records)
            .map_err(|failure| match failure {
                SyncFailure::Read(error) => error,
                SyncFailure::Write(UnwrittenBatch { step, source }) => {
                    failed(&self.dir, step)(source).into()
                }
            })
    }

    /// Writes the commits, all or none, and waits until they are on disk: in the log, or in sled if
    /// they are larger than the log or there is not [enough](FreeSpace::Enough) space. After an
    /// error the state on disk is unknown, and nothing more may be written.
    pub(super) fn write(
        &mut self,
        commits: &[Changes],
        space: &FreeSpace,
    ) -> Result<(), StoreError> {
        let Some(first) = commits.first() else {
            return Ok(());
        };
        let mut records = Vec::with_capacity(commits.len());
        for Changes { revision, changes } in commits {
            let of = u32::try_from(changes.len()).expect("a commit has at most MAX_WRITES changes");
            for change in changes {
                records.extend(record::encode(*revision, of, change));
            }
        }
        let written = match space {
            FreeSpace::Enough => self.write_to_log(first.revision, &records),
            FreeSpace::ReclaimOnly(_) | FreeSpace::None(_) => Ok(false),
        };
        let written = written.and_then(|is_logged| {
            self.unsettled.add(records);
            match is_logged {
                true => Ok(()),
                false => self.settle(),
            }
        });
        written.map_err(|failure| self.poisoned(failure))
    }

    /// Writes a batch of commits to the log. Returns false if it cannot be there.
    fn write_to_log(
        &mut self,
        first: Revision,
        records: &[RawRecord],
    ) -> Result<bool, UnwrittenBatch> {
        let failed = |step| move |source| UnwrittenBatch { step, source };
        if self.log.is_none() {
            // The log is begun at its start.
            self.settle()?;
            match Wal::open(&self.dir) {
                Ok(log) => self.log = Some(log),
                // Another process took the space first.
                Err(error) if error.kind() == ErrorKind::StorageFull => return Ok(false),
                Err(error) => return Err(failed("opening the log")(error)),
            }
        }
        for is_settled in [false, true] {
            if let Some(log) = &mut self.log
                && log
                    .append(first, records)
                    .map_err(failed("writing the log"))?
            {
                return Ok(true);
            }
            if !is_settled {
                self.settle()?;
            }
        }
        Ok(false)
    }

    /// Writes to sled what is in the log alone, and waits until it is on disk.
    fn settle(&mut self) -> Result<(), UnwrittenBatch> {
        if self.unsettled.bytes == 0 {
            return Ok(());
        }
        let Unsettled { batch, bytes: _ } = std::mem::take(&mut self.unsettled);
        self.generation.write_batch(batch)?;
        if let Some(log) = &mut self.log {
            log.restart();
        }
        Ok(())
    }

    /// Prepares a change of sled that is not a commit: what was committed before it comes first.
    pub(super) fn settle_before(&mut self) -> Result<(), StoreError> {
        self.settle().map_err(|failure| self.poisoned(failure))
    }

    /// The bytes that are still to be written to sled.
    pub(super) fn unsettled_bytes(&self) -> usize {
        self.unsettled.bytes
    }

    /// True if there is space for what is still to be written to sled. May make the reserve
    /// smaller.
    fn has_room_to_settle(&self) -> bool {
        self.unsettled.bytes == 0 || !matches!(self.space_for(0, Some(0)), FreeSpace::None(_))
    }

    fn write_format(&self) -> Result<(), UnwrittenBatch> {
        let mut batch = Batch::default();
        batch.insert(FORMAT, FORMAT_VERSION.to_be_bytes().as_slice());
        self.generation.write_batch(batch)
    }

    /// Makes the compaction durable: from here on, history that only earlier revisions can see may
    /// be removed.
    pub(super) fn write_oldest(&mut self, oldest: Revision) -> Result<(), StoreError> {
        self.settle_before()?;
        let mut batch = Batch::default();
        batch.insert(OLDEST, oldest.number().to_be_bytes().as_slice());
        self.generation
            .write_batch(batch)
            .map_err(|failure| self.poisoned(failure))
    }

    /// Removes some of the unreachable changes, and returns the others. If a crash brings some
    /// back, opening the store removes them again.
    pub(super) fn remove_unreachable<'a>(
        &mut self,
        changes: &'a [UnreachableChange],
    ) -> Result<&'a [UnreachableChange], StoreError> {
        self.settle_before()?;
        self.generation
            .remove_some(changes)
            .map_err(|failure| self.poisoned(failure))
    }

    /// Syncs, closes and unlocks. Opening must find `reached` again. The log is left only if there
    /// is no space for its content in sled.
    pub(super) fn close(mut self, reached: Revision) -> io::Result<()> {
        if self.has_room_to_settle() {
            self.settle().map_err(|failure| failure.source)?;
            wal::remove(&self.dir)?;
        }
        self.mark(reached).or_else(unless_full)?;
        // Closing the file would unlock it too, unless a child that another thread has forked, and
        // that has not called exec yet, still holds it.
        self.release()?.unlock()
    }

    /// Closes the database and keeps the store locked as long as the returned file is open.
    pub(super) fn release(self) -> io::Result<File> {
        let Self {
            dir: _,
            generation,
            log: _,
            unsettled: _,
            lock,
        } = self;
        generation.close()?;
        Ok(lock)
    }

    /// Closes without waiting for a database in an unknown state.
    pub(super) fn abandon(self) {
        self.generation.abandon();
    }

    /// Goes on with another database that has the same content, is on disk, and has been
    /// [announced](Generation::announce). Returns the one that it replaces.
    pub(super) fn switch(&mut self, next: Generation) -> Result<Generation, StoreError> {
        if let Err(source) = next.become_current(&self.dir) {
            next.abandon();
            // After a failure it is unknown which of the two databases counts.
            let step = "replacing the database";
            return Err(self.poisoned(UnwrittenBatch { step, source }));
        }
        Ok(std::mem::replace(&mut self.generation, next))
    }

    fn poisoned(&self, UnwrittenBatch { step, source }: UnwrittenBatch) -> StoreError {
        StoreError::Poisoned {
            dir: self.dir.clone(),
            step,
            source: Arc::new(source),
        }
    }

    /// Records a reached revision in a file beside the database: to sled, a data file that was
    /// truncated looks like one that never had its end.
    fn mark(&self, reached: Revision) -> io::Result<()> {
        generation::replace(&self.dir, WATERMARK, &reached.to_string())
    }
}

/// The error for a panic in sled while it reads the files in `dir`.
fn broken(dir: &Path) -> impl Fn(String) -> OpenError + Clone + Send + 'static {
    let dir = dir.to_owned();
    move |text| corrupt(&dir, Damage::Panicked(text))
}

/// Restores the files to what they were. Needed when the process ends on a panic; otherwise the
/// caller that gets the error does it.
fn restoring(undo: &Undo) -> impl Fn() + Send + 'static {
    let files = undo.files();
    move || restore(&files)
}

pub(super) fn corrupt(dir: &Path, damage: Damage) -> OpenError {
    OpenError::Corrupt {
        dir: dir.to_owned(),
        damage,
    }
}

pub(super) fn failed(dir: &Path, step: &'static str) -> impl FnOnce(io::Error) -> OpenError {
    let dir = dir.to_owned();
    move |source| OpenError::Io { dir, step, source }
}

/// Locks a store for as long as the returned file is open.
pub(super) fn lock(dir: &Path) -> Result<File, OpenError> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true);
    let file =
        fs::open_with(&options, dir.join("lock")).map_err(failed(dir, "open the lock file"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(err) => Err(not_locked(dir, "lock the lock file", err)),
    }
}

fn not_locked(dir: &Path, step: &'static str, err: TryLockError) -> OpenError {
    match err {
        TryLockError::WouldBlock => OpenError::Locked {
            dir: dir.to_owned(),
        },
        TryLockError::Error(source) => failed(dir, step)(source),
    }
}

/// Checks that nobody holds sled's own lock, for example a tool that does not know ours.
fn probe_lock(data: &Path) -> Result<(), TryLockError> {
    match fs::open_with(OpenOptions::new().write(true), data) {
        Ok(file) => {
            file.try_lock()?;
            file.unlock().map_err(TryLockError::Error)
        }
        Err(err) if err.kind() == ErrorKind::NotFound => Ok(()),
        Err(err) => Err(TryLockError::Error(err)),
    }
}

/// An earlier watermark is still valid, and a full disk is no reason to fail opening or closing.
fn unless_full(err: io::Error) -> io::Result<()> {
    match err.kind() {
        ErrorKind::StorageFull => {
            tracing::warn!(error = %err, "no space for the watermark of the store; the earlier one is kept");
            Ok(())
        }
        _ => Err(err),
    }
}

fn is_empty(dir: &Path) -> io::Result<bool> {
    match fs::read_dir(dir) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(err) if err.kind() == ErrorKind::NotFound => Ok(true),
        Err(err) => Err(err),
    }
}

/// The file with a revision that was reached.
const WATERMARK: &str = "watermark";

fn read_watermark(dir: &Path) -> io::Result<Option<Revision>> {
    match fs::read_to_string(dir.join(WATERMARK)) {
        Ok(text) => text
            .trim_end()
            .parse()
            .map(Some)
            .map_err(|err| io::Error::new(ErrorKind::InvalidData, err)),
        Err(err) if err.kind() == ErrorKind::NotFound => Ok(None),
        Err(err) => Err(err),
    }
}

/// Errors of the file system are not damage; any other error that keeps sled from reading its file
/// is.
pub(super) fn engine_error(dir: &Path, err: sled::Error) -> OpenError {
    use ErrorKind::{InvalidData, Other, UnexpectedEof};
    match err {
        sled::Error::Io(source)
            if !matches!(source.kind(), InvalidData | Other | UnexpectedEof) =>
        {
            OpenError::Io {
                dir: dir.to_owned(),
                step: "open the database",
                source,
            }
        }
        err => OpenError::Corrupt {
            dir: dir.to_owned(),
            damage: Damage::Unreadable(err),
        },
    }
}
