//! The engine without persistence: for tests, and for clusters that need not outlive their process.

use std::sync::Arc;

use podplane_host::random;
use tokio::sync::watch;

use crate::{
    StoreError,
    history::{History, HistoryWatch, StagedCommits},
    store::{
        CommitResult, Item, Key, ListQuery, Prefix, Revision, Snapshot, Store, StoreStatus, Txn,
    },
};

/// A store in memory only. Its content is lost when it is dropped.
#[derive(Debug)]
pub struct MemStore {
    history: watch::Sender<History>,
}

impl MemStore {
    /// An empty store with an id of its own.
    pub fn new() -> Self {
        Self {
            history: watch::Sender::new(History::new(random::uuid())),
        }
    }
}

impl Default for MemStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Store for MemStore {
    type Watch = HistoryWatch;

    async fn commit(&self, txn: Txn) -> Result<CommitResult, StoreError> {
        txn.check()?;
        let mut answer = Err(StoreError::Unavailable);
        self.history.send_if_modified(|history| {
            let mut staged = StagedCommits::on(history);
            answer = staged.commit(txn);
            let commits = staged.into_commits();
            let changed = !commits.is_empty();
            for commit in commits {
                history.apply(commit);
            }
            changed
        });
        answer
    }

    async fn get(&self, key: &Key, at: Option<Revision>) -> Result<Option<Arc<Item>>, StoreError> {
        self.history.borrow().get(key, at)
    }

    async fn list(&self, query: ListQuery) -> Result<Snapshot, StoreError> {
        self.history.borrow().list(&query)
    }

    async fn watch(&self, prefix: Prefix, after: Revision) -> Result<HistoryWatch, StoreError> {
        HistoryWatch::new(self.history.subscribe(), prefix, after)
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        let mut answer = Ok(());
        self.history.send_if_modified(|history| {
            answer = history.compactable(revision).map(|needed| {
                if needed {
                    history.compact(revision);
                }
            });
            // Wakes the watchers that fell behind.
            answer.is_ok()
        });
        answer
    }

    async fn oldest_within(&self, history_bytes: u64) -> Result<Revision, StoreError> {
        Ok(self.history.borrow().oldest_within(history_bytes))
    }

    async fn maintain(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn current(&self) -> Result<Revision, StoreError> {
        Ok(self.history.borrow().current())
    }

    async fn status(&self) -> Result<StoreStatus, StoreError> {
        Ok(self.history.borrow().status(None))
    }
}
