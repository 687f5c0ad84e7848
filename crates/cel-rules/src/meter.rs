//! The costs of an evaluation.

use std::{collections::HashMap, sync::Arc};

use crate::{error::Failure, pattern::Pattern};

/// The cost of reading a variable or field.
pub(crate) const SELECT: u64 = 1;
/// The cost of making a list.
pub(crate) const LIST: u64 = 10;
/// The cost of making a map.
pub(crate) const MAP: u64 = 30;

/// Counts the cost of an evaluation and ends it at a limit.
#[derive(Debug)]
pub(crate) struct Meter {
    pub(crate) used: u64,
    limit: u64,
    /// The patterns that this evaluation compiled.
    patterns: HashMap<String, Result<Arc<Pattern>, String>>,
}

impl Meter {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            used: 0,
            limit,
            patterns: HashMap::new(),
        }
    }

    /// Adds a cost, before the work is done.
    pub(crate) fn charge(&mut self, cost: u64) -> Result<(), Failure> {
        self.used = self.used.saturating_add(cost);
        if self.used > self.limit {
            return Err(Failure::Cost);
        }
        Ok(())
    }

    /// Adds the cost of traversing that many characters or bytes `times` times.
    pub(crate) fn traverse(&mut self, length: usize, times: u64) -> Result<(), Failure> {
        self.charge(traversal(length, times))
    }

    /// Provides a pattern that was compiled with the expression, at no cost.
    pub(crate) fn remember(&mut self, text: &str, pattern: &Arc<Pattern>) {
        if !self.patterns.contains_key(text) {
            self.patterns
                .insert(text.to_owned(), Ok(Arc::clone(pattern)));
        }
    }

    /// The pattern of a text that is known only now.
    pub(crate) fn pattern(&mut self, text: &str) -> Result<Arc<Pattern>, Failure> {
        if let Some(known) = self.patterns.get(text) {
            return known.clone().map_err(Failure::Other);
        }
        let parsed = Pattern::parse(text);
        // To compile a pattern costs far more than to read its text.
        self.charge(
            parsed
                .as_ref()
                .map_or(100, |parsed| 100 + parsed.states() / 4),
        )?;
        let pattern = parsed.and_then(|parsed| parsed.compile()).map(Arc::new);
        self.patterns.insert(text.to_owned(), pattern.clone());
        pattern.map_err(Failure::Other)
    }
}

/// A tenth of a character's length each time, rounded up.
pub(crate) fn traversal(length: usize, times: u64) -> u64 {
    let length = u64::try_from(length).unwrap_or(u64::MAX);
    length.saturating_mul(times).div_ceil(10)
}
