//! How long a range lasts at the rate at which its blocks are being given.
//!
//! Pure. The rate is that between the oldest and the newest sample of the last hour: so many blocks more in use, over the time between them. A shrinking or
//! resting range has no rate, and no end.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How far back is looked.
const WINDOW: Duration = Duration::from_secs(3600);
/// Samples are no closer than this, so that their number is bounded.
const SPACING: Duration = Duration::from_secs(15);

/// The recent history of one range.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    samples: VecDeque<(Instant, u64)>,
    free: u64,
}

impl Growth {
    /// So many blocks are in use and free now.
    pub(crate) fn sample(&mut self, now: Instant, used: u64, free: u64) {
        self.free = free;
        // The newest sample moves on until it is far enough from the one before it; the first stays.
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

    /// Until no block is free, if the range is growing.
    pub(crate) fn left(&self) -> Option<Duration> {
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
    fn what_grows_has_an_end_and_what_rests_has_none() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut growth = Growth::default();
        assert_eq!(growth.left(), None);
        growth.sample(at(0), 10, 90);
        assert_eq!(growth.left(), None, "one sample is no rate");
        growth.sample(at(30), 10, 90);
        assert_eq!(growth.left(), None);
        growth.sample(at(60), 40, 60);
        assert_eq!(growth.left(), Some(Duration::from_secs(120)));
        growth.sample(at(90), 5, 95);
        assert_eq!(growth.left(), None, "it shrank");
        growth.sample(at(90 + 3600), 6, 94);
        assert_eq!(growth.left(), Some(Duration::from_secs(94 * 3600)));
    }

    #[test]
    fn frequent_samples_do_not_pile_up() {
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
        let left = growth.left().unwrap();
        assert!(
            left >= Duration::from_secs(99) && left <= Duration::from_secs(101),
            "{left:?}"
        );
    }
}
