//! A backup: every item of a store as it was at one revision, in one file with a checksum.
//!
//! | bytes | what |
//! |---|---|
//! | 16 | `podplane backup` and a line feed |
//! | 4 | [`BACKUP_VERSION`]; integers are big-endian |
//! | 16, 8, 8 | the store's id, the revision, how many items follow |
//! | 2, n, 4, n | for each item the length of its key, the key, the length of its value, the value |
//! | 32 | SHA-256 of everything before |
//!
//! It holds neither history nor the revisions of items: a restored store begins with new ones.

use std::{
    io::{self, ErrorKind, Read},
    num::NonZeroUsize,
    sync::Arc,
};

use bytes::{Bytes, BytesMut};
use futures::Stream;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::{
    MAX_VALUE_BYTES, StoreError,
    store::{Item, Key, ListQuery, Revision, Store},
};

/// The version of this layout. A backup of another version is not restored.
pub const BACKUP_VERSION: u32 = 1;

const MAGIC: &[u8; 16] = b"podplane backup\n";
/// Small enough for one gRPC message.
const PIECE_BYTES: usize = 256 * 1024;
const PAGE: NonZeroUsize = NonZeroUsize::new(1000).expect("a thousand is not zero");

/// The least distance from the revision of a backup to the first one of the restored store: more
/// revisions than the original store can have given out since, at ten thousand per second for three
/// years.
const GAP: u64 = 1 << 40;

/// The first revision of a store that is restored from a backup of this revision: `now_micros`,
/// microseconds since 1970, which no store can reach by committing; or, where the clock is wrong,
/// one far above that of the backup.
pub(crate) fn first_after(backup: Revision, now_micros: u64) -> Revision {
    let first = backup.number().saturating_add(GAP).max(now_micros);
    Revision::new(first).unwrap_or(backup)
}

/// The description of a backup, from its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupInfo {
    /// The id of the store that was backed up.
    pub id: Uuid,
    /// The revision of the backup.
    pub revision: Revision,
    /// The number of items.
    pub items: u64,
}

/// The reason why a file cannot be restored.
#[derive(Debug, thiserror::Error)]
pub enum BackupDamage {
    /// The file does not begin with the magic bytes.
    #[error("it is not a backup of a podplane store; name another file")]
    Foreign,
    /// The backup has another format version.
    #[error(
        "it has format version {found}, and this program reads version {BACKUP_VERSION}; \
         restore it with the program that made it"
    )]
    Version {
        /// The version of the file.
        found: u32,
    },
    /// The file ends too early.
    #[error("it is truncated: it ends after {found} of {of} items; name another file")]
    Cut {
        /// The number of complete items in the file.
        found: u64,
        /// The number of items that the header announces.
        of: u64,
    },
    /// The checksum does not match the content.
    #[error("it is damaged: its checksum does not match its content; name another file")]
    Checksum,
    /// Reading failed.
    #[error("it cannot be read")]
    Read(#[source] io::Error),
}

/// A backup of the store as it is now, in pieces of about 256 KiB; the store stays in use
/// meanwhile. If the stream ends with an error, the pieces so far fail to restore, because they
/// lack the checksum.
///
/// # Errors
///
/// Those of [`Store::list`]; [`Compacted`](StoreError::Compacted) when the consumer takes the
/// pieces so slowly that the revision is compacted meanwhile.
pub fn back_up<S: Store>(store: Arc<S>) -> impl Stream<Item = Result<Bytes, StoreError>> + Send {
    async_stream::try_stream! {
        let id = store.status().await?.id;
        let mut query = ListQuery {
            limit: Some(PAGE),
            ..ListQuery::default()
        };
        let mut page = store.list(query.clone()).await?;
        query.at = Some(page.revision);
        let mut out = HashingIo::new(BytesMut::new());
        out.put(MAGIC);
        out.put(&BACKUP_VERSION.to_be_bytes());
        out.put(id.as_bytes());
        out.put(&page.revision.number().to_be_bytes());
        let items = count(page.items.len()) + count(page.remaining);
        out.put(&items.to_be_bytes());
        loop {
            for item in &page.items {
                out.put_item(item);
                while out.inner.len() >= PIECE_BYTES {
                    yield out.inner.split_to(PIECE_BYTES).freeze();
                }
            }
            if page.remaining == 0 {
                break;
            }
            query.after = page.items.last().map(|item| item.key.clone());
            page = store.list(query.clone()).await?;
        }
        let HashingIo { mut inner, hash } = out;
        inner.extend_from_slice(&hash.finalize());
        yield inner.freeze();
    }
}

/// Reads a whole backup, checks it, and returns its description.
///
/// # Errors
///
/// [`BackupDamage`].
pub fn verify_backup(backup: impl Read) -> Result<BackupInfo, BackupDamage> {
    let mut reader = BackupReader::new(backup)?;
    reader.by_ref().try_for_each(|item| item.map(drop))?;
    Ok(reader.info())
}

fn count(items: usize) -> u64 {
    // A usize always fits; saturating only avoids a cast.
    u64::try_from(items).unwrap_or(u64::MAX)
}

/// Reads a backup item by item. The items may be used only after the end was reached without an
/// error.
#[derive(Debug)]
pub(crate) struct BackupReader<R> {
    input: HashingIo<R>,
    info: BackupInfo,
    found: u64,
    is_done: bool,
}

impl<R: Read> BackupReader<R> {
    pub(crate) fn new(input: R) -> Result<Self, BackupDamage> {
        let mut input = HashingIo::new(input);
        let magic = input.array().map_err(|err| match err.kind() {
            ErrorKind::UnexpectedEof => BackupDamage::Foreign,
            _ => BackupDamage::Read(err),
        })?;
        if &magic != MAGIC {
            return Err(BackupDamage::Foreign);
        }
        let cut = |err| at_item(err, 0, 0);
        let found = u32::from_be_bytes(input.array().map_err(cut)?);
        if found != BACKUP_VERSION {
            return Err(BackupDamage::Version { found });
        }
        let id = Uuid::from_bytes(input.array().map_err(cut)?);
        let revision = u64::from_be_bytes(input.array().map_err(cut)?);
        let info = BackupInfo {
            id,
            revision: Revision::new(revision).ok_or(BackupDamage::Checksum)?,
            items: u64::from_be_bytes(input.array().map_err(cut)?),
        };
        Ok(Self {
            input,
            info,
            found: 0,
            is_done: false,
        })
    }

    pub(crate) fn info(&self) -> BackupInfo {
        self.info
    }

    fn item(&mut self) -> Result<(Key, Bytes), BackupDamage> {
        let (found, of) = (self.found, self.info.items);
        let cut = |err| at_item(err, found, of);
        let key_len = u16::from_be_bytes(self.input.array().map_err(cut)?);
        let key = self.input.bytes(usize::from(key_len)).map_err(cut)?;
        let key = Key::new(key).map_err(|_| BackupDamage::Checksum)?;
        let value_len = u32::from_be_bytes(self.input.array().map_err(cut)?);
        let value_len = usize::try_from(value_len).unwrap_or(usize::MAX);
        if value_len > MAX_VALUE_BYTES {
            return Err(BackupDamage::Checksum);
        }
        Ok((key, self.input.bytes(value_len).map_err(cut)?))
    }

    fn end(&mut self) -> Result<(), BackupDamage> {
        let cut = |err| at_item(err, self.info.items, self.info.items);
        let expected = self.input.hash.clone().finalize();
        let found: [u8; 32] = self.input.array().map_err(cut)?;
        let more = self.input.inner.read(&mut [0]).map_err(cut)?;
        if found != expected.as_slice() || more > 0 {
            return Err(BackupDamage::Checksum);
        }
        Ok(())
    }
}

/// Checks the checksum after the last item; a mismatch is the last item of the iterator.
impl<R: Read> Iterator for BackupReader<R> {
    type Item = Result<(Key, Bytes), BackupDamage>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        if self.found == self.info.items {
            self.is_done = true;
            return self.end().err().map(Err);
        }
        let item = self.item();
        self.is_done = item.is_err();
        self.found += 1;
        Some(item)
    }
}

fn at_item(err: io::Error, found: u64, of: u64) -> BackupDamage {
    match err.kind() {
        ErrorKind::UnexpectedEof => BackupDamage::Cut { found, of },
        _ => BackupDamage::Read(err),
    }
}

/// A reader or a buffer that hashes all bytes that pass through it.
struct HashingIo<T> {
    inner: T,
    hash: Sha256,
}

impl<T> HashingIo<T> {
    fn new(inner: T) -> Self {
        Self {
            inner,
            hash: Sha256::new(),
        }
    }
}

impl HashingIo<BytesMut> {
    fn put(&mut self, bytes: &[u8]) {
        self.inner.extend_from_slice(bytes);
        self.hash.update(bytes);
    }

    fn put_item(&mut self, item: &Item) {
        let key = item.key.as_bytes();
        let key_len = u16::try_from(key.len()).expect("a Key is at most MAX_KEY_BYTES long");
        let value_len = u32::try_from(item.value_len()).expect("at most MAX_VALUE_BYTES");
        self.put(&key_len.to_be_bytes());
        self.put(key);
        self.put(&value_len.to_be_bytes());
        self.put(&item.value());
    }
}

impl<T: Read> HashingIo<T> {
    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.inner.read_exact(&mut bytes)?;
        self.hash.update(bytes);
        Ok(bytes)
    }

    fn bytes(&mut self, len: usize) -> io::Result<Bytes> {
        let mut bytes = vec![0; len];
        self.inner.read_exact(&mut bytes)?;
        self.hash.update(&bytes);
        Ok(bytes.into())
    }
}

impl<T> std::fmt::Debug for HashingIo<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HashingIo").finish_non_exhaustive()
    }
}
