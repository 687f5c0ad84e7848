//! The engine for clusters: as many stateless servers as wanted, on one etcd.
//!
//! Each server mirrors the store in a history, as the other engines keep it, and feeds that by
//! one watch. Commits are transactions of etcd; reads are served from the mirror once it is as new
//! as etcd was when they began. ADR 0070 has the reasons.

mod commit;
mod fence;
mod freshness;
mod keys;
mod leases;
mod mirror;
mod outcome;
mod record;
mod request;
mod restore;

use std::{sync::Arc, time::Duration};

use podplane_etcd::{EtcdClient, EtcdConfigError, EtcdError, EtcdFlags};
use podplane_host::random;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use uuid::Uuid;

pub use self::restore::EtcdRestoreError;
use self::{fence::Fence, freshness::Freshness, keys::KeySpace, leases::Leases, mirror::Mirror};
use crate::{
    StoreError,
    history::HistoryWatch,
    store::{
        CommitResult, Item, Key, ListQuery, Prefix, Revision, Snapshot, Store, StoreStatus, Txn,
    },
};

/// The limit of a commit, with all attempts to find out whether it was applied.
const COMMIT_LIMIT: Duration = Duration::from_secs(15);

/// A store in etcd, under a prefix. Other processes may write to the same store.
///
/// Dropping it ends its watch of etcd; watches of it then end with
/// [`Unavailable`](StoreError::Unavailable).
#[derive(Debug)]
pub struct EtcdStore {
    client: EtcdClient,
    keys: Arc<KeySpace>,
    numbers: Numbers,
    mirror: Mirror,
    freshness: Freshness,
    leases: Leases,
    fence: Fence,
    /// Feeds the mirror. It ends when it is dropped, and the watches of the mirror with it.
    _follower: JoinSet<()>,
}

/// An error when a store in etcd is opened.
#[derive(Debug, thiserror::Error)]
pub enum EtcdOpenError {
    /// The flags.
    #[error(transparent)]
    Config(#[from] EtcdConfigError),
    /// etcd did not answer, or refused.
    #[error("failed to open the store in etcd")]
    Etcd(#[from] EtcdError),
    /// The watch that feeds the mirror does not come to etcd's revision.
    #[error("failed to read the changes of the store in etcd")]
    Behind(#[source] StoreError),
    /// There is no store under the prefix, and none is to be created.
    #[error("etcd has no store under {key}; name another --etcd-prefix")]
    Missing {
        /// The key in etcd.
        key: String,
    },
    /// A restore was cut short.
    #[error(
        "the restore to {key} in etcd was cut short: delete all keys under it, and restore again"
    )]
    Unfinished {
        /// The key in etcd.
        key: String,
    },
    /// The record of the store is not one of ours.
    #[error("{key} in etcd is not the record of a store: {why}; choose another --etcd-prefix")]
    NotAStore {
        /// The key in etcd.
        key: String,
        /// The problem with its value.
        why: String,
    },
}

/// The record of a store, made when it is first opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct StoreRecord {
    id: Uuid,
    /// Added to etcd's revisions. More than zero in a store that was restored, whose revisions must
    /// be higher than those that the stores before it gave out.
    offset: u64,
    /// It is being restored, and has not all items yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    restoring: bool,
}

/// The translation between etcd's revisions and ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Numbers {
    offset: u64,
}

impl Numbers {
    fn ours(self, etcd: i64) -> Revision {
        // etcd's revisions begin at 1.
        let number = u64::try_from(etcd).unwrap_or(1).saturating_add(self.offset);
        Revision::new(number).unwrap_or(crate::FIRST_REVISION)
    }

    /// At least 1: a revision from before the store reads as its beginning.
    fn etcds(self, ours: Revision) -> i64 {
        let number = ours.number().saturating_sub(self.offset).max(1);
        i64::try_from(number).unwrap_or(i64::MAX)
    }
}

impl EtcdStore {
    /// Opens the store under the prefix of the flags, or creates it, and reads all of it.
    ///
    /// # Errors
    ///
    /// [`EtcdOpenError`].
    pub async fn open(flags: &EtcdFlags) -> Result<Self, EtcdOpenError> {
        let client = EtcdClient::new(flags)?;
        let keys = KeySpace::new(&flags.etcd_prefix);
        let record = record::read_or_create(&client, &keys).await?;
        Self::of_record(client, keys, record).await
    }

    /// Opens the store under the prefix of the flags, which must be there.
    ///
    /// # Errors
    ///
    /// [`EtcdOpenError::Missing`], or as [`open`](Self::open).
    pub async fn open_existing(flags: &EtcdFlags) -> Result<Self, EtcdOpenError> {
        let client = EtcdClient::new(flags)?;
        let keys = KeySpace::new(&flags.etcd_prefix);
        let record = record::read(&client, &keys).await?;
        let missing = || EtcdOpenError::Missing {
            key: flags.etcd_prefix.clone(),
        };
        Self::of_record(client, keys, record.ok_or_else(missing)?).await
    }

    async fn of_record(
        client: EtcdClient,
        keys: KeySpace,
        (record, created): (StoreRecord, i64),
    ) -> Result<Self, EtcdOpenError> {
        let keys = Arc::new(keys);
        if record.restoring {
            return Err(EtcdOpenError::Unfinished {
                key: keys.prefix().to_owned(),
            });
        }
        let numbers = Numbers {
            offset: record.offset,
        };
        let first = numbers.ours(created);
        let mirror = Mirror::read(&client, &keys, numbers, record.id, first).await?;
        let freshness = Freshness::new();
        let follower = mirror.follow(client.clone(), Arc::clone(&keys), numbers, &freshness);
        let fence = Fence::new(keys.fence(random::uuid()));
        let store = Self {
            client,
            keys,
            numbers,
            mirror,
            freshness,
            leases: Leases::default(),
            fence,
            _follower: follower,
        };
        store.catch_up().await.map_err(EtcdOpenError::Behind)?;
        Ok(store)
    }

    /// Waits until reads are as new as every commit that was acknowledged, by whatever server,
    /// before the call. Returns the revision of the last one.
    async fn catch_up(&self) -> Result<Revision, StoreError> {
        let revision = self.freshness.revision(&self.client, &self.keys).await;
        let revision = self.numbers.ours(revision.map_err(unanswered)?);
        self.freshness
            .reached(&self.mirror, &self.client, &self.keys, revision)
            .await?;
        Ok(self.mirror.current())
    }
}

impl Store for EtcdStore {
    type Watch = HistoryWatch;

    const IS_SHARED: bool = true;

    async fn commit(&self, txn: Txn) -> Result<CommitResult, StoreError> {
        txn.check()?;
        self.commit_txn(&txn).await
    }

    async fn get(&self, key: &Key, at: Option<Revision>) -> Result<Option<Arc<Item>>, StoreError> {
        self.mirror.history().borrow().get(key, at)
    }

    async fn list(&self, query: ListQuery) -> Result<Snapshot, StoreError> {
        self.mirror.history().borrow().list(&query)
    }

    async fn watch(&self, prefix: Prefix, after: Revision) -> Result<HistoryWatch, StoreError> {
        HistoryWatch::new(self.mirror.history(), prefix, after)
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        if !self.mirror.compact(revision)? {
            return Ok(());
        }
        self.compact_etcd(revision).await
    }

    async fn oldest_within(&self, history_bytes: u64) -> Result<Revision, StoreError> {
        Ok(self.mirror.history().borrow().oldest_within(history_bytes))
    }

    async fn maintain(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn current(&self) -> Result<Revision, StoreError> {
        self.catch_up().await
    }

    async fn status(&self) -> Result<StoreStatus, StoreError> {
        // Not known while no member answers; all else is here.
        let disk = self.client.status().await.ok();
        let disk_bytes = disk.and_then(|disk| u64::try_from(disk.db_size).ok());
        Ok(self.mirror.history().borrow().status(disk_bytes))
    }
}

/// The error of a read, or of a write that was certainly not applied.
fn unanswered(error: EtcdError) -> StoreError {
    match error {
        EtcdError::NoAnswer { message } | EtcdError::NotConnected { message } => {
            StoreError::Unreachable { message }
        }
        EtcdError::NoSpace => StoreError::QuotaReached,
        other => StoreError::Refused {
            message: other.to_string(),
        },
    }
}
