//! Rows of a view, and its columns.

use std::{borrow::Cow, cmp::Ordering};

use podplane_api::{ObjectKey, jiff::Timestamp};
use podplane_map::AddressState;

use crate::{
    cluster::{Cluster, Source},
    scope::Scope,
};

/// The urgency of a cell. It gives the cell a colour; the text of the cell says the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    #[default]
    Plain,
    Good,
    Warning,
    Bad,
}

impl Tone {
    /// The state of addresses whose colour it has.
    pub(crate) const fn state(self) -> Option<AddressState> {
        match self {
            Self::Plain => None,
            Self::Good => Some(AddressState::Node),
            Self::Warning => Some(AddressState::Orphaned),
            Self::Bad => Some(AddressState::Duplicate),
        }
    }
}

/// A cell of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) tone: Tone,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self {
            text: text.into(),
            tone: Tone::Plain,
        }
    }
}

impl Cell {
    pub(crate) fn toned(text: impl Into<String>, tone: Tone) -> Self {
        Self {
            text: text.into(),
            tone,
        }
    }
}

/// The width of a column, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnWidth {
    /// As wide as this.
    Fixed(u16),
    /// At least as wide as this; columns of this kind share the rest.
    AtLeast(u16),
}

impl ColumnWidth {
    pub(crate) const fn least(self) -> u16 {
        match self {
            Self::Fixed(width) | Self::AtLeast(width) => width,
        }
    }
}

/// A column of a view.
pub(crate) struct Column<R> {
    pub(crate) title: &'static str,
    /// The key that sorts by it, a capital letter.
    pub(crate) sort_key: char,
    pub(crate) width: ColumnWidth,
    /// 0 for a column that is always shown. Of the others the highest is left out first.
    pub(crate) rank: u8,
    pub(crate) cell: fn(&R, Timestamp) -> Cell,
    pub(crate) order: fn(&R, &R) -> Ordering,
}

/// The object of a row, for `describe` and the like.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A node, by its name.
    Node(String),
    /// A pod, by its namespace and name.
    Pod(ObjectKey),
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Node(name) => write!(f, "node {name}"),
            Self::Pod(key) => write!(f, "pod {key}"),
        }
    }
}

/// The target of Enter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The pods of a scope.
    Pods(Scope),
    /// The description of the subject.
    Description(Subject),
}

/// A row of a view.
pub(crate) trait Row: Sized + 'static {
    /// The name of the view.
    const NAME: &'static str;
    /// The word for a row, such as `pod`.
    const NOUN: &'static str;
    /// The text in place of rows where there are none.
    const NOTHING: &'static str;
    /// True if a namespace selects rows.
    const IS_NAMESPACED: bool;
    /// The sources that it needs, the most important first.
    const SOURCES: &'static [Source];
    /// The columns. Their sort keys are unique in the view.
    const COLUMNS: &'static [Column<Self>];
    /// The title of the column that sorts at the beginning, and whether it does so in reverse.
    const SORTED_BY: (&'static str, bool);

    /// The rows of a scope, in any order. Of many objects only a screenful is shown: texts are made
    /// in the cells.
    fn all(cluster: &Cluster, scope: &Scope) -> Vec<Self>;

    /// The key that tells the row from others of the view.
    fn key(&self) -> (&str, &str);

    /// The texts that a filter looks at.
    fn texts(&self) -> Vec<Cow<'_, str>>;

    /// The subject of `describe`.
    fn subject(&self) -> Option<Subject>;

    /// The view or page that Enter opens.
    fn target(&self) -> Option<Target>;
}

/// A bar of `width` characters, of which `#` are the part in use.
pub(crate) fn bar(used: u128, total: u128, width: usize) -> String {
    let most = u128::try_from(width).unwrap_or(u128::MAX);
    // Both shrink alike where the product would be too large.
    let shift = 8u32.saturating_sub(total.leading_zeros());
    let filled = match total {
        0 => 0,
        _ if used >= total => most,
        // Neither an empty bar for what is in use, nor a full one for what has room.
        _ => {
            let filled = (used >> shift).saturating_mul(most) / (total >> shift);
            filled.clamp(u128::from(used > 0), most.saturating_sub(1))
        }
    };
    let filled = usize::try_from(filled).unwrap_or(width).min(width);
    format!("{}{}", "#".repeat(filled), "-".repeat(width - filled))
}

/// The tone of a part in use: urgent when nothing is left.
pub(crate) fn fill_tone(used: u128, total: u128) -> Tone {
    match total {
        0 => Tone::Warning,
        _ if used >= total => Tone::Bad,
        _ if used.saturating_mul(10) >= total.saturating_mul(9) => Tone::Warning,
        _ => Tone::Good,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_full_and_empty_only_at_the_ends() {
        for (used, total, want) in [
            (0, 0, "--------"),
            (0, 253, "--------"),
            (1, 253, "#-------"),
            (127, 253, "####----"),
            (252, 253, "#######-"),
            (253, 253, "########"),
            (300, 253, "########"),
            (u128::MAX - 1, u128::MAX, "#######-"),
        ] {
            assert_eq!(bar(used, total, 8), want, "{used} of {total}");
        }
    }
}
