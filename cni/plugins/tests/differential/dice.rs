//! Repeatable random decisions.

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};

/// A seeded source of decisions.
#[derive(Debug)]
pub(crate) struct Dice(StdRng);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// Returns true in this percentage of cases.
    pub(crate) fn percent(&mut self, percent: u32) -> bool {
        self.0.random_range(0..100) < percent
    }

    /// A number of at least 0 and less than `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0.random_range(0..end.max(1))
    }

    /// A number from `low` to `high`, or `low` if it is the larger.
    pub(crate) fn between(&mut self, low: i128, high: i128) -> i128 {
        self.0.random_range(low..=high.max(low))
    }

    /// One of the items.
    pub(crate) fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        items.choose(&mut self.0).expect("a choice").clone()
    }
}
