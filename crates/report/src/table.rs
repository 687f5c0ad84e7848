//! Tables.

use maud::{Markup, html};

use crate::document::Tone;

/// A table.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// The caption; empty for a table that its heading names.
    pub caption: String,
    /// The columns.
    pub columns: Vec<Column>,
    /// The rows, each with a cell for each column.
    pub rows: Vec<Row>,
}

/// A column of a table.
#[derive(Clone, Debug)]
pub struct Column {
    /// The heading. An empty one is for a column of marks.
    pub name: String,
    /// Set for numbers, which are aligned to the right.
    pub is_number: bool,
}

impl Column {
    /// A column of texts.
    pub fn text(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            is_number: false,
        }
    }

    /// A column of numbers.
    pub fn number(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            is_number: true,
        }
    }
}

/// A row of a table.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// The id to link to, if any. It is made unique in the page.
    pub id: Option<String>,
    /// The cells.
    pub cells: Vec<Cell>,
    /// Cells below these, as wide as the table.
    pub below: Vec<Cell>,
}

impl Row {
    /// A row without an id.
    #[must_use]
    pub const fn new(cells: Vec<Cell>) -> Self {
        Self {
            id: None,
            cells,
            below: Vec::new(),
        }
    }

    /// A row of texts.
    pub fn of_texts(texts: impl IntoIterator<Item = String>) -> Self {
        Self::new(texts.into_iter().map(Cell::Text).collect())
    }
}

/// A cell of a table.
#[derive(Clone, Debug)]
pub enum Cell {
    /// A text.
    Text(String),
    /// Texts below each other.
    Lines(Vec<String>),
    /// A name or address, in a font of one width.
    Code(String),
    /// A word with a tone.
    Mark(Tone, String),
    /// A text with a tone.
    Toned(Tone, String),
    /// A text behind an indent of some levels.
    Indented(usize, String),
    /// A text whose lines are kept, such as the output of a program.
    Preformatted(String),
    /// Cells behind each other.
    Several(Vec<Cell>),
}

impl Table {
    /// The table, in a box that scrolls on narrow screens.
    pub(crate) fn markup(&self) -> Markup {
        html! {
            div.scroll tabindex="0" role="region" aria-label=(self.label()) {
                table {
                    @if !self.caption.is_empty() { caption { (self.caption) } }
                    thead { tr { @for column in &self.columns {
                        @if column.name.is_empty() {
                            td {}
                        } @else {
                            th scope="col" class=[column.is_number.then_some("number")] { (column.name) }
                        }
                    } } }
                    tbody { @for row in &self.rows { (self.row(row)) } }
                }
            }
        }
    }

    fn label(&self) -> String {
        if !self.caption.is_empty() {
            return self.caption.clone();
        }
        let names = self.columns.iter().map(|column| column.name.as_str());
        let names: Vec<_> = names.filter(|name| !name.is_empty()).collect();
        format!("Table: {}", names.join(", "))
    }

    fn row(&self, row: &Row) -> Markup {
        let cells = row.cells.iter().zip(&self.columns).enumerate();
        html! {
            tr id=[row.id.as_deref()] class=[(!row.below.is_empty()).then_some("above")] {
                @for (index, (cell, column)) in cells {
                    td class=[column.is_number.then_some("number")] {
                        (cell.markup())
                        @if let (0, Some(id)) = (index, &row.id) { " " (anchor(id, id)) }
                    }
                }
            }
            @if !row.below.is_empty() {
                tr { td.below colspan=(self.columns.len()) {
                    @for cell in &row.below { (cell.markup()) }
                } }
            }
        }
    }
}

impl Cell {
    fn markup(&self) -> Markup {
        html! {
            @match self {
                Self::Text(text) => (text),
                Self::Lines(lines) => @for line in lines { div { (line) } },
                Self::Code(text) => code { (text) },
                Self::Mark(tone, word) => span class={ "mark " (tone.class()) } { (word) },
                Self::Toned(tone, text) => span class=(tone.class()) { (text) },
                Self::Indented(level, text) => {
                    span style={ "padding-left:" (level) "em" } { (text) }
                }
                Self::Preformatted(text) => pre { (text) },
                Self::Several(cells) => @for cell in cells { (cell.markup()) },
            }
        }
    }
}

/// A link to an id of the page, beside what has the id.
pub(crate) fn anchor(id: &str, name: &str) -> Markup {
    html! { a.anchor href={ "#" (id) } aria-label={ "Link to " (name) } { "#" } }
}
