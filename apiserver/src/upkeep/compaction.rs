//! Compaction: the limits of the kept history.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use podplane_host::{
    clock::{self, Instant},
    task::spawn_blocking,
};
use podplane_store::{Revision, StoreError, StoreStatus};

use super::Upkeep;
use crate::memory;

/// The time for which a client may be away, or read a list page by page, without having to start
/// over.
const KEEP: Duration = Duration::from_secs(5 * 60);
/// The number of commits that a quiet cluster keeps, however old.
const KEEP_COMMITS: u64 = 1_000;
/// The maximum number of commits that a busy cluster keeps; each takes some hundred bytes of memory
/// besides what it wrote.
const MOST_COMMITS: u64 = 100_000;
/// The interval of compactions by age.
const EVERY: Duration = Duration::from_secs(10);
/// The interval of compactions by size, while writes go on.
const EVERY_WHILE_WRITTEN: Duration = Duration::from_millis(100);
/// The interval at which free memory is returned to the system. Large answers leave free memory
/// too, also while nothing is written.
const GIVE_BACK_EVERY: Duration = Duration::from_secs(30);

impl Upkeep {
    /// Compacts the store and the caches until the store fails.
    pub(crate) async fn compact(self: Arc<Self>) -> Result<(), StoreError> {
        let mut seen = VecDeque::new();
        let mut due = Instant::now() + EVERY;
        let mut given_back = Instant::now();
        loop {
            let next = self.position.current().number().saturating_add(1);
            let written = async {
                // The end of the server ends this task, too.
                let _ = self.position.reached(next).await;
                clock::sleep(EVERY_WHILE_WRITTEN).await;
            };
            // The order does not matter: the state is read below.
            let _ = clock::timeout_at(due, written).await;
            // Read before the store's state: the caches must have seen all that is compacted.
            let current = self.position.current();
            let by_size = self.too_much(current).await?;
            let now = Instant::now();
            let by_age = (now >= due).then(|| {
                seen.push_back((now, current));
                plan(&mut seen, now, current)
            });
            let mut failed = false;
            if let Some(oldest) = by_size.max(by_age.flatten()) {
                failed = !self.compact_at(oldest).await;
            }
            if now >= given_back + GIVE_BACK_EVERY {
                // It fails only if it panics, and is tried again at the next interval.
                let _ = spawn_blocking(memory::give_back).await;
                given_back = Instant::now();
            }
            if failed || now >= due {
                self.engine.maintain().await?;
                due = Instant::now() + EVERY;
            }
            if failed {
                clock::sleep(EVERY).await;
            }
        }
    }

    /// The revision to compact at, if the history is too large.
    async fn too_much(&self, current: Revision) -> Result<Option<Revision>, StoreError> {
        let most = self.bounds.history_bytes;
        let StoreStatus { history_bytes, .. } = self.engine.status().await?;
        if history_bytes <= most {
            return Ok(None);
        }
        // Some more, so that not every following commit causes another compaction.
        let oldest = self.engine.oldest_within(most - most / 8).await?;
        Ok(Some(oldest.min(current)))
    }

    async fn compact_at(&self, oldest: Revision) -> bool {
        match self.engine.compact(oldest).await {
            Ok(()) => {
                self.kinds
                    .now()
                    .stored
                    .iter()
                    .for_each(|kind| kind.trim(oldest));
                tracing::debug!(%oldest, "compacted the store");
                true
            }
            Err(error) => {
                tracing::warn!(%error, %oldest, retry_in = ?EVERY, "failed to compact the store; trying again");
                false
            }
        }
    }
}

/// Returns the revision to compact at, if there is one, and drops the older entries of `seen`.
fn plan(
    seen: &mut VecDeque<(Instant, Revision)>,
    now: Instant,
    current: Revision,
) -> Option<Revision> {
    let mut aged = 0;
    while let Some((at, revision)) = seen.front()
        && now.duration_since(*at) >= KEEP
    {
        aged = revision.number();
        seen.pop_front();
    }
    let most = current.number().saturating_sub(MOST_COMMITS);
    let least = current.number().saturating_sub(KEEP_COMMITS);
    Revision::new(aged.max(most).min(least))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(revision: u64) -> Revision {
        Revision::new(revision).unwrap()
    }

    #[test]
    fn compacts_history_beyond_its_time_and_bounds() {
        let start = Instant::now();
        let later = start + KEEP;
        let cases = [
            // (seen at start, current later, want)
            (1, 500, None),
            (2_000, 5_000, Some(2_000)),
            (4_900, 5_000, Some(4_000)),
            (2_000, 500_000, Some(400_000)),
        ];
        for (then, current, want) in cases {
            let mut seen = VecDeque::from([(start, at(then)), (later, at(current))]);
            assert_eq!(
                plan(&mut seen, later, at(current)),
                want.map(at),
                "{then} {current}"
            );
            assert_eq!(seen.len(), 1);
        }
    }

    #[test]
    fn does_not_compact_recent_history() {
        let start = Instant::now();
        let mut seen = VecDeque::from([(start, at(9_000))]);
        assert_eq!(plan(&mut seen, start + KEEP / 2, at(10_000)), None);
        assert_eq!(seen.len(), 1);
    }
}
