//! Objects as table rows: the columns of each kind, as in kubectl.

pub mod age;
pub(crate) mod storage;
pub(crate) mod workload;

use jiff::Timestamp;

use crate::Object;

/// The text of an empty cell.
pub const NONE: &str = "<none>";

/// The text of a cell whose value is not set, for kinds that tell it from an empty one.
pub const UNSET: &str = "<unset>";

/// A column of a kind's table.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// The heading.
    pub name: &'static str,
    /// True if only `-o wide` shows the column.
    pub wide: bool,
    /// True if the cells are integers.
    pub integer: bool,
}

/// A column that is always shown.
pub const fn always(name: &'static str) -> Column {
    Column {
        name,
        wide: false,
        integer: false,
    }
}

/// An integer column that is always shown.
pub const fn integer(name: &'static str) -> Column {
    Column {
        integer: true,
        ..always(name)
    }
}

/// A column that only `-o wide` shows.
pub const fn wide(name: &'static str) -> Column {
    Column {
        wide: true,
        ..always(name)
    }
}

/// A kind with a table.
pub trait TableRow: Object {
    /// All columns, those of `-o wide` included; `NAMESPACE` is not one of them.
    const COLUMNS: &'static [Column] = &[always("NAME"), always("AGE")];

    /// The cells, one for each column.
    fn cells(&self, now: Timestamp) -> Vec<String> {
        vec![self.name().into(), created(self, now)]
    }

    /// Sorts the objects of a table, which are sorted by namespace and name before.
    fn sort(_: &mut [Self]) {}
}

/// The age of an object.
pub fn created<K: Object>(object: &K, now: Timestamp) -> String {
    age::since(object.metadata().creation_timestamp.as_ref(), now)
}

/// The time of an object's creation, for kinds that show it instead of the age.
pub(crate) fn created_at<K: Object>(object: &K) -> String {
    let created = object.metadata().creation_timestamp.as_ref();
    created.map_or_else(|| "<unknown>".into(), |time| time.0.to_string())
}

/// The first `max` texts, and the number of the others: `a,b,c + 2 more...`. `None` if there are
/// none.
pub(crate) fn first(all: &[String], max: usize) -> Option<String> {
    let more = all.len().saturating_sub(max);
    let shown = all[..all.len() - more].join(",");
    match (all.is_empty(), more) {
        (true, _) => None,
        (false, 0) => Some(shown),
        (false, more) => Some(format!("{shown} + {more} more...")),
    }
}
