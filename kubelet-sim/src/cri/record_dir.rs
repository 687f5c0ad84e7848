//! A directory of records: a file `ID.json` for each, so that a crash leaves nothing without an
//! owner.

use std::{
    io,
    marker::PhantomData,
    path::{Path, PathBuf},
};

use podplane_cni::spare::SpareFiles;
use podplane_host::fs;
use serde::{Serialize, de::DeserializeOwned};

/// What a [`RecordDir`] keeps.
pub trait Record: Serialize + DeserializeOwned {
    /// The permissions of its file.
    const FILE_MODE: u32;

    /// Its id, which is a name of a file.
    fn id(&self) -> &str;
}

/// Records of one kind.
///
/// Files of removed records are kept in a directory beside it, and the next records are written in
/// them.
#[derive(Debug)]
pub struct RecordDir<R> {
    dir: PathBuf,
    spare: SpareFiles,
    kind: PhantomData<fn() -> R>,
}

impl<R: Record> RecordDir<R> {
    /// The records in `dir`, which is made if it is missing.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn open(dir: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&dir)?;
        let spare = SpareFiles::open(dir.with_extension("free"), R::FILE_MODE)?;
        Ok(Self {
            dir,
            spare,
            kind: PhantomData,
        })
    }

    /// Stores a record, in one step.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn write(&self, record: &R) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(record)?;
        self.spare.write(&self.path(record.id()), &text)
    }

    /// Removes a record; a missing one counts as removed.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn remove(&self, id: &str) -> io::Result<()> {
        self.spare.remove(&self.path(id))
    }

    /// Loads all records, by id. A file that is not a record is removed with a warning: anything
    /// that belonged to it has no owner then, and is reclaimed.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn load(&self) -> io::Result<Vec<R>> {
        let mut records = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            let text = fs::read(&path)?;
            match serde_json::from_slice::<R>(&text) {
                Ok(record) if path == self.path(record.id()) => records.push(record),
                other => {
                    let error = other.err();
                    tracing::warn!(path = %path.display(), ?error, "removing an invalid record");
                    remove_any(&path)?;
                }
            }
        }
        records.sort_by(|a, b| a.id().cmp(b.id()));
        Ok(records)
    }

    pub(super) fn path(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }
}

fn remove_any(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
