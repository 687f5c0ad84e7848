//! Tables as kubectl's: no borders, three spaces between columns, one line for each row.

use comfy_table::{ColumnConstraint, TableStyle, Width};
use podplane_api::printable;

/// The space between columns.
const GAP: u16 = 3;

/// A table that may be printed piece by piece, as a watch does. A column never gets narrower.
#[derive(Debug)]
pub(crate) struct Table {
    header: Option<Vec<&'static str>>,
    widths: Vec<u16>,
}

impl Table {
    /// A table with these columns. The header comes with the first rows.
    pub(crate) fn new(columns: Vec<&'static str>) -> Self {
        Self {
            widths: vec![0; columns.len()],
            header: Some(columns),
        }
    }

    /// The next rows as text, without a newline at the end. What a server says does not drive the terminal.
    pub(crate) fn rows(&mut self, rows: impl IntoIterator<Item = Vec<String>>) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(TableStyle::default());
        for row in self
            .header
            .take()
            .map(|header| header.into_iter().map(str::to_owned).collect())
            .into_iter()
            .chain(rows)
        {
            let row: Vec<String> = row;
            table.add_row(row.iter().map(|cell| printable::line(cell).into_owned()));
        }
        let widths = table.column_max_content_widths();
        for (kept, width) in self.widths.iter_mut().zip(widths) {
            *kept = width.max(*kept);
        }
        table.discover_columns();
        for (column, width) in table.column_iter_mut().zip(&self.widths) {
            column.set_padding((0, GAP));
            // A boundary is of the whole column, padding included.
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(
                width.saturating_add(GAP),
            )));
        }
        let lines: Vec<_> = table
            .lines()
            .map(|line| line.trim_end().to_owned())
            .collect();
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: [&str; 2]) -> Vec<String> {
        cells.map(str::to_owned).into()
    }

    #[test]
    fn columns_are_aligned_and_lines_not_padded() {
        let mut table = Table::new(vec!["NAME", "AGE"]);
        let text = table.rows([row(["a-long-name", "5s"]), row(["b", "10s"])]);
        assert_eq!(
            text,
            "NAME          AGE\na-long-name   5s\nb             10s"
        );
    }

    #[test]
    fn a_watch_keeps_the_widths_and_prints_one_header() {
        let mut table = Table::new(vec!["NAME", "AGE"]);
        table.rows([row(["a-long-name", "5s"])]);
        assert_eq!(table.rows([row(["b", "10s"])]), "b             10s");
    }

    #[test]
    fn the_terminal_is_not_driven_by_what_a_server_says() {
        let mut table = Table::new(vec!["A", "B"]);
        let text = table.rows([row(["\u{1b}[31mred", "one\ntwo\u{202e}"])]);
        let want = "\\u{1b}[31mred   one two\\u{202e}";
        assert_eq!(text.lines().nth(1), Some(want));
    }
}
