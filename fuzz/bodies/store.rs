//! Fuzzes what the store reads from disk: backups, and the records of its database.
//!
//! The input begins with a letter. `b`: the rest is a backup. `c`: a backup without its checksum,
//! which is added. `r`: records in a store's database, each of which begins with a letter too:
//!
//! - `c` a change: revision, place, changes in the commit, kind and the revision of creation, each
//!   a byte, and two texts, the key and the value;
//! - `p` a part of a value: revision, place, number, and its length in KiB, each a byte;
//! - `m` metadata: a text, the name after `M|`, and a text, the value; an empty one removes it;
//! - `x` any record: two texts, the key and the value;
//! - `w` the watermark: a text.
//!
//! A text is a byte, its length, and its bytes.

use std::{
    fs::{self, File},
    io::Cursor,
    path::Path,
    sync::Arc,
};

use futures::StreamExt as _;
use podplane_store::{ListQuery, OpenError, SledStore, Store as _, back_up, verify_backup};
use sha2::{Digest as _, Sha256};

/// Microseconds since 1970 in 2026.
const NOW_MICROS: u64 = 1_790_000_000_000_000;

pub(crate) fn run(data: &[u8]) {
    match data.split_first() {
        Some((b'b', bytes)) => backup(bytes),
        Some((b'c', bytes)) => {
            let mut bytes = bytes.to_vec();
            let checksum = Sha256::digest(&bytes);
            bytes.extend_from_slice(&checksum);
            backup(&bytes);
        }
        Some((b'r', bytes)) => records(bytes),
        _ => {}
    }
}

/// What is restored is what the backup says it has.
fn backup(bytes: &[u8]) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let target = dir.path().join("store");
    let Ok(info) = verify_backup(bytes) else {
        assert!(SledStore::restore(&target, Cursor::new(bytes), NOW_MICROS).is_err());
        assert!(!target.exists(), "a damaged backup left a store");
        return;
    };
    let restored = SledStore::restore(&target, Cursor::new(bytes), NOW_MICROS);
    let Ok(restored) = restored else {
        assert!(!target.exists(), "a failed restore left a store");
        return;
    };
    assert_eq!(restored.backup, info);
    let store = SledStore::open(&target).expect("a restored store opens");
    let listed = block_on(store.list(ListQuery::default())).expect("a restored store is read");
    assert!(u64::try_from(listed.items.len()).is_ok_and(|items| items <= info.items));
}

fn records(bytes: &[u8]) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    write_records(dir.path(), bytes);
    let checked = SledStore::check(dir.path(), |item| assert!(!item.key.as_bytes().is_empty()));
    let opened = SledStore::open(dir.path());
    match &checked {
        Ok(report) => assert_eq!(
            report.damage.is_empty(),
            opened.is_ok(),
            "{report:?}, {opened:?}"
        ),
        Err(_) => assert!(opened.is_err(), "{checked:?}"),
    }
    match opened {
        Ok(store) => sound(Arc::new(store)),
        // Damage has errors of its own, except in the watermark.
        Err(OpenError::Io { step, source, .. }) if step != "read the watermark" => {
            panic!("failed to {step}: {source}")
        }
        Err(_) => {}
    }
}

/// A store that opens can be read and backed up.
fn sound(store: Arc<SledStore>) {
    let listed = block_on(store.list(ListQuery::default())).expect("an open store is read");
    let pieces = back_up(store).map(|piece| piece.expect("an open store is backed up"));
    let pieces: Vec<_> = block_on(pieces.collect());
    let info = verify_backup(pieces.concat().as_slice()).expect("the backup is whole");
    assert_eq!(u64::try_from(listed.items.len()), Ok(info.items));
}

/// Makes a database with the metadata of a store and the records of the input.
fn write_records(dir: &Path, bytes: &[u8]) {
    let db = database(dir);
    let mut rest = Bytes(bytes);
    while let Some(letter) = rest.byte() {
        let (key, value) = match letter {
            b'c' => rest.change(),
            b'p' => rest.part(),
            b'm' => ([b"M|", rest.text()].concat(), rest.text().to_vec()),
            b'x' => (rest.text().to_vec(), rest.text().to_vec()),
            b'w' => {
                fs::write(dir.join("watermark"), rest.text()).expect("a watermark");
                continue;
            }
            _ => break,
        };
        match letter == b'm' && value.is_empty() {
            true => db.remove(key).map(drop),
            false => db.insert(key, value).map(drop),
        }
        .expect("sled takes every record");
    }
    db.flush().expect("sled writes");
    drop(db);
    wait_for_release(dir);
}

fn database(dir: &Path) -> sled::Db {
    let config = sled::Config::new()
        .path(dir)
        .segment_size(8 * 1024 * 1024)
        .flush_every_ms(None);
    let db = config.open().expect("a new database");
    for (key, value) in [
        (&b"M|format"[..], &2_u32.to_be_bytes()[..]),
        (b"M|id", &[7; 16]),
        (b"M|oldest", &1_u64.to_be_bytes()),
    ] {
        db.insert(key, value).expect("sled takes every record");
    }
    db
}

/// sled's threads hold its lock a moment longer.
fn wait_for_release(dir: &Path) {
    let file = File::open(dir.join("db")).expect("sled's file");
    file.lock().expect("sled lets its file go");
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.expect("a runtime").block_on(future)
}

/// The rest of the input.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self) -> u8 {
        self.byte().unwrap_or_default()
    }

    fn text(&mut self) -> &'a [u8] {
        let length = usize::from(self.number()).min(self.0.len());
        let (text, rest) = self.0.split_at(length);
        self.0 = rest;
        text
    }

    /// The key of a change.
    fn id(&mut self) -> Vec<u8> {
        let (revision, place) = (self.number(), self.number());
        let mut key = b"E|".to_vec();
        key.extend(u64::from(revision).to_be_bytes());
        key.extend(u32::from(place).to_be_bytes());
        key
    }

    fn change(&mut self) -> (Vec<u8>, Vec<u8>) {
        let id = self.id();
        let (of, kind, created) = (self.number(), self.number(), self.number());
        let (key, value) = (self.text(), self.text());
        let mut bytes = vec![kind];
        bytes.extend(u32::from(of).to_be_bytes());
        bytes.extend(u16::try_from(key.len()).unwrap_or_default().to_be_bytes());
        bytes.extend_from_slice(key);
        if kind != 0 {
            bytes.extend(u64::from(created).to_be_bytes());
        }
        bytes.extend_from_slice(value);
        (id, bytes)
    }

    fn part(&mut self) -> (Vec<u8>, Vec<u8>) {
        let mut id = self.id();
        id.extend(u16::from(self.number()).to_be_bytes());
        let length = usize::from(self.number()) * 1024;
        (id, vec![b'x'; length])
    }
}
