//! The map: the grid of characters of `podplane_map`, with a cursor and a line about it.

use podplane_map::{AddressSpace, TextCell, TextGrid, TextSize, cell_line};
use ratatui::{buffer::Buffer, layout::Rect, style::Modifier, widgets::Widget as _};

use super::{
    draw_foot, draw_state,
    table::{denied, lacks_namespace},
    wrapped, write,
};
use crate::{
    app::{App, FOOT, SpaceState},
    map::MapScreen,
    theme::Theme,
};

/// The key that is always named, at the right end of the scale's row.
const HELP: &str = "? help";
/// The other keys, as many as have room before it.
const KEYS: [&str; 6] = [
    "Enter in",
    "Backspace out",
    "Tab next",
    "n pods",
    "d describe",
    "q quit",
];
/// The keys that need a cluster, which a dump has not.
const KEYS_OF_CLUSTER: [&str; 2] = ["n pods", "d describe"];
/// The distance between keys.
const GAP: u16 = 2;

pub(super) fn draw(app: &App, map: &MapScreen, area: Rect, buffer: &mut Buffer, theme: Theme) {
    let foot = Rect {
        y: area.bottom().saturating_sub(FOOT),
        height: FOOT.min(area.height),
        ..area
    };
    let note = match (app.map_size(), app.space.get()) {
        (None, _) => {
            let least = TextSize::MIN;
            let (columns, rows) = (least.columns(), least.rows() + FOOT);
            let text = format!("the map needs at least {columns} columns and {rows} rows");
            wrapped(&text, theme.title()).render(area, buffer);
            let (columns, rows) = app.size;
            let keys = if app.is_fixed {
                ""
            } else {
                "1 to 5 the tables, "
            };
            Some(format!(
                "this terminal has {columns} columns and {rows} rows; {keys}? help, q quit"
            ))
        }
        (Some(_), None) => {
            let text = format!("loading the map from {}", app.server);
            write(buffer, area, &text, theme.hint());
            None
        }
        (Some(size), Some(space)) => {
            let has_key = |key: &&str| !app.is_fixed || !KEYS_OF_CLUSTER.contains(key);
            let keys: Vec<_> = KEYS.into_iter().filter(has_key).collect();
            draw_space(map, space, size, &keys, area, buffer, theme)
        }
    };
    let only = app.namespace.as_ref();
    let only = only.and_then(|name| lacks_namespace(app, name));
    let missing = SpaceState::SOURCES
        .iter()
        .find_map(|source| denied(app, *source));
    let missing = missing.or(only);
    let note = match (note, missing) {
        // First, because the end of the line may be cut.
        (Some(note), Some(missing)) => Some(format!("{missing}; {note}")),
        (note, missing) => note.or(missing),
    };
    draw_foot(app, foot, buffer, theme, note);
    draw_state(app, area, buffer, theme);
}

/// Draws the grid. Returns the line about the cell under the cursor.
fn draw_space(
    map: &MapScreen,
    space: &AddressSpace,
    size: TextSize,
    keys: &[&str],
    area: Rect,
    buffer: &mut Buffer,
    theme: Theme,
) -> Option<String> {
    let Some(scene) = map.scene(space, size) else {
        write(
            buffer,
            area,
            "no network is known: no node has a block yet",
            theme.title(),
        );
        return None;
    };
    let grid = TextGrid::new(&scene, size);
    for (row, y) in (0..grid.size().rows()).zip(area.y..area.bottom()) {
        for (column, x) in (0..grid.size().columns()).zip(area.x..area.right()) {
            if let (Some(cell), Some(place)) = (grid.at(column, row), buffer.cell_mut((x, y))) {
                place.set_char(cell.symbol).set_style(style(theme, &cell));
            }
        }
    }
    draw_keys(keys, scale_width(&grid), area, buffer, theme);
    let cell = map.cell(&scene)?;
    let (column, row) = grid.position_of(cell.x, cell.y)?;
    let cursor = Rect {
        x: area.x.saturating_add(column),
        y: area.y.saturating_add(row),
        width: 2,
        height: 1,
    };
    let style = theme.selected().add_modifier(Modifier::BOLD);
    buffer.set_style(cursor.intersection(area), style);
    Some(
        map.problem(space)
            .unwrap_or_else(|| cell_line(space, scene.main().network().role(), &cell)),
    )
}

/// Draws the keys behind the scale of so many columns, whose end they cover where they must.
fn draw_keys(all: &[&str], scale: u16, area: Rect, buffer: &mut Buffer, theme: Theme) {
    let width = |text: &str| u16::try_from(text.len()).unwrap_or(u16::MAX);
    let room = area.width.saturating_sub(scale + GAP);
    let keys = (0..=all.len()).rev().map(|named| {
        let named = all.iter().take(named).chain([&HELP]);
        named.copied().collect::<Vec<_>>().join("  ")
    });
    let mut keys = keys.filter(|keys| width(keys) <= room);
    let keys = keys.next().unwrap_or_else(|| HELP.to_owned());
    let end = area.right().saturating_sub(width(&keys));
    let place = Rect {
        x: end.max(area.x),
        y: area.y.saturating_add(1),
        width: width(&keys).min(area.width),
        height: 1,
    };
    write(buffer, place.intersection(area), &keys, theme.hint());
    if end < area.x.saturating_add(scale).saturating_add(1) {
        let cut = Rect {
            x: end.saturating_sub(GAP),
            width: GAP,
            ..place
        };
        write(buffer, cut.intersection(area), "~ ", theme.hint());
    }
}

/// The columns of the second row that have text.
fn scale_width(grid: &TextGrid) -> u16 {
    let columns = (0..grid.size().columns()).rev();
    let is_text = |column: &u16| grid.at(*column, 1).is_some_and(|cell| cell.symbol != ' ');
    let mut last = columns.filter(is_text);
    last.next().map_or(0, |column| column.saturating_add(1))
}

fn style(theme: Theme, cell: &TextCell) -> ratatui::style::Style {
    let style = match cell.style.state {
        Some(state) => theme.state(state),
        None => ratatui::style::Style::new(),
    };
    match cell.style.is_bold {
        true => style.add_modifier(Modifier::BOLD),
        false => style,
    }
}
