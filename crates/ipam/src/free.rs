//! A hierarchical bitmap of free block numbers: a bit for each number, above them a bit for each
//! full word, and so on. A free number is found in as many steps as there are levels, however full
//! the range is.

const WORD: u64 = u64::BITS as u64;

/// The free numbers of `0..total`, allocated round robin.
#[derive(Clone, Debug)]
pub struct FreeBlocks {
    total: u64,
    free: u64,
    next: u64,
    /// The first level has a bit for each number, set if it is used. Each other level has a bit for
    /// each word of the one before, set if that word is full. The last is one word. Bits after the
    /// end are set. Pages of memory that were never written to are not resident: the bits begin as
    /// zeros.
    levels: Vec<Vec<u64>>,
}

impl FreeBlocks {
    /// Creates a set with all numbers free.
    #[must_use]
    pub fn new(total: u64) -> Self {
        let mut levels = Vec::new();
        let mut bits = total;
        loop {
            let (words, used) = (bits.div_ceil(WORD).max(1), bits % WORD);
            let mut level = vec![0; index(words)];
            if let Some(last) = level.last_mut()
                && (used > 0 || bits == 0)
            {
                *last = u64::MAX << used;
            }
            levels.push(level);
            if words == 1 {
                break;
            }
            bits = words;
        }
        Self {
            total,
            free: total,
            next: 0,
            levels,
        }
    }

    /// The number of free numbers.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.free
    }

    /// The number of used numbers.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.total - self.free
    }

    /// The number at which the next search starts.
    #[must_use]
    pub fn next_candidate(&self) -> u64 {
        self.next
    }

    /// Takes the first free number at or after the candidate, wrapping around at the end, as the
    /// reference's allocator does: the lowest free one is not preferred, so a number just freed is
    /// not reused at once.
    pub fn take_next(&mut self) -> Option<u64> {
        let taken = self.first_free(self.next).or_else(|| self.first_free(0))?;
        self.occupy(taken, taken);
        self.next = (taken + 1) % self.total;
        Some(taken)
    }

    /// Searches up to the level that has a free bit after `from`, and down again to the number.
    fn first_free(&self, from: u64) -> Option<u64> {
        let (mut level, mut at) = (0, from);
        let mut found = loop {
            let word = self.levels.get(level)?.get(index(at / WORD))?;
            let free = !word & (u64::MAX << (at % WORD));
            if free != 0 {
                break at / WORD * WORD + u64::from(free.trailing_zeros());
            }
            at = at / WORD + 1;
            level += 1;
        };
        for below in self.levels[..level].iter().rev() {
            found = found * WORD + u64::from(below[index(found)].trailing_ones());
        }
        Some(found)
    }

    /// Marks `first..=last` as used, whatever was used before. The candidate does not move.
    pub fn occupy(&mut self, first: u64, last: u64) {
        for (at, mask) in words(first, last.min(self.total.saturating_sub(1))) {
            let word = &mut self.levels[0][at];
            self.free -= u64::from((mask & !*word).count_ones());
            *word |= mask;
            let mut full = *word == u64::MAX;
            let mut at = at;
            for level in &mut self.levels[1..] {
                if !full {
                    break;
                }
                let word = &mut level[at / 64];
                *word |= 1 << (at % 64);
                full = *word == u64::MAX;
                at /= 64;
            }
        }
    }

    /// Marks `first..=last` as free, whatever was free before. The candidate does not move.
    pub fn vacate(&mut self, first: u64, last: u64) {
        for (at, mask) in words(first, last.min(self.total.saturating_sub(1))) {
            let word = &mut self.levels[0][at];
            self.free += u64::from((mask & *word).count_ones());
            let mut was_full = *word == u64::MAX;
            *word &= !mask;
            let mut at = at;
            for level in &mut self.levels[1..] {
                if !was_full {
                    break;
                }
                let word = &mut level[at / 64];
                was_full = *word == u64::MAX;
                *word &= !(1 << (at % 64));
                at /= 64;
            }
        }
    }
}

/// The indices of the words with the bits `first..=last`, each with a mask of those bits.
fn words(first: u64, last: u64) -> impl Iterator<Item = (usize, u64)> {
    (first / WORD..=last / WORD).map(move |word| {
        let from = first.max(word * WORD) % WORD;
        let to = last.min(word * WORD + (WORD - 1)) % WORD;
        (
            index(word),
            (u64::MAX << from) & (u64::MAX >> (WORD - 1 - to)),
        )
    })
}

fn index(word: u64) -> usize {
    usize::try_from(word)
        .expect("the words of 2^32 bits, of which no range has more, can be addressed")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum FreeOp {
        Take,
        Occupy(u64, u64),
        Vacate(u64, u64),
    }

    /// Sizes around those at which a level is added.
    const TOTALS: [u64; 7] = [1, 12, 64, 65, 4096, 4097, 9000];

    fn op(total: u64) -> impl Strategy<Value = FreeOp> {
        let near =
            (0..total, 0..10u64).prop_map(move |(a, length)| (a, (a + length).min(total - 1)));
        let far = (0..total, 0..total).prop_map(|(a, b)| (a.min(b), a.max(b)));
        let span = prop_oneof![near, far];
        prop_oneof![
            3 => Just(FreeOp::Take),
            1 => span.clone().prop_map(|(a, b)| FreeOp::Occupy(a, b)),
            1 => span.prop_map(|(a, b)| FreeOp::Vacate(a, b)),
        ]
    }

    fn some_ops() -> impl Strategy<Value = (u64, Vec<FreeOp>)> {
        let total = prop::sample::select(TOTALS.to_vec());
        total.prop_flat_map(|total| (Just(total), prop::collection::vec(op(total), 0..40)))
    }

    proptest! {
        #[test]
        fn behaves_as_a_set_of_free_numbers_with_a_pointer((total, ops) in some_ops()) {
            let mut sut = FreeBlocks::new(total);
            let mut free: BTreeSet<u64> = (0..total).collect();
            let mut next = 0;
            for op in ops {
                match op {
                    FreeOp::Take => {
                        let want = (0..total).map(|i| (next + i) % total).find(|i| free.contains(i));
                        prop_assert_eq!(sut.take_next(), want);
                        if let Some(taken) = want {
                            free.remove(&taken);
                            next = (taken + 1) % total;
                        }
                    }
                    FreeOp::Occupy(a, b) => {
                        sut.occupy(a, b);
                        free.retain(|i| !(a..=b).contains(i));
                    }
                    FreeOp::Vacate(a, b) => {
                        sut.vacate(a, b);
                        free.extend(a..=b);
                    }
                }
                prop_assert_eq!(sut.free(), free.len() as u64);
                prop_assert_eq!(sut.next_candidate(), next);
                for from in (0..total).step_by(index(total / 61 + 1)) {
                    prop_assert_eq!(sut.first_free(from), free.range(from..).next().copied());
                }
            }
        }
    }
}
