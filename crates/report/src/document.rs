//! A report as data.

use crate::{figure::Figure, table::Table};

/// A report, which becomes one page.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The title of the page.
    pub title: String,
    /// The numbers that sum the report up, below the title.
    pub counts: Vec<Count>,
    /// The circumstances: the source, the time, the program.
    pub facts: Vec<Fact>,
    /// The sections in order.
    pub sections: Vec<Section>,
}

/// The meaning of a mark, which has a colour and always a text too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// Nothing special.
    #[default]
    Neutral,
    /// As it should be.
    Good,
    /// It may fail later.
    Caution,
    /// A fault.
    Bad,
}

impl Tone {
    /// The class in the style sheet.
    pub(crate) const fn class(self) -> &'static str {
        match self {
            Self::Neutral => "neutral",
            Self::Good => "good",
            Self::Caution => "caution",
            Self::Bad => "bad",
        }
    }
}

/// A number that sums up a report, such as `3 errors`.
#[derive(Clone, Debug)]
pub struct Count {
    /// The meaning of the number.
    pub tone: Tone,
    /// The number, as text.
    pub number: String,
    /// The counted things.
    pub of: String,
}

/// A name with its values.
#[derive(Clone, Debug)]
pub struct Fact {
    /// The name.
    pub name: String,
    /// The values, below each other.
    pub values: Vec<String>,
}

impl Fact {
    /// A name with one value.
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            values: vec![value.into()],
        }
    }
}

/// A part of a report with a heading.
#[derive(Clone, Debug, Default)]
pub struct Section {
    /// The id to link to. It is made unique in the page, in the order of the page.
    pub id: String,
    /// The heading.
    pub title: String,
    /// Its mark beside the heading, if any.
    pub mark: Option<(Tone, String)>,
    /// Its content.
    pub blocks: Vec<Block>,
}

impl Section {
    /// A section without a mark.
    pub fn new(id: impl Into<String>, title: impl Into<String>, blocks: Vec<Block>) -> Self {
        Self {
            id: id.into(),
            title: title.into(),
            mark: None,
            blocks,
        }
    }
}

/// A piece of a section.
#[derive(Clone, Debug)]
pub enum Block {
    /// A paragraph.
    Paragraph(String),
    /// A list.
    List(Vec<String>),
    /// Names with values.
    Facts(Vec<Fact>),
    /// A remark that stands out.
    Notice(Tone, String),
    /// A text whose lines are kept, such as the output of a program.
    Preformatted(String),
    /// A text in Markdown. HTML in it is shown as text, and links lead nowhere.
    Markdown(String),
    /// A table.
    Table(Table),
    /// A picture.
    Figure(Box<Figure>),
    /// A section in it, in the table of contents.
    Section(Section),
    /// Blocks that are shown on demand, and in print.
    Folded {
        /// The text that stands for them.
        summary: String,
        /// True to show them at first.
        is_open: bool,
        /// The blocks.
        blocks: Vec<Block>,
    },
}
