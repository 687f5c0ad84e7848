//! The ids of a page: unique, and the same in every page of the same report.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    document::{Block, Report, Section},
    table::Table,
};

/// The ids of the layout, and those in the pictures of `podplane-map`.
const RESERVED: [&str; 5] = ["contents", "desc", "main", "title", "top"];

/// The ids in use.
pub(crate) struct Ids {
    used: BTreeSet<String>,
    /// The next number behind an id that is wanted again: a page may have many equal findings.
    next: BTreeMap<String, usize>,
}

impl Ids {
    pub(crate) fn new() -> Self {
        Self {
            used: RESERVED.map(Into::into).into(),
            next: BTreeMap::new(),
        }
    }

    /// Makes all ids of a report unique, in the order of the page.
    pub(crate) fn settle(&mut self, report: &mut Report) {
        for section in &mut report.sections {
            self.settle_section(section);
        }
    }

    fn settle_section(&mut self, section: &mut Section) {
        section.id = self.unique(&section.id);
        self.settle_blocks(&mut section.blocks);
    }

    fn settle_blocks(&mut self, blocks: &mut [Block]) {
        for block in blocks {
            match block {
                Block::Table(table) => self.settle_table(table),
                Block::Figure(figure) => {
                    figure.id = self.unique(&figure.id);
                    for table in &mut figure.tables {
                        self.settle_table(table);
                    }
                }
                Block::Section(section) => self.settle_section(section),
                Block::Folded { blocks, .. } => self.settle_blocks(blocks),
                Block::Paragraph(_)
                | Block::List(_)
                | Block::Facts(_)
                | Block::Notice(..)
                | Block::Preformatted(_)
                | Block::Markdown(_) => {}
            }
        }
    }

    fn settle_table(&mut self, table: &mut Table) {
        for id in table.rows.iter_mut().filter_map(|row| row.id.as_mut()) {
            *id = self.unique(id);
        }
    }

    /// The id, with a number behind it if it is in use.
    fn unique(&mut self, wanted: &str) -> String {
        let wanted = slug(wanted);
        let next = self.next.entry(wanted.clone()).or_insert(2);
        let mut id = wanted.clone();
        while !self.used.insert(id.clone()) {
            id = format!("{wanted}-{next}");
            *next += 1;
        }
        id
    }
}

/// A text as an id: lower-case ASCII letters and digits, with hyphens for all else.
#[must_use]
pub fn slug(text: &str) -> String {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    match words.is_empty() {
        true => "part".into(),
        false => words.join("-").to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_plain_and_unique() {
        assert_eq!(slug("Pod default/web-0\u{202e}\""), "pod-default-web-0");
        assert_eq!(slug("日本"), "part");
        let mut ids = Ids::new();
        let made = ["a b", "a-b", "main", "a/b"].map(|wanted| ids.unique(wanted));
        assert_eq!(made, ["a-b", "a-b-2", "main-2", "a-b-3"]);
    }
}
