//! The state of the program as a picture of the terminal.

mod map;
mod table;

use podplane_api::{printable, table::age};
use ratatui::{
    Frame,
    buffer::Buffer,
    layout::{Constraint, Layout, Rect},
    style::Style,
    text::{Line, Span},
    widgets::{Clear, Paragraph, Widget as _, Wrap},
};

use crate::{
    app::{App, FOOT, PAGE_HEAD, PromptKind, Screen, TABLE_HEAD},
    page::Page,
    row::Tone,
    scope::Scope,
    theme::Theme,
};

/// The keys of everywhere.
const KEYS: &str =
    "? help  q quit  1 nodes 2 pods 3 waiting 4 blocks 5 events 6 map  /filter  :view";
const TABLE_KEYS: &str = "Enter open  d describe  t trace  x explain  y yaml";
const PAGE_KEYS: &str = "arrows scroll  d describe  t trace  x explain  y yaml  r again  Esc back";

/// Draws the program.
pub fn draw(app: &App, frame: &mut Frame<'_>, theme: Theme) {
    let area = frame.area();
    let buffer = frame.buffer_mut();
    match app.screen() {
        Some(Screen::Table(list)) => {
            let [head, body, foot] = parts(area, TABLE_HEAD - 1);
            let (matching, all) = list.counts();
            let filter = match list.filter().text() {
                "" => String::new(),
                text => format!("  /{text}"),
            };
            let count = match matching == all {
                true => format!("{all}"),
                false => format!("{matching} of {all}"),
            };
            let scope = match list.scope() {
                Scope::Namespace(_) if !list.is_namespaced() => {
                    format!("pods of {}", list.scope())
                }
                scope => scope.to_string(),
            };
            let order = list.hidden_order(area.width);
            let order = order
                .map(|(column, is_reverse)| format!("  by {column}{}", table::arrow(is_reverse)));
            let order = order.unwrap_or_default();
            let title = format!("{} ({scope}) {count}{filter}{order}", list.name());
            let actions = format!("{TABLE_KEYS}  sort {}", list.sort_keys());
            draw_head(app, head, buffer, theme, [title.as_str(), KEYS, &actions]);
            table::draw(app, list.as_ref(), body, buffer, theme);
            let note = table::note(app, list.as_ref());
            draw_foot(app, foot, buffer, theme, note);
        }
        Some(Screen::Page(page)) => {
            let [head, body, foot] = parts(area, PAGE_HEAD);
            draw_head(app, head, buffer, theme, [page.title(), KEYS, PAGE_KEYS]);
            draw_page(app, page, body, buffer, theme);
            let (line, lines) = page.position();
            let position = (lines > app.page_height()).then(|| format!("line {line} of {lines}"));
            draw_foot(app, foot, buffer, theme, position);
        }
        Some(Screen::Map(map)) => map::draw(app, map, area, buffer, theme),
        None => {}
    }
}

/// The head of so many rows, the middle, and the line of messages.
fn parts(area: Rect, head: u16) -> [Rect; 3] {
    let rows = [
        Constraint::Length(head),
        Constraint::Fill(1),
        Constraint::Length(FOOT),
    ];
    Layout::vertical(rows).areas(area)
}

fn draw_head(app: &App, area: Rect, buffer: &mut Buffer, theme: Theme, lines: [&str; 3]) {
    let rows = area.rows().zip(lines);
    for (index, (row, line)) in rows.enumerate() {
        let style = if index == 0 {
            theme.title()
        } else {
            theme.hint()
        };
        write(buffer, row, line, style);
    }
    draw_state(app, area, buffer, theme);
}

/// Writes whether the connection is there, and to which server, at the right end of the first row.
/// The server is left out where it would cover the text there; `~` marks text that the state
/// covers.
fn draw_state(app: &App, area: Rect, buffer: &mut Buffer, theme: Theme) {
    let (state, tone) = match app.lost() {
        Some((since, _)) => {
            let ago = age::between(since, app.now);
            match app.cluster.was_connected() {
                true => (format!("CONNECTION LOST {ago} ago"), Tone::Bad),
                false => (format!("NOT CONNECTED for {ago}"), Tone::Bad),
            }
        }
        None if app.is_fixed => ("not live".to_owned(), Tone::Plain),
        None if !app.cluster.was_connected() => ("connecting".to_owned(), Tone::Plain),
        None => ("live".to_owned(), Tone::Good),
    };
    let server = printable::line(&app.server).into_owned();
    let state = Span::styled(state, theme.tone(tone));
    let server = Span::styled(format!(" {server} "), theme.hint());
    let short = Line::from(vec![Span::raw(" "), state.clone()]);
    let room = usize::from(area.right().saturating_sub(text_end(area, buffer)));
    let line = Some(Line::from(vec![server, state]));
    let line = line.filter(|line| line.width() <= room).unwrap_or(short);
    let is_covering = line.width() > room;
    let width = u16::try_from(line.width()).unwrap_or(u16::MAX);
    let width = width.min(area.width);
    let place = Rect {
        x: area.right().saturating_sub(width),
        width,
        height: area.height.min(1),
        ..area
    };
    Paragraph::new(line).right_aligned().render(place, buffer);
    if is_covering {
        write(buffer, Rect { width: 1, ..place }, "~", Style::new());
    }
}

/// The column after the last text of the first row.
fn text_end(area: Rect, buffer: &Buffer) -> u16 {
    let is_text = |x: &u16| {
        let cell = buffer.cell((*x, area.y));
        cell.is_some_and(|cell| cell.symbol() != " ")
    };
    let last = (area.x..area.right()).rev().find(is_text);
    last.map_or(area.x, |last| last.saturating_add(1))
}

/// Draws the prompt, else the answer to the last key, else what went wrong, else `note`.
fn draw_foot(app: &App, area: Rect, buffer: &mut Buffer, theme: Theme, note: Option<String>) {
    if let Some(prompt) = &app.prompt {
        let sign = match prompt.kind {
            PromptKind::Command => ':',
            PromptKind::Filter { .. } => '/',
        };
        let text = format!("{sign}{}", prompt.text);
        write(buffer, area, &text, theme.title());
        let typed = u16::try_from(text.chars().count()).unwrap_or(u16::MAX);
        let cursor = Rect {
            x: area.x.saturating_add(typed),
            width: 1,
            ..area
        };
        buffer.set_style(cursor.intersection(area), theme.selected());
        return;
    }
    let lost = app.lost().map(|(since, error)| {
        let error = error.lines().next().unwrap_or_default();
        format!("no connection to {} since {since:.0}: {error}", app.server)
    });
    match (&app.notice, lost, note) {
        (Some(notice), ..) => write_up(buffer, area, notice, theme.title()),
        (None, Some(lost), _) => write_up(buffer, area, &lost, theme.tone(Tone::Bad)),
        (None, None, Some(note)) => write_up(buffer, area, &note, theme.hint()),
        (None, None, None) => {}
    }
}

fn draw_page(app: &App, page: &Page, area: Rect, buffer: &mut Buffer, theme: Theme) {
    let style = match page.is_error() {
        true => theme.tone(Tone::Bad),
        false => Style::new(),
    };
    match page.lines(app.page_height()) {
        None => write(buffer, area, "loading", theme.hint()),
        // A message is one long line; it does not scroll, so that all of it is read.
        Some(lines) if page.is_error() => {
            let lines: Vec<&str> = lines.collect();
            wrapped(&lines.join("\n"), style).render(area, buffer);
        }
        Some(lines) => {
            for (row, line) in area.rows().zip(lines) {
                write(buffer, row, line, style);
            }
        }
    }
}

/// The most rows of a message at the foot.
const MOST_FOOT: u16 = 4;

/// Writes a message into the last row of the screen; a longer one also into the rows above it.
fn write_up(buffer: &mut Buffer, area: Rect, text: &str, style: Style) {
    let most = MOST_FOOT.min(area.y.saturating_add(1));
    let message = &wrapped(&printable::line(text), style);
    // One row more tells whether the message is longer.
    let mut drawn = Buffer::empty(Rect::new(0, 0, area.width, most + 1));
    message.render(drawn.area, &mut drawn);
    let mut rows = drawn.content.chunks(usize::from(area.width.max(1)));
    let last = rows.rposition(|row| row.iter().any(|cell| cell.symbol() != " "));
    let needed = last.map_or(1, |last| u16::try_from(last + 1).unwrap_or(most + 1));
    let rows = needed.min(most);
    let top = Rect {
        y: (area.y + 1).saturating_sub(rows),
        height: rows,
        ..area
    };
    Clear.render(top, buffer);
    message.render(top, buffer);
    if let (true, Some(end)) = (needed > most, top.rows().next_back()) {
        let last = end.right().saturating_sub(1);
        buffer.set_stringn(last, end.y, "~", 1, style);
    }
}

/// A text that is wrapped between words.
fn wrapped(text: &str, style: Style) -> Paragraph<'static> {
    let text = Paragraph::new(printable::lines(text).into_owned());
    text.style(style).wrap(Wrap { trim: true })
}

/// Writes a line of text into the first row of an area. Of a longer one the end is `~`.
fn write(buffer: &mut Buffer, area: Rect, text: &str, style: Style) {
    if area.is_empty() {
        return;
    }
    let text = printable::line(text);
    let (end, _) = buffer.set_stringn(area.x, area.y, &text, area.width.into(), style);
    if Span::raw(text.as_ref()).width() > usize::from(area.width) {
        let last = end.min(area.right()).saturating_sub(1);
        buffer.set_stringn(last, area.y, "~", 1, style);
    }
}
