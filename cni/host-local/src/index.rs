//! The index: the content of a directory of leases, cached outside it
//! (docs/adr/0006-index-of-leases.md).
//!
//! The index is valid only while no other program has touched the directory, which the directory's
//! two times show. At the end of each operation we set its mtime two seconds back. Any program that
//! adds, removes or renames an entry afterwards makes the kernel write the present time into both
//! mtime and ctime, so that they are never again a pair of different times. The index is also only
//! a hint: an address is taken by making its file, and a lease is read before it is removed.

use std::{
    io,
    path::{Path, PathBuf},
    time::{Duration, UNIX_EPOCH},
};

use podplane_host::{clock, fs};
use rustix::{
    fd::{AsFd, BorrowedFd, OwnedFd},
    fs::{FileType, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT},
    io::Errno,
};

use super::{records::Records, scan::read_small};

/// The directory of indexes. It is lost with a reboot, as the leases it describes may be.
pub(super) const DIR: &str = "/run/podplane/host-local";

const MAGIC: [u8; 16] = *b"podplane leases1";
/// The magic of an index with one more statement: the names in the directory have been compared
/// with the records since the last change.
const MAGIC_COMPARED: [u8; 16] = *b"podplane leases!";
const TMPFS: u64 = 0x0102_1994;
/// File systems known to set both times of a directory at once: ext4, XFS, btrfs, tmpfs.
const KNOWN: [u64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, TMPFS];
/// The suffix of the stamps of [`super::boot`].
pub(super) const BOOT_SUFFIX: &str = ".boot";
const MAX_NAME: usize = 255 - BOOT_SUFFIX.len();
/// The distance of mtime from the present: more than the coarsest clock, the second of old ext4
/// inodes.
const BACK: Duration = Duration::from_secs(2);

/// Identity and times of a directory.
type DirMark = [u8; 48];
/// The id of the boot; zeros if the index does not outlive it.
type BootId = [u8; 36];

const HEADER: usize = MAGIC.len() + size_of::<BootId>() + size_of::<DirMark>() + size_of::<u64>();
/// The number of changed records beyond which all are written again.
const MANY: usize = 64;

/// The index of one directory.
#[derive(Debug)]
pub(super) struct Index {
    path: PathBuf,
    /// The open file, if it exists and is trusted.
    file: Option<(OwnedFd, BootId)>,
    /// Set if the header was valid and says that the names were compared.
    is_compared: bool,
}

impl Index {
    /// The index of a directory. `None` if the directory's file system is not known to keep times
    /// as the index needs them.
    pub(super) fn of(dir: BorrowedFd<'_>, path: &Path, index_dir: &Path) -> Option<Self> {
        let path = state_path(path, index_dir)?;
        let kind = rustix::fs::fstatfs(dir).ok()?.f_type;
        if !KNOWN.iter().any(|known| u64::try_from(kind) == Ok(*known)) {
            return None;
        }
        Some(Self {
            path,
            file: None,
            is_compared: false,
        })
    }

    /// Loads the records, if no other program has changed the directory since they were written.
    /// The caller holds the directory's lock.
    pub(super) fn load(&mut self, dir: BorrowedFd<'_>) -> Option<Records> {
        let (file, size) = open(&self.path, OFlags::empty()).ok()?;
        let boot = boot(&file)?;
        let mut bytes = Vec::with_capacity(size + 1);
        loop {
            let spare = rustix::buffer::spare_capacity(&mut bytes);
            match rustix::io::read(&file, spare) {
                Ok(0) | Err(_) => break,
                Ok(_) if bytes.len() == bytes.capacity() => break,
                Ok(_) => {}
            }
        }
        self.file = Some((file, boot));
        let written = bytes.first_chunk::<HEADER>()?;
        let count = usize::try_from(u64::from_le_bytes(*written.last_chunk()?)).ok()?;
        let mark = mark(dir).ok()?;
        self.is_compared = *written == header(&MAGIC_COMPARED, &boot, &mark, count);
        if !self.is_compared && *written != header(&MAGIC, &boot, &mark, count) {
            return None;
        }
        let mut records = bytes.split_off(HEADER);
        if records.len() < count.checked_mul(Records::SIZE)? {
            return None;
        }
        records.truncate(count * Records::SIZE);
        Some(Records::from_bytes(records))
    }

    /// Saves the directory's records. `changed` lists the slots that are not yet in the file;
    /// `None` means unknown.
    ///
    /// The caller holds the directory's lock. A failure, or a kill at any point, leaves an index
    /// that [`Self::load`] rejects.
    pub(super) fn save(
        &mut self,
        dir: BorrowedFd<'_>,
        records: &Records,
        changed: Option<&[usize]>,
    ) -> io::Result<()> {
        if self.file.is_none() {
            let index_dir = self.path.parent().ok_or(Errno::NOENT)?;
            make_private_dir(index_dir)?;
            _ = prune(index_dir);
            let (file, _) = open(&self.path, OFlags::CREATE)?;
            let boot = boot(&file).ok_or(Errno::NOENT)?;
            self.file = Some((file, boot));
        }
        let (file, boot) = self.file.as_ref().ok_or(Errno::NOENT)?;
        let bytes = records.as_bytes();
        match changed {
            Some(slots) if slots.len() <= MANY => {
                // The directory has been changed, so the header does not match it at present.
                for slot in slots.iter().filter(|slot| **slot < records.len()) {
                    let at = slot * Records::SIZE;
                    write_at(file, HEADER + at, &bytes[at..at + Records::SIZE])?;
                }
            }
            _ => {
                write_at(file, 0, &[0; HEADER])?;
                write_at(file, HEADER, bytes)?;
                rustix::fs::ftruncate(file, (HEADER + bytes.len()) as u64)?;
            }
        }
        let now = clock::system_time().duration_since(UNIX_EPOCH);
        let past = now.unwrap_or_default().saturating_sub(BACK);
        rustix::fs::futimens(
            dir,
            &Timestamps {
                last_access: Timespec {
                    tv_sec: 0,
                    tv_nsec: UTIME_OMIT,
                },
                last_modification: Timespec {
                    tv_sec: past.as_secs().try_into().unwrap_or_default(),
                    tv_nsec: past.subsec_nanos().into(),
                },
            },
        )?;
        write_at(file, 0, &header(&MAGIC, boot, &mark(dir)?, records.len()))
    }

    /// Returns true if nothing has changed since [`Self::note_compared`].
    pub(super) fn is_compared(&self) -> bool {
        self.is_compared
    }

    /// Records that the names in the directory are those of the records from [`Self::load`], which
    /// are unchanged. A change made during the comparison has changed the directory's times; then
    /// the header remains invalid.
    pub(super) fn note_compared(&self) -> io::Result<()> {
        match &self.file {
            Some((file, _)) => write_at(file, 0, &MAGIC_COMPARED),
            None => Ok(()),
        }
    }
}

fn header(magic: &[u8; 16], boot: &BootId, mark: &DirMark, count: usize) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    let parts: [&[u8]; 4] = [magic, boot, mark, &(count as u64).to_le_bytes()];
    let mut rest = header.as_mut_slice();
    for part in parts {
        let (here, after) = rest.split_at_mut(part.len());
        here.copy_from_slice(part);
        rest = after;
    }
    header
}

/// The directory's identity and times. Fails if the two times are equal, since the kernel may make
/// them equal again.
fn mark(dir: BorrowedFd<'_>) -> io::Result<DirMark> {
    let stat = rustix::fs::fstat(dir)?;
    if (stat.st_mtime, stat.st_mtime_nsec) == (stat.st_ctime, stat.st_ctime_nsec) {
        return Err(Errno::AGAIN.into());
    }
    let numbers = [
        stat.st_dev.to_le_bytes(),
        stat.st_ino.to_le_bytes(),
        stat.st_mtime.to_le_bytes(),
        stat.st_mtime_nsec.to_le_bytes(),
        stat.st_ctime.to_le_bytes(),
        stat.st_ctime_nsec.to_le_bytes(),
    ];
    let mut mark = [0; size_of::<DirMark>()];
    mark.copy_from_slice(numbers.as_flattened());
    Ok(mark)
}

/// The state file of a directory: named by its path, with `%` and `/` escaped. `None` if the path
/// is not absolute UTF-8, or too long.
pub(super) fn state_path(dir: &Path, index_dir: &Path) -> Option<PathBuf> {
    let text = dir.to_str().filter(|_| dir.is_absolute())?;
    let name = text.replace('%', "%25").replace('/', "%2F");
    (name.len() <= MAX_NAME).then(|| index_dir.join(name))
}

/// Deletes the state files of directories that are gone.
fn prune(index_dir: &Path) -> io::Result<()> {
    remove_files(index_dir, |dir| !fs::exists(dir))
}

/// Deletes the state of all directories below `parent`, which are gone.
///
/// # Errors
///
/// If the state cannot be read or deleted. That there is none, or only that of another user, is not
/// an error.
pub fn forget_below(parent: &Path) -> io::Result<()> {
    forget_in(Path::new(DIR), parent)
}

pub(super) fn forget_in(index_dir: &Path, parent: &Path) -> io::Result<()> {
    match remove_files(index_dir, |dir| dir.starts_with(parent) && !fs::exists(dir)) {
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => Ok(()),
            _ => Err(error),
        },
        Ok(()) => Ok(()),
    }
}

/// Deletes the state files of the directories that are meant.
fn remove_files(index_dir: &Path, is_meant: impl Fn(&Path) -> bool) -> io::Result<()> {
    for entry in fs::read_dir(index_dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let dir = name.strip_suffix(BOOT_SUFFIX).unwrap_or(&name);
        let dir = dir.replace("%2F", "/").replace("%25", "%");
        if is_meant(Path::new(&dir)) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Opens a file that no other user can have written. Returns it with its size.
fn open(path: &Path, flags: OFlags) -> io::Result<(OwnedFd, usize)> {
    let flags = flags | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || !is_private(&stat) {
        return Err(Errno::PERM.into());
    }
    Ok((file, usize::try_from(stat.st_size).unwrap_or(0)))
}

fn is_private(stat: &Stat) -> bool {
    let others_write = Mode::WGRP | Mode::WOTH;
    stat.st_uid == rustix::process::geteuid().as_raw()
        && !Mode::from_raw_mode(stat.st_mode).intersects(others_write)
}

/// Makes the directory of state files, and refuses one that other users can write into.
pub(super) fn make_private_dir(path: &Path) -> io::Result<()> {
    let parent = path.parent().ok_or(Errno::NOENT)?;
    for (dir, mode) in [(parent, 0o755), (path, 0o700)] {
        match rustix::fs::mkdir(dir, Mode::from_raw_mode(mode)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let stat = rustix::fs::lstat(dir)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory || !is_private(&stat) {
            return Err(Errno::PERM.into());
        }
    }
    Ok(())
}

/// The identity of the boot: zeros on tmpfs, which does not outlive a boot. Elsewhere the kernel's
/// id, as a power failure may lose a part of the index.
fn boot(file: impl AsFd) -> Option<BootId> {
    let stat = rustix::fs::fstatfs(file).ok()?;
    if u64::try_from(stat.f_type) == Ok(TMPFS) {
        Some([0; size_of::<BootId>()])
    } else {
        boot_id()
    }
}

/// Returns true if the path is on tmpfs, which a reboot empties.
pub(super) fn is_tmpfs(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|stat| u64::try_from(stat.f_type) == Ok(TMPFS))
}

/// The kernel's id of this boot.
pub(super) fn boot_id() -> Option<BootId> {
    let id = read_small(rustix::fs::CWD, "/proc/sys/kernel/random/boot_id").ok()?;
    id.as_bytes().first_chunk().copied()
}

fn write_at(file: &OwnedFd, at: usize, mut bytes: &[u8]) -> io::Result<()> {
    let mut at = at as u64;
    while !bytes.is_empty() {
        match rustix::io::pwrite(file, bytes, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                bytes = &bytes[n..];
                at += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
