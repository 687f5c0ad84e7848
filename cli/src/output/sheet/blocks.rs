//! A sheet as a part of a page.

use podplane_report::{Block, Column, Fact, Row, Section, Table};

use super::{Sheet, SheetLine};

impl Sheet {
    /// Returns the sheet as blocks: consecutive fields together, and a section for each heading.
    pub(crate) fn blocks(&self) -> Vec<Block> {
        blocks(&self.lines, 0)
    }
}

fn blocks(lines: &[SheetLine], indent: usize) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut rest = lines;
    while let Some((line, after)) = rest.split_first() {
        rest = after;
        match line {
            SheetLine::Field { key, values, .. } => {
                let fact = Fact {
                    name: key.clone(),
                    values: values.clone(),
                };
                match blocks.last_mut() {
                    Some(Block::Facts(facts)) => facts.push(fact),
                    _ => blocks.push(Block::Facts(vec![fact])),
                }
            }
            SheetLine::Table { columns, rows, .. } => blocks.push(Block::Table(Table {
                caption: String::new(),
                columns: columns.iter().map(|name| Column::text(*name)).collect(),
                rows: rows.iter().cloned().map(Row::of_texts).collect(),
            })),
            SheetLine::Text { text, .. } => {
                let inside = rest.iter().take_while(|line| line.indent() > indent);
                let (inside, after) = rest.split_at(inside.count());
                rest = after;
                let title = text.strip_suffix(':').unwrap_or(text);
                let inner = self::blocks(inside, indent + 1);
                blocks.push(Block::Section(Section::new(title, title, inner)));
            }
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_become_sections_with_what_is_below_them() {
        let mut sheet = Sheet::default();
        sheet.field("Nodes", "3");
        sheet.field("Pods", "6");
        sheet.section("Range", |sheet| {
            sheet.table("Masks", &["MASK"], vec![vec!["/24".into()]]);
        });
        sheet.field("Warnings", "none");
        let blocks = sheet.blocks();
        let [
            Block::Facts(facts),
            Block::Section(range),
            Block::Facts(last),
        ] = blocks.as_slice()
        else {
            panic!("{blocks:?}")
        };
        assert_eq!((facts.len(), last.len()), (2, 1));
        let [Block::Section(masks)] = range.blocks.as_slice() else {
            panic!("{range:?}")
        };
        assert_eq!(masks.title, "Masks");
        assert!(matches!(masks.blocks.as_slice(), [Block::Table(table)] if table.rows.len() == 1));
    }
}
