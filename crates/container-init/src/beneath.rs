//! Files beneath a directory, opened without following a link.

use std::{fs::File, io, io::Read as _, path::Path};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};

use crate::spec::BeneathPath;

/// Nothing on the way is a link, and the path does not leave the directory.
pub(crate) const RESOLVE: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS);

/// Reads a regular file of at most `limit` bytes.
///
/// # Errors
///
/// Those of the operating system, and `InvalidData` for another kind of file or a larger one.
pub fn read_beneath(path: &BeneathPath, limit: u64) -> io::Result<Vec<u8>> {
    let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
    // A FIFO must not block.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = openat2(root(&path.root)?, &path.path, flags, Mode::empty(), RESOLVE)?;
    let file = File::from(opened);
    if !file.metadata()?.is_file() {
        return Err(invalid("it is not a regular file"));
    }
    let mut content = Vec::new();
    file.take(limit + 1).read_to_end(&mut content)?;
    if u64::try_from(content.len()).unwrap_or(u64::MAX) > limit {
        return Err(invalid(&format!("it has more than {limit} bytes")));
    }
    Ok(content)
}

/// Opens the directory itself, which the operator has chosen.
pub(crate) fn root(path: &Path) -> io::Result<std::os::fd::OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn links_large_files_and_other_kinds_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let read = |path: &str| {
            let root = dir.path().to_owned();
            let path = path.into();
            read_beneath(&BeneathPath { root, path }, 4)
        };
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::write(dir.path().join("a/file"), "1234").unwrap();
        fs::write(dir.path().join("large"), "12345").unwrap();
        symlink("a/file", dir.path().join("link")).unwrap();
        symlink("a", dir.path().join("b")).unwrap();
        assert_eq!(read("a/file").unwrap(), b"1234");
        assert_eq!(read("none").unwrap_err().kind(), io::ErrorKind::NotFound);
        for refused in ["large", "link", "b/file", "a", "../etc/hostname"] {
            read(refused).unwrap_err();
        }
    }
}
