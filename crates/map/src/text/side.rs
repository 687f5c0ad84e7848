//! The lines beside the map: blocks, addresses and the other networks.

use podplane_ipam::figures::readable;

use crate::{scene::Scene, view::View, words};

/// The least columns for a list of blocks or addresses.
pub(super) const LIST_COLUMNS: u16 = 30;
/// The least columns for a network on one line.
const NETWORK_COLUMNS: u16 = 44;

/// The columns and rows beside the map.
#[derive(Clone, Copy)]
pub(super) struct SideRoom {
    pub(super) columns: u16,
    pub(super) rows: u16,
}

/// A line beside the map.
pub(super) struct SideLine {
    pub(super) text: String,
    pub(super) is_heading: bool,
}

fn heading(text: &str) -> SideLine {
    SideLine {
        text: text.to_owned(),
        is_heading: true,
    }
}

fn line(text: String) -> SideLine {
    SideLine {
        text,
        is_heading: false,
    }
}

/// The lines for the room: blocks and addresses get what the networks leave.
pub(super) fn lines(scene: &Scene<'_>, room: SideRoom) -> Vec<SideLine> {
    let networks = networks(scene, room.columns);
    let mut lines = Vec::new();
    if room.columns >= LIST_COLUMNS {
        let free = usize::from(room.rows).saturating_sub(networks.len());
        lines = blocks(scene, free.max(3));
        lines.extend(addresses(scene, free.saturating_sub(lines.len())));
    }
    lines.extend(networks);
    lines
}

fn blocks(scene: &Scene<'_>, room: usize) -> Vec<SideLine> {
    let (space, main) = (scene.space(), scene.main());
    let prefix = main.prefix();
    let inside = space.blocks_starting_within(&prefix).filter(|index| {
        let block = space.blocks().get(*index);
        block.is_some_and(|block| prefix.contains(&block.cidr()))
    });
    let inside: Vec<usize> = inside.collect();
    let mut lines = vec![heading(words::BLOCKS_HEADING)];
    if inside.is_empty() {
        let around = main.block().and_then(|index| space.blocks().get(index));
        lines.push(line(around.map_or("none".to_owned(), |block| {
            let node = block.node().unwrap_or("<none>");
            let (state, also) = (block.state(), words::also(space, block));
            format!("in {} {state} {node}{also}", block.cidr())
        })));
    }
    // The heading, an empty line, and one for what is left out.
    let named = room.saturating_sub(3);
    for index in inside.iter().take(named) {
        lines.push(line(words::block_line(space, *index)));
    }
    if inside.len() > named {
        lines.push(line(format!("and {} more", inside.len() - named)));
    }
    lines.push(line(String::new()));
    lines
}

/// Returns true if cells are single addresses.
fn has_single_addresses(view: &View) -> bool {
    let mut cells = view.cells().iter();
    cells.any(|cell| cell.prefix.prefix_len() == cell.prefix.max_prefix_len())
}

/// The addresses with a holder, where the cells of the map are addresses.
fn addresses(scene: &Scene<'_>, room: usize) -> Vec<SideLine> {
    let (space, main) = (scene.space(), scene.main());
    let prefix = main.prefix();
    // The heading, an empty line, and one for what is left out.
    let Some(named) = room.checked_sub(3).filter(|named| *named > 0) else {
        return Vec::new();
    };
    if !has_single_addresses(main) {
        return Vec::new();
    }
    let records = space.records(&prefix);
    let mut records = records.filter(|record| !record.claims.is_empty());
    let shown = records.by_ref().take(named);
    let shown: Vec<_> = shown.map(|record| line(words::holders(&record))).collect();
    if shown.is_empty() {
        return Vec::new();
    }
    let more = records.count();
    let mut lines = vec![heading("addresses: holder")];
    lines.extend(shown);
    if more > 0 {
        lines.push(line(format!("and {more} more")));
    }
    lines.push(line(String::new()));
    lines
}

fn networks(scene: &Scene<'_>, columns: u16) -> Vec<SideLine> {
    let mut lines = Vec::new();
    if !scene.beside().is_empty() {
        lines.push(heading("beside"));
    }
    for view in scene.beside() {
        let (role, cidr) = (view.network().role(), view.network().cidr());
        let used = readable(view.counts().in_use());
        if columns >= NETWORK_COLUMNS {
            lines.push(line(format!("{role} {cidr}: {used} in use")));
        } else {
            lines.push(line(role.to_string()));
            lines.push(line(cidr.to_string()));
            lines.push(line(format!("{used} in use")));
        }
    }
    if scene.left_out() > 0 {
        lines.push(line(format!("and {} more", scene.left_out())));
    }
    lines
}
