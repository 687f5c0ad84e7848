//! Equal values as one.

use std::{borrow::Borrow, collections::HashSet, hash::Hash, sync::Arc};

/// The number of values that are kept before unused ones are looked for.
const MIN_LIMIT: usize = 64;

/// The values in use, each once.
#[derive(Debug)]
pub(crate) struct Interner<T> {
    values: HashSet<Arc<T>>,
    /// The number of values at which unused ones are dropped.
    limit: usize,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self {
            values: HashSet::new(),
            limit: MIN_LIMIT,
        }
    }
}

impl<T: Eq + Hash> Interner<T> {
    /// The one value that is equal to `value`.
    pub(crate) fn intern(&mut self, value: T) -> Arc<T> {
        if let Some(known) = self.values.get::<T>(value.borrow()) {
            return known.clone();
        }
        if self.values.len() >= self.limit {
            self.values.retain(|known| Arc::strong_count(known) > 1);
            self.limit = MIN_LIMIT.max(2 * self.values.len());
        }
        let value = Arc::new(value);
        self.values.insert(value.clone());
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_one() {
        let mut interner = Interner::default();
        let one = interner.intern("a".to_owned());
        assert!(Arc::ptr_eq(&one, &interner.intern("a".to_owned())));
        assert!(!Arc::ptr_eq(&one, &interner.intern("b".to_owned())));
    }

    #[test]
    fn unused_values_are_dropped_and_used_ones_kept() {
        let mut interner = Interner::default();
        let used: Vec<_> = (0..10).map(|n| interner.intern(n)).collect();
        for n in 10..10_000 {
            interner.intern(n);
        }
        assert!(interner.values.len() <= MIN_LIMIT);
        for (n, one) in used.iter().enumerate() {
            assert!(Arc::ptr_eq(one, &interner.intern(n)));
        }
    }
}
