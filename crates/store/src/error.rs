//! Why a store said no, by what the caller can do about it.

use std::{io, path::PathBuf, sync::Arc};

use crate::store::{Key, Revision};

/// Why an operation on a store was refused, or failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// A guard did not hold; nothing was written. Read again, decide again.
    #[error("{key} is {}, which guard {guard} of the commit does not allow", at(*.current))]
    Conflict {
        /// Which of [`Txn::guards`](crate::Txn::guards), counted from zero.
        guard: usize,
        /// The key that it failed on; for [`Guard::NoneUnder`](crate::Guard::NoneUnder) and [`Guard::OnlyUnder`](crate::Guard::OnlyUnder) the
        /// first one found there that should not be.
        key: Key,
        /// When that key was last modified; `None` if it is absent.
        current: Option<Revision>,
    },
    /// The revision is before the history that is kept. List again, then watch from there.
    #[error("revision has been compacted; the oldest is {oldest}")]
    Compacted {
        /// The oldest that can be read, and after which a watch can begin.
        oldest: Revision,
    },
    /// The revision has not happened in this store.
    #[error("revision {asked} is in the future; the current one is {current}")]
    Future {
        /// What was asked for.
        asked: Revision,
        /// The last commit.
        current: Revision,
    },
    /// A limit of the store; nothing was written. Make it smaller.
    #[error("{limit} of {size} is over the limit of {}", limit.max())]
    TooLarge {
        /// Which limit.
        limit: Limit,
        /// What was given.
        size: usize,
    },
    /// One commit writes a key twice; nothing was written.
    #[error("commit writes {key} twice")]
    DuplicateWrite {
        /// The key.
        key: Key,
    },
    /// The disk is full; nothing was written. Reads go on; try again when there is space.
    #[error("no space left for the store in {dir}: {free_bytes} bytes free, {needed_bytes} needed")]
    NoSpace {
        /// Where.
        dir: PathBuf,
        /// What is free.
        free_bytes: u64,
        /// What must be free for a commit to begin.
        needed_bytes: u64,
    },
    /// The store is closed.
    #[error("store is closed")]
    Unavailable,
    /// Writing failed, so that what is on disk is not known. Reads go on; open the store again to write.
    #[error("store in {dir} takes no more writes until it is opened again, because {step} failed")]
    Poisoned {
        /// Where.
        dir: PathBuf,
        /// What failed first.
        step: &'static str,
        /// How.
        #[source]
        source: Arc<io::Error>,
    },
}

impl StoreError {
    /// Whether a guard did not hold.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict { .. })
    }

    /// Whether the revision is too old.
    pub fn is_compacted(&self) -> bool {
        matches!(self, Self::Compacted { .. })
    }
}

/// What can be too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The bytes of a value: [`MAX_VALUE_BYTES`](crate::MAX_VALUE_BYTES).
    ValueBytes,
    /// The bytes that a commit writes: [`MAX_COMMIT_BYTES`](crate::MAX_COMMIT_BYTES).
    CommitBytes,
    /// The writes of a commit: [`MAX_WRITES`](crate::MAX_WRITES).
    Writes,
    /// The guards of a commit: [`MAX_WRITES`](crate::MAX_WRITES).
    Guards,
}

impl Limit {
    /// The largest that is allowed.
    pub fn max(self) -> usize {
        match self {
            Self::ValueBytes => crate::MAX_VALUE_BYTES,
            Self::CommitBytes => crate::MAX_COMMIT_BYTES,
            Self::Writes | Self::Guards => crate::MAX_WRITES,
        }
    }
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::ValueBytes => "number of bytes in a value",
            Self::CommitBytes => "number of bytes in a commit",
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
