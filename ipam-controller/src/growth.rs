//! Estimates when a range will be exhausted, from the rate at which its blocks come into use.
//!
//! Pure. The rate is the difference between the oldest and the newest sample of the last hour, over
//! the time between them. A range that shrinks or does not change has no rate, and no estimate.

use std::{collections::VecDeque, time::Duration};

use podplane_host::clock::Instant;

/// The time over which the rate is measured.
const WINDOW: Duration = Duration::from_secs(3600);
/// Samples are at least this far apart, so that their number is bounded.
const SPACING: Duration = Duration::from_secs(15);

/// The recent history of one range.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    samples: VecDeque<(Instant, u64)>,
    free: u64,
}

impl Growth {
    /// Records the numbers of used and free blocks at `now`.
    pub(crate) fn sample(&mut self, now: Instant, used: u64, free: u64) {
        self.free = free;
        // The newest sample moves on until it is far enough from the one before it; the first
        // stays.
        let len = self.samples.len();
        if len > 1
            && self.samples[len - 1]
                .0
                .duration_since(self.samples[len - 2].0)
                < SPACING
        {
            self.samples.pop_back();
        }
        self.samples.push_back((now, used));
        while self
            .samples
            .front()
            .is_some_and(|(at, _)| now.duration_since(*at) > WINDOW)
        {
            self.samples.pop_front();
        }
    }

    /// The time until no block is free, if the range is growing.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        let ((first, before), (last, used)) = (self.samples.front()?, self.samples.back()?);
        let grown = u32::try_from(used.checked_sub(*before)?).ok()?;
        let free = u32::try_from(self.free).ok()?;
        let each = last.duration_since(*first).checked_div(grown)?;
        each.checked_mul(free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_exhaustion_only_while_the_range_grows() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut growth = Growth::default();
        assert_eq!(growth.time_left(), None);
        growth.sample(at(0), 10, 90);
        assert_eq!(growth.time_left(), None, "one sample does not make a rate");
        growth.sample(at(30), 10, 90);
        assert_eq!(growth.time_left(), None);
        growth.sample(at(60), 40, 60);
        assert_eq!(growth.time_left(), Some(Duration::from_secs(120)));
        growth.sample(at(90), 5, 95);
        assert_eq!(growth.time_left(), None, "it shrank");
        growth.sample(at(90 + 3600), 6, 94);
        assert_eq!(growth.time_left(), Some(Duration::from_secs(94 * 3600)));
    }

    #[test]
    fn merges_frequent_samples() {
        let start = Instant::now();
        let mut growth = Growth::default();
        for second in 0..7200 {
            growth.sample(start + Duration::from_secs(second), second, 100);
        }
        assert!(
            growth.samples.len() <= 3600 / 15 + 2,
            "{}",
            growth.samples.len()
        );
        let left = growth.time_left().unwrap();
        assert!(
            left >= Duration::from_secs(99) && left <= Duration::from_secs(101),
            "{left:?}"
        );
    }
}
