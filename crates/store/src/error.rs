//! Errors of store operations, by what the caller can do about them.

use std::{io, path::PathBuf, sync::Arc};

use crate::store::{Key, Revision};

/// An error of a store operation.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// A guard did not hold; nothing was written. Read again and decide again.
    #[error("{key} is {}, which guard {guard} of the commit does not allow", at(*.current))]
    Conflict {
        /// The index in [`Txn::guards`](crate::Txn::guards), from zero.
        guard: usize,
        /// The key for which it failed; for [`Guard::NoneUnder`](crate::Guard::NoneUnder) and
        /// [`Guard::OnlyUnder`](crate::Guard::OnlyUnder) the first unexpected one under the prefix,
        /// for [`Guard::AtMostUnder`](crate::Guard::AtMostUnder) the one that was modified last.
        key: Key,
        /// When that key was last modified; `None` if it is absent.
        current: Option<Revision>,
    },
    /// The revision is older than the retained history. List again, then watch from there.
    #[error("revision has been compacted; the oldest is {oldest}")]
    Compacted {
        /// The oldest revision that can be read, and after which a watch can begin.
        oldest: Revision,
    },
    /// The revision has not happened yet in this store.
    #[error("revision {asked} is in the future; the current one is {current}")]
    Future {
        /// The requested revision.
        asked: Revision,
        /// The revision of the last commit.
        current: Revision,
    },
    /// A limit of the store was exceeded; nothing was written.
    #[error("{limit} of {size} is over the limit of {}", limit.max())]
    TooLarge {
        /// The limit.
        limit: TxnLimit,
        /// The size or count of the request.
        size: usize,
    },
    /// One commit writes a key twice; nothing was written.
    #[error("commit writes {key} twice")]
    DuplicateWrite {
        /// The key that is written twice.
        key: Key,
    },
    /// The disk is full; nothing was written. Reads go on; try again when there is space.
    #[error("no space left for the store in {dir}: {free_bytes} bytes free, {needed_bytes} needed")]
    NoSpace {
        /// The directory of the store.
        dir: PathBuf,
        /// The free space.
        free_bytes: u64,
        /// The space that a commit needs.
        needed_bytes: u64,
    },
    /// etcd's database has reached its quota; nothing was written. Reads and deletes go on.
    #[error(
        "etcd takes no more data: its database has reached the quota; compact and defragment it, then disarm the alarm NOSPACE"
    )]
    QuotaReached,
    /// The machines of the store do not answer; nothing was written. Try again.
    #[error("the store cannot be reached: {message}")]
    Unreachable {
        /// The last error.
        message: String,
    },
    /// No answer came to a commit, and it could not be found out in time if it was applied. Read
    /// before trying again.
    #[error("the outcome of the write is not known: {message}")]
    UnknownOutcome {
        /// The last error.
        message: String,
    },
    /// The store refused the request, for example for want of rights; nothing was written.
    #[error("the store refused the request: {message}")]
    Refused {
        /// The store's words.
        message: String,
    },
    /// The store is closed.
    #[error("store is closed")]
    Unavailable,
    /// A write failed, so the state on disk is unknown. Reads go on; open the store again to write.
    #[error("store in {dir} takes no more writes until it is opened again, because {step} failed")]
    Poisoned {
        /// The directory of the store.
        dir: PathBuf,
        /// The step that failed.
        step: &'static str,
        /// The error of that step.
        #[source]
        source: Arc<io::Error>,
    },
}

impl StoreError {
    /// True if a guard did not hold.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict { .. })
    }

    /// True if the requested revision has been compacted.
    pub fn is_compacted(&self) -> bool {
        matches!(self, Self::Compacted { .. })
    }
}

/// A limit of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxnLimit {
    /// Bytes of a value: [`MAX_VALUE_BYTES`](crate::MAX_VALUE_BYTES).
    ValueBytes,
    /// Bytes that a commit writes: [`MAX_COMMIT_BYTES`](crate::MAX_COMMIT_BYTES).
    CommitBytes,
    /// Bytes of a commit that this etcd takes: its `--max-request-bytes`, 1.5 MiB by default.
    EngineBytes,
    /// Writes in a commit: [`MAX_WRITES`](crate::MAX_WRITES).
    Writes,
    /// Guards in a commit: [`MAX_WRITES`](crate::MAX_WRITES).
    Guards,
}

impl TxnLimit {
    /// The largest value allowed.
    pub fn max(self) -> usize {
        match self {
            Self::ValueBytes | Self::EngineBytes => crate::MAX_VALUE_BYTES,
            Self::CommitBytes => crate::MAX_COMMIT_BYTES,
            Self::Writes | Self::Guards => crate::MAX_WRITES,
        }
    }
}

impl std::fmt::Display for TxnLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::ValueBytes => "number of bytes in a value",
            Self::CommitBytes | Self::EngineBytes => "number of bytes in a commit",
            Self::Writes => "number of writes in a commit",
            Self::Guards => "number of guards in a commit",
        })
    }
}

fn at(current: Option<Revision>) -> String {
    current.map_or_else(
        || "absent".to_owned(),
        |revision| format!("at revision {revision}"),
    )
}
