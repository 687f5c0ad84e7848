//! What sled does to files while it opens them, undone.
//!
//! sled takes any damage for the end of an interrupted write, and zeroes what comes after it. A store that is refused
//! would so lose what could have been saved; one flipped bit can cost all of it. So the files are copied first, and
//! put back if the store is refused. The copy is gone, mostly before it reached the disk, once everything was found.

use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use super::generation::sync_dir;

/// sled's files apart from `blobs/`, which is empty.
pub(super) fn is_sleds(name: &str) -> bool {
    name == "db" || name == "conf" || name.starts_with("snap.")
}

/// A copy of sled's files, removed when it is dropped.
#[derive(Debug)]
pub(super) struct Undo(Files);

/// Where sled's files and their copy are.
#[derive(Clone, Debug)]
pub(super) struct Files {
    dir: PathBuf,
    /// `None` where there was no space for it.
    copy: Option<PathBuf>,
}

impl Undo {
    /// Copies the files if they are not more than so many bytes; what a crash left of an earlier copy goes.
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
    /// Puts the files back. sled may still hold those that it opened; they have no names any more.
    pub(super) fn put_back(&self) -> io::Result<()> {
        let Some(copy) = &self.copy else {
            return Ok(());
        };
        for name in names(copy)? {
            File::open(copy.join(&name))?.sync_all()?;
        }
        for name in names(&self.dir)?.filter(|name| is_sleds(name)) {
            // One that is in the copy is replaced below, so that at no time there is no data file.
            if !copy.join(&name).exists() {
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
            tracing::warn!(%error, copy = %copy.display(), "cannot remove the copy of the store");
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
    // A name that is not UTF-8 is not sled's.
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
