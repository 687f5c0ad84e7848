//! The log in front of sled. A commit is on disk when it is in the log, which takes one sync; sled,
//! which takes several, gets the records of many commits at once when the log is full.
//!
//! The log is the file `log`, of a fixed size, so that a sync has no metadata to write. It has one
//! frame for each batch of commits, from its beginning. Integers are big-endian.
//!
//! | bytes | field |
//! |---|---|
//! | 4 | [`MAGIC`] |
//! | 4 | the CRC-32 of all that follows |
//! | 4 | the length of the records |
//! | 8 | the revision of the first commit |
//! | any | the records: length of the key u16, length of the value u32, key, value |
//!
//! Once sled has the records, and is synced, the log begins again at its start. Frames of before
//! then stay behind the new ones, until these cover them; their revisions are lower than all that
//! follow, and sled has them.
//!
//! A frame is written when the one before it is on disk, so a power cut can damage the last one
//! only, which nobody was told about. A damaged frame before one that is whole is damage of the
//! disk.

use std::{
    io::{self, ErrorKind},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::Path,
};

use bytes::{Buf, BufMut};
use podplane_host::fs::{self, File, OpenOptions};

use super::{generation::sync_dir, record::RawRecord};
use crate::store::Revision;

/// The size of the log: some 1,500 pods. All of it is written to sled at once, for which commits
/// wait some milliseconds.
const LOG_BYTES: usize = 2 * 1024 * 1024;
const LOG: &str = "log";
const MAGIC: u32 = u32::from_be_bytes(*b"plog");
const HEADER_BYTES: usize = 4 + 4 + 4 + 8;

/// The open log.
#[derive(Debug)]
pub(super) struct Wal {
    file: File,
    /// The end of the frames whose records sled does not have.
    end: usize,
    frame: Vec<u8>,
}

/// The content of a log that a process left.
#[derive(Debug, Default)]
pub(super) struct LoggedRecords {
    /// In the order of their commits.
    pub(super) records: Vec<RawRecord>,
    /// The revision of a frame that is whole, and stands behind one that is not.
    pub(super) stray: Option<Revision>,
}

impl Wal {
    /// Opens the log, and begins it at its start. sled has the records that are in it.
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600);
        let file = fs::open_with(&options, dir.join(LOG))?;
        if file.metadata()?.len() != LOG_BYTES as u64 {
            // Written and not only reserved: a file system notes when a reserved block is written.
            file.write_all_at(&vec![0; LOG_BYTES], 0)?;
            file.set_len(LOG_BYTES as u64)?;
            fs::sync_all(&file)?;
            sync_dir(dir)?;
        }
        Ok(Self {
            file,
            end: 0,
            frame: Vec::new(),
        })
    }

    /// Writes the records of a batch, whose first commit has this revision, and waits until they
    /// are on disk. Returns false, and writes nothing, if the log has not enough room.
    pub(super) fn append(&mut self, first: Revision, records: &[RawRecord]) -> io::Result<bool> {
        let bytes: usize = records
            .iter()
            .map(|(key, value)| 2 + 4 + key.len() + value.len())
            .sum();
        let end = self.end.saturating_add(HEADER_BYTES).saturating_add(bytes);
        if end > LOG_BYTES {
            return Ok(false);
        }
        self.frame.clear();
        self.frame.put_u32(MAGIC);
        self.frame.put_u32(0);
        self.frame.put_u32(length(bytes)?);
        self.frame.put_u64(first.number());
        for (key, value) in records {
            let key_bytes = u16::try_from(key.len()).map_err(io::Error::other)?;
            self.frame.put_u16(key_bytes);
            self.frame.put_u32(length(value.len())?);
            self.frame.put_slice(key);
            self.frame.put_slice(value);
        }
        let checksum = crc32fast::hash(&self.frame[8..]);
        self.frame[4..8].copy_from_slice(&checksum.to_be_bytes());
        self.file.write_all_at(&self.frame, self.end as u64)?;
        fs::sync_data(&self.file)?;
        self.end = end;
        Ok(true)
    }

    /// Begins the log again at its start: sled has the records that are in it.
    pub(super) fn restart(&mut self) {
        self.end = 0;
    }
}

fn length(bytes: usize) -> io::Result<u32> {
    u32::try_from(bytes).map_err(io::Error::other)
}

/// Reads the log in `dir`, if there is one.
pub(super) fn read(dir: &Path) -> io::Result<LoggedRecords> {
    match fs::read(dir.join(LOG)) {
        Ok(bytes) => Ok(LoggedRecords::decode(&bytes)),
        Err(err) if err.kind() == ErrorKind::NotFound => Ok(LoggedRecords::default()),
        Err(err) => Err(err),
    }
}

/// Removes the log, if there is one: sled has the records that are in it.
pub(super) fn remove(dir: &Path) -> io::Result<()> {
    match fs::remove_file(dir.join(LOG)) {
        Ok(()) => sync_dir(dir),
        Err(err) if err.kind() == ErrorKind::NotFound => Ok(()),
        Err(err) => Err(err),
    }
}

impl LoggedRecords {
    fn decode(bytes: &[u8]) -> Self {
        let mut logged = Self::default();
        let mut rest = bytes;
        let mut last = None;
        while let Some((first, records, after)) = frame(rest) {
            // A frame of before the log was begun again.
            if last.is_some_and(|last| first <= last) {
                break;
            }
            last = Some(first);
            logged.records.extend(records);
            rest = after;
        }
        let strays = (0..rest.len()).filter_map(|at| frame(&rest[at..]));
        logged.stray = strays.map(|(first, ..)| first).max();
        logged
    }
}

/// Decodes the frame at the beginning of `bytes`: the revision of its first commit, its records,
/// and what follows it.
fn frame(bytes: &[u8]) -> Option<(Revision, Vec<RawRecord>, &[u8])> {
    let mut rest = bytes;
    if rest.try_get_u32().ok()? != MAGIC {
        return None;
    }
    let checksum = rest.try_get_u32().ok()?;
    let mut header = rest;
    let length = usize::try_from(header.try_get_u32().ok()?).ok()?;
    let first = Revision::new(header.try_get_u64().ok()?)?;
    let (mut records, after) = header.split_at_checked(length)?;
    if crc32fast::hash(&rest[..rest.len() - after.len()]) != checksum {
        return None;
    }
    let mut found = Vec::new();
    while !records.is_empty() {
        let key_bytes = usize::from(records.try_get_u16().ok()?);
        let value_bytes = usize::try_from(records.try_get_u32().ok()?).ok()?;
        let (key, value) = records.split_at_checked(key_bytes)?;
        let (value, next) = value.split_at_checked(value_bytes)?;
        found.push((key.to_vec(), value.to_vec()));
        records = next;
    }
    Some((first, found, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revision(number: u64) -> Revision {
        Revision::new(number).unwrap()
    }

    fn record(number: u64, bytes: usize) -> RawRecord {
        (number.to_be_bytes().to_vec(), vec![7; bytes])
    }

    fn numbers(logged: &LoggedRecords) -> Vec<u64> {
        let keys = logged.records.iter().map(|(key, _)| key.as_slice());
        keys.map(|key| u64::from_be_bytes(key.try_into().unwrap()))
            .collect()
    }

    /// A log with frames of these revisions, one record of 1,000 bytes in each.
    fn log_of(dir: &Path, revisions: impl IntoIterator<Item = u64>) -> Wal {
        let mut wal = Wal::open(dir).unwrap();
        for number in revisions {
            assert!(
                wal.append(revision(number), &[record(number, 1000)])
                    .unwrap()
            );
        }
        wal
    }

    fn overwrite(dir: &Path, at: u64, bytes: &[u8]) {
        let file = fs::open_with(OpenOptions::new().write(true), dir.join(LOG)).unwrap();
        file.write_all_at(bytes, at).unwrap();
    }

    #[test]
    fn what_was_appended_is_read() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(dir.path()).unwrap().records.is_empty());
        let mut wal = log_of(dir.path(), 2..5);
        let large = [record(5, 100_000), record(6, 0)];
        assert!(wal.append(revision(5), &large).unwrap());
        let logged = read(dir.path()).unwrap();
        assert_eq!(numbers(&logged), [2, 3, 4, 5, 6]);
        assert_eq!(logged.records[3..], large);
        assert_eq!(logged.stray, None);
        remove(dir.path()).unwrap();
        assert!(read(dir.path()).unwrap().records.is_empty());
    }

    #[test]
    fn a_full_log_takes_nothing_until_it_is_begun_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut wal = log_of(dir.path(), 2..1000);
        let most = [record(1000, LOG_BYTES)];
        assert!(!wal.append(revision(1000), &most).unwrap());
        assert_eq!(numbers(&read(dir.path()).unwrap()).len(), 998);
        wal.restart();
        // Frames of before follow a new one; their revisions are lower.
        assert!(wal.append(revision(1000), &[record(1000, 7)]).unwrap());
        let logged = read(dir.path()).unwrap();
        assert_eq!(numbers(&logged), [1000]);
        assert!(logged.stray.is_some_and(|stray| stray < revision(1000)));
    }

    #[test]
    fn a_torn_last_frame_is_no_damage_and_a_damaged_one_before_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let frame = (HEADER_BYTES + 2 + 4 + 8 + 1000) as u64;
        drop(log_of(dir.path(), 2..6));
        overwrite(dir.path(), 3 * frame + 500, b"x");
        let logged = read(dir.path()).unwrap();
        assert_eq!((numbers(&logged), logged.stray), (vec![2, 3, 4], None));
        overwrite(dir.path(), frame + 4, b"x");
        let logged = read(dir.path()).unwrap();
        let stray = Some(revision(4));
        assert_eq!((numbers(&logged), logged.stray), (vec![2], stray));
    }

    proptest::proptest! {
        #[test]
        fn decoding_invalid_bytes_never_panics(
            mut bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200),
            is_marked: bool,
        ) {
            if is_marked && bytes.len() > 12 {
                bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
                bytes[8..11].fill(0);
                let (length, rest) = (usize::from(bytes[11]), bytes.len() - 8);
                let checksum = crc32fast::hash(&bytes[8..][..rest.min(length + 12)]);
                bytes[4..8].copy_from_slice(&checksum.to_be_bytes());
            }
            LoggedRecords::decode(&bytes);
        }
    }
}
