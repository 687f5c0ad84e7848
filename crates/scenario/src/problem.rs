//! What is wrong with a scenario, and where.

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

/// Something that keeps a scenario from being run; its `Display` is `FILE:LINE:COLUMN: MESSAGE`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The file, as it was named.
    pub file: PathBuf,
    /// Where; absent if the file as a whole is meant.
    pub position: Option<Position>,
    /// What is wrong, and what to do.
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

/// `; did you mean X?` for the nearest of `known`, or nothing if none is near.
pub(crate) fn suggestion<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
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

/// `a, b and c`
pub(crate) fn listed<T: AsRef<str>>(items: &[T]) -> String {
    let items: Vec<_> = items.iter().map(AsRef::as_ref).collect();
    match items.as_slice() {
        [] => "none".into(),
        [one] => (*one).to_owned(),
        [init @ .., last] => format!("{} and {last}", init.join(", ")),
    }
}
