//! Problems in scenarios, with their positions.

use std::{fmt, path::PathBuf};

/// A place in a file. Lines and columns count from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line.
    pub line: u64,
    /// The column, in characters.
    pub column: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A problem that keeps a scenario from being run; its `Display` is `FILE:LINE:COLUMN: MESSAGE`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The path of the file, as it was given.
    pub file: PathBuf,
    /// The position; `None` if the problem is about the whole file.
    pub position: Option<Position>,
    /// The mistake, and its remedy.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if let Some(position) = self.position {
            write!(f, "{position}:")?;
        }
        write!(f, " {}", self.message)
    }
}

/// Returns `; did you mean X?` for the nearest of `known`, or nothing if none is near.
pub fn suggestion<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let near = |name: &&str| {
        let (name, word) = (name.to_lowercase(), word.to_lowercase());
        strsim::damerau_levenshtein(&name, &word) <= (word.len() / 3).max(1)
    };
    let distance = |name: &&str| strsim::damerau_levenshtein(name, word);
    match known.into_iter().filter(near).min_by_key(distance) {
        Some(name) => format!("; did you mean {name:?}?"),
        None => String::new(),
    }
}

/// Joins items in words: `a, b and c`.
pub(crate) fn listed<T: AsRef<str>>(items: &[T]) -> String {
    let items: Vec<_> = items.iter().map(AsRef::as_ref).collect();
    match items.as_slice() {
        [] => "none".into(),
        [one] => (*one).to_owned(),
        [init @ .., last] => format!("{} and {last}", init.join(", ")),
    }
}
