//! The blocks of a picture as a list below it: most cells have no room for a name.

use super::{Canvas, LINE, MARGIN, TEXT_CHARACTER, offset};
use crate::{parts::NetworkRole, scene::Scene, words};

/// The most blocks by name. Of thousands the picture would be a list.
const MOST_BLOCKS: usize = 150;
/// The distance between columns, in characters.
const GAP: usize = 3;
/// The most characters of a line, so that there are two columns at least.
const MOST_CHARACTERS: usize = 62;

/// The list of the blocks, and its place.
#[derive(Debug)]
pub(super) struct BlockList {
    lines: Vec<String>,
    left_out: usize,
    columns: usize,
    column_width: f64,
    top: f64,
}

impl BlockList {
    /// Lists the blocks of the shown networks of pods. `top` is the line of its heading.
    pub(super) fn new(scene: &Scene<'_>, top: f64, width: f64) -> Self {
        let space = scene.space();
        let views = std::iter::once(scene.main()).chain(scene.beside());
        let of_pods = views.filter(|view| view.network().role() == NetworkRole::Pods);
        let mut blocks = of_pods.flat_map(|view| {
            let inside = space.blocks_starting_within(&view.prefix());
            // The block around a part of it begins in the part, or before it.
            let around = view.block().filter(|index| {
                let block = space.blocks().get(*index);
                block.is_some_and(|block| block.cidr().network() < view.prefix().network())
            });
            around.into_iter().chain(inside)
        });
        let shown = blocks.by_ref().take(MOST_BLOCKS);
        let lines: Vec<String> = shown.map(|index| words::block_line(space, index)).collect();
        let longest = lines.iter().map(|line| line.chars().count()).max();
        let longest = longest.unwrap_or(0).min(MOST_CHARACTERS);
        let column_width = TEXT_CHARACTER * offset(longest + GAP);
        let columns = (1..=lines.len())
            .take_while(|columns| offset(*columns) * column_width <= width - MARGIN)
            .last();
        Self {
            left_out: blocks.count(),
            columns: columns.unwrap_or(1),
            lines,
            column_width,
            top,
        }
    }

    /// The lines of each column.
    fn rows(&self) -> usize {
        self.lines.len().div_ceil(self.columns)
    }

    /// The lower edge, with the distance to what follows.
    pub(super) fn bottom(&self) -> f64 {
        let rows = match self.lines.len() {
            0 => return self.top,
            _ => 1 + self.rows() + usize::from(self.left_out > 0),
        };
        self.top + LINE * offset(rows)
    }

    pub(super) fn draw(&self, canvas: &mut Canvas) {
        if self.lines.is_empty() {
            return;
        }
        canvas.text("strong", MARGIN, self.top, words::BLOCKS_HEADING);
        let rows = self.rows();
        let room = self.column_width - TEXT_CHARACTER;
        for (index, line) in self.lines.iter().enumerate() {
            let x = MARGIN + self.column_width * offset(index / rows);
            let y = self.top + LINE * offset(1 + index % rows);
            canvas.text_within("block", (x, y), room, line);
        }
        if self.left_out > 0 {
            let y = self.top + LINE * offset(1 + rows);
            let more = format!(
                "and {} more: `podplane map PREFIX` shows those of a part",
                self.left_out
            );
            canvas.text("sub", MARGIN, y, &more);
        }
    }
}
