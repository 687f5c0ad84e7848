//! The sheets of `describe`: aligned keys and values, with sections and tables.

mod blocks;

use std::fmt;

use podplane_api::{printable, table::NONE};

use super::table::TextTable;

/// A sheet under construction.
#[derive(Debug, Default)]
pub(crate) struct Sheet {
    indent: usize,
    lines: Vec<SheetLine>,
}

#[derive(Debug)]
enum SheetLine {
    Field {
        indent: usize,
        key: String,
        values: Vec<String>,
    },
    Text {
        indent: usize,
        text: String,
    },
    Table {
        indent: usize,
        columns: Vec<&'static str>,
        rows: Vec<Vec<String>>,
    },
}

impl Sheet {
    /// `Key:  value`
    pub(crate) fn field(&mut self, key: &str, value: impl Into<String>) {
        self.fields(key, [value.into()]);
    }

    /// Adds a key, with the values below each other; `<none>` for no values.
    pub(crate) fn fields(&mut self, key: &str, values: impl IntoIterator<Item = String>) {
        let visible = |value: String| printable::line(&value).into_owned();
        let mut values: Vec<_> = values.into_iter().map(visible).collect();
        if values.is_empty() {
            values.push(NONE.into());
        }
        self.lines.push(SheetLine::Field {
            indent: self.indent,
            key: printable::line(key).into_owned(),
            values,
        });
    }

    /// Adds a heading and, indented, the lines that `fill` adds; `<none>` beside the heading if
    /// there are none.
    pub(crate) fn section(&mut self, key: &str, fill: impl FnOnce(&mut Self)) {
        let heading = self.lines.len();
        self.text(&format!("{key}:"));
        self.indent += 1;
        fill(self);
        self.indent -= 1;
        if self.lines.len() == heading + 1 {
            self.lines.pop();
            self.fields(key, []);
        }
    }

    /// Adds a section with a table; `<none>` beside the heading if there are no rows.
    pub(crate) fn table(&mut self, key: &str, columns: &[&'static str], rows: Vec<Vec<String>>) {
        self.section(key, |sheet| {
            if !rows.is_empty() {
                sheet.lines.push(SheetLine::Table {
                    indent: sheet.indent,
                    columns: columns.to_vec(),
                    rows,
                });
            }
        });
    }

    fn text(&mut self, text: &str) {
        self.lines.push(SheetLine::Text {
            indent: self.indent,
            text: printable::line(text).into_owned(),
        });
    }

    /// The column in which the values of the field at `index` begin: the same for its whole
    /// section.
    fn value_column(&self, index: usize) -> usize {
        let indent = self.lines[index].indent();
        let (before, after) = self.lines.split_at(index);
        let inside = |line: &&SheetLine| line.indent() >= indent;
        let section = before
            .iter()
            .rev()
            .take_while(inside)
            .chain(after.iter().take_while(inside));
        let keys = section.filter_map(|line| match line {
            SheetLine::Field {
                indent: of, key, ..
            } if *of == indent => Some(key.chars().count()),
            SheetLine::Field { .. } | SheetLine::Text { .. } | SheetLine::Table { .. } => None,
        });
        // A colon and two spaces.
        keys.max().unwrap_or_default() + 3
    }
}

impl SheetLine {
    fn indent(&self) -> usize {
        match self {
            Self::Field { indent, .. } | Self::Text { indent, .. } | Self::Table { indent, .. } => {
                *indent
            }
        }
    }
}

impl fmt::Display for Sheet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut newline = "";
        for (index, line) in self.lines.iter().enumerate() {
            match line {
                SheetLine::Text { indent, text } => {
                    write!(f, "{newline}{}{text}", "  ".repeat(*indent))?;
                }
                SheetLine::Table {
                    indent,
                    columns,
                    rows,
                } => {
                    let mut table = TextTable::new(columns.clone()).indented(2 * indent);
                    for line in table.rows(rows.iter().cloned()).lines() {
                        write!(f, "{newline}{}{line}", "  ".repeat(*indent))?;
                        newline = "\n";
                    }
                }
                SheetLine::Field {
                    indent,
                    key,
                    values,
                } => {
                    let width = self.value_column(index);
                    let mut label = format!("{key}:");
                    for value in values {
                        let line = format!("{}{label:width$}{value}", "  ".repeat(*indent));
                        write!(f, "{newline}{}", line.trim_end())?;
                        label.clear();
                        newline = "\n";
                    }
                }
            }
            newline = "\n";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_control_characters_of_the_server() {
        let mut sheet = Sheet::default();
        sheet.field("Key\u{202e}", "a\nb\u{1b}[2J");
        sheet.section("Head\u{7}", |sheet| sheet.text("\u{2066}x"));
        assert_eq!(
            sheet.to_string(),
            "Key\\u{202e}:  a b\\u{1b}[2J\nHead\\u{7}:\n  \\u{2066}x"
        );
    }

    #[test]
    fn values_are_aligned_in_each_section() {
        let mut sheet = Sheet::default();
        sheet.field("Name", "web-0");
        sheet.fields("Labels", ["a=1".into(), "b=2".into()]);
        sheet.fields("Annotations", []);
        sheet.section("Containers", |sheet| {
            sheet.section("c", |sheet| {
                sheet.field("Image", "i");
                sheet.field("Ready", "True");
            });
        });
        sheet.table(
            "Events",
            &["Type", "Reason"],
            vec![vec!["Normal".into(), "Scheduled".into()]],
        );
        sheet.table("None", &["Type"], Vec::new());
        assert_eq!(
            sheet.to_string(),
            "Name:         web-0\n\
             Labels:       a=1\n\
             \u{20}             b=2\n\
             Annotations:  <none>\n\
             Containers:\n\
             \u{20} c:\n\
             \u{20}   Image:  i\n\
             \u{20}   Ready:  True\n\
             Events:\n\
             \u{20} Type     Reason\n\
             \u{20} Normal   Scheduled\n\
             None:         <none>"
        );
    }
}
