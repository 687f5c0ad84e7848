//! Operations on a store that nobody has open: check, compact, restore.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use podplane_host::{fs, random};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use uuid::Uuid;

use super::{
    SledStore,
    disk::{OpeningStore, StoreDisk, failed, lock},
    disk_bytes,
    error::{Damage, OpenError, RestoreError},
    generation::sync_dir,
    load::{LoadedStore, StoreMeta},
    record,
};
use crate::{
    backup::{BackupDamage, BackupInfo, BackupReader, first_after, verify_backup},
    history::{ChangeId, KeyChange},
    store::{Item, Revision, StoreStatus},
};

/// The result of a check.
#[derive(Debug)]
pub struct CheckReport {
    /// The status of the store.
    pub status: StoreStatus,
    /// The damage, in the order in which it was found; empty if the store is sound.
    pub damage: Vec<Damage>,
}

/// The result of restoring a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoreReport {
    /// The description of the backup.
    pub backup: BackupInfo,
    /// The id of the new store.
    pub id: Uuid,
    /// The first revision of the new store, which is that of every item in it.
    pub first: Revision,
}

impl SledStore {
    /// Opens the store in `dir`, which must exist.
    ///
    /// # Errors
    ///
    /// [`OpenError::Missing`], or as [`open`](Self::open).
    pub fn open_existing(dir: impl AsRef<Path>) -> Result<Self, OpenError> {
        require(dir.as_ref())?;
        Self::open(dir)
    }

    /// Reads the whole store in `dir` and lists all damage. `on_item` is called for every value
    /// that can be read, earlier versions included. Repairs nothing.
    ///
    /// # Errors
    ///
    /// [`OpenError::Corrupt`] when the rest cannot be reached. After every other error nothing was
    /// checked.
    pub fn check(
        dir: impl AsRef<Path>,
        mut on_item: impl FnMut(&Item),
    ) -> Result<CheckReport, OpenError> {
        let dir = dir.as_ref();
        require(dir)?;
        let opening = OpeningStore::begin(dir)?;
        let mut damage = Vec::new();
        let mut collect = |found| {
            damage.push(found);
            Ok(())
        };
        let LoadedStore { history, .. } = match opening.load(&mut collect, &mut on_item) {
            Ok(loaded) => loaded,
            Err(error) => return Err(opening.refuse(error)),
        };
        opening.leave()?;
        let status = history.status(disk_bytes(dir).ok());
        Ok(CheckReport { status, damage })
    }

    /// Drops all history of the store in `dir`, and gives back the space that it took. Returns the
    /// status before and after. A crash leaves one of the two states.
    ///
    /// # Errors
    ///
    /// [`OpenError`]; the store is then unchanged.
    pub fn compact_offline(dir: impl AsRef<Path>) -> Result<(StoreStatus, StoreStatus), OpenError> {
        let dir = dir.as_ref();
        let failed = |step| failed(dir, step);
        require(dir)?;
        let (old, mut history, left) = StoreDisk::open(dir)?;
        let before = history.status(disk_bytes(dir).ok());
        let oldest = history.current();
        let unreachable: BTreeSet<ChangeId> = history
            .compact(oldest)
            .into_iter()
            .chain(left)
            .map(|change| change.id)
            .collect();

        let scratch = Scratch::beside(dir)?;
        let new = OpeningStore::begin(&scratch.0)?.accept();
        let kept = old.records()?.filter(|record| {
            let id = record
                .as_ref()
                .ok()
                .and_then(|(key, _)| record::decode_id(key));
            id.is_none_or(|id| !unreachable.contains(&id.change))
        });
        new.copy_in(kept)?;
        let StoreStatus { id, first, .. } = before;
        let meta = StoreMeta { id, first, oldest };
        new.begin(meta).map_err(failed("write the first records"))?;
        new.close(oldest)
            .map_err(failed("close the new database"))?;
        let lock = old.release().map_err(failed("close the database"))?;
        renameat_with(CWD, dir, CWD, &scratch.0, RenameFlags::EXCHANGE)
            .map_err(io::Error::from)
            .and_then(|()| sync_parent(dir))
            .map_err(failed("replace the files"))?;
        // Until here nobody else can have opened the old files.
        lock.unlock().map_err(failed("unlock the old files"))?;
        drop(scratch);
        Ok((before, history.status(disk_bytes(dir).ok())))
    }

    /// Creates a store from a backup in `dir`, which must be empty or missing. It has a new id and
    /// begins at a revision higher than any that the original store gave out, so that no revision
    /// of that store is valid in this one. The revision is `now_micros`, microseconds since 1970,
    /// which no store can reach by committing; or, where the clock is wrong, one far above that of
    /// the backup.
    ///
    /// # Errors
    ///
    /// [`RestoreError`]; `dir` then has no store.
    pub fn restore(
        dir: impl AsRef<Path>,
        mut backup: impl io::Read + io::Seek,
        now_micros: u64,
    ) -> Result<RestoreReport, RestoreError> {
        let dir = dir.as_ref();
        let failed = |step| failed(dir, step);
        let is_free = match fs::read_dir(dir) {
            Ok(mut entries) => entries.next().is_none(),
            Err(err) if err.kind() == io::ErrorKind::NotFound => true,
            Err(err) => return Err(failed("read the directory")(err).into()),
        };
        if !is_free {
            return Err(RestoreError::NotEmpty {
                dir: dir.to_owned(),
            });
        }
        // The whole backup, so that a truncated one is refused before anything is written.
        verify_backup(&mut backup)?;
        backup.rewind().map_err(BackupDamage::Read)?;
        let reader = BackupReader::new(&mut backup)?;
        let backup = reader.info();
        let first = first_after(backup.revision, now_micros);
        let of = u32::try_from(backup.items).unwrap_or(u32::MAX);

        let scratch = Scratch::beside(dir)?;
        let disk = OpeningStore::begin(&scratch.0)?.accept();
        let records = (0..).zip(reader).flat_map(|(place, read)| {
            let (key, value) = match read {
                Ok(item) => item,
                Err(damage) => return vec![Err(RestoreError::from(damage))],
            };
            let item = Item::new(key.clone(), &value, first, first);
            let change = KeyChange {
                place,
                key,
                item: Some(Arc::new(item)),
            };
            let records = record::encode(first, of, &change);
            records.into_iter().map(Ok).collect()
        });
        disk.copy_in::<RestoreError>(records)?;
        let meta = StoreMeta {
            id: random::uuid(),
            first,
            oldest: first,
        };
        disk.begin(meta)
            .map_err(failed("write the first records"))?;
        disk.close(first).map_err(failed("close the database"))?;
        fs::rename(&scratch.0, dir)
            .and_then(|()| sync_parent(dir))
            .map_err(failed("move the new files into place"))?;
        Ok(RestoreReport {
            backup,
            id: meta.id,
            first,
        })
    }
}

/// Unlike a server, a tool creates no store where there is none.
fn require(dir: &Path) -> Result<(), OpenError> {
    let files = ["db", "watermark"];
    let is_there = files.iter().any(|file| fs::exists(dir.join(file)));
    is_there.then_some(()).ok_or_else(|| OpenError::Missing {
        dir: dir.to_owned(),
    })
}

fn sync_parent(dir: &Path) -> io::Result<()> {
    fs::canonicalize(dir)?.parent().map_or(Ok(()), sync_dir)
}

/// A directory of temporary files, removed when it is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn beside(dir: &Path) -> Result<Self, OpenError> {
        let mut name = dir.file_name().map_or_else(OsString::new, OsString::from);
        name.push(".new");
        let path = dir.with_file_name(name);
        if fs::exists(&path) {
            // Left by a crash, unless another process is using it now.
            let _lock = lock(&path)?;
            fs::remove_dir_all(&path)
                .map_err(failed(&path, "remove the files that a crash left"))?;
        }
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, dir = %self.0.display(), "failed to remove temporary files");
        }
    }
}
