//! Text from anywhere, for a terminal.

use std::borrow::Cow;

/// The text on one line, so that it cannot drive a terminal or show itself in another order: line
/// ends are blanks, and control and bidirectional formatting characters are escaped (`\u{202e}`).
pub fn line(text: &str) -> Cow<'_, str> {
    escaped(
        text.trim_end(),
        |c| if c == '\n' { Some(' ') } else { None },
    )
}

/// The same of text whose lines stay lines.
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

/// Whether a character drives the terminal, ends a line, or changes the order in which others are
/// shown (Unicode's `Bidi_Control`).
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
    fn escapes_what_drives_a_terminal_or_turns_text_around() {
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
