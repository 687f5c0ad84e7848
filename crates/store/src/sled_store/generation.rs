//! The sled database of a store, one of several generations.
//!
//! sled's file does not shrink. To give back space, the live content is written into a new
//! database, and the store goes on with that one: the next generation. The first generation is in
//! the store's directory itself, later ones are in `data-1`, `data-2` and so on beside the store's
//! lock. The file `current` names the current generation. Any other one is an interrupted rewrite
//! or was replaced, and is removed when the store is opened (ADR 0024).

use std::{
    io::{self, ErrorKind, Write as _},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use podplane_host::fs::{self, DirBuilder, File, OpenOptions};
use sled::{Batch, IVec};

use super::{
    disk::engine_error,
    error::OpenError,
    load::StoreMeta,
    panics::{guarded, let_go},
    record::{self, CHANGES, RawRecord},
    undo::is_sleds,
};
use crate::history::UnreachableChange;

/// Large enough that no leaf, which holds up to 20 records, ever spills into `blobs/`.
pub(super) const SEGMENT_BYTES: usize = 8 * 1024 * 1024;
/// sled's default is 1 GiB. Reads come from our history, so the cache serves only sled's own page
/// updates.
pub(super) const CACHE_BYTES: u64 = 16 * 1024 * 1024;
/// The calls that free the garbage of a full log. One of them frees up to 512 pieces of memory.
const COLLECTIONS: usize = 256;
/// The file that names the current generation.
const CURRENT: &str = "current";
/// The most removals in one batch. sled reuses the space only after a flush, and rewrites pages
/// meanwhile.
const REMOVALS: usize = 256;
/// The approximate bytes of values in one batch of removals.
const REMOVED_BYTES: usize = 1024 * 1024;

/// A batch that may or may not be on disk.
#[derive(Debug, thiserror::Error)]
#[error("the store cannot be written, because {step} failed")]
pub(super) struct UnwrittenBatch {
    /// The step that failed.
    pub(super) step: &'static str,
    /// The error.
    pub(super) source: io::Error,
}

/// An open database.
#[derive(Debug)]
pub(super) struct Generation {
    pub(super) number: u64,
    /// The directory of sled's files.
    pub(super) path: PathBuf,
    /// `None` only while it is being closed.
    db: Option<sled::Db>,
    /// sled's data file, opened a second time: sled does not lend its own handle.
    pub(super) data: File,
}

/// The directory of a generation.
pub(super) fn path_of(dir: &Path, number: u64) -> PathBuf {
    match number {
        0 => dir.to_owned(),
        number => dir.join(format!("data-{number}")),
    }
}

/// The number of the current generation.
pub(super) fn current(dir: &Path) -> io::Result<u64> {
    match fs::read_to_string(dir.join(CURRENT)) {
        Ok(text) => text
            .trim_end()
            .parse()
            .map_err(|err| io::Error::new(ErrorKind::InvalidData, err)),
        Err(err) if err.kind() == ErrorKind::NotFound => Ok(0),
        Err(err) => Err(err),
    }
}

/// Replaces a file atomically and durably.
pub(super) fn replace(dir: &Path, name: &str, content: &str) -> io::Result<()> {
    write_new(dir, name, content)?;
    put_in_place(dir, name)
}

/// Writes the replacement of a file durably, under a temporary name. After an error it does not
/// exist.
fn write_new(dir: &Path, name: &str, content: &str) -> io::Result<()> {
    let new = new_of(dir, name);
    let write = || {
        let mut file = fs::create(&new)?;
        writeln!(file, "{content}")?;
        fs::sync_all(&file)
    };
    write().inspect_err(|_| _ = fs::remove_file(&new))
}

fn put_in_place(dir: &Path, name: &str) -> io::Result<()> {
    fs::rename(new_of(dir, name), dir.join(name))?;
    sync_dir(dir)
}

fn new_of(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.new"))
}

/// Syncs a directory, so that the names in it are durable.
pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    fs::sync_all(&fs::open(dir)?)
}

/// Removes all generations but the current one.
pub(super) fn remove_others(dir: &Path, current: u64) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let number = name
            .strip_prefix("data-")
            .and_then(|number| number.parse::<u64>().ok());
        let is_old_file = current > 0 && is_sleds(&name);
        let is_old_dir = number.is_some_and(|number| number != current)
            || (current > 0 && matches!(name.as_str(), "blobs" | "before-open"));
        let removed = match (is_old_file, is_old_dir) {
            (true, _) => fs::remove_file(entry.path()),
            (_, true) => fs::remove_dir_all(entry.path()),
            _ => Ok(()),
        };
        removed.or_else(unless_gone)?;
    }
    Ok(())
}

fn unless_gone(err: io::Error) -> io::Result<()> {
    match err.kind() {
        ErrorKind::NotFound => Ok(()),
        _ => Err(err),
    }
}

impl Generation {
    /// Opens the database in its directory, or creates one.
    pub(super) fn open(dir: &Path, number: u64) -> Result<Self, OpenError> {
        let path = path_of(dir, number);
        let config = sled::Config::new()
            .path(&path)
            .segment_size(SEGMENT_BYTES)
            .cache_capacity(CACHE_BYTES)
            .flush_every_ms(None);
        let db = config.open().map_err(|err| engine_error(dir, err))?;
        let data =
            fs::open_with(OpenOptions::new().write(true), path.join("db")).map_err(|source| {
                OpenError::Io {
                    dir: dir.to_owned(),
                    step: "open the data file",
                    source,
                }
            })?;
        Ok(Self {
            number,
            path,
            db: Some(db),
            data,
        })
    }

    /// Creates an empty database, replacing one that an interrupted rewrite left.
    pub(super) fn create(dir: &Path, number: u64) -> Result<Self, OpenError> {
        let failed = |source| OpenError::Io {
            dir: dir.to_owned(),
            step: "make the directory of a new database",
            source,
        };
        let path = path_of(dir, number);
        fs::remove_dir_all(&path)
            .or_else(unless_gone)
            .map_err(failed)?;
        fs::create_dir_with(DirBuilder::new().mode(0o700), &path).map_err(failed)?;
        Self::open(dir, number)
    }

    pub(super) fn db(&self) -> io::Result<&sled::Db> {
        self.db
            .as_ref()
            .ok_or_else(|| ErrorKind::NotConnected.into())
    }

    /// Writes the records that make a database a store, and waits until everything is on disk.
    pub(super) fn begin(&self, meta: StoreMeta) -> io::Result<()> {
        let mut batch = Batch::default();
        for (key, value) in meta.records() {
            batch.insert(key, value);
        }
        self.write_batch(batch).map_err(|failure| failure.source)?;
        // The names of the files must be as durable as their content.
        fs::sync_all(&fs::open(self.path.join("conf"))?)?;
        sync_dir(&self.path)?;
        fs::canonicalize(&self.path)?
            .parent()
            .map_or(Ok(()), sync_dir)
    }

    /// Writes the replacement of `current` under a temporary name that nobody reads. An error
    /// changes nothing.
    pub(super) fn announce(&self, dir: &Path) -> io::Result<()> {
        write_new(dir, CURRENT, &self.number.to_string())
    }

    /// Makes it the current generation. Its own files are on disk already, and it has been
    /// [announced](Self::announce).
    pub(super) fn become_current(&self, dir: &Path) -> io::Result<()> {
        put_in_place(dir, CURRENT)
    }

    /// The records of changes after a key, in order, as stored.
    pub(super) fn records_after(
        db: &sled::Db,
        after: Option<&IVec>,
    ) -> impl Iterator<Item = sled::Result<(IVec, IVec)>> + use<> {
        let from = after.map_or_else(|| CHANGES.to_vec(), |key| [key.as_ref(), &[0]].concat());
        db.range(from..)
            .take_while(|entry| !matches!(entry, Ok((key, _)) if !key.starts_with(CHANGES)))
    }

    /// Writes records as they are. They are durable only after [`begin`](Self::begin).
    pub(super) fn copy_in<E: From<UnwrittenBatch>>(
        &self,
        records: impl Iterator<Item = Result<RawRecord, E>>,
    ) -> Result<(), E> {
        let (mut batch, mut bytes) = (Batch::default(), 0);
        for record in records {
            let (key, value) = record?;
            bytes += key.len() + value.len();
            batch.insert(key, value);
            if bytes > SEGMENT_BYTES / 2 {
                self.apply(std::mem::take(&mut batch))?;
                bytes = 0;
            }
        }
        Ok(self.apply(batch)?)
    }

    pub(super) fn remove(&self, changes: &[UnreachableChange]) -> Result<(), UnwrittenBatch> {
        let mut left = changes;
        while !left.is_empty() {
            left = self.remove_some(left)?;
        }
        Ok(())
    }

    /// Removes the first of the changes, and returns the others.
    pub(super) fn remove_some<'a>(
        &self,
        changes: &'a [UnreachableChange],
    ) -> Result<&'a [UnreachableChange], UnwrittenBatch> {
        let (mut batch, mut bytes, mut removed) = (Batch::default(), 0, 0);
        for UnreachableChange { id, value_bytes } in changes.iter().take(REMOVALS) {
            for key in record::keys(*id, *value_bytes) {
                batch.remove(key);
            }
            removed += 1;
            bytes += value_bytes;
            if bytes >= REMOVED_BYTES {
                break;
            }
        }
        self.apply(batch)?;
        Ok(&changes[removed..])
    }

    pub(super) fn write_batch(&self, batch: Batch) -> Result<(), UnwrittenBatch> {
        self.apply(batch)?;
        self.sync()
    }

    /// Waits until applied batches are on disk.
    pub(super) fn sync(&self) -> Result<(), UnwrittenBatch> {
        fs::sync_data(&self.data).map_err(|source| UnwrittenBatch {
            step: "fdatasync",
            source,
        })
    }

    pub(super) fn apply(&self, batch: Batch) -> Result<(), UnwrittenBatch> {
        let db = self.db().map_err(|source| UnwrittenBatch {
            step: "write",
            source,
        })?;
        let panicked = |text| UnwrittenBatch {
            step: "write",
            source: io::Error::other(text),
        };
        guarded(
            panicked,
            || (),
            || {
                let failed = |step| {
                    move |err| UnwrittenBatch {
                        step,
                        source: io::Error::from(err),
                    }
                };
                db.apply_batch(batch).map_err(failed("write"))?;
                db.flush().map_err(failed("flush"))?;
                free_garbage();
                Ok(())
            },
        )
    }

    /// Closes and opens again, without what sled has cached.
    pub(super) fn reopen(self, dir: &Path) -> Result<Self, OpenError> {
        let number = self.number;
        self.close().map_err(|source| OpenError::Io {
            dir: dir.to_owned(),
            step: "close the database",
            source,
        })?;
        Self::open(dir, number)
    }

    /// Syncs and closes.
    pub(super) fn close(mut self) -> io::Result<()> {
        if let Some(db) = self.db.take() {
            // As sled's destructor does, which panics on failure; all acknowledged commits are on
            // disk already.
            if let Err(error) = db.flush() {
                let_go(db);
                return Err(error.into());
            }
            drop(db);
        }
        fs::sync_data(&self.data)?;
        // sled's threads keep its file open, and thereby locked, a moment longer than the database.
        self.data.lock()?;
        self.data.unlock()
    }

    /// Closes without waiting for a database in an unknown state.
    pub(super) fn abandon(mut self) {
        if let Some(db) = self.db.take() {
            let_go(db);
        }
    }

    /// Closes a database that is not current, and removes its files.
    pub(super) fn discard(self, dir: &Path, current: u64) {
        let path = self.path.clone();
        self.abandon();
        if let Err(error) = remove_others(dir, current) {
            tracing::warn!(%error, path = %path.display(), "failed to remove a database that was replaced; it is removed when the store is opened");
        }
    }
}

/// Frees what sled replaced while it took a batch: several copies of each page. Its collector works
/// a little at each 128th operation, and a batch is one.
fn free_garbage() {
    for _ in 0..COLLECTIONS {
        crossbeam_epoch::pin().flush();
    }
}
