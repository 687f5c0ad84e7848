//! Disk space: the space that a write needs, and a reserve for a full disk.
//!
//! A write that runs out of space half-way poisons the store, so the free space is checked first.
//! The file `reserve` takes space that nothing else needs. On a full disk it is shrunk by the
//! missing amount: to open the store, and for commits that [reclaim](crate::Txn::reclaims), so that
//! objects can be deleted to free space. Those commits leave as much of it as the store needs to be
//! opened again. The reserve grows back when space is free again.

use std::{
    io::{self, ErrorKind, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt},
    path::Path,
};

use podplane_host::fs::{self, File, OpenOptions};
use rustix::{
    fs::{FallocateFlags, fallocate},
    io::Errno,
};

use super::{disk::StoreDisk, generation::SEGMENT_BYTES};
use crate::StoreError;

const SEGMENT: u64 = SEGMENT_BYTES as u64;
/// A batch needs space for two segments besides the pages that it makes sled rewrite.
const NEEDED_BYTES: u64 = 2 * SEGMENT;
/// sled writes a value, and writes it again with later ones of its leaf.
const NEEDED_FOR_EACH: u64 = 3;
/// The free space that commits that reclaim must leave: two pages of large values, rewritten.
const FLOOR_BYTES: u64 = 9 * 256 * 1024;
/// Space that opening needs besides the rest of a segment and sled's snapshot: a few small files.
const SMALL_FILES: u64 = 512 * 1024;
/// Enough to open the store when a segment has just been begun, and before that to delete some
/// hundred objects.
pub(super) const RESERVE_BYTES: u64 = SEGMENT + 6 * 1024 * 1024;

const RESERVE: &str = "reserve";

/// The free space, compared with the needs of a batch.
#[derive(Debug)]
pub(super) enum FreeSpace {
    Enough,
    /// Enough only for commits that reclaim; for these the reserve may have been shrunk.
    ReclaimOnly(StoreError),
    /// Not enough for any commit.
    None(StoreError),
}

impl FreeSpace {
    /// The error for a commit, or `None` if there is space for it.
    pub(super) fn refusal(&self, reclaims: bool) -> Option<StoreError> {
        match self {
            Self::ReclaimOnly(error) if !reclaims => Some(error.clone()),
            Self::None(error) => Some(error.clone()),
            Self::Enough | Self::ReclaimOnly(_) => None,
        }
    }
}

/// The free bytes for unprivileged writes. A file system that does not report them is assumed to
/// have enough.
fn free(dir: &Path) -> u64 {
    rustix::fs::statvfs(dir).map_or(u64::MAX, |stat| stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// True if `bytes` can be written with space left for commits.
pub(super) fn has_room_for(dir: &Path, bytes: u64) -> bool {
    free(dir) >= bytes.saturating_add(2 * NEEDED_BYTES)
}

/// The free space that opening the database needs: sled fills the segment that it was writing with
/// zeros.
fn needed_to_open(path: &Path) -> u64 {
    rest_of_segment(path).saturating_add(files_to_open(path))
}

/// sled writes a new snapshot before it removes the last one. Without a snapshot, little was ever
/// written.
fn files_to_open(path: &Path) -> u64 {
    let files = fs::read_dir(path).into_iter().flatten().flatten();
    let snapshots = files.filter(|file| file.file_name().as_encoded_bytes().starts_with(b"snap."));
    let bytes = snapshots.filter_map(|file| Some(file.metadata().ok()?.len()));
    bytes
        .sum::<u64>()
        .saturating_mul(2)
        .saturating_add(SMALL_FILES)
}

/// The bytes of the last segment that are not allocated on disk.
fn rest_of_segment(path: &Path) -> u64 {
    fs::metadata(path.join("db")).map_or(SEGMENT, |file| {
        let whole = file.len().next_multiple_of(SEGMENT);
        whole.saturating_sub(file.blocks() * 512).min(SEGMENT)
    })
}

/// The unused bytes in the last segment. If they are enough, sled writes there and begins no other
/// segment.
fn zeros_at_end(path: &Path) -> io::Result<u64> {
    let file = fs::open(path.join("db"))?;
    let mut at = file.metadata()?.len();
    let end = at.next_multiple_of(SEGMENT);
    let begin = end.saturating_sub(SEGMENT);
    let mut bytes = [0; 64 * 1024];
    while at > begin {
        let from = at.saturating_sub(bytes.len() as u64).max(begin);
        let read = file.read_at(&mut bytes, from)?;
        let read = bytes[..read].iter().zip(from..at);
        if let Some((_, last)) = read.filter(|(byte, _)| **byte != 0).last() {
            return Ok(end - last - 1);
        }
        at = from;
    }
    Ok(end - begin)
}

/// Shrinks the reserve where the disk is too full to open the database in `path`. Returns the free
/// space beyond what opening needs.
pub(super) fn release_to_open(dir: &Path, path: &Path) -> io::Result<u64> {
    let needed = needed_to_open(path);
    release(dir, needed)?;
    Ok(free(dir).saturating_sub(needed))
}

/// Shrinks the reserve until `needed` bytes are free, as far as it is large enough.
fn release(dir: &Path, needed: u64) -> io::Result<()> {
    // In whole blocks of any file system.
    let missing = needed.saturating_sub(free(dir)).next_multiple_of(64 * 1024);
    let reserved = reserved(dir);
    if missing == 0 || reserved == 0 {
        return Ok(());
    }
    let left = reserved.saturating_sub(missing);
    tracing::debug!(dir = %dir.display(), left, "disk is full; using the reserve of the store");
    let file = fs::open_with(OpenOptions::new().write(true), dir.join(RESERVE))?;
    file.set_len(left)
}

/// The size of the reserve on disk.
pub(super) fn reserved(dir: &Path) -> u64 {
    fs::metadata(dir.join(RESERVE)).map_or(0, |file| file.blocks() * 512)
}

/// Grows the reserve.
fn reserve(dir: &Path, bytes: u64) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true).mode(0o600);
    let file = fs::open_with(&options, dir.join(RESERVE))?;
    match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
        Err(Errno::OPNOTSUPP) => write_zeros(&file, bytes),
        allocated => Ok(allocated?),
    }
}

fn write_zeros(mut file: &File, until: u64) -> io::Result<()> {
    let zeros = [0; 64 * 1024];
    let mut at = file.seek(SeekFrom::End(0))?;
    while at < until {
        file.write_all(&zeros)?;
        at += zeros.len() as u64;
    }
    Ok(())
}

impl StoreDisk {
    /// The space for a batch of `bytes`, of which `reclaiming` are in commits that
    /// [reclaim](crate::Txn::reclaims). For those the reserve is shrunk if necessary, even if they
    /// are empty (`Some(0)`: a compaction); it is left as it is if no commit reclaims (`None`).
    /// What is in the log alone is counted, too.
    pub(super) fn space_for(&self, bytes: usize, reclaiming: Option<usize>) -> FreeSpace {
        let unsettled = self.unsettled_bytes();
        let bytes = bytes.saturating_add(unsettled);
        let reclaiming = reclaiming.map(|bytes| bytes.saturating_add(unsettled));
        let with_room_for = |least: u64, bytes: usize| {
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            least.saturating_add(bytes.saturating_mul(NEEDED_FOR_EACH))
        };
        let needed = with_room_for(NEEDED_BYTES, bytes);
        let found = free(&self.dir);
        if found >= needed {
            return FreeSpace::Enough;
        }
        let error = StoreError::NoSpace {
            dir: self.dir.clone(),
            free_bytes: found,
            needed_bytes: needed,
        };
        let Some(reclaiming) = reclaiming else {
            return FreeSpace::None(error);
        };
        let floor = with_room_for(FLOOR_BYTES, reclaiming);
        if found.saturating_add(reserved(&self.dir)) < self.needed_to_reopen_after(floor) {
            return FreeSpace::None(error);
        }
        if let Err(error) = release(&self.dir, floor) {
            tracing::warn!(%error, "failed to make the reserve smaller");
        }
        match free(&self.dir) < floor {
            true => FreeSpace::None(error),
            false => FreeSpace::ReclaimOnly(error),
        }
    }

    /// The space that must be free or reserved now so that the store can be opened after `bytes`
    /// more were written.
    fn needed_to_reopen_after(&self, bytes: u64) -> u64 {
        let path = &self.generation.path;
        let beyond = bytes.saturating_sub(zeros_at_end(path).unwrap_or(0));
        let segments = beyond.div_ceil(SEGMENT).saturating_mul(SEGMENT);
        needed_to_open(path).saturating_add(segments)
    }

    /// Grows the reserve to its full size, or as far as there is space.
    pub(super) fn grow_reserve(&self) {
        let reserved = reserved(&self.dir);
        let free = free(&self.dir);
        let bytes = reserved.saturating_add(free).min(RESERVE_BYTES);
        if reserved >= bytes || free == u64::MAX {
            return;
        }
        match reserve(&self.dir, bytes) {
            // Another process took the space first.
            Err(error) if error.kind() == ErrorKind::StorageFull => {}
            Err(error) => {
                tracing::warn!(%error, dir = %self.dir.display(), "failed to reserve space for deletions on a full disk");
            }
            Ok(()) => {}
        }
    }
}
