//! The single writer thread. It commits in groups: it drains the queue and makes one sync for all
//! commits that it found there.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};

use super::{
    disk::StoreDisk,
    load::StoreMeta,
    rewrite::{RewriteCopy, RewriteError, Rewrites},
    space::FreeSpace,
};
use crate::{
    StoreError,
    history::{History, StagedCommits, UnreachableChange},
    store::{CommitResult, Revision, Txn},
};

/// The maximum number of commits that share one sync.
const MAX_BATCH_COMMITS: usize = 256;
/// Half a sled segment. A batch is closed once it reaches this size, so it may exceed it by one
/// commit.
const MAX_BATCH_BYTES: usize = 4 * 1024 * 1024;

pub(super) type CommitterReply<T> = oneshot::Sender<Result<T, StoreError>>;

/// A request to the writer thread.
#[derive(Debug)]
pub(super) enum CommitterRequest {
    /// Check the guards and apply the writes.
    Commit {
        txn: Txn,
        reply: CommitterReply<CommitResult>,
    },
    /// Drop the history that only revisions before `oldest` can see.
    Compact {
        oldest: Revision,
        reply: CommitterReply<()>,
    },
    /// Grow the reserve, remove compacted history from disk, and begin a rewrite if it is worth
    /// it. Sent every few seconds.
    Maintain { reply: CommitterReply<()> },
    /// Finish a rewrite, which has copied all but the last records: copy these and go on with the
    /// new database. If the copy failed, clean up.
    Switch {
        copied: Result<RewriteCopy, RewriteError>,
    },
}

/// The writer's state. It is healthy until the first failed write, and from then on poisoned: every
/// request that must write is answered with that error, and [`run`](Self::run) abandons the disk
/// instead of closing it. Only opening the store again ends this state.
#[derive(Debug)]
pub(super) struct Committer {
    pub(super) disk: StoreDisk,
    pub(super) history: Arc<watch::Sender<History>>,
    pub(super) requests: mpsc::Receiver<CommitterRequest>,
    pub(super) rewrites: Rewrites,
    /// Compacted changes that are still to be removed from disk, in the order of their records.
    pub(super) unreachable: Vec<UnreachableChange>,
    /// The error of the first failed write. Nothing is written after it, because the state on disk
    /// is unknown.
    pub(super) poisoned_by: Option<StoreError>,
}

impl Committer {
    /// Serves requests until every sender is dropped, then closes the disk.
    ///
    /// Commits are gathered into a batch; other requests are executed at once, and so overtake the
    /// commits gathered before them. That is safe because a gathered commit is neither decided nor
    /// written, and its sender has no answer that could order it before the other request:
    /// - a compaction concerns published revisions only, and refuses a revision that a gathered
    ///   commit might still get as one that has not happened yet;
    /// - maintenance changes no revision, and the space for the batch is checked after it;
    /// - a switch finds all published commits in the old database, and the batch is written to the
    ///   new one;
    /// - if one of them poisons the store, no commit of the batch is written.
    pub(super) fn run(mut self) {
        // A failure poisons the store; the next writer gets the error.
        _ = self.remove_unreachable();
        while let Some(first) = self.requests.blocking_recv() {
            let mut commits = Vec::new();
            let mut bytes = 0;
            let mut next = Some(first);
            while let Some(request) = next {
                match request {
                    CommitterRequest::Commit { txn, reply } => {
                        bytes += txn.size();
                        commits.push((txn, reply));
                    }
                    CommitterRequest::Compact { oldest, reply } => {
                        let result = self.compact(oldest);
                        send_reply(reply, result);
                    }
                    CommitterRequest::Maintain { reply } => {
                        self.maintain();
                        send_reply(reply, Ok(()));
                    }
                    CommitterRequest::Switch { copied } => self.switch(copied),
                }
                let batch_is_full = commits.len() >= MAX_BATCH_COMMITS || bytes >= MAX_BATCH_BYTES;
                next = if batch_is_full {
                    None
                } else {
                    self.requests.try_recv().ok()
                };
            }
            self.commit(commits);
        }
        let Self {
            disk,
            history,
            requests: _,
            rewrites,
            unreachable: _,
            poisoned_by,
        } = self;
        rewrites.stop();
        if poisoned_by.is_some() {
            return disk.abandon();
        }
        let last_revision = history.borrow().current();
        if let Err(error) = disk.close(last_revision) {
            tracing::error!(%error, "failed to close the store; all acknowledged commits were already on disk");
        }
    }

    /// Decides each commit, writes the accepted ones, publishes them to readers, then replies.
    /// Refusals are sent after the write too: one may be due to an earlier commit of this batch,
    /// which counts only once it is durable.
    fn commit(&mut self, batch: Vec<(Txn, CommitterReply<CommitResult>)>) {
        if batch.is_empty() {
            return;
        }
        let space = self.space_for(&batch);
        let mut replies = Vec::with_capacity(batch.len());
        let commits = {
            let history = self.history.borrow();
            let mut staged = StagedCommits::on(&history);
            for (txn, reply) in batch {
                let decided = match space.refusal(txn.reclaims) {
                    Some(refusal) => Err(refusal),
                    None => staged.commit(txn),
                };
                replies.push((decided, reply));
            }
            staged.into_commits()
        };
        let written = if commits.is_empty() {
            Ok(())
        } else {
            self.poison_on_failure(|disk| disk.write(&commits, &space))
        };
        if written.is_ok() && !commits.is_empty() {
            self.history.send_modify(|history| {
                for commit in commits {
                    history.apply(commit);
                }
            });
        }
        // The reserve may have been shrunk for this batch.
        if let FreeSpace::ReclaimOnly(_) = space {
            self.disk.grow_reserve();
        }
        for (decided, reply) in replies {
            // A failed write is the answer to every commit of the batch.
            send_reply(reply, written.clone().and(decided));
        }
    }

    /// Returns the space for a batch; [`space`](super::space) explains the reserve.
    fn space_for(&self, batch: &[(Txn, CommitterReply<CommitResult>)]) -> FreeSpace {
        if self.poisoned_by.is_some() {
            // Not checked: `poison_on_failure` refuses the batch anyway, with the error that
            // poisoned the store.
            return FreeSpace::Enough;
        }
        let bytes = batch.iter().map(|(txn, _)| txn.size()).sum();
        let reclaiming = batch.iter().filter(|(txn, _)| txn.reclaims);
        let reclaiming = reclaiming.map(|(txn, _)| txn.size());
        // `None`, and not zero bytes, if no commit of the batch reclaims.
        let reclaiming = reclaiming.reduce(|a, b| a + b);
        self.disk.space_for(bytes, reclaiming)
    }

    fn compact(&mut self, oldest: Revision) -> Result<(), StoreError> {
        if !self.history.borrow().compactable(oldest)? {
            return Ok(());
        }
        // Compaction frees space, but writes the new oldest revision first, so it needs some.
        if self.poisoned_by.is_none()
            && let Some(refusal) = self.disk.space_for(0, Some(0)).refusal(true)
        {
            return Err(refusal);
        }
        self.poison_on_failure(|disk| disk.write_oldest(oldest))?;
        let mut unreachable = Vec::new();
        self.history
            .send_modify(|history| unreachable = history.compact(oldest));
        self.rewrites.removed(&unreachable);
        self.unreachable.extend(unreachable);
        self.unreachable.sort_unstable_by_key(|change| change.id);
        self.remove_unreachable()
    }

    /// Removes compacted changes from disk. Stops when the disk is too full for the deletions;
    /// [`maintain`](Self::maintain) continues later.
    fn remove_unreachable(&mut self) -> Result<(), StoreError> {
        let unreachable = std::mem::take(&mut self.unreachable);
        let mut remaining = unreachable.as_slice();
        while !remaining.is_empty() {
            let space = self.disk.space_for(0, Some(0));
            if let FreeSpace::None(error) = space {
                tracing::debug!(%error, "disk is full; compacted history will be removed when there is space");
                self.unreachable = remaining.to_vec();
                break;
            }
            self.poison_on_failure(|disk| {
                remaining = disk.remove_unreachable(remaining)?;
                Ok(())
            })?;
            if let FreeSpace::ReclaimOnly(_) = space {
                self.disk.grow_reserve();
            }
        }
        Ok(())
    }

    fn maintain(&mut self) {
        if self.poisoned_by.is_none() {
            self.disk.grow_reserve();
            // A failure poisons the store; the next writer gets the error.
            _ = self.remove_unreachable();
            let memory_bytes = self.history.borrow().status(None).memory_bytes;
            self.rewrites.consider(&self.disk, memory_bytes);
        }
    }

    fn switch(&mut self, copied: Result<RewriteCopy, RewriteError>) {
        let room = match self.disk.space_for(0, Some(0)) {
            FreeSpace::None(error) => Err(error),
            FreeSpace::Enough | FreeSpace::ReclaimOnly(_) => Ok(()),
        };
        let copied = match room.and_then(|()| self.poison_on_failure(StoreDisk::settle_before)) {
            // The old database may hold a part of a failed write, and so may the copy, which is
            // given up.
            Err(_) => copied.and_then(RewriteCopy::abandon),
            Ok(()) => copied,
        };
        let status = self.history.borrow().status(None);
        let meta = StoreMeta {
            id: status.id,
            first: status.first,
            oldest: status.oldest,
        };
        let Self { disk, rewrites, .. } = self;
        let switched = rewrites.switch(copied, disk, meta, status.memory_bytes);
        // After this failure it is unknown which of the two databases the next start opens.
        if let Err(error) = switched {
            self.poisoned_by = Some(error);
        }
    }

    /// Calls `write`, whose failure poisons the store; does nothing if the store is poisoned.
    ///
    /// # Errors
    ///
    /// The error of `write`, or of the write that poisoned the store before.
    fn poison_on_failure(
        &mut self,
        write: impl FnOnce(&mut StoreDisk) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        if let Some(error) = &self.poisoned_by {
            return Err(error.clone());
        }
        write(&mut self.disk).inspect_err(|error| {
            let cause = std::error::Error::source(error).map(ToString::to_string);
            tracing::error!(%error, cause, "store failed to write; it takes no more commits");
            self.poisoned_by = Some(error.clone());
        })
    }
}

fn send_reply<T>(reply: CommitterReply<T>, result: Result<T, StoreError>) {
    // The caller may have been dropped; the decision stands.
    let _ = reply.send(result);
}
