//! Why a directory could not be opened as a store.

use std::{io, path::PathBuf};

use crate::{
    BackupDamage, FORMAT_VERSION,
    store::{Key, Revision},
};

/// Why a store could not be opened, by what the operator can do about it.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process, or another store of this one, has it open.
    #[error(
        "store in {dir} is in use by another process; stop that one, or choose another directory"
    )]
    Locked {
        /// Where.
        dir: PathBuf,
    },
    /// It was written by another version of this program.
    #[error(
        "store in {dir} has format version {found}, and this program reads versions up to {FORMAT_VERSION}; \
         run the program that wrote it, or choose another directory"
    )]
    Format {
        /// Where.
        dir: PathBuf,
        /// The version that was found.
        found: u32,
    },
    /// What is there cannot be read, or is not all that was written.
    #[error(
        "store in {dir} is damaged: {damage}; restore the directory from a backup, \
         or remove it to begin with an empty store"
    )]
    Corrupt {
        /// Where.
        dir: PathBuf,
        /// What is wrong with it.
        damage: Damage,
    },
    /// There is none.
    #[error("there is no store in {dir}; name another directory")]
    Missing {
        /// Where.
        dir: PathBuf,
    },
    /// The file system said no.
    #[error("cannot {step} for the store in {dir}{}", advice(source))]
    Io {
        /// Where.
        dir: PathBuf,
        /// What was tried.
        step: &'static str,
        /// What was said.
        #[source]
        source: io::Error,
    },
}

/// Why a backup was not restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// Something is there already.
    #[error("{dir} is not empty; name another directory, or move what is there away")]
    NotEmpty {
        /// Where.
        dir: PathBuf,
    },
    /// The backup cannot be used.
    #[error("the backup cannot be restored")]
    Backup(#[from] BackupDamage),
    /// The new store cannot be written.
    #[error(transparent)]
    Store(#[from] OpenError),
}

/// What is wrong with a damaged store.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// sled reports it.
    #[error("the database cannot be read ({0})")]
    Unreadable(sled::Error),
    /// sled panicked.
    #[error("the database cannot be read (sled panicked: {0})")]
    Panicked(String),
    /// A database of something else, or one that lost its beginning.
    #[error("the database lacks a valid {0:?} record")]
    NoMeta(&'static str),
    /// A record that this program cannot have written.
    #[error("the record {0} is not a valid one")]
    Record(String),
    /// Not all of a split value is there.
    #[error("the value of {key} at revision {revision} has {found} of {of} bytes")]
    Value {
        /// Of which key.
        key: Key,
        /// Of which commit.
        revision: Revision,
        /// How many are there.
        found: usize,
        /// How many there were.
        of: usize,
    },
    /// A record that contradicts an earlier one.
    #[error("the record of {key} at revision {revision} does not say when it was created")]
    Created {
        /// Of which key.
        key: Key,
        /// Of which commit.
        revision: Revision,
    },
    /// Not all changes of a commit are there.
    #[error("the commit of revision {revision} has {found} of {of} changes")]
    Torn {
        /// Which commit.
        revision: Revision,
        /// How many are there.
        found: u32,
        /// How many there were.
        of: u32,
    },
    /// A commit is missing between two others.
    #[error("the commit before revision {before} is missing")]
    Missing {
        /// The next one that is there.
        before: Revision,
    },
    /// The end is missing.
    #[error("it ends at revision {found}, although it had reached {reached}")]
    Truncated {
        /// The last commit that is there.
        found: Revision,
        /// What it is known to have held.
        reached: Revision,
    },
    /// Values outside the file that is synced.
    #[error("blobs/ is not empty, and what is there is not safe from a power cut")]
    Blobs,
}

/// What to do about it, where that is known.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem => {
            "; its file system is mounted read-only: mount it for writing"
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; its disk is full: make space, nothing is lost"
        }
        io::ErrorKind::PermissionDenied => "; run as the user whose store it is",
        _ => "",
    }
}
