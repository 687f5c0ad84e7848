//! A cursor over the history.

use tokio::sync::watch;

use super::History;
use crate::{
    StoreError,
    store::{Commit, Prefix, Revision, Watch},
};

/// A watch of a store that keeps its history in memory. See [`Watch`].
pub struct HistoryWatch {
    history: watch::Receiver<History>,
    prefix: Prefix,
    position: Revision,
}

impl HistoryWatch {
    pub(crate) fn new(
        history: watch::Receiver<History>,
        prefix: Prefix,
        after: Revision,
    ) -> Result<Self, StoreError> {
        let current = history.borrow().current();
        if after > current {
            return Err(StoreError::Future {
                asked: after,
                current,
            });
        }
        history.borrow().next_after(after, &prefix)?;
        Ok(Self {
            history,
            prefix,
            position: after,
        })
    }
}

impl Watch for HistoryWatch {
    async fn next(&mut self) -> Result<Commit, StoreError> {
        loop {
            {
                // Marked as seen before it is read, so that a commit in between wakes the wait
                // below.
                let history = self.history.borrow_and_update();
                let (position, commit) = history.next_after(self.position, &self.prefix)?;
                self.position = position;
                if let Some(commit) = commit {
                    return Ok(commit);
                }
            }
            self.history
                .changed()
                .await
                .map_err(|_closed| StoreError::Unavailable)?;
        }
    }

    fn position(&self) -> Revision {
        self.position
    }
}

impl std::fmt::Debug for HistoryWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the history, which is the whole store.
        let Self {
            history: _,
            prefix,
            position,
        } = self;
        f.debug_struct("HistoryWatch")
            .field("prefix", prefix)
            .field("position", position)
            .finish()
    }
}
