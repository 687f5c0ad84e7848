//! Errors of opening and restoring a store.

use std::{io, path::PathBuf};

use crate::{
    BackupDamage, FORMAT_VERSION,
    store::{Key, Revision},
};

/// An error of opening a store, by what the operator can do about it.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process, or another store of this process, has it open.
    #[error(
        "store in {dir} is in use by another process; stop that one, or choose another directory"
    )]
    Locked {
        /// The directory.
        dir: PathBuf,
    },
    /// The store was written by another version of this program.
    #[error(
        "store in {dir} has format version {found}, and this program reads versions up to {FORMAT_VERSION}; \
         run the program that wrote it, or choose another directory"
    )]
    Format {
        /// The directory.
        dir: PathBuf,
        /// The version of the store.
        found: u32,
    },
    /// The content cannot be read, or is incomplete.
    #[error(
        "store in {dir} is damaged: {damage}; restore the directory from a backup, \
         or remove it to begin with an empty store"
    )]
    Corrupt {
        /// The directory.
        dir: PathBuf,
        /// The damage.
        damage: Damage,
    },
    /// The directory has no store.
    #[error("there is no store in {dir}; name another directory")]
    Missing {
        /// The directory.
        dir: PathBuf,
    },
    /// The file system returned an error.
    #[error("failed to {step} for the store in {dir}{}", advice(source))]
    Io {
        /// The directory.
        dir: PathBuf,
        /// The step that failed.
        step: &'static str,
        /// The error.
        #[source]
        source: io::Error,
    },
}

/// An error of restoring a backup.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The directory is not empty.
    #[error("{dir} is not empty; name another directory, or move its content away")]
    NotEmpty {
        /// The directory.
        dir: PathBuf,
    },
    /// The backup cannot be used.
    #[error("failed to restore the backup")]
    Backup(#[from] BackupDamage),
    /// The new store cannot be written.
    #[error(transparent)]
    Store(#[from] OpenError),
}

/// A kind of damage of a store.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// sled reports an error.
    #[error("the database cannot be read ({0})")]
    Unreadable(sled::Error),
    /// sled panicked.
    #[error("the database cannot be read (sled panicked: {0})")]
    Panicked(String),
    /// The database is not a store, or lost its beginning.
    #[error("the database lacks a valid {0:?} record")]
    NoMeta(&'static str),
    /// The record cannot have been written by this program.
    #[error("invalid record {0}")]
    Record(String),
    /// A split value is incomplete.
    #[error("the value of {key} at revision {revision} has {found} of {of} bytes")]
    Value {
        /// The key.
        key: Key,
        /// The revision of the commit.
        revision: Revision,
        /// The bytes that are there.
        found: usize,
        /// The bytes of the whole value.
        of: usize,
    },
    /// A record contradicts an earlier one.
    #[error("the record of {key} at revision {revision} does not say when it was created")]
    Created {
        /// The key.
        key: Key,
        /// The revision of the commit.
        revision: Revision,
    },
    /// A commit is incomplete.
    #[error("the commit of revision {revision} has {found} of {of} changes")]
    Torn {
        /// The revision of the commit.
        revision: Revision,
        /// The number of changes that are there.
        found: u32,
        /// The number of changes of the commit.
        of: u32,
    },
    /// A commit is missing between two others.
    #[error("the commit before revision {before} is missing")]
    Missing {
        /// The next commit that is there.
        before: Revision,
    },
    /// The end of the history is missing.
    #[error("it ends at revision {found}, although it had reached {reached}")]
    Truncated {
        /// The last commit that is there.
        found: Revision,
        /// The revision that the store is known to have reached.
        reached: Revision,
    },
    /// The log has a frame that is whole behind one that is not.
    #[error("the log cannot be read before revision {before}")]
    Log {
        /// The first commit of the frame.
        before: Revision,
    },
    /// There are values outside the file that is synced.
    #[error("blobs/ is not empty, and a power cut can damage its files")]
    Blobs,
}

/// Advice for the operator, for the errors that have one.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem => {
            "; its file system is mounted read-only: mount it for writing"
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; its disk is full: make space, nothing is lost"
        }
        io::ErrorKind::PermissionDenied => "; run as the user that owns the store",
        _ => "",
    }
}
