//! A table, or the reason why it is empty.

use ratatui::{
    buffer::Buffer,
    layout::{Constraint, Flex, Layout, Rect},
    widgets::Widget as _,
};

use super::{wrapped, write};
use crate::{
    app::App,
    cluster::{Health, Source},
    row::{ColumnWidth, Tone},
    scope::Scope,
    table::{ShownColumn, Table, TablePicture},
    theme::Theme,
};

pub(super) fn draw(app: &App, list: &dyn Table, area: Rect, buffer: &mut Buffer, theme: Theme) {
    let picture = list.picture(area.width, app.table_height(), app.now);
    let TablePicture {
        columns,
        rows,
        selected,
    } = picture;
    let widths = columns.iter().map(|column| match column.width {
        ColumnWidth::Fixed(width) => Constraint::Length(width),
        // A share of the rest in proportion to what it needs.
        ColumnWidth::AtLeast(width) => Constraint::Fill(width),
    });
    let layout = Layout::horizontal(widths).spacing(1).flex(Flex::Start);
    let [head, body] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
    for (place, column) in layout.split(head).iter().zip(&columns) {
        write(buffer, *place, &title(column, place.width), theme.title());
    }
    for (index, (place, row)) in body.rows().zip(&rows).enumerate() {
        let is_selected = selected == Some(index);
        for (place, cell) in layout.split(place).iter().zip(row) {
            write(buffer, *place, &cell.text, theme.tone(cell.tone));
        }
        if is_selected {
            buffer.set_style(place, theme.selected());
        }
    }
    if rows.is_empty() {
        let (text, tone) = empty(app, list);
        wrapped(&text, theme.tone(tone)).render(body, buffer);
    }
}

/// The sign of an order.
pub(super) const fn arrow(is_reverse: bool) -> char {
    match is_reverse {
        false => '↑',
        true => '↓',
    }
}

/// The title, with the direction if the rows are sorted by it: where there is no room for both, the
/// title is cut.
fn title(column: &ShownColumn, width: u16) -> String {
    let Some(is_reverse) = column.sorted else {
        return column.title.to_owned();
    };
    let room = usize::from(width.saturating_sub(1));
    let shown: String = column.title.chars().take(room).collect();
    format!("{shown}{}", arrow(is_reverse))
}

/// The reason why there are no rows.
fn empty(app: &App, list: &dyn Table) -> (String, Tone) {
    let Some(source) = list.sources().first() else {
        return (String::new(), Tone::Plain);
    };
    let what = source.as_str();
    match app.cluster.health(*source) {
        Health::Unused | Health::Loading => {
            (format!("loading {what} from {}", app.server), Tone::Plain)
        }
        Health::Denied { error } => (format!("{what}: not permitted: {error}"), Tone::Bad),
        Health::Lost { error, .. } => (format!("failed to list {what}: {error}"), Tone::Bad),
        Health::Live => match (list.filter().text(), list.scope()) {
            ("", Scope::Namespace(name)) if list.is_namespaced() => (
                format!("{} in namespace {name}", list.nothing()),
                Tone::Plain,
            ),
            ("", _) => (list.nothing().to_owned(), Tone::Plain),
            (text, _) => (format!("no {} matches /{text}", list.noun()), Tone::Plain),
        },
    }
}

/// The rows that are missing in a table for want of a right, or of the namespace.
pub(super) fn note(app: &App, list: &dyn Table) -> Option<String> {
    let missing = list
        .sources()
        .iter()
        .filter_map(|source| denied(app, *source));
    let namespace = match list.scope() {
        Scope::Namespace(name) => Some(name),
        _ => app.namespace.as_ref(),
    };
    let missing: Vec<_> = missing
        .chain(namespace.and_then(|name| lacks_namespace(app, name)))
        .collect();
    (!missing.is_empty()).then(|| missing.join("; "))
}

/// The remark that a namespace does not exist, if that is so.
pub(super) fn lacks_namespace(app: &App, name: &str) -> Option<String> {
    let is_missing = app.missing_namespaces.contains(name);
    is_missing.then(|| format!("namespace {name} does not exist"))
}

/// The refusal of a source, if there is one.
pub(super) fn denied(app: &App, source: Source) -> Option<String> {
    match app.cluster.health(source) {
        Health::Denied { error } => Some(format!("{} not permitted: {error}", source.as_str())),
        _ => None,
    }
}
