//! Files that are written in one step.

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use podplane_host::fs;

/// Writes a file in one step and durably: readers find the old text or the new one, also after a
/// power failure.
///
/// # Errors
///
/// The operating system's.
pub fn write_atomically(path: &Path, text: &[u8]) -> io::Result<()> {
    replace(path, text, fs::sync_all)?;
    // The file is durable now; its name becomes so with the directory.
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    fs::sync_all(&fs::open(dir.unwrap_or(Path::new(".")))?)
}

/// As [`write_atomically`], but not durable, for files that need not outlive a power failure:
/// records of sandboxes, whose namespaces end with the machine, and addresses of processes.
///
/// # Errors
///
/// The operating system's.
pub fn write_volatile(path: &Path, text: &[u8]) -> io::Result<()> {
    replace(path, text, |_| Ok(()))
}

fn replace(
    path: &Path,
    text: &[u8],
    sync: impl FnOnce(&fs::File) -> io::Result<()>,
) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    let write = || {
        let mut file = fs::create(&new)?;
        file.write_all(text)?;
        sync(&file)?;
        fs::rename(&new, path)
    };
    write().inspect_err(|_| _ = fs::remove_file(&new))
}
