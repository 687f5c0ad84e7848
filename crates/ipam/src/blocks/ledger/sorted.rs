//! A compact sorted map: chunks of elements, each under a key that is not above any of its
//! elements.

use std::{collections::BTreeMap, ops::Bound};

/// Large enough that the map above costs next to nothing, small enough to move on an insert.
const CHUNK: usize = 256;

/// An element with a key.
pub(super) trait Keyed: Copy {
    type Key: Copy + Ord;

    fn key(&self) -> Self::Key;
}

#[derive(Clone, Debug)]
pub(super) struct SortedMap<T: Keyed> {
    /// The chunks, never empty.
    chunks: BTreeMap<T::Key, Vec<T>>,
}

impl<T: Keyed> Default for SortedMap<T> {
    fn default() -> Self {
        Self {
            chunks: BTreeMap::new(),
        }
    }
}

impl<T: Keyed> SortedMap<T> {
    /// Inserts an element, or replaces the one with the same key; returns true if it is new.
    pub(super) fn insert(&mut self, one: T) -> bool {
        let key = one.key();
        let Some((_, chunk)) = self.chunks.range_mut(..=key).next_back() else {
            self.insert_first(one);
            return true;
        };
        match place(chunk, key) {
            Ok(at) => {
                chunk[at] = one;
                return false;
            }
            Err(at) if chunk.len() < CHUNK => chunk.insert(at, one),
            // Appending in order leaves full chunks behind.
            Err(CHUNK) => self.add(vec![one]),
            Err(at) => {
                let mut upper = chunk.split_off(CHUNK / 2);
                if let Some(at) = at.checked_sub(CHUNK / 2) {
                    upper.insert(at, one);
                } else {
                    chunk.insert(at, one);
                }
                self.add(upper);
            }
        }
        true
    }

    /// Inserts an element that is below all others.
    fn insert_first(&mut self, one: T) {
        match self.chunks.pop_first() {
            Some((_, mut chunk)) if chunk.len() < CHUNK => {
                chunk.insert(0, one);
                self.chunks.insert(one.key(), chunk);
            }
            full => {
                self.chunks.extend(full);
                self.add(vec![one]);
            }
        }
    }

    fn add(&mut self, mut chunk: Vec<T>) {
        let Some(first) = chunk.first() else { return };
        let key = first.key();
        chunk.reserve_exact(CHUNK - chunk.len());
        self.chunks.insert(key, chunk);
    }

    /// Removes an element; returns true if it existed.
    pub(super) fn remove(&mut self, key: T::Key) -> bool {
        let Some((start, chunk)) = self.chunks.range_mut(..=key).next_back() else {
            return false;
        };
        let Ok(at) = place(chunk, key) else {
            return false;
        };
        chunk.remove(at);
        if chunk.len() < CHUNK / 4 {
            let start = *start;
            self.join(start);
        }
        true
    }

    /// Merges a chunk that has become small into the one before it, if there is room.
    fn join(&mut self, start: T::Key) {
        let Some(small) = self.chunks.remove(&start) else {
            return;
        };
        match self.chunks.range_mut(..start).next_back() {
            Some((_, before)) if before.len() + small.len() <= CHUNK * 3 / 4 => {
                before.extend(small)
            }
            _ if small.is_empty() => {}
            _ => {
                self.chunks.insert(start, small);
            }
        }
    }

    pub(super) fn get(&self, key: T::Key) -> Option<&T> {
        let (_, chunk) = self.chunks.range(..=key).next_back()?;
        place(chunk, key).ok().map(|at| &chunk[at])
    }

    pub(super) fn get_mut(&mut self, key: T::Key) -> Option<&mut T> {
        let (_, chunk) = self.chunks.range_mut(..=key).next_back()?;
        place(chunk, key).ok().map(|at| &mut chunk[at])
    }

    /// All elements in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.values().flatten()
    }

    /// The elements from `key` on, in order.
    pub(super) fn from(&self, key: T::Key) -> impl Iterator<Item = &T> {
        let chunk = self.chunks.range(..=key).next_back();
        let partly = chunk.map(|(_, chunk)| {
            let at = place(chunk, key).unwrap_or_else(|at| at);
            &chunk[at..]
        });
        let behind = match chunk {
            Some((start, _)) => Bound::Excluded(*start),
            None => Bound::Unbounded,
        };
        // Most callers need no more than one chunk, so the next one is looked up only on demand.
        let whole = std::iter::once(behind)
            .flat_map(|behind| self.chunks.range((behind, Bound::Unbounded)))
            .map(|(_, chunk)| chunk.as_slice());
        partly.into_iter().chain(whole).flatten()
    }
}

fn place<T: Keyed>(chunk: &[T], key: T::Key) -> Result<usize, usize> {
    chunk.binary_search_by(|one| one.key().cmp(&key))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap as Model;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Number(u32, u8);

    impl Keyed for Number {
        type Key = u32;

        fn key(&self) -> u32 {
            self.0
        }
    }

    #[derive(Clone, Debug)]
    enum MapOp {
        /// This many from a start, this far apart; downwards if it is negative.
        Insert(u32, u32, i32),
        Remove(u32, u32),
    }

    fn op() -> impl Strategy<Value = MapOp> {
        prop_oneof![
            2 => (0..3000u32, 0..900u32, -3..=3i32).prop_map(|(start, count, step)| MapOp::Insert(start, count, step)),
            1 => (0..3000u32, 0..1500u32).prop_map(|(start, count)| MapOp::Remove(start, count)),
        ]
    }

    proptest! {
        #[test]
        fn behaves_as_a_map(ops in prop::collection::vec(op(), 1..12), probes in prop::collection::vec(0..4000u32, 20)) {
            let mut sut = SortedMap::default();
            let mut model = Model::new();
            for (turn, op) in (0u8..).zip(ops) {
                match op {
                    MapOp::Insert(start, count, step) => for at in 0..count {
                        let key = start.saturating_add_signed(step * i32::try_from(at).unwrap());
                        prop_assert_eq!(sut.insert(Number(key, turn)), model.insert(key, turn).is_none());
                    },
                    MapOp::Remove(start, count) => for key in start..start + count {
                        prop_assert_eq!(sut.remove(key), model.remove(&key).is_some());
                    },
                }
                prop_assert!(sut.iter().map(|one| (one.0, one.1)).eq(model.iter().map(|(k, v)| (*k, *v))));
                prop_assert!(sut.chunks.values().all(|chunk| (1..=CHUNK).contains(&chunk.len())));
                for key in &probes {
                    prop_assert_eq!(sut.get(*key).map(|one| one.1), model.get(key).copied());
                    prop_assert!(sut.from(*key).map(|one| one.0).eq(model.range(key..).map(|(k, _)| *k)));
                }
            }
        }
    }
}
