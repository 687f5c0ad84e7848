//! What is done to a store that nobody has open: checking, compacting, restoring.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use uuid::Uuid;

use super::{
    SledStore,
    disk::{Disk, Opening, failed, lock},
    disk_bytes,
    error::{Damage, OpenError, RestoreError},
    generation::sync_dir,
    load::{Loaded, Meta},
    record,
};
use crate::{
    backup::{BackupDamage, BackupInfo, BackupReader, verify_backup},
    history::{Change, ChangeId},
    store::{Item, Revision, Status},
};

/// A restored store begins at least so many revisions after its backup: more than the store that was backed up can have
/// given out since, at ten thousand a second for three years.
const GAP: u64 = 1 << 40;

/// What checking found.
#[derive(Debug)]
pub struct Checked {
    /// What the store says of itself.
    pub status: Status,
    /// What is wrong with it, in the order in which it was found; nothing if it is sound.
    pub damage: Vec<Damage>,
}

/// What became of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restored {
    /// What was restored.
    pub backup: BackupInfo,
    /// The id of the new store.
    pub id: Uuid,
    /// The revision that it begins with, which is that of every item in it.
    pub first: Revision,
}

impl SledStore {
    /// Opens the store in `dir`, which must be there.
    ///
    /// # Errors
    ///
    /// [`OpenError::Missing`], or as [`open`](Self::open).
    pub fn open_existing(dir: impl AsRef<Path>) -> Result<Self, OpenError> {
        require(dir.as_ref())?;
        Self::open(dir)
    }

    /// Reads everything in the store in `dir` and says all that is wrong with it. `on_item` sees every value that can be
    /// read, earlier versions included. Repairs nothing.
    ///
    /// # Errors
    ///
    /// [`OpenError::Corrupt`] when the rest cannot be reached. Every other error means that nothing was checked.
    pub fn check(
        dir: impl AsRef<Path>,
        mut on_item: impl FnMut(&Item),
    ) -> Result<Checked, OpenError> {
        let dir = dir.as_ref();
        require(dir)?;
        let opening = Opening::begin(dir)?;
        let mut damage = Vec::new();
        let mut collect = |found| {
            damage.push(found);
            Ok(())
        };
        let Loaded { history, .. } = match opening.load(&mut collect, &mut on_item) {
            Ok(loaded) => loaded,
            Err(error) => return Err(opening.refuse(error)),
        };
        opening.leave()?;
        let status = history.status(disk_bytes(dir).ok());
        Ok(Checked { status, damage })
    }

    /// Forgets all history of the store in `dir`, and gives the space back that is not needed without it. Returns its
    /// state before and after. A crash leaves the one or the other.
    ///
    /// # Errors
    ///
    /// [`OpenError`]; the store is then as it was.
    pub fn compact_offline(dir: impl AsRef<Path>) -> Result<(Status, Status), OpenError> {
        let dir = dir.as_ref();
        let failed = |step| failed(dir, step);
        require(dir)?;
        let (old, mut history, left) = Disk::open(dir)?;
        let before = history.status(disk_bytes(dir).ok());
        let oldest = history.current();
        let unreachable: BTreeSet<ChangeId> = history
            .compact(oldest)
            .into_iter()
            .chain(left)
            .map(|change| change.id)
            .collect();

        let scratch = Scratch::beside(dir)?;
        let new = Opening::begin(&scratch.0)?.accept();
        let kept = old.records()?.filter(|record| {
            let id = record
                .as_ref()
                .ok()
                .and_then(|(key, _)| record::decode_id(key));
            id.is_none_or(|id| !unreachable.contains(&id.change))
        });
        new.copy_in(kept)?;
        let Status { id, first, .. } = before;
        let meta = Meta { id, first, oldest };
        new.begin(meta).map_err(failed("write the first records"))?;
        new.close(oldest)
            .map_err(failed("close the new database"))?;
        let lock = old.release().map_err(failed("close the database"))?;
        renameat_with(CWD, dir, CWD, &scratch.0, RenameFlags::EXCHANGE)
            .map_err(io::Error::from)
            .and_then(|()| sync_parent(dir))
            .map_err(failed("replace the files"))?;
        // Until here nobody else can have had the old files open.
        lock.unlock().map_err(failed("unlock the old files"))?;
        drop(scratch);
        Ok((before, history.status(disk_bytes(dir).ok())))
    }

    /// Makes a new store of a backup, in `dir`, which must be empty or not there. It has a new id and begins at a
    /// revision that is higher than any that the store before it gave out, so that no revision of that store means
    /// anything in this one: `now_micros`, microseconds since 1970, which outruns every store; or, where the clock is
    /// wrong, one far above the backup's.
    ///
    /// # Errors
    ///
    /// [`RestoreError`]; there is then no store in `dir`.
    pub fn restore(
        dir: impl AsRef<Path>,
        mut backup: impl io::Read + io::Seek,
        now_micros: u64,
    ) -> Result<Restored, RestoreError> {
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
        // All of it, so that half a backup is refused before anything is written.
        verify_backup(&mut backup)?;
        backup.rewind().map_err(BackupDamage::Read)?;
        let reader = BackupReader::new(&mut backup)?;
        let backup = reader.info();
        let first = backup.revision.number().saturating_add(GAP).max(now_micros);
        let first = Revision::new(first).unwrap_or(backup.revision);
        let of = u32::try_from(backup.items).unwrap_or(u32::MAX);

        let scratch = Scratch::beside(dir)?;
        let disk = Opening::begin(&scratch.0)?.accept();
        let records = (0..).zip(reader).flat_map(|(place, read)| {
            let (key, value) = match read {
                Ok(item) => item,
                Err(damage) => return vec![Err(RestoreError::from(damage))],
            };
            let item = Item {
                key: key.clone(),
                value,
                created: first,
                modified: first,
            };
            let change = Change {
                place,
                key,
                item: Some(item),
            };
            let records = record::encode(first, of, &change);
            records.into_iter().map(Ok).collect()
        });
        disk.copy_in::<RestoreError>(records)?;
        let meta = Meta {
            id: Uuid::new_v4(),
            first,
            oldest: first,
        };
        disk.begin(meta)
            .map_err(failed("write the first records"))?;
        disk.close(first).map_err(failed("close the database"))?;
        fs::rename(&scratch.0, dir)
            .and_then(|()| sync_parent(dir))
            .map_err(failed("move the new files into place"))?;
        Ok(Restored {
            backup,
            id: meta.id,
            first,
        })
    }
}

/// Unlike a server, a tool makes no store where there is none.
fn require(dir: &Path) -> Result<(), OpenError> {
    let files = ["db", "watermark"];
    let is_there = files.iter().any(|file| dir.join(file).exists());
    is_there.then_some(()).ok_or_else(|| OpenError::Missing {
        dir: dir.to_owned(),
    })
}

fn sync_parent(dir: &Path) -> io::Result<()> {
    dir.canonicalize()?.parent().map_or(Ok(()), sync_dir)
}

/// Files that are not in their place yet, or no more.
struct Scratch(PathBuf);

impl Scratch {
    fn beside(dir: &Path) -> Result<Self, OpenError> {
        let mut name = dir.file_name().map_or_else(OsString::new, OsString::from);
        name.push(".new");
        let path = dir.with_file_name(name);
        if path.exists() {
            // Left by a crash, unless somebody is at it just now.
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
            tracing::warn!(%error, dir = %self.0.display(), "cannot remove files that are not needed any more");
        }
    }
}
