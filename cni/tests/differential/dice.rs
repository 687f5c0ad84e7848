//! Chance that can be repeated.

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};

/// A seeded source of decisions.
#[derive(Debug)]
pub(crate) struct Dice(StdRng);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// True in so many of a hundred cases.
    pub(crate) fn percent(&mut self, percent: u32) -> bool {
        self.0.random_range(0..100) < percent
    }

    /// At least 0, less than `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0.random_range(0..end.max(1))
    }

    /// At least `low`, at most `high` where that is more.
    pub(crate) fn between(&mut self, low: i128, high: i128) -> i128 {
        self.0.random_range(low..=high.max(low))
    }

    /// One of several.
    pub(crate) fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        items.choose(&mut self.0).expect("a choice").clone()
    }
}
