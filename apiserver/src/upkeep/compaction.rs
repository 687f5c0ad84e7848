//! How much history is kept.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use podplane_store::{Revision, StoreError};
use tokio::time::{self, Instant};

use super::Upkeep;

/// How long a client may be away, or read a list page by page, without having to begin again.
const KEEP: Duration = Duration::from_secs(5 * 60);
/// A quiet cluster keeps at least so many commits, however old.
const KEEP_COMMITS: u64 = 1_000;
/// A busy one keeps at most so many, since they are in memory: about 300 MB of 1 KiB pods.
const MOST_COMMITS: u64 = 100_000;
const EVERY: Duration = Duration::from_secs(10);

impl Upkeep {
    /// Compacts the store, and with it the caches, for ever.
    pub(crate) async fn compact(self: Arc<Self>) -> Result<(), StoreError> {
        let mut seen = VecDeque::new();
        loop {
            time::sleep(EVERY).await;
            let current = self.position.current();
            seen.push_back((Instant::now(), current));
            let Some(oldest) = plan(&mut seen, Instant::now(), current) else {
                continue;
            };
            match self.engine.compact(oldest).await {
                Ok(()) => self.kinds.iter().for_each(|kind| kind.trim(oldest)),
                Err(error) => {
                    tracing::warn!(%error, %oldest, "cannot compact the store; trying again")
                }
            }
        }
    }
}

/// The revision to compact at, and forgets what was seen before it.
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
    fn history_is_kept_for_its_time_and_within_its_bounds() {
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
    fn what_is_young_is_kept() {
        let start = Instant::now();
        let mut seen = VecDeque::from([(start, at(9_000))]);
        assert_eq!(plan(&mut seen, start + KEEP / 2, at(10_000)), None);
        assert_eq!(seen.len(), 1);
    }
}
