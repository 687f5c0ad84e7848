//! The storage contract: keys, revisions, commits, lists and watches.

use std::{
    borrow::Borrow, collections::BTreeSet, fmt, future::Future, num::NonZeroU64, num::NonZeroUsize,
    str::FromStr, sync::Arc, time::Duration,
};

use bytes::Bytes;
use futures::Stream;
use uuid::Uuid;

pub use crate::item::Item;
use crate::{StoreError, TxnLimit};

/// The longest key that a store accepts. Kubernetes' longest names make keys of about 600 bytes.
pub const MAX_KEY_BYTES: usize = 1024;

/// The largest value that a store accepts, 1.5 MiB: etcd's default limit of a request, and so the
/// limit of an object in Kubernetes.
pub const MAX_VALUE_BYTES: usize = 1536 * 1024;

/// The most bytes of keys and values that one commit writes.
pub const MAX_COMMIT_BYTES: usize = 8 * 1024 * 1024;

/// The most writes, and the most guards, of one commit: etcd's default for a transaction is 128,
/// and its engine adds one of each.
pub const MAX_WRITES: usize = 127;

/// The revision of a store that was never written to, as in etcd. The first commit gets the next
/// one.
pub const FIRST_REVISION: Revision = Revision(NonZeroU64::MIN);

/// A revisioned key space with one counter of revisions for the whole store.
///
/// - A commit is atomic: all of its writes or none, at one revision that is higher than every
///   earlier one. A watcher of a later revision has seen it, and a reader sees it as soon as it is
///   acknowledged, unless the store is [shared](Self::IS_SHARED).
/// - A commit is acknowledged once it is as durable as the engine makes it: for
///   [`SledStore`](crate::SledStore), on disk. Readers and watchers never see a commit that is not
///   durable yet.
/// - Reads and watches may name any revision between [`StoreStatus::oldest`] and
///   [`StoreStatus::current`].
/// - No reader and no watcher, however slow, holds a writer back.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// The watch that [`Store::watch`] returns.
    type Watch: Watch;

    /// True if other processes may write to the same store. Reads then are as new as every commit
    /// that was acknowledged before the last call of [`current`](Self::current), whoever made it;
    /// they may lack later ones, those of this process, too.
    const IS_SHARED: bool = false;

    /// Checks every guard, then applies every write at one new revision.
    ///
    /// A delete of a key that is not there does nothing; guard it with [`Guard::At`] or
    /// [`Guard::Present`] to have it refused. A commit that changes nothing (no writes, or only
    /// such deletes) takes no revision.
    ///
    /// # Errors
    ///
    /// - [`Conflict`](StoreError::Conflict): a guard did not hold, nothing was written; read again.
    /// - [`TooLarge`](StoreError::TooLarge), [`DuplicateWrite`](StoreError::DuplicateWrite):
    ///   nothing was written; the request itself must change.
    /// - [`NoSpace`](StoreError::NoSpace): nothing was written; try again when there is space.
    /// - [`Unavailable`](StoreError::Unavailable): the store is closed; nothing was written.
    /// - [`QuotaReached`](StoreError::QuotaReached), [`Unreachable`](StoreError::Unreachable),
    ///   [`Refused`](StoreError::Refused): nothing was written.
    /// - [`UnknownOutcome`](StoreError::UnknownOutcome): it may have been applied, or may be yet.
    /// - [`Poisoned`](StoreError::Poisoned): the engine failed. If this commit was under way when
    ///   it did, it may be found applied after the store is opened again; it is never acknowledged.
    ///
    /// # Cancel safety
    ///
    /// A commit whose future is dropped may still be applied. A guard on each write makes a retry
    /// safe.
    fn commit(&self, txn: Txn) -> impl Future<Output = Result<CommitResult, StoreError>> + Send;

    /// The item at `key`, now or as it was at the revision `at`; `None` if there was none.
    ///
    /// # Errors
    ///
    /// [`Compacted`](StoreError::Compacted) or [`Future`](StoreError::Future) when `at` is out of
    /// range; [`Unavailable`](StoreError::Unavailable).
    fn get(
        &self,
        key: &Key,
        at: Option<Revision>,
    ) -> impl Future<Output = Result<Option<Arc<Item>>, StoreError>> + Send;

    /// The items under a prefix in the order of their keys, all from one revision.
    ///
    /// To continue a list that left [`remaining`](Snapshot::remaining) items, list again with `at`
    /// set to the revision of the first answer and `after` to the last key received.
    ///
    /// # Errors
    ///
    /// As [`get`](Store::get).
    fn list(&self, query: ListQuery) -> impl Future<Output = Result<Snapshot, StoreError>> + Send;

    /// Watches the keys under `prefix`: every commit after the revision `after` that touches one,
    /// once, in order.
    ///
    /// `after` is usually the revision of a list; with [`StoreStatus::current`] the watch begins
    /// now.
    ///
    /// # Errors
    ///
    /// [`Compacted`](StoreError::Compacted) when commits after `after` are no longer retained: list
    /// again. [`Future`](StoreError::Future) when `after` has not happened yet.
    fn watch(
        &self,
        prefix: Prefix,
        after: Revision,
    ) -> impl Future<Output = Result<Self::Watch, StoreError>> + Send;

    /// Drops the history that only revisions before `revision` can see. `revision` itself stays
    /// readable, and watches may begin after it. Compacting again at the same or an earlier
    /// revision does nothing.
    ///
    /// The caller decides how much history is kept; a store that is never compacted keeps all of
    /// it, in memory too.
    ///
    /// # Errors
    ///
    /// [`Future`](StoreError::Future) when `revision` has not happened yet; otherwise as
    /// [`commit`](Store::commit).
    fn compact(&self, revision: Revision) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// The oldest revision since which the history takes at most `history_bytes`, for the caller to
    /// [compact](Store::compact) at. [`StoreStatus::oldest`] if the history is not larger than
    /// that.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](StoreError::Unavailable).
    fn oldest_within(
        &self,
        history_bytes: u64,
    ) -> impl Future<Output = Result<Revision, StoreError>> + Send;

    /// Does periodic maintenance: an engine on disk gives back unused space. Call it every few
    /// seconds; it does not wait for the work that it starts.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](StoreError::Unavailable).
    fn maintain(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// The revision of the last commit, which reads see from then on, also where others commit to
    /// the same store. Unlike [`status`](Self::status) it reads no disk.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](StoreError::Unavailable).
    fn current(&self) -> impl Future<Output = Result<Revision, StoreError>> + Send;

    /// The state of the store as a whole.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](StoreError::Unavailable).
    fn status(&self) -> impl Future<Output = Result<StoreStatus, StoreError>> + Send;
}

impl<S: Store> Store for Arc<S> {
    type Watch = S::Watch;

    async fn commit(&self, txn: Txn) -> Result<CommitResult, StoreError> {
        S::commit(self, txn).await
    }

    async fn get(&self, key: &Key, at: Option<Revision>) -> Result<Option<Arc<Item>>, StoreError> {
        S::get(self, key, at).await
    }

    async fn list(&self, query: ListQuery) -> Result<Snapshot, StoreError> {
        S::list(self, query).await
    }

    async fn watch(&self, prefix: Prefix, after: Revision) -> Result<Self::Watch, StoreError> {
        S::watch(self, prefix, after).await
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        S::compact(self, revision).await
    }

    async fn oldest_within(&self, history_bytes: u64) -> Result<Revision, StoreError> {
        S::oldest_within(self, history_bytes).await
    }

    async fn maintain(&self) -> Result<(), StoreError> {
        S::maintain(self).await
    }

    async fn current(&self) -> Result<Revision, StoreError> {
        S::current(self).await
    }

    async fn status(&self) -> Result<StoreStatus, StoreError> {
        S::status(self).await
    }
}

/// A position in the history of a store, as [`Store::watch`] hands out. It is a cursor, not a
/// queue: it holds nothing back, and one that falls behind the retained history ends with
/// [`Compacted`](StoreError::Compacted).
pub trait Watch: fmt::Debug + Send + Sized + 'static {
    /// Waits for the next commit that touches the prefix.
    ///
    /// # Errors
    ///
    /// [`Compacted`](StoreError::Compacted) when the watch fell behind;
    /// [`Unavailable`](StoreError::Unavailable) when the store was closed. Either is final.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing; the next call returns the commit.
    fn next(&mut self) -> impl Future<Output = Result<Commit, StoreError>> + Send;

    /// The revision up to which every commit under the prefix has been returned; a bookmark may
    /// carry it.
    ///
    /// It advances while [`next`](Watch::next) waits, also for commits that do not touch the
    /// prefix.
    fn position(&self) -> Revision;

    /// The watch as a stream that ends after its first error.
    fn into_stream(self) -> impl Stream<Item = Result<Commit, StoreError>> + Send {
        futures::stream::unfold(Some(self), |watch| async move {
            let mut watch = watch?;
            let commit = watch.next().await;
            let rest = commit.is_ok().then_some(watch);
            Some((commit, rest))
        })
    }
}

/// A point in the history of a store. Later commits have higher revisions; gaps have no meaning.
///
/// [`Display`](fmt::Display) and [`FromStr`] give the decimal form that clients see as
/// `resourceVersion`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(NonZeroU64);

impl Revision {
    /// Creates a revision from a number; `None` for zero.
    pub fn new(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    /// The number, at least one.
    pub fn number(self) -> u64 {
        self.0.get()
    }

    /// The revision after this one.
    pub(crate) fn next(self) -> Self {
        // At a million commits a second the counter lasts for half a million years.
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Revision {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

/// The name of an item: 1 to [`MAX_KEY_BYTES`] bytes, in byte order. Cloning shares the bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<[u8]>);

impl Key {
    /// Creates a key, checking its length.
    ///
    /// # Errors
    ///
    /// [`KeyError`] when the key is empty or too long.
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self, KeyError> {
        let bytes = bytes.as_ref();
        match bytes.len() {
            0 => Err(KeyError::Empty),
            len if len > MAX_KEY_BYTES => Err(KeyError::TooLong { len }),
            _ => Ok(Self(bytes.into())),
        }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The key as text, if it is UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }
}

impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<&str> for Key {
    type Error = KeyError;

    fn try_from(text: &str) -> Result<Self, KeyError> {
        Self::new(text)
    }
}

impl TryFrom<String> for Key {
    type Error = KeyError;

    fn try_from(text: String) -> Result<Self, KeyError> {
        Self::new(text)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

/// An error in the length of a [`Key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The key is empty.
    #[error("a key has at least one byte")]
    Empty,
    /// The key is longer than [`MAX_KEY_BYTES`].
    #[error("a key of {len} bytes is longer than the limit of {MAX_KEY_BYTES}")]
    TooLong {
        /// The length of the key.
        len: usize,
    },
}

/// The beginning of a range of keys. The empty prefix matches every key; `/pods/a` also matches
/// `/pods/ab`, so end a prefix with the separator where that matters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Prefix(Bytes);

impl Prefix {
    /// Creates a prefix from bytes.
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        Self(bytes.into())
    }

    /// The prefix of every key.
    pub fn all() -> Self {
        Self::default()
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// True if `key` begins with the prefix.
    pub fn contains(&self, key: &Key) -> bool {
        key.0.starts_with(&self.0)
    }
}

impl From<&str> for Prefix {
    fn from(text: &str) -> Self {
        Self::new(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl From<String> for Prefix {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Prefix({self})")
    }
}

/// A set of writes that is applied atomically, if all its guards hold.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Txn {
    /// Conditions that must hold at the revision just before the commit; at most [`MAX_WRITES`].
    pub guards: Vec<Guard>,
    /// At most [`MAX_WRITES`] writes of at most [`MAX_COMMIT_BYTES`] together; no key twice.
    pub writes: Vec<Write>,
    /// The time after which the engine may delete what is put, for data that nobody needs for long.
    /// Engines of one process leave that to their user.
    pub lifetime: Option<Duration>,
    /// True if the commit is a step towards deleting something. On a full disk such commits may use
    /// the reserved space, and others are refused with [`NoSpace`](StoreError::NoSpace).
    pub reclaims: bool,
}

impl Txn {
    /// A transaction without guards and writes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a guard.
    #[must_use]
    pub fn guard(mut self, guard: Guard) -> Self {
        self.guards.push(guard);
        self
    }

    /// Adds a put.
    #[must_use]
    pub fn put(mut self, key: Key, value: impl Into<Bytes>) -> Self {
        self.writes.push(Write::Put {
            key,
            value: value.into(),
        });
        self
    }

    /// Adds a delete.
    #[must_use]
    pub fn delete(mut self, key: Key) -> Self {
        self.writes.push(Write::Delete { key });
        self
    }
}

impl Txn {
    /// Checks the limits of every engine.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let within = |limit: TxnLimit, size: usize| match size {
            size if size > limit.max() => Err(StoreError::TooLarge { limit, size }),
            _ => Ok(()),
        };
        within(TxnLimit::Guards, self.guards.len())?;
        within(TxnLimit::Writes, self.writes.len())?;
        let mut keys = BTreeSet::new();
        for write in &self.writes {
            if let Write::Put { value, .. } = write {
                within(TxnLimit::ValueBytes, value.len())?;
            }
            if !keys.insert(write.key()) {
                return Err(StoreError::DuplicateWrite {
                    key: write.key().clone(),
                });
            }
        }
        within(TxnLimit::CommitBytes, self.size())
    }

    /// The bytes of all keys and values that are written.
    pub(crate) fn size(&self) -> usize {
        let size = |write: &Write| match write {
            Write::Put { key, value } => key.0.len() + value.len(),
            Write::Delete { key } => key.0.len(),
        };
        self.writes.iter().map(size).sum()
    }
}

/// A condition that must hold for a commit to be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The key is absent: create.
    Absent(Key),
    /// The key is present, at any revision.
    Present(Key),
    /// The item at the key was last modified at the revision: compare and set.
    At {
        /// The key.
        key: Key,
        /// [`Item::modified`] of the item that the caller read.
        revision: Revision,
    },
    /// No item is under the prefix.
    NoneUnder(Prefix),
    /// No item is under the prefix except the one at `key`; that one, if present, was last modified
    /// at the revision.
    OnlyUnder {
        /// The prefix.
        prefix: Prefix,
        /// The key, normally under the prefix.
        key: Key,
        /// [`Item::modified`] of the item that the caller read.
        revision: Revision,
    },
    /// No item under the prefix was put after the revision. For decisions that depend on more keys
    /// than a commit can have guards.
    NoneNewerUnder {
        /// The prefix.
        prefix: Prefix,
        /// The revision of the list by which the caller decided.
        revision: Revision,
    },
    /// At most this many items are under the prefix.
    AtMostUnder {
        /// The prefix.
        prefix: Prefix,
        /// The number of items.
        items: usize,
    },
}

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Create or replace an item.
    Put {
        /// The key.
        key: Key,
        /// The new value, at most [`MAX_VALUE_BYTES`].
        value: Bytes,
    },
    /// Remove an item if it is present.
    Delete {
        /// The key.
        key: Key,
    },
}

impl Write {
    /// The key that is written.
    pub fn key(&self) -> &Key {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }
}

/// The answer to a commit that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitResult {
    /// The revision of the commit; the current revision if nothing changed.
    pub revision: Revision,
    /// For each write, in order, the item that it replaced or removed.
    pub previous: Vec<Option<Arc<Item>>>,
}

/// The parameters of a list.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ListQuery {
    /// The prefix of the keys.
    pub prefix: Prefix,
    /// The revision to read; `None` is the current one.
    pub at: Option<Revision>,
    /// Only keys after this one, to continue a list.
    pub after: Option<Key>,
    /// The most items to return; `None` is all.
    pub limit: Option<NonZeroUsize>,
}

/// A part of the store, or all of it, at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The revision that was read: the requested one, or else the current one.
    pub revision: Revision,
    /// The items, in key order.
    pub items: Vec<Arc<Item>>,
    /// The number of items under the prefix that come after these.
    pub remaining: usize,
}

/// A commit as a watch returns it: its events under the watched prefix, never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The revision. To resume a watch after this commit, pass it as `after`.
    pub revision: Revision,
    /// The events, in the order of the writes.
    pub events: Vec<KeyEvent>,
}

/// The effect of a commit on one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyEvent {
    /// The key was created or replaced.
    Put {
        /// The new item.
        item: Arc<Item>,
        /// The previous item; `None` if the key was created.
        previous: Option<Arc<Item>>,
    },
    /// The key was removed.
    Delete {
        /// The previous item.
        previous: Arc<Item>,
    },
}

impl KeyEvent {
    /// The key that changed.
    pub fn key(&self) -> &Key {
        match self {
            Self::Put { item, .. } => &item.key,
            Self::Delete { previous } => &previous.key,
        }
    }
}

/// The state of a store as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreStatus {
    /// A random id, assigned when the store is first opened, and a new one when it is restored from
    /// a backup. Revisions of stores with different ids are not comparable.
    pub id: Uuid,
    /// The revision that this store began with: [`FIRST_REVISION`], or, if it was restored, one
    /// higher than any that the stores before it gave out. An earlier revision belongs to another
    /// store.
    pub first: Revision,
    /// The revision of the last commit.
    pub current: Revision,
    /// The oldest revision that can be read, and after which a watch can begin.
    pub oldest: Revision,
    /// The number of keys that are present.
    pub keys: usize,
    /// Bytes of all keys and values, history included. They take less in memory, where values are
    /// compressed.
    pub memory_bytes: u64,
    /// The part of `memory_bytes` that only revisions before the current one can see.
    pub history_bytes: u64,
    /// Bytes on disk including the reserve; `None` for an engine in memory, or while they are not
    /// known.
    pub disk_bytes: Option<u64>,
}
