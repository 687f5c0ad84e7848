//! Files that are reused instead of removed.
//!
//! Before it allocates an inode, ext4 without a journal inspects every inode that was freed in the
//! last minutes, so thousands of short-lived files make it slow. It also starts writing a file to
//! the disk when the file is closed after truncation, or renamed over another one.

use std::{
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use podplane_host::fs;
use rustix::fs::{CWD, RenameFlags, renameat_with};

/// The number of files that are kept; more are removed.
const MAX: usize = 256;

/// A directory of unused files, in which the next ones are written.
///
/// It must be on the file system of those files, and used by one process only.
#[derive(Debug)]
pub struct SpareFiles {
    dir: PathBuf,
    mode: u32,
    free: Mutex<FreeNames>,
}

#[derive(Debug, Default)]
struct FreeNames {
    names: Vec<u64>,
    /// A number above all those in use.
    next: u64,
}

fn number(entry: &fs::DirEntry) -> Option<u64> {
    entry.file_name().to_str()?.parse().ok()
}

impl SpareFiles {
    /// Opens the spare files in `dir`, which is made on first use. New files get `mode`.
    ///
    /// # Errors
    /// The operating system's.
    pub fn open(dir: PathBuf, mode: u32) -> io::Result<Self> {
        let mut names = Vec::new();
        match fs::read_dir(&dir) {
            Ok(entries) => {
                for entry in entries {
                    names.extend(number(&entry?));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let next = names.iter().max().map_or(0, |last: &u64| last + 1);
        Ok(Self {
            dir,
            mode,
            free: Mutex::new(FreeNames { names, next }),
        })
    }

    /// Writes a file with this content at `path`, atomically replacing an existing one.
    ///
    /// # Errors
    /// The operating system's; then an existing file at `path` is unchanged.
    pub fn write(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let name = self.take();
        let spare = self.path(name);
        let filled = match self.fill(&spare, content) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.make_dir()?;
                self.fill(&spare, content)
            }
            filled => filled,
        };
        if let Err(error) = filled {
            self.give(name);
            return Err(error);
        }
        // Some file systems cannot exchange files, and `path` may not exist.
        match renameat_with(CWD, &spare, CWD, path, RenameFlags::EXCHANGE) {
            Ok(()) => self.give(name),
            Err(_) => fs::rename(&spare, path).inspect_err(|_| self.give(name))?,
        }
        Ok(())
    }

    /// Removes a file. A missing file counts as success.
    ///
    /// # Errors
    /// The operating system's.
    pub fn remove(&self, path: &Path) -> io::Result<()> {
        let kept = self.lock().names.len();
        let removed = match kept {
            ..MAX => {
                let name = self.lock().fresh();
                match fs::rename(path, self.path(name)) {
                    // Either the file or the directory of spare files is gone.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => fs::remove_file(path),
                    moved => moved.inspect(|()| self.give(name)),
                }
            }
            _ => fs::remove_file(path),
        };
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    fn fill(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(false);
        let mut file = fs::open_with(options.mode(self.mode), path)?;
        io::Write::write_all(&mut file, content)?;
        let length = content.len() as u64;
        if file.metadata()?.len() > length {
            file.set_len(length)?;
        }
        Ok(())
    }

    /// Takes the number of a spare file, or a fresh one.
    fn take(&self) -> u64 {
        let mut free = self.lock();
        free.names.pop().unwrap_or_else(|| free.fresh())
    }

    fn make_dir(&self) -> io::Result<()> {
        fs::create_private_dir_all(&self.dir)
    }

    fn give(&self, name: u64) {
        self.lock().names.push(name);
    }

    fn path(&self, name: u64) -> PathBuf {
        self.dir.join(name.to_string())
    }

    /// Locks the list, also after a panic: its numbers are still usable.
    fn lock(&self) -> MutexGuard<'_, FreeNames> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FreeNames {
    /// The number of a new file.
    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use super::*;

    fn inode(path: &Path) -> u64 {
        fs::metadata(path).unwrap().ino()
    }

    #[test]
    fn reuses_the_inode_of_a_removed_file() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        let spare = || SpareFiles::open(dir.path().join("free"), 0o600).unwrap();
        let files = spare();
        files.write(&a, b"a long text").unwrap();
        assert_eq!(
            fs::metadata(&a).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let first = inode(&a);
        files.write(&a, b"short").unwrap();
        assert_ne!(inode(&a), first, "what is read is never half of a file");
        files.write(&b, b"other").unwrap();
        assert_eq!(inode(&b), first);
        assert_eq!(fs::read(&a).unwrap(), b"short");
        assert_eq!(
            fs::read(&b).unwrap(),
            b"other",
            "nothing of what was there is left"
        );

        files.remove(&b).unwrap();
        files.remove(&b).unwrap();
        drop(files);
        let files = spare();
        files.write(&b, b"again").unwrap();
        assert_eq!(inode(&b), first, "also after a start");
    }

    #[test]
    fn works_after_its_directory_was_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (a, free) = (dir.path().join("a"), dir.path().join("free"));
        let files = SpareFiles::open(free.clone(), 0o600).unwrap();
        files.write(&a, b"first").unwrap();
        files.write(&a, b"second").unwrap();
        fs::remove_dir_all(&free).unwrap();
        files.remove(&a).unwrap();
        assert!(!a.exists());
        files.write(&a, b"third").unwrap();
        assert_eq!(fs::read(&a).unwrap(), b"third");
    }

    #[test]
    fn a_failed_write_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let files = SpareFiles::open(dir.path().join("free"), 0o600).unwrap();
        let nowhere = dir.path().join("missing/a");
        assert!(files.write(&nowhere, b"text").is_err());
        files.write(&dir.path().join("a"), b"text").unwrap();
        assert_eq!(fs::read_dir(dir.path().join("free")).unwrap().count(), 0);
    }
}
