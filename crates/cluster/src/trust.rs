//! Checks the owner of a data directory: one that another user prepared or may change is refused.
//!
//! A data directory names programs and files that the commands run and write. One that another user
//! prepared would make root run that user's programs, and write through that user's links. So
//! everything in it must belong to the user or to root, must not be writable by others, and must
//! not be a symbolic link. A checked directory stays so: nobody else can change it. Paths on the
//! command line are the caller's own choice and are not checked, except the data directory itself
//! (ADR 0023).

use std::{
    ffi::{CStr, OsStr},
    io::{self, Read as _},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::OpenOptionsExt as _,
    },
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use podplane_host::fs::{self, File, OpenOptions};
use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RawMode, Stat, fchmod, fstat, openat, statat},
    io::Errno,
    process::geteuid,
};

/// The mode bits that let others than the owner write.
const OTHERS_WRITE: RawMode = 0o022;

/// The directory of network namespaces, which are only in the supervisor's mount namespace.
const RUN: &str = "run";

/// The reason why a path is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum UntrustedPath {
    #[error(
        "{} belongs to user {uid}, who could have podplane run any program: name another directory, or give it to the user who runs podplane with chown if all in it can be trusted", path.display()
    )]
    Owner { path: PathBuf, uid: u32 },
    #[error(
        "{} can be written by others (mode {:04o}): name another directory, or take the right away with chmod go-w if all in it can be trusted", path.display(), mode & 0o7777
    )]
    Writable { path: PathBuf, mode: RawMode },
    #[error(
        "{} is a symbolic link, and a data directory has none: name another directory, or remove the link", path.display()
    )]
    Link { path: PathBuf },
}

/// The depth of a check.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    /// The entries of the directory, and the logs.
    Shallow,
    /// Everything.
    Whole,
}

/// Checks a data directory, as far as a command reads it. One that does not exist, or is still
/// empty, is accepted.
pub fn data_dir(path: &Path) -> anyhow::Result<()> {
    let Some((dir, stat)) = open_dir(path)? else {
        return Ok(());
    };
    check_owner(path, &stat)?;
    // `prepare` makes it private, and then checks it again.
    if is_fresh(&dir) {
        return Ok(());
    }
    check(path, &stat)?;
    entries(path, &dir, Depth::Shallow)
}

/// Checks a data directory that a service is about to use alone, and makes a new one unwritable for
/// others.
pub fn claim(path: &Path) -> anyhow::Result<()> {
    if let Some((dir, stat)) = open_dir(path)?
        && is_fresh(&dir)
        && check_owner(path, &stat).is_ok()
    {
        let mode = Mode::from_raw_mode(stat.st_mode & !OTHERS_WRITE);
        fchmod(&dir, mode).with_context(|| format!("failed to make {} private", path.display()))?;
    }
    data_dir(path)
}

/// Checks all of a data directory.
pub fn tree(path: &Path) -> anyhow::Result<()> {
    let Some((dir, stat)) = open_dir(path)? else {
        return Ok(());
    };
    check(path, &stat)?;
    entries(path, &dir, Depth::Whole)
}

/// Checks directories of programs that a data directory names, in the form of `CNI_PATH`. They may
/// contain links to programs that pass the check.
pub fn programs(dirs: &OsStr) -> anyhow::Result<()> {
    for path in std::env::split_paths(dirs) {
        let named = || format!("use the CNI plugins of cluster.json in {}", path.display());
        let dir = match openat(CWD, &path, directory(), Mode::empty()) {
            // A missing directory is reported when it is needed.
            Err(Errno::NOENT) => continue,
            dir => dir.with_context(named)?,
        };
        check(&path, &fstat(&dir).with_context(named)?).with_context(named)?;
        for entry in Dir::read_from(&dir).with_context(named)? {
            let name = entry.with_context(named)?.file_name().to_owned();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let program = path.join(name.to_string_lossy().as_ref());
            let own = statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW).with_context(named)?;
            check_owner(&program, &own).with_context(named)?;
            match statat(&dir, &name, AtFlags::empty()) {
                Err(Errno::NOENT) => {} // A link to nothing.
                target => check(&program, &target.with_context(named)?).with_context(named)?,
            }
        }
    }
    Ok(())
}

/// Opens a file of a data directory for reading.
pub fn open(path: &Path) -> io::Result<File> {
    opened(path, OpenOptions::new().read(true))
}

/// Opens a file of a data directory for appending, or creates it.
pub fn append(path: &Path) -> io::Result<File> {
    opened(path, OpenOptions::new().append(true).create(true))
}

/// Creates a file of a data directory, or empties it.
pub fn create(path: &Path) -> io::Result<File> {
    opened(path, OpenOptions::new().write(true).create(true))
        .and_then(|file| file.set_len(0).map(|()| file))
}

/// Reads a text file of a data directory.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text)?;
    Ok(text)
}

/// Opens a file without following a link, and checks the opened file. A pipe in place of a file
/// does not block the caller.
fn opened(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let file = fs::open_with(options.custom_flags(flags), path);
    let file = file.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::LOOP) => io::Error::other(UntrustedPath::Link { path: path.into() }),
        _ => error,
    })?;
    let stat = fstat(&file)?;
    check(path, &stat).map_err(io::Error::other)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        let why = format!("{} is not a regular file", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    Ok(file)
}

/// Returns true if the directory is empty, except for mount points.
fn is_fresh(dir: impl AsFd) -> bool {
    let is_mount = |name: &CStr| matches!(name.to_bytes(), b"." | b".." | b"nodes" | b"store");
    let mut entries = Dir::read_from(dir).into_iter().flatten();
    entries.all(|entry| entry.is_ok_and(|entry| is_mount(entry.file_name())))
}

fn directory() -> OFlags {
    OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC
}

/// Opens the directory that the caller named: its last component may be a link of the user's own.
fn open_dir(path: &Path) -> anyhow::Result<Option<(OwnedFd, Stat)>> {
    let failed = || format!("open {}", path.display());
    let own = match statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        own => own.with_context(failed)?,
    };
    check_owner(path, &own)?;
    let dir = match openat(CWD, path, directory(), Mode::empty()) {
        // A file, or a dangling link: creating the directory will report it.
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        dir => dir.with_context(failed)?,
    };
    let stat = fstat(&dir).with_context(failed)?;
    Ok(Some((dir, stat)))
}

/// Checks the entries of a directory. An entry that disappears meanwhile needs no check.
fn entries(path: &Path, dir: impl AsFd, depth: Depth) -> anyhow::Result<()> {
    let failed = || format!("read {}", path.display());
    for entry in Dir::read_from(&dir).with_context(failed)? {
        let name = entry.with_context(failed)?.file_name().to_owned();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let path = path.join(OsStr::new(name.to_string_lossy().as_ref()));
        let stat = match statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => continue,
            stat => stat.with_context(failed)?,
        };
        check(&path, &stat)?;
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let descends = match depth {
            Depth::Shallow => name.to_bytes() == b"logs",
            Depth::Whole => name.to_bytes() != RUN.as_bytes(),
        };
        if is_dir && descends {
            let below = match openat(&dir, &name, directory() | OFlags::NOFOLLOW, Mode::empty()) {
                Err(Errno::NOENT) => continue,
                below => below.with_context(failed)?,
            };
            // Checks the opened entry, not its path.
            check(&path, &fstat(&below).with_context(failed)?)?;
            entries(&path, below, depth)?;
        }
    }
    Ok(())
}

fn check_owner(path: &Path, stat: &Stat) -> Result<(), UntrustedPath> {
    if stat.st_uid == 0 || stat.st_uid == geteuid().as_raw() {
        return Ok(());
    }
    Err(UntrustedPath::Owner {
        path: path.into(),
        uid: stat.st_uid,
    })
}

fn check(path: &Path, stat: &Stat) -> Result<(), UntrustedPath> {
    check_owner(path, stat)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
        return Err(UntrustedPath::Link { path: path.into() });
    }
    if stat.st_mode & OTHERS_WRITE != 0 {
        return Err(UntrustedPath::Writable {
            path: path.into(),
            mode: stat.st_mode,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, Permissions},
        os::unix::fs::{PermissionsExt as _, symlink},
    };

    use super::*;

    fn dir() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in ["logs", "nodes", "nodes/a"] {
            fs::create_dir(dir.path().join(name)).unwrap();
            mode(&dir.path().join(name), 0o755);
        }
        for name in ["VERSION", "cluster.json", "logs/a.log", "nodes/a/cri.sock"] {
            fs::write(dir.path().join(name), "1").unwrap();
            mode(&dir.path().join(name), 0o644);
        }
        dir
    }

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn accepts_a_directory_of_the_user() {
        let dir = dir();
        data_dir(dir.path()).unwrap();
        tree(dir.path()).unwrap();
        data_dir(&dir.path().join("none")).unwrap();
        let link = dir.path().with_extension("link");
        symlink(dir.path(), &link).unwrap();
        data_dir(&link).unwrap();
        fs::remove_file(link).unwrap();
    }

    #[test]
    fn refuses_files_writable_by_others() {
        for name in ["", "VERSION", "cluster.json", "logs", "logs/a.log", "nodes"] {
            for bits in [0o020, 0o002] {
                let dir = dir();
                mode(&dir.path().join(name), 0o755 | bits);
                let error = data_dir(dir.path()).unwrap_err().to_string();
                assert!(
                    error.contains("can be written by others"),
                    "{name}: {error}"
                );
                assert!(tree(dir.path()).is_err(), "{name}");
            }
        }
        let dir = dir();
        mode(&dir.path().join("nodes/a/cri.sock"), 0o666);
        assert!(tree(dir.path()).is_err());
    }

    #[test]
    fn accepts_a_public_directory_only_while_it_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        mode(dir.path(), 0o1777);
        fs::create_dir(dir.path().join("nodes")).unwrap();
        data_dir(dir.path()).unwrap();
        fs::write(dir.path().join("apiserver.address"), "10.0.0.1:1").unwrap();
        assert!(data_dir(dir.path()).is_err());
    }

    #[test]
    fn refuses_symbolic_links() {
        for name in ["cluster.json", "logs/a.log", "nodes"] {
            let dir = dir();
            let elsewhere = tempfile::tempdir().unwrap();
            let path = dir.path().join(name);
            fs::rename(&path, elsewhere.path().join("x")).unwrap();
            symlink(elsewhere.path().join("x"), &path).unwrap();
            let error = data_dir(dir.path()).unwrap_err().to_string();
            assert!(error.contains("is a symbolic link"), "{name}: {error}");
        }
    }

    #[test]
    fn refuses_to_open_links_and_files_writable_by_others() {
        let dir = dir();
        let (victim, link) = (dir.path().join("VERSION"), dir.path().join("link"));
        symlink(&victim, &link).unwrap();
        for open in [open, append, create] {
            let error = open(&link).unwrap_err().to_string();
            assert!(error.contains("is a symbolic link"), "{error}");
        }
        assert_eq!(fs::read_to_string(&victim).unwrap(), "1");
        mode(&victim, 0o664);
        assert!(open(&victim).is_err() && append(&victim).is_err());
        mode(&victim, 0o600);
        assert_eq!(read_to_string(&victim).unwrap(), "1");
        assert!(open(&dir.path().join("logs")).is_err());
    }

    #[test]
    fn programs_may_be_links_but_not_writable() {
        let dir = dir();
        let bin = tempfile::tempdir().unwrap();
        symlink(dir.path().join("VERSION"), bin.path().join("bridge")).unwrap();
        programs(bin.path().as_os_str()).unwrap();
        mode(&dir.path().join("VERSION"), 0o777);
        assert!(programs(bin.path().as_os_str()).is_err());
        mode(&dir.path().join("VERSION"), 0o755);
        mode(bin.path(), 0o775);
        assert!(programs(bin.path().as_os_str()).is_err());
    }
}
