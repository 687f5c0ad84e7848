//! A backup: every item of a store as it was at one revision, in one file that says whether it is whole.
//!
//! | bytes | what |
//! |---|---|
//! | 16 | `podplane backup` and a line feed |
//! | 4 | [`BACKUP_VERSION`]; integers are big-endian |
//! | 16, 8, 8 | the store's id, the revision, how many items follow |
//! | 2, n, 4, n | for each item the length of its key, the key, the length of its value, the value |
//! | 32 | SHA-256 of everything before |
//!
//! It has no history and no revisions of items: a restored store begins with new ones.

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
/// Small enough for one message of gRPC.
const PIECE_BYTES: usize = 256 * 1024;
const PAGE: NonZeroUsize = NonZeroUsize::new(1000).expect("a thousand is not zero");

/// What a backup is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupInfo {
    /// The store that it was made of.
    pub id: Uuid,
    /// The revision that it was made at.
    pub revision: Revision,
    /// How many items it has.
    pub items: u64,
}

/// Why a file is no backup that can be restored.
#[derive(Debug, thiserror::Error)]
pub enum BackupDamage {
    /// It begins with something else.
    #[error("it is not a backup of a podplane store; name another file")]
    Foreign,
    /// It was made by another version of this program.
    #[error(
        "it has format version {found}, and this program reads version {BACKUP_VERSION}; \
         restore it with the program that made it"
    )]
    Version {
        /// The version that was found.
        found: u32,
    },
    /// It ends too early.
    #[error("it is not whole: it ends after {found} of {of} items; name another file")]
    Cut {
        /// How many items are there.
        found: u64,
        /// How many there were.
        of: u64,
    },
    /// What is there is not what was written.
    #[error("it is damaged: its checksum does not match its content; name another file")]
    Checksum,
    /// It cannot be read.
    #[error("it cannot be read")]
    Read(#[source] io::Error),
}

/// A backup of a store as it is now, in pieces of about 256 KiB, while the store is used. Where the stream ends with an
/// error, what came until then is refused by who restores it.
///
/// # Errors
///
/// Those of [`Store::list`]; [`Compacted`](StoreError::Compacted) when whoever takes the pieces is slower than the
/// store forgets.
pub fn back_up<S: Store>(store: Arc<S>) -> impl Stream<Item = Result<Bytes, StoreError>> + Send {
    async_stream::try_stream! {
        let id = store.status().await?.id;
        let mut query = ListQuery {
            limit: Some(PAGE),
            ..ListQuery::default()
        };
        let mut page = store.list(query.clone()).await?;
        query.at = Some(page.revision);
        let mut out = Hashed::new(BytesMut::new());
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
        let Hashed { mut inner, hash } = out;
        inner.extend_from_slice(&hash.finalize());
        yield inner.freeze();
    }
}

/// Reads a whole backup, and says what it is of.
///
/// # Errors
///
/// [`BackupDamage`]
pub fn verify_backup(backup: impl Read) -> Result<BackupInfo, BackupDamage> {
    let mut reader = BackupReader::new(backup)?;
    reader.by_ref().try_for_each(|item| item.map(drop))?;
    Ok(reader.info())
}

fn count(items: usize) -> u64 {
    // A usize fits; saturating only spells that without a cast.
    u64::try_from(items).unwrap_or(u64::MAX)
}

/// Reads a backup, item by item. What it returned may be used only when the end was reached without an error.
#[derive(Debug)]
pub(crate) struct BackupReader<R> {
    input: Hashed<R>,
    info: BackupInfo,
    found: u64,
    is_done: bool,
}

impl<R: Read> BackupReader<R> {
    pub(crate) fn new(input: R) -> Result<Self, BackupDamage> {
        let mut input = Hashed::new(input);
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

/// Ends with the checksum, and with an error if that is wrong.
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

/// Hashes what goes through.
struct Hashed<T> {
    inner: T,
    hash: Sha256,
}

impl<T> Hashed<T> {
    fn new(inner: T) -> Self {
        Self {
            inner,
            hash: Sha256::new(),
        }
    }
}

impl Hashed<BytesMut> {
    fn put(&mut self, bytes: &[u8]) {
        self.inner.extend_from_slice(bytes);
        self.hash.update(bytes);
    }

    fn put_item(&mut self, item: &Item) {
        let key = item.key.as_bytes();
        let key_len = u16::try_from(key.len()).expect("a Key is at most MAX_KEY_BYTES long");
        let value_len = u32::try_from(item.value.len()).expect("at most MAX_VALUE_BYTES");
        self.put(&key_len.to_be_bytes());
        self.put(key);
        self.put(&value_len.to_be_bytes());
        self.put(&item.value);
    }
}

impl<T: Read> Hashed<T> {
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

impl<T> std::fmt::Debug for Hashed<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hashed").finish_non_exhaustive()
    }
}
