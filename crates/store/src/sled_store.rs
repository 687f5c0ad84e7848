//! The embedded engine: one directory, one process, nothing to administer.

mod committer;
mod disk;
mod error;
mod generation;
mod load;
mod offline;
mod panics;
mod record;
mod rewrite;
mod space;
mod undo;
mod wal;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    thread::JoinHandle,
};

use podplane_host::{fs, task};
use tokio::sync::{mpsc, oneshot, watch};

use self::{
    committer::{Committer, CommitterReply, CommitterRequest},
    disk::StoreDisk,
    rewrite::Rewrites,
};
pub use self::{
    error::{Damage, OpenError, RestoreError},
    offline::{CheckReport, RestoreReport},
    record::FORMAT_VERSION,
};
use crate::{
    StoreError,
    history::{History, HistoryWatch},
    store::{
        CommitResult, Item, Key, ListQuery, Prefix, Revision, Snapshot, Store, StoreStatus, Txn,
    },
};
pub use panics::end_process_on_panic;

/// The length of the queue to the committer: four batches. When it is full, `commit` waits.
const QUEUED: usize = 1024;

/// A store in a directory. Each commit is on disk, synced, before it is acknowledged or visible;
/// concurrent commits share a sync.
///
/// All readable content is also in memory (see [`StoreStatus::memory_bytes`]); the disk is read
/// only when the store is opened. Dropping the store finishes all requests and waits for that,
/// normally a few milliseconds; watches then end with [`Unavailable`](StoreError::Unavailable).
#[derive(Debug)]
pub struct SledStore {
    dir: PathBuf,
    history: Arc<watch::Sender<History>>,
    /// `None` only in the destructor: dropping the sender ends the committer.
    requests: Option<mpsc::Sender<CommitterRequest>>,
    committer: Option<JoinHandle<()>>,
}

impl SledStore {
    /// Opens the store in `dir`, or creates one, readable by its owner only. Blocks: about 4 µs for
    /// each record.
    ///
    /// # Errors
    ///
    /// [`OpenError`], which names the problem of the directory and the remedy.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, OpenError> {
        let dir = dir.as_ref();
        let (disk, history, unreachable) = StoreDisk::open(dir)?;
        let history = Arc::new(watch::Sender::new(history));
        let (requests, queue) = mpsc::channel(QUEUED);
        let committer = Committer {
            disk,
            history: Arc::clone(&history),
            requests: queue,
            rewrites: Rewrites::new(requests.downgrade()),
            unreachable,
            poisoned_by: None,
        };
        let committer = task::thread(panics::COMMITTER, move || committer.run());
        let committer = committer.map_err(|source| OpenError::Io {
            dir: dir.to_owned(),
            step: "start the committer thread",
            source,
        })?;
        Ok(Self {
            dir: dir.to_owned(),
            history,
            requests: Some(requests),
            committer: Some(committer),
        })
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(CommitterReply<T>) -> CommitterRequest,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let requests = self.requests.as_ref().ok_or(StoreError::Unavailable)?;
        requests
            .send(request(reply))
            .await
            .map_err(|_closed| StoreError::Unavailable)?;
        answer.await.map_err(|_closed| StoreError::Unavailable)?
    }
}

impl Drop for SledStore {
    fn drop(&mut self) {
        drop(self.requests.take());
        if self
            .committer
            .take()
            .is_some_and(|committer| committer.join().is_err())
        {
            tracing::error!(dir = %self.dir.display(), "store committer panicked");
        }
    }
}

impl Store for SledStore {
    type Watch = HistoryWatch;

    async fn commit(&self, txn: Txn) -> Result<CommitResult, StoreError> {
        txn.check()?;
        self.ask(|reply| CommitterRequest::Commit { txn, reply })
            .await
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
        self.ask(|reply| CommitterRequest::Compact {
            oldest: revision,
            reply,
        })
        .await
    }

    async fn oldest_within(&self, history_bytes: u64) -> Result<Revision, StoreError> {
        Ok(self.history.borrow().oldest_within(history_bytes))
    }

    async fn maintain(&self) -> Result<(), StoreError> {
        self.ask(|reply| CommitterRequest::Maintain { reply }).await
    }

    async fn current(&self) -> Result<Revision, StoreError> {
        Ok(self.history.borrow().current())
    }

    async fn status(&self) -> Result<StoreStatus, StoreError> {
        let disk_bytes = disk_bytes(&self.dir).inspect_err(|error| {
            tracing::warn!(%error, dir = %self.dir.display(), "failed to read the size of the store");
        });
        Ok(self.history.borrow().status(disk_bytes.ok()))
    }
}

fn disk_bytes(dir: &Path) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        // sled replaces its snapshot files at any time, and a rewrite replaces all files.
        let found = match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => disk_bytes(&entry.path()),
            metadata => metadata.map(|metadata| metadata.blocks() * 512),
        };
        match found {
            Ok(found) => bytes += found,
            Err(err) if err.kind() == io::ErrorKind::NotFound => {}
            Err(err) => return Err(err),
        }
    }
    Ok(bytes)
}
