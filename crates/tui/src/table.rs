//! A table on the screen: the rows of a view, filtered and sorted, with one of them selected.

use podplane_api::jiff::Timestamp;

use crate::{
    cluster::{Cluster, Source},
    filter::Filter,
    row::{Column, ColumnWidth, Row, Subject, Target},
    scope::Scope,
};

/// More rows than this are made anew at most once a second.
const MANY: usize = 5_000;

/// A table of any view.
pub(crate) trait Table {
    /// The name of the view.
    fn name(&self) -> &'static str;
    fn noun(&self) -> &'static str;
    /// The text in place of rows where there are none.
    fn nothing(&self) -> &'static str;
    /// Returns true if a namespace selects rows.
    fn is_namespaced(&self) -> bool;
    fn sources(&self) -> &'static [Source];
    fn scope(&self) -> &Scope;
    fn filter(&self) -> &Filter;
    fn set_filter(&mut self, text: &str);
    /// Sorts by the column of that key; by the same one in reverse. Returns false if there is no
    /// such column.
    fn sort_by(&mut self, key: char) -> bool;
    /// The keys that sort, in the order of the columns.
    fn sort_keys(&self) -> String;
    /// The column that sorts, if it has no room, and whether it does so in reverse.
    fn hidden_order(&self, width: u16) -> Option<(&'static str, bool)>;
    /// Makes the rows anew if the objects have changed, or the filter or the order.
    fn refresh(&mut self, cluster: &Cluster, now: Timestamp);
    /// Moves the selection by rows, and keeps it within `height` rows on the screen.
    fn move_by(&mut self, rows: isize, height: usize);
    /// Keeps the selection within `height` rows on the screen.
    fn reveal(&mut self, height: usize);
    /// The number of rows that match the filter, and of all.
    fn counts(&self) -> (usize, usize);
    fn subject(&self) -> Option<Subject>;
    fn target(&self) -> Option<Target>;
    /// The visible part, for a width in characters.
    fn picture(&self, width: u16, height: usize, now: Timestamp) -> TablePicture;
}

/// The visible part of a table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TablePicture {
    pub(crate) columns: Vec<ShownColumn>,
    pub(crate) rows: Vec<Vec<crate::row::Cell>>,
    /// The index of the selected one of the rows.
    pub(crate) selected: Option<usize>,
}

/// A column that has room.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ShownColumn {
    pub(crate) title: &'static str,
    pub(crate) width: ColumnWidth,
    /// `Some(true)` if the rows are sorted by it in reverse.
    pub(crate) sorted: Option<bool>,
}

/// The rows of a view.
pub(crate) struct RowTable<R: Row> {
    scope: Scope,
    filter: Filter,
    /// The index of the column that sorts, and whether it does so in reverse.
    sorted_by: (usize, bool),
    rows: Vec<R>,
    total: usize,
    selected: usize,
    /// The first visible row.
    top: usize,
    /// The version of the objects that the rows are of; `None` to make them anew at once.
    version: Option<u64>,
    made_at: Timestamp,
}

impl<R: Row> RowTable<R> {
    pub(crate) fn new(scope: Scope) -> Self {
        let (title, is_reverse) = R::SORTED_BY;
        let mut columns = R::COLUMNS.iter();
        let column = columns.position(|column| column.title == title);
        Self {
            scope,
            filter: Filter::default(),
            sorted_by: (column.unwrap_or_default(), is_reverse),
            rows: Vec::new(),
            total: 0,
            selected: 0,
            top: 0,
            version: None,
            made_at: Timestamp::UNIX_EPOCH,
        }
    }

    fn selected(&self) -> Option<&R> {
        self.rows.get(self.selected)
    }

    fn sort(&mut self) {
        let (column, is_reverse) = self.sorted_by;
        let Some(Column { order, .. }) = R::COLUMNS.get(column) else {
            return;
        };
        self.rows.sort_by(|a, b| {
            let ordered = order(a, b);
            let ordered = if is_reverse {
                ordered.reverse()
            } else {
                ordered
            };
            ordered.then_with(|| a.key().cmp(&b.key()))
        });
    }
}

impl<R: Row> Table for RowTable<R> {
    fn name(&self) -> &'static str {
        R::NAME
    }

    fn noun(&self) -> &'static str {
        R::NOUN
    }

    fn nothing(&self) -> &'static str {
        R::NOTHING
    }

    fn is_namespaced(&self) -> bool {
        R::IS_NAMESPACED
    }

    fn sources(&self) -> &'static [Source] {
        R::SOURCES
    }

    fn scope(&self) -> &Scope {
        &self.scope
    }

    fn filter(&self) -> &Filter {
        &self.filter
    }

    fn set_filter(&mut self, text: &str) {
        self.filter = Filter::new(text);
        self.version = None;
    }

    fn sort_by(&mut self, key: char) -> bool {
        let mut columns = R::COLUMNS.iter();
        let Some(found) = columns.position(|column| column.sort_key == key) else {
            return false;
        };
        let (column, is_reverse) = self.sorted_by;
        self.sorted_by = (found, found == column && !is_reverse);
        self.version = None;
        true
    }

    fn sort_keys(&self) -> String {
        R::COLUMNS.iter().map(|column| column.sort_key).collect()
    }

    fn hidden_order(&self, width: u16) -> Option<(&'static str, bool)> {
        let (sorted, is_reverse) = self.sorted_by;
        let shown = shown_columns(R::COLUMNS, width);
        let is_shown = shown.iter().any(|(index, _)| *index == sorted);
        let column = R::COLUMNS.get(sorted).filter(|_| !is_shown)?;
        Some((column.title, is_reverse))
    }

    fn refresh(&mut self, cluster: &Cluster, now: Timestamp) {
        let version = cluster.version(R::SOURCES);
        let is_soon = self.total > MANY && now.duration_since(self.made_at).as_millis() < 1_000;
        match self.version {
            Some(made) if made == version || is_soon => return,
            _ => {}
        }
        let owned = |(namespace, name): (&str, &str)| (namespace.to_owned(), name.to_owned());
        let selected = self.selected().map(|row| owned(row.key()));
        self.rows = R::all(cluster, &self.scope);
        self.total = self.rows.len();
        self.rows
            .retain(|row| self.filter.text().is_empty() || self.filter.is_match(&row.texts()));
        self.sort();
        if let Some((namespace, name)) = selected {
            let is_it = |row: &R| row.key() == (namespace.as_str(), name.as_str());
            // A row that is gone leaves the selection where it was.
            self.selected = self.rows.iter().position(is_it).unwrap_or(self.selected);
        }
        self.selected = self.selected.min(self.rows.len().saturating_sub(1));
        self.version = Some(version);
        self.made_at = now;
    }

    fn move_by(&mut self, rows: isize, height: usize) {
        let last = self.rows.len().saturating_sub(1);
        self.selected = self.selected.saturating_add_signed(rows).min(last);
        self.reveal(height);
    }

    fn reveal(&mut self, height: usize) {
        let least = (self.selected + 1).saturating_sub(height.max(1));
        let most = self.rows.len().saturating_sub(height);
        self.top = self
            .top
            .clamp(least, self.selected.max(least))
            .min(most.max(least));
    }

    fn counts(&self) -> (usize, usize) {
        (self.rows.len(), self.total)
    }

    fn subject(&self) -> Option<Subject> {
        self.selected()?.subject()
    }

    fn target(&self) -> Option<Target> {
        self.selected()?.target()
    }

    fn picture(&self, width: u16, height: usize, now: Timestamp) -> TablePicture {
        let shown = shown_columns(R::COLUMNS, width);
        let visible = self.rows.iter().skip(self.top).take(height);
        let (sorted, is_reverse) = self.sorted_by;
        TablePicture {
            rows: visible
                .map(|row| {
                    shown
                        .iter()
                        .map(|(_, column)| (column.cell)(row, now))
                        .collect()
                })
                .collect(),
            columns: shown
                .iter()
                .map(|(index, column)| ShownColumn {
                    title: column.title,
                    width: column.width,
                    sorted: (*index == sorted).then_some(is_reverse),
                })
                .collect(),
            selected: self
                .selected
                .checked_sub(self.top)
                .filter(|_| !self.rows.is_empty()),
        }
    }
}

/// The columns that have room, with their indexes.
fn shown_columns<R: 'static>(
    columns: &'static [Column<R>],
    width: u16,
) -> Vec<(usize, &'static Column<R>)> {
    let mut shown: Vec<_> = columns.iter().enumerate().collect();
    loop {
        let needed: u16 = shown
            .iter()
            .map(|(_, column)| column.width.least() + 1)
            .sum();
        let highest = shown.iter().map(|(_, column)| column.rank).max();
        match highest {
            Some(rank) if rank > 0 && needed > width.saturating_add(1) => {
                shown.retain(|(_, column)| column.rank < rank);
            }
            _ => return shown,
        }
    }
}
