//! Which block numbers are free: gaps in an ordered map, so that an empty range of 2^32 blocks costs nothing and a
//! full one costs nothing either.

use std::collections::BTreeMap;

/// The free numbers of `0..total`, handed out round robin.
#[derive(Clone, Debug)]
pub(crate) struct FreeBlocks {
    total: u64,
    free: u64,
    next: u64,
    /// Last number of a gap → its first. Keyed by the last so that taking from the front, which is what round robin
    /// does, changes a value and not the tree.
    gaps: BTreeMap<u64, u64>,
}

impl FreeBlocks {
    pub(crate) fn new(total: u64) -> Self {
        let gaps = total
            .checked_sub(1)
            .map(|last| (last, 0))
            .into_iter()
            .collect();
        Self {
            total,
            free: total,
            next: 0,
            gaps,
        }
    }

    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    pub(crate) fn used(&self) -> u64 {
        self.total - self.free
    }

    /// Where the next search starts.
    pub(crate) fn next_candidate(&self) -> u64 {
        self.next
    }

    /// Takes the first free number at or after the candidate, around the end if need be, as the reference's
    /// allocator does: the lowest free one is not preferred, so a number just freed is not used again at once.
    pub(crate) fn take_next(&mut self) -> Option<u64> {
        let (last, first) = self
            .gaps
            .range(self.next..)
            .next()
            .or_else(|| self.gaps.first_key_value())
            .map(|(l, f)| (*l, *f))?;
        let taken = if self.next <= last {
            first.max(self.next)
        } else {
            first
        };
        if taken > first {
            self.gaps.insert(taken - 1, first);
        }
        if taken < last {
            self.gaps.insert(last, taken + 1);
        } else {
            self.gaps.remove(&last);
        }
        self.free -= 1;
        self.next = (taken + 1) % self.total;
        Some(taken)
    }

    /// Makes `first..=last` used, whatever part of it was. The candidate does not move.
    pub(crate) fn occupy(&mut self, first: u64, last: u64) {
        while let Some((gap_last, gap_first)) =
            self.gaps.range(first..).next().map(|(l, f)| (*l, *f))
        {
            if gap_first > last {
                break;
            }
            self.gaps.remove(&gap_last);
            self.free -= gap_last - gap_first + 1;
            if gap_first < first {
                self.add_gap(gap_first, first - 1);
            }
            if gap_last > last {
                self.add_gap(last + 1, gap_last);
                break;
            }
        }
    }

    /// Makes `first..=last` free, whatever part of it was. The candidate does not move.
    pub(crate) fn vacate(&mut self, first: u64, last: u64) {
        self.occupy(first, last);
        let (mut from, mut to) = (first, last);
        if let Some(before) = first.checked_sub(1)
            && let Some(start) = self.gaps.remove(&before)
        {
            self.free -= before - start + 1;
            from = start;
        }
        if let Some((&gap_last, &gap_first)) = self.gaps.range(last..).next()
            && gap_first == last + 1
        {
            self.gaps.remove(&gap_last);
            self.free -= gap_last - gap_first + 1;
            to = gap_last;
        }
        self.add_gap(from, to);
    }

    fn add_gap(&mut self, first: u64, last: u64) {
        self.gaps.insert(last, first);
        self.free += last - first + 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Op {
        Take,
        Occupy(u64, u64),
        Vacate(u64, u64),
    }

    const TOTAL: u64 = 12;

    fn op() -> impl Strategy<Value = Op> {
        let span = (0..TOTAL, 0..TOTAL).prop_map(|(a, b)| (a.min(b), a.max(b)));
        prop_oneof![
            3 => Just(Op::Take),
            1 => span.clone().prop_map(|(a, b)| Op::Occupy(a, b)),
            1 => span.prop_map(|(a, b)| Op::Vacate(a, b)),
        ]
    }

    proptest! {
        #[test]
        fn behaves_as_a_set_of_free_numbers_with_a_pointer(ops in prop::collection::vec(op(), 0..60)) {
            let mut sut = FreeBlocks::new(TOTAL);
            let mut free: BTreeSet<u64> = (0..TOTAL).collect();
            let mut next = 0;
            for op in ops {
                match op {
                    Op::Take => {
                        let want = (0..TOTAL).map(|i| (next + i) % TOTAL).find(|i| free.contains(i));
                        prop_assert_eq!(sut.take_next(), want);
                        if let Some(taken) = want {
                            free.remove(&taken);
                            next = (taken + 1) % TOTAL;
                        }
                    }
                    Op::Occupy(a, b) => {
                        sut.occupy(a, b);
                        free.retain(|i| !(a..=b).contains(i));
                    }
                    Op::Vacate(a, b) => {
                        sut.vacate(a, b);
                        free.extend(a..=b);
                    }
                }
                prop_assert_eq!(sut.free(), free.len() as u64);
                prop_assert_eq!(sut.next_candidate(), next);
                let gaps: BTreeSet<u64> = sut.gaps.iter().flat_map(|(last, first)| *first..=*last).collect();
                prop_assert_eq!(&gaps, &free);
                let touching = sut.gaps.keys().any(|last| sut.gaps.values().any(|first| *first == last + 1));
                prop_assert!(!touching, "neighbouring gaps are joined: {:?}", sut.gaps);
            }
        }
    }
}
