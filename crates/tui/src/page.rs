//! A page of text: what `describe`, `trace`, `explain` and `get -o yaml` print, and the help.

use podplane_api::printable;

use crate::row::Subject;

/// The command whose text a page shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DetailKind {
    /// `podplane describe`.
    Description,
    /// `podplane trace`, of pods.
    Trace,
    /// `podplane explain`, of pods.
    Explanation,
    /// `podplane get -o yaml`.
    Yaml,
}

impl DetailKind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Description => "describe",
            Self::Trace => "trace",
            Self::Explanation => "explain",
            Self::Yaml => "yaml",
        }
    }
}

/// The subject of a page, and the command.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Detail {
    /// The kind of its text.
    pub kind: DetailKind,
    /// The object that it is about.
    pub subject: Subject,
}

impl std::fmt::Display for Detail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.kind.as_str(), self.subject)
    }
}

/// A page of text.
#[derive(Debug)]
pub(crate) struct Page {
    title: String,
    /// Its subject; `None` for the help.
    detail: Option<Detail>,
    /// `None` while it is loading.
    lines: Option<Vec<String>>,
    is_error: bool,
    /// The first visible line and column.
    top: usize,
    left: usize,
}

impl Page {
    pub(crate) fn loading(detail: Detail) -> Self {
        Self {
            title: detail.to_string(),
            detail: Some(detail),
            lines: None,
            is_error: false,
            top: 0,
            left: 0,
        }
    }

    pub(crate) fn help(text: &str) -> Self {
        Self {
            title: "help".to_owned(),
            detail: None,
            lines: Some(text.lines().map(str::to_owned).collect()),
            is_error: false,
            top: 0,
            left: 0,
        }
    }

    pub(crate) fn title(&self) -> &str {
        &self.title
    }

    pub(crate) fn detail(&self) -> Option<&Detail> {
        self.detail.as_ref()
    }

    pub(crate) fn is_error(&self) -> bool {
        self.is_error
    }

    /// Shows the answer. What scrolled stays where it was, as far as there are lines.
    pub(crate) fn set(&mut self, answer: Result<&str, &str>) {
        self.is_error = answer.is_err();
        if self.is_error {
            (self.top, self.left) = (0, 0);
        }
        let (Ok(text) | Err(text)) = answer;
        let text = printable::lines(text);
        let lines: Vec<_> = text.lines().map(str::to_owned).collect();
        self.top = self.top.min(lines.len().saturating_sub(1));
        self.lines = Some(lines);
    }

    /// The visible lines; `None` while it is loading.
    pub(crate) fn lines(&self, height: usize) -> Option<impl Iterator<Item = &str>> {
        let lines = self.lines.as_ref()?.iter().skip(self.top).take(height);
        let left = self.left;
        Some(lines.map(move |line| {
            let mut chars = line.char_indices().map(|(index, _)| index);
            let start = chars.nth(left).unwrap_or(line.len());
            line.get(start..).unwrap_or_default()
        }))
    }

    /// The number of the first visible line, beginning with 1, and of all.
    pub(crate) fn position(&self) -> (usize, usize) {
        let all = self.lines.as_ref().map_or(0, Vec::len);
        ((self.top + 1).min(all), all)
    }

    pub(crate) fn scroll(&mut self, lines: isize, height: usize) {
        let all = self.lines.as_ref().map_or(0, Vec::len);
        let most = all.saturating_sub(height);
        self.top = self.top.saturating_add_signed(lines).min(most);
    }

    /// Does nothing for an error, which is wrapped.
    pub(crate) fn scroll_sideways(&mut self, columns: isize) {
        if self.is_error {
            return;
        }
        let lines = self.lines.iter().flatten();
        let longest = lines.map(|line| line.chars().count()).max().unwrap_or(0);
        let most = longest.saturating_sub(1);
        self.left = self.left.saturating_add_signed(columns).min(most);
    }
}
