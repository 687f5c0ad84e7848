//! The effects of keys.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::{App, Effect, Prompt, PromptKind, Screen};
use crate::{map::Direction, page::DetailKind, view::View};

/// The characters by which a page moves sideways.
const SIDEWAYS: isize = 8;

impl App {
    pub(super) fn press(&mut self, key: KeyEvent) {
        if key.kind == KeyEventKind::Release {
            return;
        }
        self.notice = None;
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if is_control => self.effects.push(Effect::Quit),
            KeyCode::Char('z') if is_control => self.effects.push(Effect::Suspend),
            code if self.prompt.is_some() => self.type_into_prompt(code, is_control),
            code => self.press_anywhere(code, is_control),
        }
    }

    fn type_into_prompt(&mut self, code: KeyCode, is_control: bool) {
        let Some(mut prompt) = self.prompt.take() else {
            return;
        };
        match code {
            KeyCode::Enter => {
                if prompt.kind == PromptKind::Command {
                    self.run_command(&prompt.text);
                }
                return;
            }
            KeyCode::Esc => {
                if let PromptKind::Filter { before } = prompt.kind {
                    self.set_filter(&before);
                }
                return;
            }
            KeyCode::Char('u') if is_control => prompt.text.clear(),
            KeyCode::Backspace if prompt.text.is_empty() => return,
            KeyCode::Backspace => {
                prompt.text.pop();
            }
            KeyCode::Char(typed) if !is_control => prompt.text.push(typed),
            _ => {}
        }
        if matches!(prompt.kind, PromptKind::Filter { .. }) {
            self.set_filter(&prompt.text);
        }
        self.prompt = Some(prompt);
    }

    fn set_filter(&mut self, text: &str) {
        if let Some(Screen::Table(table)) = self.stack.last_mut() {
            table.set_filter(text);
        }
    }

    fn press_anywhere(&mut self, code: KeyCode, is_control: bool) {
        match code {
            KeyCode::Char('q') => self.effects.push(Effect::Quit),
            KeyCode::Char('?') => self.open_help(),
            KeyCode::Char(':') => {
                self.prompt = Some(Prompt {
                    kind: PromptKind::Command,
                    text: String::new(),
                });
            }
            KeyCode::Char(digit @ '1'..='6') => {
                let index = digit.to_digit(10).and_then(|digit| digit.checked_sub(1));
                let view = index.and_then(|index| View::ALL.get(usize::try_from(index).ok()?));
                if let Some(view) = view {
                    self.show(*view, self.whole());
                }
            }
            _ => match self.stack.last() {
                Some(Screen::Table(_)) => self.press_in_table(code, is_control),
                Some(Screen::Map(_)) => self.press_on_map(code),
                Some(Screen::Page(_)) => self.press_on_page(code, is_control),
                None => {}
            },
        }
    }

    fn press_in_table(&mut self, code: KeyCode, is_control: bool) {
        let height = self.table_height();
        let Some(Screen::Table(table)) = self.stack.last_mut() else {
            return;
        };
        if let Some(rows) = movement(code, is_control, height) {
            table.move_by(rows, height);
            return;
        }
        match code {
            KeyCode::Esc if !table.filter().text().is_empty() => table.set_filter(""),
            KeyCode::Esc => self.back(),
            KeyCode::Char('/') => {
                let before = table.filter().text().to_owned();
                self.prompt = Some(Prompt {
                    text: before.clone(),
                    kind: PromptKind::Filter { before },
                });
            }
            KeyCode::Enter => {
                if let Some(target) = table.target() {
                    self.open_target(target);
                }
            }
            KeyCode::Char(key) if key.is_ascii_uppercase() => {
                if !table.sort_by(key) {
                    let keys = table.sort_keys();
                    self.notice = Some(format!("no column sorts by {key}: want one of {keys}"));
                }
            }
            code => {
                if let Some(kind) = detail(code) {
                    match table.subject() {
                        Some(subject) => self.open_page(kind, subject),
                        None => {
                            let noun = table.noun();
                            self.notice = Some(format!(
                                "this key is for one pod or node: Enter opens those of the {noun}"
                            ));
                        }
                    }
                }
            }
        }
    }

    fn press_on_map(&mut self, code: KeyCode) {
        let (Some(space), Some(size)) = (self.space.get().cloned(), self.map_size()) else {
            if code == KeyCode::Esc {
                self.back();
            }
            return;
        };
        let Some(Screen::Map(map)) = self.stack.last_mut() else {
            return;
        };
        match code {
            KeyCode::Left | KeyCode::Char('h') => map.step(&space, size, Direction::Left),
            KeyCode::Right | KeyCode::Char('l') => map.step(&space, size, Direction::Right),
            KeyCode::Up | KeyCode::Char('k') => map.step(&space, size, Direction::Up),
            KeyCode::Down | KeyCode::Char('j') => map.step(&space, size, Direction::Down),
            KeyCode::Enter | KeyCode::Char('+' | '=') => {
                let is_zoomed = map.zoom_in(&space, size);
                let target = map.target(&space, size).filter(|_| !is_zoomed);
                if let Some(target) = target {
                    self.open_target(target);
                }
            }
            KeyCode::Backspace | KeyCode::Char('-') => map.zoom_out(&space, size),
            KeyCode::Tab => map.next_network(&space),
            // As a filter of a table is cleared before the table is left.
            KeyCode::Esc if map.is_part(&space) => map.zoom_out(&space, size),
            KeyCode::Esc => self.back(),
            KeyCode::Char('/') => {
                self.notice = Some(match self.is_fixed {
                    true => "the map has no filter: Tab shows the next network".to_owned(),
                    false => "the map has no filter: 2 shows the pods, which have one".to_owned(),
                });
            }
            KeyCode::Char('n') => match map.pods(&space, size) {
                Some(target) => self.open_target(target),
                None => self.notice = Some("no block of one node is under the cursor".to_owned()),
            },
            code => {
                if let Some(kind) = detail(code) {
                    match map.subject(&space, size) {
                        Some(subject) => self.open_page(kind, subject),
                        None => {
                            self.notice = Some("no pod and no node is under the cursor".to_owned());
                        }
                    }
                }
            }
        }
    }

    fn press_on_page(&mut self, code: KeyCode, is_control: bool) {
        let height = self.page_height();
        let Some(Screen::Page(page)) = self.stack.last_mut() else {
            return;
        };
        if let Some(lines) = movement(code, is_control, height) {
            page.scroll(lines, height);
            return;
        }
        match code {
            KeyCode::Esc => self.back(),
            KeyCode::Left | KeyCode::Char('h') => page.scroll_sideways(-SIDEWAYS),
            KeyCode::Right | KeyCode::Char('l') => page.scroll_sideways(SIDEWAYS),
            KeyCode::Char('r') => {
                if let Some(detail) = page.detail().cloned() {
                    self.effects.push(Effect::Load(detail));
                }
            }
            code => {
                let subject = page.detail().map(|detail| detail.subject.clone());
                if let (Some(kind), Some(subject)) = (detail(code), subject) {
                    // In place of the page, so that Esc goes back to the table.
                    let page = self.stack.pop();
                    let depth = self.stack.len();
                    self.open_page(kind, subject);
                    if self.stack.len() == depth {
                        self.stack.extend(page);
                    }
                }
            }
        }
    }
}

/// The rows by which a key moves.
fn movement(code: KeyCode, is_control: bool, height: usize) -> Option<isize> {
    let page = isize::try_from(height.max(1)).unwrap_or(isize::MAX);
    Some(match code {
        KeyCode::Up | KeyCode::Char('k') => -1,
        KeyCode::Down | KeyCode::Char('j') => 1,
        KeyCode::PageUp => -page,
        KeyCode::PageDown | KeyCode::Char(' ') => page,
        KeyCode::Char('b') if is_control => -page,
        KeyCode::Char('f') if is_control => page,
        KeyCode::Home | KeyCode::Char('g') => isize::MIN,
        KeyCode::End | KeyCode::Char('G') => isize::MAX,
        _ => return None,
    })
}

/// The page that a key opens.
fn detail(code: KeyCode) -> Option<DetailKind> {
    Some(match code {
        KeyCode::Char('d') => DetailKind::Description,
        KeyCode::Char('t') => DetailKind::Trace,
        KeyCode::Char('x' | 'e') => DetailKind::Explanation,
        KeyCode::Char('y') => DetailKind::Yaml,
        _ => return None,
    })
}
