//! sled, hardened: what is written is on disk when [`Disk::write`] returns.
//!
//! sled 0.34's own flush stops at `sync_file_range`, which survives a killed process but not a power cut
//! (spacejam/sled#1452), so the data file is synced here after each flush. It never syncs the files of values that
//! spill out of a segment; large segments and a limit on values keep that from happening, and a store where it did is
//! refused.

use std::{
    any::Any,
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, ErrorKind, Write as _},
    os::unix::fs::DirBuilderExt,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Arc,
};

use sled::Batch;
use uuid::Uuid;

use super::{
    error::{Damage, OpenError},
    record::{self, CHANGES, FORMAT, FORMAT_VERSION, ID, OLDEST},
};
use crate::{
    FIRST_REVISION, StoreError,
    history::{ChangeId, Changes, History},
    store::Revision,
};

/// Large enough that no leaf, which holds up to 20 values, ever spills into `blobs/`.
const SEGMENT_BYTES: usize = 8 * 1024 * 1024;
/// sled's default is 1 GiB. Reads come from our history, so the cache serves only sled's own page updates.
const CACHE_BYTES: u64 = 64 * 1024 * 1024;
/// A batch begins only with room for two segments and for the pages that it makes sled rewrite. An I/O error in the
/// middle of a write poisons the store; finding the disk full beforehand does not.
const NEEDED_BYTES: u64 = 4 * SEGMENT_BYTES as u64;
/// Removals of a compaction that are written at once.
const REMOVALS: usize = 4096;

#[derive(Debug)]
pub(super) struct Disk {
    dir: PathBuf,
    /// `None` only while it is closed.
    db: Option<sled::Db>,
    /// sled's data file, opened once more: sled does not lend its own.
    data: File,
    /// Held for as long as the store is open. sled locks its file too, but lets go of it some time after it is closed.
    lock: File,
}

impl Disk {
    /// Opens the store in `dir`, or makes one there.
    pub(super) fn open(dir: &Path) -> Result<(Self, History), OpenError> {
        let failed = |step| {
            move |source| OpenError::Io {
                dir: dir.to_owned(),
                step,
                source,
            }
        };
        let corrupt = |damage| OpenError::Corrupt {
            dir: dir.to_owned(),
            damage,
        };

        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(failed("create the directory"))?;
        let lock = lock(&dir.join("lock")).map_err(|err| match err {
            TryLockError::WouldBlock => OpenError::Locked {
                dir: dir.to_owned(),
            },
            TryLockError::Error(source) => failed("open the lock file")(source),
        })?;
        let reached = read_watermark(dir).map_err(failed("read the watermark"))?;
        if !is_empty(&dir.join("blobs")).map_err(failed("read blobs/"))? {
            return Err(corrupt(Damage::Blobs));
        }

        let data_path = dir.join("db");
        probe_lock(&data_path).map_err(|err| match err {
            TryLockError::WouldBlock => OpenError::Locked {
                dir: dir.to_owned(),
            },
            TryLockError::Error(source) => failed("open the data file")(source),
        })?;
        let config = sled::Config::new()
            .path(dir)
            .segment_size(SEGMENT_BYTES)
            .cache_capacity(CACHE_BYTES)
            .flush_every_ms(None);
        // sled panics on some kinds of damage, and nothing else of the process depends on what it leaves behind then.
        let db = catch_unwind(AssertUnwindSafe(|| config.open()))
            .map_err(|panic| corrupt(Damage::Panicked(panic_text(panic.as_ref()))))?
            .map_err(|err| engine_error(dir, err))?;
        let data = OpenOptions::new()
            .write(true)
            .open(&data_path)
            .map_err(failed("open the data file"))?;
        let mut disk = Self {
            dir: dir.to_owned(),
            db: Some(db),
            data,
            lock,
        };
        let loaded = catch_unwind(AssertUnwindSafe(|| disk.load(reached)));
        let history =
            loaded.map_err(|panic| corrupt(Damage::Panicked(panic_text(panic.as_ref()))))??;
        disk.mark(history.current())
            .map_err(failed("write the watermark"))?;
        Ok((disk, history))
    }

    fn load(&mut self, reached: Option<Revision>) -> Result<History, OpenError> {
        let failed = |step| {
            let dir = self.dir.clone();
            move |source| OpenError::Io { dir, step, source }
        };
        let corrupt = |damage| OpenError::Corrupt {
            dir: self.dir.clone(),
            damage,
        };
        let db = self
            .db
            .as_ref()
            .ok_or_else(|| failed("open the database")(ErrorKind::NotConnected.into()))?;
        if db.is_empty() {
            if let Some(reached) = reached {
                return Err(corrupt(Damage::Truncated {
                    found: FIRST_REVISION,
                    reached,
                }));
            }
            return self.format().map_err(failed("write the first records"));
        }

        let meta = |key| db.get(key).map_err(|err| engine_error(&self.dir, err));
        let format = meta(FORMAT)?
            .and_then(|bytes| Some(u32::from_be_bytes(bytes.as_ref().try_into().ok()?)));
        match format {
            Some(FORMAT_VERSION) => {}
            Some(found) => {
                return Err(OpenError::Format {
                    dir: self.dir.clone(),
                    found,
                });
            }
            None => return Err(corrupt(Damage::NoMeta("format"))),
        }
        let id = meta(ID)?
            .and_then(|bytes| Uuid::from_slice(&bytes).ok())
            .ok_or(Damage::NoMeta("id"));
        let oldest = meta(OLDEST)?
            .and_then(|bytes| Revision::new(u64::from_be_bytes(bytes.as_ref().try_into().ok()?)));
        let oldest = oldest.ok_or(Damage::NoMeta("oldest"));
        let mut history = History::compacted_at(id.map_err(corrupt)?, oldest.map_err(corrupt)?);

        let unreachable = load_changes(&self.dir, db, &mut history)?;
        if let Some(reached) = reached.filter(|reached| *reached > history.current()) {
            return Err(corrupt(Damage::Truncated {
                found: history.current(),
                reached,
            }));
        }
        // What a compaction that was cut short left behind. Nothing depends on it, so no wait for the disk.
        self.remove(&unreachable)
            .map_err(|(step, source)| failed(step)(source))?;
        Ok(history)
    }

    /// Makes an empty database a store.
    fn format(&self) -> io::Result<History> {
        let id = Uuid::new_v4();
        let mut batch = Batch::default();
        batch.insert(FORMAT, FORMAT_VERSION.to_be_bytes().as_slice());
        batch.insert(ID, id.as_bytes().as_slice());
        batch.insert(OLDEST, FIRST_REVISION.number().to_be_bytes().as_slice());
        self.write_batch(batch).map_err(|(_, source)| source)?;
        // The names of the files must last as long as what is in them.
        File::open(self.dir.join("conf"))?.sync_all()?;
        File::open(&self.dir)?.sync_all()?;
        if let Some(parent) = self.dir.canonicalize()?.parent() {
            File::open(parent)?.sync_all()?;
        }
        Ok(History::new(id))
    }

    /// Whether there is room to begin a batch. The error, if any, leaves the store as it was.
    pub(super) fn check_space(&self) -> Result<(), StoreError> {
        let free = rustix::fs::fstatvfs(&self.data)
            .map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize));
        match free {
            Ok(free) if free < NEEDED_BYTES => Err(StoreError::NoSpace {
                dir: self.dir.clone(),
                free_bytes: free,
                needed_bytes: NEEDED_BYTES,
            }),
            // A file system that cannot tell is no reason not to try.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Writes the commits, all or none, and waits until they are on disk. After an error it is not known what is
    /// there: nothing more may be written.
    pub(super) fn write(&self, commits: &[Changes]) -> Result<(), StoreError> {
        let mut batch = Batch::default();
        for Changes { revision, changes } in commits {
            let of = u32::try_from(changes.len()).expect("a commit has at most MAX_WRITES changes");
            for change in changes {
                let id = ChangeId {
                    revision: *revision,
                    place: change.place,
                };
                batch.insert(record::encode_id(id), record::encode(of, change));
            }
        }
        self.write_batch(batch)
            .map_err(|failure| self.poisoned(failure))
    }

    /// Makes the compaction last: from here on, what only earlier revisions can see may go.
    pub(super) fn write_oldest(&self, oldest: Revision) -> Result<(), StoreError> {
        let mut batch = Batch::default();
        batch.insert(OLDEST, oldest.number().to_be_bytes().as_slice());
        self.write_batch(batch)
            .map_err(|failure| self.poisoned(failure))
    }

    /// Removes changes that nobody can see. If a crash brings some back, opening removes them again.
    pub(super) fn remove_unreachable(&self, changes: &[ChangeId]) -> Result<(), StoreError> {
        self.remove(changes)
            .map_err(|failure| self.poisoned(failure))
    }

    /// Syncs, closes, and lets others open. `reached` is what opening must find again.
    pub(super) fn close(mut self, reached: Revision) -> io::Result<()> {
        // sled's destructor flushes, and panics if that fails; everything acknowledged is on disk already.
        let db = self.db.take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(db)));
        self.data.sync_data()?;
        self.mark(reached)?;
        // sled's threads keep its file, and with it its lock, a moment longer than the database.
        self.data.lock()?;
        self.data.unlock()?;
        // Closing the file would do, but for children of other threads that have inherited it and not executed yet.
        self.lock.unlock()
    }

    /// Closes after a failed write, without waiting for a database in an unknown state.
    pub(super) fn abandon(mut self) {
        let db = self.db.take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(db)));
    }

    fn remove(&self, changes: &[ChangeId]) -> Result<(), (&'static str, io::Error)> {
        for chunk in changes.chunks(REMOVALS) {
            let mut batch = Batch::default();
            for id in chunk {
                batch.remove(record::encode_id(*id));
            }
            self.apply(batch)?;
        }
        Ok(())
    }

    fn write_batch(&self, batch: Batch) -> Result<(), (&'static str, io::Error)> {
        self.apply(batch)?;
        self.data
            .sync_data()
            .map_err(|source| ("fdatasync", source))
    }

    fn apply(&self, batch: Batch) -> Result<(), (&'static str, io::Error)> {
        let db = self
            .db
            .as_ref()
            .ok_or_else(|| ("write", ErrorKind::NotConnected.into()))?;
        let written = catch_unwind(AssertUnwindSafe(|| {
            db.apply_batch(batch)
                .map_err(|err| ("write", io::Error::from(err)))?;
            db.flush().map_err(|err| ("flush", io::Error::from(err)))
        }));
        let panicked = |panic: Box<dyn Any + Send>| {
            Err(("write", io::Error::other(panic_text(panic.as_ref()))))
        };
        written.unwrap_or_else(panicked).map(drop)
    }

    fn poisoned(&self, (step, source): (&'static str, io::Error)) -> StoreError {
        StoreError::Poisoned {
            dir: self.dir.clone(),
            step,
            source: Arc::new(source),
        }
    }

    /// Notes a revision that the store has reached, beside the database: a data file that lost its end looks to sled
    /// like one that never had it.
    fn mark(&self, reached: Revision) -> io::Result<()> {
        let new = self.dir.join("watermark.new");
        let mut file = File::create(&new)?;
        writeln!(file, "{reached}")?;
        file.sync_all()?;
        fs::rename(&new, watermark(&self.dir))?;
        File::open(&self.dir)?.sync_all()
    }
}

fn load_changes(
    dir: &Path,
    db: &sled::Db,
    history: &mut History,
) -> Result<Vec<ChangeId>, OpenError> {
    let corrupt = |damage| OpenError::Corrupt {
        dir: dir.to_owned(),
        damage,
    };
    let bad_record = |key: &[u8]| corrupt(Damage::Record(key.escape_ascii().to_string()));
    let oldest = history.current();
    let mut unreachable = Vec::new();
    let mut pending: Option<(Changes, u32)> = None;
    let mut finish = |pending: Option<(Changes, u32)>| {
        let Some((commit, of)) = pending else {
            return Ok(());
        };
        // Compaction leaves parts of commits, and gaps; after it there are none.
        if commit.revision > oldest {
            let found = u32::try_from(commit.changes.len()).unwrap_or(u32::MAX);
            if found != of {
                return Err(corrupt(Damage::Torn {
                    revision: commit.revision,
                    found,
                    of,
                }));
            }
            if commit.revision != history.current().next() {
                return Err(corrupt(Damage::Missing {
                    before: commit.revision,
                }));
            }
        }
        unreachable.extend(history.apply(commit));
        Ok(())
    };
    for entry in db.scan_prefix(CHANGES) {
        let (key, value) = entry.map_err(|err| engine_error(dir, err))?;
        let id = record::decode_id(&key).ok_or_else(|| bad_record(&key))?;
        let found = record::decode(id, &value).ok_or_else(|| bad_record(&key))?;
        match &mut pending {
            Some((commit, _)) if commit.revision == id.revision => {
                commit.changes.push(found.change)
            }
            _ => {
                let begun = Changes {
                    revision: id.revision,
                    changes: vec![found.change],
                };
                finish(pending.replace((begun, found.of)))?;
            }
        }
    }
    finish(pending)?;
    Ok(unreachable)
}

fn lock(path: &Path) -> Result<File, TryLockError> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path);
    let file = file.map_err(TryLockError::Error)?;
    file.try_lock()?;
    Ok(file)
}

/// Whether nobody has sled's own lock, such as a tool that knows nothing of ours.
fn probe_lock(data: &Path) -> Result<(), TryLockError> {
    match OpenOptions::new().write(true).open(data) {
        Ok(file) => {
            file.try_lock()?;
            file.unlock().map_err(TryLockError::Error)
        }
        Err(err) if err.kind() == ErrorKind::NotFound => Ok(()),
        Err(err) => Err(TryLockError::Error(err)),
    }
}

fn is_empty(dir: &Path) -> io::Result<bool> {
    match fs::read_dir(dir) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(err) if err.kind() == ErrorKind::NotFound => Ok(true),
        Err(err) => Err(err),
    }
}

fn watermark(dir: &Path) -> PathBuf {
    dir.join("watermark")
}

fn read_watermark(dir: &Path) -> io::Result<Option<Revision>> {
    match fs::read_to_string(watermark(dir)) {
        Ok(text) => text
            .trim_end()
            .parse()
            .map(Some)
            .map_err(|err| io::Error::new(ErrorKind::InvalidData, err)),
        Err(err) if err.kind() == ErrorKind::NotFound => Ok(None),
        Err(err) => Err(err),
    }
}

/// The file system's refusals are not damage; everything else that keeps sled from reading its file is.
fn engine_error(dir: &Path, err: sled::Error) -> OpenError {
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

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
        .to_owned()
}
