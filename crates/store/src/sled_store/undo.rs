//! Undoing the changes that sled makes to files while it opens them.
//!
//! sled takes any damage for the end of an interrupted write, and zeroes everything after it. A
//! refused store would so lose data that could have been saved; one flipped bit can cost all of it.
//! The files are therefore copied first, and put back if the store is refused. The copy is removed
//! after a successful check, usually before it reached the disk.

use std::{
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use podplane_host::fs;

use super::generation::sync_dir;

/// True for the names of sled's files, except `blobs/`, which is empty.
pub(super) fn is_sleds(name: &str) -> bool {
    name == "db" || name == "conf" || name.starts_with("snap.")
}

/// A copy of sled's files, removed when it is dropped.
#[derive(Debug)]
pub(super) struct Undo(Files);

/// The paths of sled's files and of their copy.
#[derive(Clone, Debug)]
pub(super) struct Files {
    dir: PathBuf,
    /// `None` if there was no space for a copy.
    copy: Option<PathBuf>,
}

impl Undo {
    /// Copies the files if they have at most `most_bytes`. Removes a copy that a crash left.
    pub(super) fn prepare(dir: &Path, most_bytes: u64) -> io::Result<Self> {
        let copy = dir.join("before-open");
        remove(&copy)?;
        let mut undo = Self(Files {
            dir: dir.to_owned(),
            copy: Some(copy.clone()),
        });
        let copied = match size(dir)? > most_bytes {
            true => Err(ErrorKind::StorageFull.into()),
            false => fs::create_dir(&copy).and_then(|()| copy_files(dir, &copy)),
        };
        match copied {
            Err(error) if error.kind() == ErrorKind::StorageFull => {
                tracing::warn!(%error, dir = %dir.display(), "no space for a copy of the store while it is opened");
                remove(&copy)?;
                undo.0.copy = None;
            }
            copied => copied?,
        }
        Ok(undo)
    }

    pub(super) fn files(&self) -> Files {
        self.0.clone()
    }
}

impl Files {
    /// Puts the files back. sled may still have files open that it opened; those are unlinked.
    pub(super) fn put_back(&self) -> io::Result<()> {
        let Some(copy) = &self.copy else {
            return Ok(());
        };
        for name in names(copy)? {
            fs::sync_all(&fs::open(copy.join(&name))?)?;
        }
        for name in names(&self.dir)?.filter(|name| is_sleds(name)) {
            // Files that are in the copy are replaced below, so that a data file exists at all
            // times.
            if !fs::exists(copy.join(&name)) {
                fs::remove_file(self.dir.join(name))?;
            }
        }
        for name in names(copy)? {
            fs::rename(copy.join(&name), self.dir.join(&name))?;
        }
        sync_dir(&self.dir)
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if let Some(copy) = &self.0.copy
            && let Err(error) = remove(copy)
        {
            tracing::warn!(%error, copy = %copy.display(), "failed to remove the copy of the store");
        }
    }
}

fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    for name in names(from)?.filter(|name| is_sleds(name)) {
        fs::copy(from.join(&name), to.join(&name))?;
    }
    Ok(())
}

fn size(dir: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for name in names(dir)?.filter(|name| is_sleds(name)) {
        bytes += fs::metadata(dir.join(&name))?.len();
    }
    Ok(bytes)
}

fn names(dir: &Path) -> io::Result<impl Iterator<Item = String>> {
    let names: io::Result<Vec<_>> = fs::read_dir(dir)?
        .map(|entry| Ok(entry?.file_name()))
        .collect();
    // sled's names are UTF-8.
    Ok(names?
        .into_iter()
        .filter_map(|name| name.into_string().ok()))
}

fn remove(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(err) if err.kind() != ErrorKind::NotFound => Err(err),
        Ok(()) | Err(_) => Ok(()),
    }
}
