//! A bit set that takes as much memory as its highest set bit needs.

/// A set of bits by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bits {
    words: Vec<u64>,
}

impl Bits {
    /// Sets or clears every bit of `range`; returns the number of bits that changed.
    pub(super) fn write(&mut self, range: std::ops::Range<u64>, set: bool) -> u64 {
        let mut changed = 0;
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min((at / 64 + 1) * 64);
            let mask = (u64::MAX >> (64 - (end - at))) << (at % 64);
            changed += u64::from(self.write_word(at / 64, mask, set));
            at = end;
        }
        changed
    }

    fn write_word(&mut self, number: u64, mask: u64, set: bool) -> u32 {
        let index = usize::try_from(number).expect("a set of 2^32 bits fits in memory");
        if index >= self.words.len() {
            if !set {
                return 0;
            }
            self.words.resize(index + 1, 0);
        }
        let word = &mut self.words[index];
        let before = *word;
        *word = if set { before | mask } else { before & !mask };
        (before ^ *word).count_ones()
    }

    /// The first clear bit of `range`.
    pub(super) fn first_clear(&self, range: std::ops::Range<u64>) -> Option<u64> {
        let mut at = range.start;
        while at < range.end {
            let word = usize::try_from(at / 64)
                .ok()
                .and_then(|index| self.words.get(index));
            let Some(word) = word else {
                return Some(at);
            };
            let set = u64::from((word >> (at % 64)).trailing_ones());
            if set < 64 - at % 64 {
                return Some(at + set).filter(|found| *found < range.end);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_like_a_set_of_numbers(writes in prop::collection::vec((0_u64..300, 0_u64..200, any::<bool>(), 0_u64..400), 1..20)) {
            let (mut bits, mut model) = (Bits::default(), BTreeSet::new());
            for (start, length, set, from) in writes {
                let range = start..start + length;
                let changed = range.clone().filter(|bit| if set { model.insert(*bit) } else { model.remove(bit) }).count();
                prop_assert_eq!(bits.write(range, set), changed as u64);
                let clear = (from..500).find(|bit| !model.contains(bit));
                prop_assert_eq!(bits.first_clear(from..500), clear);
            }
        }
    }
}
