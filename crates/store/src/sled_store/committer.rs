//! The one thread that writes: it takes what has queued up meanwhile, and pays for one sync for all of it.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};

use super::{
    disk::Disk,
    load::Meta,
    rewrite::{Copied, RewriteError, Rewrites},
    space::Room,
};
use crate::{
    StoreError,
    history::{History, Staged, Unreachable},
    store::{Committed, Revision, Txn},
};

/// The most commits that share one sync.
const MAX_BATCH: usize = 256;
/// No more commits join a batch that has reached this size: half a segment.
const MAX_BATCH_BYTES: usize = 4 * 1024 * 1024;

pub(super) type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

#[derive(Debug)]
pub(super) enum Request {
    Commit {
        txn: Txn,
        reply: Reply<Committed>,
    },
    Compact {
        oldest: Revision,
        reply: Reply<()>,
    },
    /// Look whether space can be given back.
    Maintain {
        reply: Reply<()>,
    },
    /// A rewrite has copied all but the rest.
    Switch {
        copied: Result<Copied, RewriteError>,
    },
}

#[derive(Debug)]
pub(super) struct Committer {
    pub(super) disk: Disk,
    pub(super) history: Arc<watch::Sender<History>>,
    pub(super) requests: mpsc::Receiver<Request>,
    pub(super) rewrites: Rewrites,
    /// What was compacted and is to be removed from disk, in the order in which it is there.
    pub(super) unreachable: Vec<Unreachable>,
    /// The first failure to write. Nothing is written after it, because what it left on disk is not known.
    pub(super) poison: Option<StoreError>,
}

impl Committer {
    /// Serves until every sender of requests is gone, then closes the disk.
    pub(super) fn run(mut self) {
        // A failure poisons the store, which whoever writes first is told.
        _ = self.remove_unreachable();
        while let Some(first) = self.requests.blocking_recv() {
            let mut commits = Vec::new();
            let mut bytes = 0;
            let mut next = Some(first);
            while let Some(request) = next {
                match request {
                    Request::Commit { txn, reply } => {
                        bytes += txn.size();
                        commits.push((txn, reply));
                    }
                    Request::Compact { oldest, reply } => {
                        let answer = self.compact(oldest);
                        answer_to(reply, answer);
                    }
                    Request::Maintain { reply } => {
                        self.maintain();
                        answer_to(reply, Ok(()));
                    }
                    Request::Switch { copied } => self.switch(copied),
                }
                let full = commits.len() >= MAX_BATCH || bytes >= MAX_BATCH_BYTES;
                next = if full {
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
            poison,
        } = self;
        rewrites.stop();
        if poison.is_some() {
            return disk.abandon();
        }
        let reached = history.borrow().current();
        if let Err(error) = disk.close(reached) {
            tracing::error!(%error, "closing the store failed; everything acknowledged was already on disk");
        }
    }

    /// Decides, writes, publishes, and only then answers; a refusal too, for it may rest on a commit of the same batch.
    fn commit(&mut self, batch: Vec<(Txn, Reply<Committed>)>) {
        if batch.is_empty() {
            return;
        }
        let room = self.room(&batch);
        let mut replies = Vec::with_capacity(batch.len());
        let commits = {
            let history = self.history.borrow();
            let mut staged = Staged::on(&history);
            for (txn, reply) in batch {
                let decided = match room.refusal(txn.reclaims) {
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
            self.poison_on_failure(|disk| disk.write(&commits))
        };
        if written.is_ok() && !commits.is_empty() {
            self.history.send_modify(|history| {
                for commit in commits {
                    history.apply(commit);
                }
            });
        }
        if let Room::Little(_) = room {
            self.disk.keep_reserve();
        }
        for (answer, reply) in replies {
            answer_to(reply, written.clone().and(answer));
        }
    }

    fn room(&self, batch: &[(Txn, Reply<Committed>)]) -> Room {
        if self.poison.is_some() {
            // Refused for another reason.
            return Room::Enough;
        }
        let bytes = batch.iter().map(|(txn, _)| txn.size()).sum();
        let reclaiming = batch.iter().filter(|(txn, _)| txn.reclaims);
        let reclaiming = reclaiming.map(|(txn, _)| txn.size());
        self.disk.room(bytes, reclaiming.reduce(|a, b| a + b))
    }

    fn compact(&mut self, oldest: Revision) -> Result<(), StoreError> {
        if !self.history.borrow().compactable(oldest)? {
            return Ok(());
        }
        // Compacting makes some room, and needs a little.
        if self.poison.is_none()
            && let Some(refusal) = self.disk.room(0, Some(0)).refusal(true)
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

    /// Removes what was compacted, as far as there is room for what that writes.
    fn remove_unreachable(&mut self) -> Result<(), StoreError> {
        let unreachable = std::mem::take(&mut self.unreachable);
        let mut left = unreachable.as_slice();
        while !left.is_empty() {
            let room = self.disk.room(0, Some(0));
            if let Room::None(error) = room {
                tracing::debug!(%error, "history is removed from disk when there is space");
                self.unreachable = left.to_vec();
                break;
            }
            self.poison_on_failure(|disk| {
                left = disk.remove_unreachable(left)?;
                Ok(())
            })?;
            if let Room::Little(_) = room {
                self.disk.keep_reserve();
            }
        }
        Ok(())
    }

    fn maintain(&mut self) {
        if self.poison.is_none() {
            self.disk.keep_reserve();
            // A failure poisons the store, which whoever writes next is told.
            _ = self.remove_unreachable();
            let held = self.history.borrow().status(None).memory_bytes;
            self.rewrites.consider(&self.disk, held);
        }
    }

    fn switch(&mut self, copied: Result<Copied, RewriteError>) {
        let copied = match self.poison {
            // What the old database has is not known, so it must not be copied.
            Some(_) => copied.and_then(Copied::abandon),
            None => copied,
        };
        let status = self.history.borrow().status(None);
        let meta = Meta {
            id: status.id,
            first: status.first,
            oldest: status.oldest,
        };
        let Self { disk, rewrites, .. } = self;
        let switched = rewrites.switch(copied, disk, meta, status.memory_bytes);
        // Which of the two counts is not known.
        if let Err(error) = switched {
            self.poison = Some(error);
        }
    }

    fn poison_on_failure(
        &mut self,
        write: impl FnOnce(&Disk) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        if let Some(poison) = &self.poison {
            return Err(poison.clone());
        }
        write(&self.disk).inspect_err(|error| {
            let cause = std::error::Error::source(error).map(ToString::to_string);
            tracing::error!(%error, cause, "store failed to write; it takes no more commits");
            self.poison = Some(error.clone());
        })
    }
}

fn answer_to<T>(reply: Reply<T>, answer: Result<T, StoreError>) {
    // Whoever asked may have gone; what was decided stands.
    let _ = reply.send(answer);
}
