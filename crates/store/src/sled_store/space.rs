//! Room on the disk: what a write needs, and a reserve for the day when the disk is full.
//!
//! A write that finds no room in the middle poisons the store, so the room is looked at before. The file `reserve` takes
//! space that nothing else needs. It is given up where a full disk would keep the store from opening, and for commits that
//! [reclaim](crate::Txn::reclaims), so that what fills the disk can be deleted; it is made again when there is room.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Write as _},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use rustix::{
    fs::{FallocateFlags, fallocate},
    io::Errno,
};

use super::{disk::Disk, generation::SEGMENT_BYTES};
use crate::StoreError;

/// A batch begins only with room for two segments and for the pages that it makes sled rewrite.
const NEEDED_BYTES: u64 = 2 * SEGMENT_BYTES as u64;
/// sled writes a value, and with later ones of its leaf again.
const NEEDED_FOR_EACH: u64 = 3;
/// What commits that reclaim may not go below: a page of large values, rewritten.
const FLOOR_BYTES: u64 = 3 * 1024 * 1024;
/// sled fills the segment that it was writing with zeros when it is opened.
const NEEDED_TO_OPEN: u64 = SEGMENT_BYTES as u64 + FLOOR_BYTES;
/// Enough to open the store, and to delete some hundred objects.
pub(super) const RESERVE_BYTES: u64 = NEEDED_TO_OPEN + 3 * 1024 * 1024;

const RESERVE: &str = "reserve";

/// How much room there is for a batch.
#[derive(Debug)]
pub(super) enum Room {
    Enough,
    /// For commits that reclaim alone.
    Little(StoreError),
    None(StoreError),
}

impl Room {
    /// Why a commit is refused, if it is.
    pub(super) fn refusal(&self, reclaims: bool) -> Option<StoreError> {
        match self {
            Self::Little(error) if !reclaims => Some(error.clone()),
            Self::None(error) => Some(error.clone()),
            Self::Enough | Self::Little(_) => None,
        }
    }
}

/// The bytes that can be written. A file system that cannot tell is no reason not to try.
fn free(dir: &Path) -> u64 {
    rustix::fs::statvfs(dir).map_or(u64::MAX, |stat| stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Whether that much can be written and still leave room for commits.
pub(super) fn has_room_for(dir: &Path, bytes: u64) -> bool {
    free(dir) >= bytes.saturating_add(2 * NEEDED_BYTES)
}

/// Removes the reserve where the disk is too full to open the store.
pub(super) fn release_if_needed(dir: &Path) -> io::Result<()> {
    match free(dir) < NEEDED_TO_OPEN {
        true => release(dir),
        false => Ok(()),
    }
}

fn release(dir: &Path) -> io::Result<()> {
    match fs::remove_file(dir.join(RESERVE)) {
        Ok(()) => {
            tracing::warn!(dir = %dir.display(), "the disk is full: the reserve of the store is used for reads and deletions");
            Ok(())
        }
        Err(err) if err.kind() == ErrorKind::NotFound => Ok(()),
        Err(err) => Err(err),
    }
}

/// The reserve's size on disk.
pub(super) fn reserved(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata(dir.join(RESERVE)).map_or(0, |file| file.blocks() * 512)
}

fn reserve(dir: &Path) -> io::Result<()> {
    let path = dir.join(RESERVE);
    let new = dir.join("reserve.new");
    let file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&new)?;
    let allocated = match fallocate(&file, FallocateFlags::empty(), 0, RESERVE_BYTES) {
        Err(Errno::OPNOTSUPP) => write_zeros(&file),
        allocated => allocated.map_err(io::Error::from),
    };
    allocated
        .and_then(|()| fs::rename(&new, path))
        .inspect_err(|_| _ = fs::remove_file(&new))
}

fn write_zeros(mut file: &File) -> io::Result<()> {
    let zeros = vec![0; 64 * 1024];
    let mut left = RESERVE_BYTES;
    while left > 0 {
        file.write_all(&zeros)?;
        left = left.saturating_sub(64 * 1024);
    }
    Ok(())
}

impl Disk {
    /// The room for a batch of so many bytes, and of so many in commits that [reclaim](crate::Txn::reclaims), if there are
    /// any. For those the reserve is given up where it must be.
    pub(super) fn room(&self, bytes: usize, reclaiming: Option<usize>) -> Room {
        let with_room_for = |least: u64, bytes: usize| {
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            least.saturating_add(bytes.saturating_mul(NEEDED_FOR_EACH))
        };
        let needed = with_room_for(NEEDED_BYTES, bytes);
        let found = free(&self.dir);
        if found >= needed {
            return Room::Enough;
        }
        let error = StoreError::NoSpace {
            dir: self.dir.clone(),
            free_bytes: found,
            needed_bytes: needed,
        };
        let Some(reclaiming) = reclaiming else {
            return Room::None(error);
        };
        let floor = with_room_for(FLOOR_BYTES, reclaiming);
        if found < floor
            && let Err(error) = release(&self.dir)
        {
            tracing::warn!(%error, "failed to remove the reserve");
        }
        match free(&self.dir) < floor {
            true => Room::None(error),
            false => Room::Little(error),
        }
    }

    /// Makes the reserve again, if there is room for it.
    pub(super) fn keep_reserve(&self) {
        if reserved(&self.dir) >= RESERVE_BYTES || !has_room_for(&self.dir, RESERVE_BYTES) {
            return;
        }
        if let Err(error) = reserve(&self.dir) {
            tracing::warn!(%error, dir = %self.dir.display(), "failed to reserve space for deletions on a full disk");
        }
    }
}
