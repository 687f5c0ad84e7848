//! Escaping of untrusted text for a terminal.
//!
//! `podplane_api::printable` is this crate. It is one of its own since `xtask`, which everybody
//! compiles first, writes to terminals too.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

use std::borrow::Cow;

/// Escapes text for one line, so that it cannot control a terminal or change the display order:
/// line ends become spaces, and control and bidirectional formatting characters are escaped
/// (`\u{202e}`).
pub fn line(text: &str) -> Cow<'_, str> {
    escaped(
        text.trim_end(),
        |c| if c == '\n' { Some(' ') } else { None },
    )
}

/// Escapes text, keeping its line ends.
pub fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| if c == '\n' { Some('\n') } else { None })
}

fn escaped(text: &str, keep: impl Fn(char) -> Option<char>) -> Cow<'_, str> {
    if !text.contains(is_unprintable) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match keep(c) {
            Some(kept) => shown.push(kept),
            None if is_unprintable(c) => shown.extend(c.escape_default()),
            None => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// True if a character controls the terminal, ends a line, or changes the order in which others are
/// displayed (Unicode's `Bidi_Control`).
fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'
                | '\u{2029}'
                | '\u{202a}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_control_and_bidirectional_characters() {
        for (text, shown) in [
            ("plain é 日本 👩‍👩‍👧 שלום", "plain é 日本 👩‍👩‍👧 שלום"),
            ("\u{1b}[31mred\u{7}", "\\u{1b}[31mred\\u{7}"),
            ("a\tb\r\nc\n", "a\\tb\\r c"),
            ("\u{9b}2J\u{7f}", "\\u{9b}2J\\u{7f}"),
            (
                "user\u{202e}gpj.exe\u{2069}",
                "user\\u{202e}gpj.exe\\u{2069}",
            ),
            ("one\u{2028}two", "one\\u{2028}two"),
        ] {
            assert_eq!(line(text), shown);
        }
        assert_eq!(lines("a\n\u{1b}b\n"), "a\n\\u{1b}b\n");
    }
}
