//! The map: the grid of characters of `podplane_map`, with a cursor and a line about it.

use podplane_map::{AddressSpace, TextCell, TextGrid, TextSize, cell_line};
use ratatui::{buffer::Buffer, layout::Rect, style::Modifier};

use super::{
    draw_foot, draw_state,
    table::{denied, lacks_namespace},
    write,
};
use crate::{
    app::{App, FOOT, SpaceState},
    map::MapScreen,
    theme::Theme,
};

/// The keys, beside the scale.
const KEYS: &str = "Enter in  Backspace out  Tab next  n pods  d describe  ? help";

pub(super) fn draw(app: &App, map: &MapScreen, area: Rect, buffer: &mut Buffer, theme: Theme) {
    let foot = Rect {
        y: area.bottom().saturating_sub(FOOT),
        height: FOOT.min(area.height),
        ..area
    };
    let note = match (app.map_size(), app.space.get()) {
        (None, _) => {
            let least = TextSize::MIN;
            let (columns, rows) = (least.columns(), least.rows());
            let text = format!("the map needs at least {columns} columns and {rows} rows");
            write(buffer, area, &text, theme.title());
            None
        }
        (Some(_), None) => {
            let text = format!("loading the map from {}", app.server);
            write(buffer, area, &text, theme.hint());
            None
        }
        (Some(size), Some(space)) => draw_space(map, space, size, area, buffer, theme),
    };
    // The last row of the grid has remarks; the line about the cursor takes their place.
    buffer.set_style(foot, ratatui::style::Style::reset());
    write(buffer, foot, &" ".repeat(foot.width.into()), theme.hint());
    let only = app.namespace.as_ref();
    let only = only.map(|name| format!("only pods of namespace {name}"));
    let only = lacks_namespace(app).or(only);
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
    let scale_end = scale_width(&grid).saturating_add(2);
    let keys = Rect {
        x: area.x.saturating_add(scale_end),
        y: area.y.saturating_add(1),
        width: area.width.saturating_sub(scale_end),
        height: 1,
    };
    write(buffer, keys.intersection(area), KEYS, theme.hint());
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
            .unwrap_or_else(|| cell_line(space, &cell)),
    )
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
