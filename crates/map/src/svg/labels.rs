//! The labels of blocks: node and prefix, where they have room. The list below names all blocks.

use std::collections::BTreeSet;

use super::{Canvas, CellSign, Place, has_letter, offset};
use crate::{
    space::AddressSpace,
    view::{BlockOutline, View},
    words,
};

/// The width of a character of a label; monospaced, as the fonts of viewers differ.
const CHARACTER: f64 = 6.1;
/// The distance between lines.
const LINE: f64 = 13.0;
/// The distance to the sides of the block.
const SIDE: f64 = 4.0;
/// Half of the size of a letter in a cell.
const HALF_LETTER: f64 = 6.0;

impl Canvas {
    /// Writes the nodes and the prefix into blocks that are large enough: at the centre, or where
    /// no letter and no narrower block is in the way.
    pub(super) fn labels(
        &mut self,
        space: &AddressSpace,
        view: &View,
        place: Place,
        sign: CellSign,
    ) {
        let outlines = view.outlines();
        for outlines in outlines.chunk_by(|a, b| a.rect == b.rect) {
            // Equal blocks have one label, which names all nodes or, without the room, the first.
            let Some(outline) = outlines.first() else {
                continue;
            };
            let room = Room {
                space,
                view,
                place,
                sign,
                outline,
            };
            let lines = lines(outlines, &room);
            let (x, y) = outline.rect.centre();
            let (x, y) = (x * place.cell, y * place.cell);
            let shown = (1..=lines.len()).rev().find_map(|count| {
                let lines = lines.get(..count)?;
                Some((lines, room.middle_of(lines, (x, y))?))
            });
            let Some((lines, y)) = shown else {
                continue;
            };
            let top = place.y + y + 3.5 - LINE / 2.0 * (offset(lines.len()) - 1.0);
            for (index, line) in lines.iter().enumerate() {
                let y = top + LINE * offset(index);
                self.text("label", place.x + x, y, line);
            }
        }
    }
}

/// The texts about equal blocks that are not too wide for them, the most important first.
fn lines(outlines: &[BlockOutline], room: &Room<'_>) -> Vec<String> {
    let outline = room.outline;
    let is_former = outline.state.is_withheld();
    let alike = outlines
        .iter()
        .filter(|each| each.state.is_withheld() == is_former);
    let nodes: BTreeSet<_> = alike.filter_map(|each| each.node.as_deref()).collect();
    let name = match nodes.is_empty() {
        true => Some(outline.state.to_string()),
        false => (1..=words::NAMED_NODES)
            .rev()
            .map(|named| words::some_nodes(nodes.iter().copied(), named))
            .find(|name| room.is_wide_enough(name)),
    };
    let lines = [name, Some(outline.cidr.to_string())];
    let lines = lines.into_iter().flatten();
    lines.filter(|line| room.is_wide_enough(line)).collect()
}

fn width(text: &str) -> f64 {
    CHARACTER * offset(text.chars().count())
}

/// The cells of a block, as room for its label. Distances are from the corner of the view.
struct Room<'a> {
    space: &'a AddressSpace,
    view: &'a View,
    place: Place,
    sign: CellSign,
    outline: &'a BlockOutline,
}

impl Room<'_> {
    fn is_wide_enough(&self, text: &str) -> bool {
        let block = f64::from(self.outline.rect.width) * self.place.cell;
        width(text) + 2.0 * SIDE <= block
    }

    /// The height at which the lines can be: the nearest to the centre of the block.
    fn middle_of(&self, lines: &[String], (x, y): (f64, f64)) -> Option<f64> {
        let widest = lines.iter().map(|line| width(line)).fold(0.0, f64::max);
        let half = (widest / 2.0, LINE / 2.0 * offset(lines.len()));
        let block = f64::from(self.outline.rect.height) * self.place.cell;
        let most = block / 2.0 - half.1;
        let distances = (0..).map(|step| LINE * offset(step));
        let distances = distances.take_while(|distance| *distance <= most);
        let mut places = distances.flat_map(|distance| [y + distance, y - distance]);
        places.find(|y| self.is_clear((x, *y), half))
    }

    /// Returns true if nothing is below a label.
    fn is_clear(&self, (x, y): (f64, f64), half: (f64, f64)) -> bool {
        let (columns, rows) = (self.cells(x, half.0), self.cells(y, half.1));
        let is_one = columns.len() == 1 && rows.len() == 1;
        let mut cells = rows.flat_map(|row| columns.clone().map(move |column| (column, row)));
        cells.all(|(column, row)| {
            let Some(cell) = self.view.at(column, row) else {
                return false;
            };
            let block = cell.block.and_then(|index| self.space.blocks().get(index));
            let is_own = block.is_some_and(|block| block.cidr() == self.outline.cidr);
            let is_beside_letter = || {
                let centre = (f64::from(row) + 0.5) * self.place.cell;
                is_one && (y - centre).abs() >= half.1 + HALF_LETTER
            };
            let has_letter = self.sign == CellSign::Letter && has_letter(cell);
            is_own && (!has_letter || is_beside_letter())
        })
    }

    /// The columns or rows from `half` before the middle to `half` behind it.
    fn cells(&self, middle: f64, half: f64) -> std::ops::Range<u16> {
        let at = |distance: f64| (distance / self.place.cell).clamp(0.0, f64::from(u16::MAX));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "whole numbers within the range"
        )]
        let range = at(middle - half).floor() as u16..at(middle + half).ceil() as u16;
        range
    }
}
