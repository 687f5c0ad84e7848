//! Which block numbers are free: a bit for each, and above them a bit for each full word, and so on, so that a free one is found in as many
//! steps as there are levels, however full the range is.

const WORD: u64 = u64::BITS as u64;

/// The free numbers of `0..total`, handed out round robin.
#[derive(Clone, Debug)]
pub struct FreeBlocks {
    total: u64,
    free: u64,
    next: u64,
    /// The first has a bit for each number, set if it is used. Each other has a bit for each word of the one before, set if all bits of that word are.
    /// The last is one word. Bits behind the end are set. Memory that was never written to is never there: the bits begin as zeros.
    levels: Vec<Vec<u64>>,
}

impl FreeBlocks {
    /// All of them free.
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

    /// How many can be taken.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.free
    }

    /// How many cannot.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.total - self.free
    }

    /// Where the next search starts.
    #[must_use]
    pub fn next_candidate(&self) -> u64 {
        self.next
    }

    /// Takes the first free number at or after the candidate, around the end if need be, as the reference's
    /// allocator does: the lowest free one is not preferred, so a number just freed is not used again at once.
    pub fn take_next(&mut self) -> Option<u64> {
        let taken = self.first_free(self.next).or_else(|| self.first_free(0))?;
        self.occupy(taken, taken);
        self.next = (taken + 1) % self.total;
        Some(taken)
    }

    /// Up to the level where there is something free behind `from`, and down again to what it is.
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

    /// Makes `first..=last` used, whatever part of it was. The candidate does not move.
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

    /// Makes `first..=last` free, whatever part of it was. The candidate does not move.
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

/// The words that have the bits `first..=last`, and which of their bits those are.
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
    enum Op {
        Take,
        Occupy(u64, u64),
        Vacate(u64, u64),
    }

    /// Around the sizes at which there is another level.
    const TOTALS: [u64; 7] = [1, 12, 64, 65, 4096, 4097, 9000];

    fn op(total: u64) -> impl Strategy<Value = Op> {
        let near =
            (0..total, 0..10u64).prop_map(move |(a, length)| (a, (a + length).min(total - 1)));
        let far = (0..total, 0..total).prop_map(|(a, b)| (a.min(b), a.max(b)));
        let span = prop_oneof![near, far];
        prop_oneof![
            3 => Just(Op::Take),
            1 => span.clone().prop_map(|(a, b)| Op::Occupy(a, b)),
            1 => span.prop_map(|(a, b)| Op::Vacate(a, b)),
        ]
    }

    fn some_ops() -> impl Strategy<Value = (u64, Vec<Op>)> {
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
                    Op::Take => {
                        let want = (0..total).map(|i| (next + i) % total).find(|i| free.contains(i));
                        prop_assert_eq!(sut.take_next(), want);
                        if let Some(taken) = want {
                            free.remove(&taken);
                            next = (taken + 1) % total;
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
                for from in (0..total).step_by(index(total / 61 + 1)) {
                    prop_assert_eq!(sut.first_free(from), free.range(from..).next().copied());
                }
            }
        }
    }
}
