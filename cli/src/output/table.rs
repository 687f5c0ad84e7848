//! Tables like kubectl's: no borders, three spaces between columns, one line for each row.
//!
//! If a terminal is too narrow, columns of [`EXPENDABLE`] are left out, and then text is wrapped; a
//! name or an address is broken only if nothing else helps. On a terminal, states have colours.

use anstyle::{AnsiColor, Style};
use comfy_table::{ColumnConstraint, ContentArrangement, TableStyle, Width};
use podplane_api::{printable, table::NONE};

/// The space between columns.
const GAP: u16 = 3;

/// The columns that are left out on a narrow terminal, in this order.
const EXPENDABLE: [&str; 13] = [
    "READINESS GATES",
    "NOMINATED NODE",
    "CONTAINER-RUNTIME",
    "KERNEL-VERSION",
    "OS-IMAGE",
    "EXTERNAL-IP",
    "SELECTOR",
    "CONTAINERS",
    "Heartbeat",
    "ROLES",
    "VERSION",
    "INTERNAL-IP",
    "RESTARTS",
];

/// A table that may be printed in pieces, as by a watch. A column never gets narrower.
#[derive(Debug)]
pub(crate) struct TextTable {
    columns: Vec<Column>,
    is_begun: bool,
    /// The width of the terminal in columns, if there is one.
    limit: Option<u16>,
}

#[derive(Debug)]
struct Column {
    name: &'static str,
    width: u16,
    is_left_out: bool,
}

impl TextTable {
    /// A table with these columns. The header comes with the first rows.
    pub(crate) fn new(columns: Vec<&'static str>) -> Self {
        let column = |name| Column {
            name,
            width: 0,
            is_left_out: false,
        };
        Self {
            columns: columns.into_iter().map(column).collect(),
            is_begun: false,
            limit: super::terminal_width(),
        }
    }

    /// The same for lines that are printed with an indent.
    pub(crate) fn indented(self, indent: usize) -> Self {
        let indent = u16::try_from(indent).unwrap_or(u16::MAX);
        let limit = self.limit.map(|limit| limit.saturating_sub(indent));
        Self { limit, ..self }
    }

    /// The columns that were left out because the terminal is narrow.
    pub(crate) fn left_out(&self) -> Vec<&'static str> {
        let columns = self.columns.iter().filter(|column| column.is_left_out);
        columns.map(|column| column.name).collect()
    }

    /// The next rows as text, without a newline at the end. Control characters of untrusted text
    /// are escaped.
    pub(crate) fn rows(&mut self, rows: impl IntoIterator<Item = Vec<String>>) -> String {
        let printed = |cell: &String| printable::line(cell).into_owned();
        let rows = rows.into_iter();
        let mut rows: Vec<Vec<_>> = rows.map(|row| row.iter().map(printed).collect()).collect();
        let header = (!self.is_begun).then(|| {
            self.leave_columns_out(&rows);
            self.is_begun = true;
            let names = self.columns.iter().map(|column| column.name.to_owned());
            names.collect()
        });
        rows.splice(0..0, header);
        for row in &mut rows {
            let mut columns = self.columns.iter();
            row.retain(|_| columns.next().is_none_or(|column| !column.is_left_out));
        }
        self.lines(rows).join("\n")
    }

    /// Leaves columns out until each word has room, empty ones first.
    fn leave_columns_out(&mut self, rows: &[Vec<String>]) {
        let Some(limit) = self.limit else { return };
        let position = |name: &&str| self.columns.iter().position(|column| column.name == *name);
        let expendable = EXPENDABLE.iter().filter_map(position);
        let (empty, others): (Vec<_>, Vec<_>) =
            expendable.partition(|index| rows.iter().all(|row| row[*index] == NONE));
        for index in empty.into_iter().chain(others) {
            let kept = self.columns.iter().enumerate();
            let kept = kept.filter(|(_, column)| !column.is_left_out);
            let cells = |index: usize| rows.iter().map(move |row| row[index].as_str());
            let widths =
                kept.map(|(index, column)| longest_word(cells(index).chain([column.name])));
            if total(widths) <= limit {
                return;
            }
            self.columns[index].is_left_out = true;
        }
    }

    /// Lays out the rows, which have cells only for the kept columns.
    fn lines(&mut self, rows: Vec<Vec<String>>) -> Vec<String> {
        let mut table = comfy_table::Table::new();
        table.load_style(TableStyle::default());
        for row in &rows {
            table.add_row(row);
        }
        let mut kept: Vec<_> = self
            .columns
            .iter_mut()
            .filter(|column| !column.is_left_out)
            .collect();
        for (column, width) in kept.iter_mut().zip(table.column_max_content_widths()) {
            column.width = width.max(column.width);
        }
        table.discover_columns();
        let is_too_wide = |limit: &u16| total(kept.iter().map(|column| column.width)) > *limit;
        let limit = self.limit.filter(is_too_wide);
        let mut boundaries: Vec<_> = kept.iter().map(|column| column.width).collect();
        if let Some(limit) = limit {
            table.set_content_arrangement(ContentArrangement::Dynamic);
            table.set_width(limit.saturating_add(GAP));
            let word = |index: usize| {
                let cells = rows.iter().filter_map(move |row| row.get(index));
                longest_word(cells.map(String::as_str))
            };
            boundaries = (0..kept.len()).map(word).collect();
            if total(boundaries.iter().copied()) > limit {
                boundaries.fill(0);
            }
        }
        for (column, boundary) in table.column_iter_mut().zip(boundaries) {
            column.set_padding((0, GAP));
            // A constraint applies to the whole column, padding included.
            let width = Width::Fixed(boundary.saturating_add(GAP));
            column.set_constraint(ColumnConstraint::LowerBoundary(width));
        }
        let lines = table.lines().map(|line| line.trim_end().to_owned());
        if self.limit.is_none() {
            return lines.collect();
        }
        let mut place = 0;
        let mut states = Vec::new();
        for column in kept {
            states.push((place, column.name));
            place += usize::from(column.width.saturating_add(GAP));
        }
        lines.map(|line| with_colours(line, &states)).collect()
    }
}

/// The width of columns with the space between them; the last one has none after it.
fn total(widths: impl Iterator<Item = u16>) -> u16 {
    let full = widths.map(|width| width.saturating_add(GAP));
    full.fold(0, u16::saturating_add).saturating_sub(GAP)
}

fn longest_word<'a>(cells: impl Iterator<Item = &'a str>) -> u16 {
    let words = cells.flat_map(str::split_whitespace);
    let longest = words.map(|word| word.chars().count()).max();
    u16::try_from(longest.unwrap_or_default()).unwrap_or(u16::MAX)
}

/// Adds the colours of states to a line. A column begins at its place unless an earlier one was
/// narrowed; then the line stays uncoloured.
fn with_colours(line: String, columns: &[(usize, &str)]) -> String {
    let gap = " ".repeat(usize::from(GAP));
    for (place, column) in columns.iter().rev() {
        let Some((before, rest)) = line.split_at_checked(*place) else {
            continue;
        };
        let (cell, after) = rest.split_at(rest.find(&gap).unwrap_or(rest.len()));
        let is_cell = before.is_empty() || before.ends_with(&gap);
        if let Some(style) = style(column, cell).filter(|_| is_cell) {
            return format!("{before}{style}{cell}{style:#}{after}");
        }
    }
    line
}

/// The colour of a state, if the column has states.
fn style(column: &str, cell: &str) -> Option<Style> {
    let column = column.to_uppercase();
    let colour = match cell {
        "Warning" if column == "TYPE" => AnsiColor::Yellow,
        _ if !["STATUS", "PHASE", "RESULT", "SEVERITY"].contains(&column.as_str()) => return None,
        "Running" | "Ready" | "Active" | "Succeeded" | "Completed" | "passed" => AnsiColor::Green,
        "Pending"
        | "ContainerCreating"
        | "Terminating"
        | "Ready,SchedulingDisabled"
        | "warning" => AnsiColor::Yellow,
        "NotReady" | "Failed" | "Error" | "error" | "failed" => AnsiColor::Red,
        // The reasons of failed pods.
        reason if reason.starts_with("OutOf") || reason.ends_with("Error") => AnsiColor::Red,
        _ => return None,
    };
    Some(colour.on_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: [&str; 2]) -> Vec<String> {
        cells.map(str::to_owned).into()
    }

    #[test]
    fn columns_are_aligned_and_lines_not_padded() {
        let mut table = TextTable::new(vec!["NAME", "AGE"]);
        let text = table.rows([row(["a-long-name", "5s"]), row(["b", "10s"])]);
        assert_eq!(
            text,
            "NAME          AGE\na-long-name   5s\nb             10s"
        );
    }

    #[test]
    fn a_table_fits_the_terminal() {
        let mut table = TextTable::new(vec!["NAME", "MESSAGE"]);
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
    fn a_narrow_terminal_omits_columns_and_breaks_no_word() {
        let columns = [
            "NAME",
            "STATUS",
            "VERSION",
            "EXTERNAL-IP",
            "OS-IMAGE",
            "POD-CIDR",
        ];
        let mut table = TextTable::new(columns.into());
        table.limit = Some(44);
        let row = ["node-0", "Ready", "v1", NONE, "podplane", "10.244.0.0/24"];
        let text = table.rows([row.map(str::to_owned).into()]);
        assert_eq!(
            text,
            "NAME     STATUS   VERSION   POD-CIDR\n\
             node-0   \u{1b}[32mReady\u{1b}[0m    v1        10.244.0.0/24"
        );
        assert_eq!(table.left_out(), ["EXTERNAL-IP", "OS-IMAGE"]);
        // Later rows, as in a watch, have the same columns.
        let row = [
            "node-10",
            "NotReady",
            "v1",
            NONE,
            "podplane",
            "10.244.1.0/24",
        ];
        let text = table.rows([row.map(str::to_owned).into()]);
        assert_eq!(
            text,
            "node-10   \u{1b}[31mNotReady\u{1b}[0m   v1        10.244.1.0/24"
        );
    }

    #[test]
    fn a_watch_keeps_the_widths_and_prints_one_header() {
        let mut table = TextTable::new(vec!["NAME", "AGE"]);
        table.rows([row(["a-long-name", "5s"])]);
        assert_eq!(table.rows([row(["b", "10s"])]), "b             10s");
    }

    #[test]
    fn escapes_control_characters_of_the_server() {
        let mut table = TextTable::new(vec!["A", "B"]);
        let text = table.rows([row(["\u{1b}[31mred", "one\ntwo\u{202e}"])]);
        let want = "\\u{1b}[31mred   one two\\u{202e}";
        assert_eq!(text.lines().nth(1), Some(want));
    }
}
