//! A set of numbers that are mostly neighbours, and the choice of a free one.

use std::collections::BTreeMap;

/// A set of numbers, kept as runs: its size in memory and the time of a search depend on the number
/// of gaps, not on that of its members.
///
/// ```
/// use podplane_ipam::NumberSet;
/// let mut taken = NumberSet::new();
/// taken.insert(7);
/// taken.insert(8);
/// assert_eq!(taken.next_absent(7, 9), Some(9));
/// assert_eq!(taken.next_absent(7, 8), None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumberSet {
    /// The last number of each run by its first. There is a gap between any two runs.
    runs: BTreeMap<u128, u128>,
}

impl NumberSet {
    /// The empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The run that contains the number.
    fn run_of(&self, number: u128) -> Option<(u128, u128)> {
        let (first, last) = self.runs.range(..=number).next_back()?;
        (*last >= number).then_some((*first, *last))
    }

    /// True if the number is a member.
    #[must_use]
    pub fn contains(&self, number: u128) -> bool {
        self.run_of(number).is_some()
    }

    /// Adds a number; returns true if it is new.
    pub fn insert(&mut self, number: u128) -> bool {
        if self.contains(number) {
            return false;
        }
        let before = number.checked_sub(1).and_then(|before| self.run_of(before));
        let after = number.checked_add(1).and_then(|after| self.run_of(after));
        if let Some((first, _)) = after {
            self.runs.remove(&first);
        }
        let first = before.map_or(number, |(first, _)| first);
        let last = after.map_or(number, |(_, last)| last);
        self.runs.insert(first, last);
        true
    }

    /// Removes a number; returns true if it was a member.
    pub fn remove(&mut self, number: u128) -> bool {
        let Some((first, last)) = self.run_of(number) else {
            return false;
        };
        self.runs.remove(&first);
        if first < number {
            self.runs.insert(first, number - 1);
        }
        if number < last {
            self.runs.insert(number + 1, last);
        }
        true
    }

    /// The lowest number of `first` to `last` that is not a member.
    #[must_use]
    pub fn next_absent(&self, first: u128, last: u128) -> Option<u128> {
        let candidate = match self.run_of(first) {
            Some((_, end)) => end.checked_add(1)?,
            None => first,
        };
        (candidate <= last).then_some(candidate)
    }

    /// The members from `first` to `last`, as runs in ascending order.
    pub fn runs_within(&self, first: u128, last: u128) -> impl Iterator<Item = (u128, u128)> {
        let begin = self.run_of(first).map_or(first, |(begin, _)| begin);
        let runs = self.runs.range(begin..=last.max(begin));
        runs.filter(move |(from, to)| **from <= last && **to >= first)
            .map(move |(from, to)| ((*from).max(first), (*to).min(last)))
    }
}

/// Numbers of which some are given on request only as long as there are others: the first `band`
/// ones are for people who choose a number themselves (Kubernetes' KEP-3070).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BandedRange {
    first: u128,
    last: u128,
    band: u128,
}

impl BandedRange {
    /// The numbers from `first` to `last`; `None` if there are none.
    pub(crate) fn new(first: u128, last: u128, band: u128) -> Option<Self> {
        let most = last.checked_sub(first)?.saturating_add(1);
        Some(Self {
            first,
            last,
            band: band.min(most),
        })
    }

    /// The first number.
    #[must_use]
    pub fn first(&self) -> u128 {
        self.first
    }

    /// The last number.
    #[must_use]
    pub fn last(&self) -> u128 {
        self.last
    }

    /// True if the number belongs to the range.
    #[must_use]
    pub fn contains(&self, number: u128) -> bool {
        (self.first..=self.last).contains(&number)
    }

    /// Chooses a number that is not taken: the one that the random number `drawn` points at, or the
    /// next free one after it, first outside of the band and then in it. `None` if all are taken.
    #[must_use]
    pub fn pick(&self, taken: &NumberSet, drawn: u128) -> Option<u128> {
        let pick = |first: u128, last: u128| {
            let size = last.checked_sub(first)?.saturating_add(1);
            let start = first + drawn % size;
            let after = taken.next_absent(start, last);
            after.or_else(|| taken.next_absent(first, start))
        };
        let (begin, end) = (self.first.checked_add(self.band), self.last);
        let above = begin.and_then(|begin| pick(begin, end));
        above.or_else(|| pick(self.first, (self.first + self.band).checked_sub(1)?))
    }
}

/// The size of the band of a range: a part of it, within bounds.
pub(crate) fn band(size: u128, parts: u128, most: u128) -> u128 {
    const LEAST: u128 = 16;
    match size {
        0..=LEAST => 0,
        size => (size / parts).clamp(LEAST, most),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn agrees_with_a_plain_set(
            changes in prop::collection::vec((any::<bool>(), 0u128..40), 0..200),
            first in 0u128..40,
            size in 0u128..40,
        ) {
            let last = first + size;
            let (mut set, mut plain) = (NumberSet::new(), BTreeSet::new());
            for (add, number) in changes {
                match add {
                    true => assert_eq!(set.insert(number), plain.insert(number)),
                    false => assert_eq!(set.remove(number), plain.remove(&number)),
                }
                let touching = set.runs.iter().zip(set.runs.iter().skip(1));
                for ((_, end), (next, _)) in touching {
                    prop_assert!(end + 1 < *next);
                }
            }
            for number in 0..80 {
                prop_assert_eq!(set.contains(number), plain.contains(&number));
            }
            let absent = (first..=last).find(|number| !plain.contains(number));
            prop_assert_eq!(set.next_absent(first, last), absent);
            let within: Vec<u128> = set.runs_within(first, last).flat_map(|(a, b)| a..=b).collect();
            let plain_within: Vec<u128> = plain.range(first..=last).copied().collect();
            prop_assert_eq!(within, plain_within);
        }

        #[test]
        fn gives_each_number_once_and_the_band_last(
            size in 1u128..60, band in 0u128..70, drawn in prop::collection::vec(any::<u128>(), 60),
        ) {
            let range = BandedRange::new(100, 99 + size, band).unwrap();
            let mut taken = NumberSet::new();
            let mut picked = Vec::new();
            for drawn in drawn {
                let Some(number) = range.pick(&taken, drawn) else { break };
                prop_assert!(taken.insert(number));
                picked.push(number);
            }
            prop_assert_eq!(picked.len() as u128, size);
            let above = usize::try_from(size.saturating_sub(band)).unwrap();
            prop_assert!(picked[..above].iter().all(|number| *number >= 100 + band));
            prop_assert!(picked[above..].iter().all(|number| *number < 100 + band.min(size)));
        }
    }

    #[test]
    fn ends_of_all_numbers_are_no_trap() {
        let mut set = NumberSet::new();
        for number in [u128::MAX, u128::MAX - 1, 0] {
            assert!(set.insert(number));
        }
        assert_eq!(set.next_absent(u128::MAX - 1, u128::MAX), None);
        assert_eq!(set.next_absent(0, u128::MAX), Some(1));
        assert!(set.remove(u128::MAX) && set.contains(u128::MAX - 1));
        let all = BandedRange::new(0, u128::MAX, 16).unwrap();
        assert_eq!(all.pick(&set, u128::MAX), Some(31));
        assert_eq!(BandedRange::new(2, 1, 0), None);
    }
}
