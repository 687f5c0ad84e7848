//! Tables as kubectl's: no borders, three spaces between columns, one line for each row.

use comfy_table::{ColumnConstraint, ContentArrangement, TableStyle, Width};
use podplane_api::printable;

/// The space between columns.
const GAP: u16 = 3;

/// A table that may be printed piece by piece, as a watch does. A column never gets narrower.
#[derive(Debug)]
pub(crate) struct Table {
    header: Option<Vec<&'static str>>,
    widths: Vec<u16>,
    /// The columns of the terminal, if it is one. Cells of a wider table go on in a second line.
    limit: Option<u16>,
}

impl Table {
    /// A table with these columns. The header comes with the first rows.
    pub(crate) fn new(columns: Vec<&'static str>) -> Self {
        Self {
            widths: vec![0; columns.len()],
            header: Some(columns),
            limit: super::terminal_width(),
        }
    }

    /// The same for lines that are printed `indent` columns further in.
    pub(crate) fn indented(self, indent: usize) -> Self {
        let indent = u16::try_from(indent).unwrap_or(u16::MAX);
        let limit = self.limit.map(|limit| limit.saturating_sub(indent));
        Self { limit, ..self }
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
        // The last column has no space after it.
        let full = self.widths.iter().map(|width| width.saturating_add(GAP));
        let full = full.fold(0, u16::saturating_add).saturating_sub(GAP);
        let is_too_wide = self.limit.filter(|limit| full > *limit);
        if let Some(limit) = is_too_wide {
            table.set_content_arrangement(ContentArrangement::Dynamic);
            table.set_width(limit.saturating_add(GAP));
        }
        for (column, width) in table.column_iter_mut().zip(&self.widths) {
            column.set_padding((0, GAP));
            if is_too_wide.is_some() {
                continue;
            }
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
    fn a_table_fits_the_terminal() {
        let mut table = Table::new(vec!["NAME", "MESSAGE"]);
        table.limit = Some(30);
        let text = table.rows([row([
            "web-0",
            "0/3 nodes are available: 3 Insufficient pod IPs",
        ])]);
        assert_eq!(
            text,
            "NAME    MESSAGE\n\
             web-0   0/3 nodes are\n        available: 3\n        Insufficient pod IPs"
        );
        assert!(
            text.lines().all(|line| line.chars().count() <= 30),
            "{text}"
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
