//! The times since which blocks of deleted nodes are held, as this process has seen it.

use std::{collections::BTreeMap, time::Duration};

use ipnet::IpNet;
use podplane_host::clock::Instant;

use crate::plan::FormerBlocks;

/// The held blocks, by the node's UID and the prefix, with the time at which each was first seen
/// held. The record of a block does not tell that time.
#[derive(Debug, Default)]
pub(crate) struct HoldTimes(BTreeMap<(String, IpNet), Instant>);

impl HoldTimes {
    /// Takes in the blocks that are held now, and forgets all others.
    pub(crate) fn observe(&mut self, held: impl Iterator<Item = FormerBlocks>, now: Instant) {
        let mut known = std::mem::take(&mut self.0);
        for FormerBlocks { uid, pod_cidrs, .. } in held {
            for net in pod_cidrs {
                let key = (uid.clone(), net);
                let since = known.remove(&key).unwrap_or(now);
                self.0.insert(key, since);
            }
        }
    }

    /// The time since which the longest held block is held; zero if none is.
    pub(crate) fn longest(&self, now: Instant) -> Duration {
        let first = self.0.values().min();
        first.map_or(Duration::ZERO, |since| {
            now.saturating_duration_since(*since)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_from_the_first_sight_of_the_longest_hold() {
        let held = |uids: &[&str]| {
            let blocks = uids.iter().map(|uid| FormerBlocks {
                node: "node".to_owned(),
                uid: (*uid).to_owned(),
                pod_cidrs: vec!["10.0.0.0/24".parse().unwrap()],
            });
            blocks.collect::<Vec<_>>().into_iter()
        };
        let s = Duration::from_secs;
        let start = Instant::now();
        let mut times = HoldTimes::default();
        assert_eq!(times.longest(start + s(5)), s(0));
        times.observe(held(&["a"]), start);
        times.observe(held(&["a", "b"]), start + s(10));
        assert_eq!(times.longest(start + s(30)), s(30));
        times.observe(held(&["b"]), start + s(40));
        assert_eq!(times.longest(start + s(40)), s(30));
        // A block that is held again is a new hold.
        times.observe(held(&[]), start + s(50));
        assert_eq!(times.longest(start + s(50)), s(0));
        times.observe(held(&["b"]), start + s(60));
        assert_eq!(times.longest(start + s(61)), s(1));
    }
}
