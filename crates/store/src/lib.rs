//! The revisioned key space that holds every object of the control plane, and its engines.
//!
//! [`Store`] is the contract, in [`store`]; start reading there. [`MemStore`] keeps its data only
//! until it is dropped, for tests; [`SledStore`] acknowledges a commit once it is on disk;
//! [`EtcdStore`] is shared by several servers. All serve reads and watches from the same in-memory
//! history and pass the same contract suite (`tests/contract`).
//!
//! This crate knows nothing of Kubernetes: keys and values are bytes. It never blocks a writer on a
//! reader, and never acknowledges a commit that a crash can lose.

#![warn(missing_docs)]
#![forbid(unsafe_code)]

pub mod store;

mod backup;
mod error;
mod etcd_store;
mod history;
mod item;
mod mem_store;
mod sled_store;

pub use backup::{BACKUP_VERSION, BackupDamage, BackupInfo, back_up, verify_backup};
pub use error::{StoreError, TxnLimit};
pub use etcd_store::{EtcdOpenError, EtcdRestoreError, EtcdStore};
pub use history::HistoryWatch;
pub use mem_store::MemStore;
pub use sled_store::{
    CheckReport, Damage, FORMAT_VERSION, OpenError, RestoreError, RestoreReport, SledStore,
    end_process_on_panic,
};
pub use store::{
    Commit, CommitResult, FIRST_REVISION, Guard, Item, Key, KeyError, KeyEvent, ListQuery,
    MAX_COMMIT_BYTES, MAX_KEY_BYTES, MAX_VALUE_BYTES, MAX_WRITES, Prefix, Revision, Snapshot,
    Store, StoreStatus, Txn, Watch, Write,
};
