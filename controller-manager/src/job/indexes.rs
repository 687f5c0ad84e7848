//! Sets of completion indexes in the form of a Job's status, such as `0-2,5`.

use std::{collections::BTreeSet, fmt};

/// A set of completion indexes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Indexes(pub(super) BTreeSet<i32>);

impl Indexes {
    /// Reads a list of numbers and ranges; what is malformed, or not below `completions`, is
    /// ignored, as in Kubernetes.
    pub(super) fn parse(text: &str, completions: i32) -> Self {
        let mut indexes = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            if let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) {
                indexes.extend(first.max(0)..last.saturating_add(1).min(completions));
            }
        }
        Self(indexes)
    }

    pub(super) fn has(&self, index: i32) -> bool {
        self.0.contains(&index)
    }

    pub(super) fn count(&self) -> i32 {
        i32::try_from(self.0.len()).unwrap_or(i32::MAX)
    }
}

impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.iter().copied().peekable();
        let mut comma = "";
        while let Some(first) = rest.next() {
            let mut last = first;
            while let Some(next) = rest.next_if(|next| *next == last + 1) {
                last = next;
            }
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                1 => write!(f, "{comma}{first},{last}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
            comma = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        for text in ["", "0", "0,1", "0-2", "0-2,4,6,7,9-12"] {
            assert_eq!(Indexes::parse(text, 13).to_string(), text);
        }
        assert_eq!(Indexes::parse("1,x,3-,2-9,-4", 5).to_string(), "1-4");
        assert_eq!(Indexes::parse("0-2147483647", 3).to_string(), "0-2");
    }
}
