//! An event as a line: JSON in which nothing but the end is a line end.

use std::{
    borrow::Cow,
    fmt::Write as _,
    io::{self, Write},
};

use podplane_api::printable;
use serde::Serialize;
use serde_json::{
    Serializer,
    ser::{CompactFormatter, Formatter},
};

/// The longest line, in bytes. An event that needs more loses its bodies.
pub const MAX_LINE_BYTES: usize = 1 << 20;

/// Writes an event in one line. Control characters, and those that change the order in which others
/// are displayed, are escaped; JSON itself allows many of them in texts.
pub(crate) fn write(event: &impl Serialize) -> Result<Vec<u8>, serde_json::Error> {
    let mut line = Vec::with_capacity(1024);
    let mut json = Serializer::with_formatter(&mut line, PrintableFormatter);
    event.serialize(&mut json)?;
    line.push(b'\n');
    Ok(line)
}

/// Compact JSON without unprintable characters.
struct PrintableFormatter;

impl Formatter for PrintableFormatter {
    fn write_string_fragment<W: Write + ?Sized>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if let Cow::Borrowed(printable) = printable::lines(fragment) {
            return CompactFormatter.write_string_fragment(writer, printable);
        }
        let mut escaped = String::with_capacity(fragment.len() * 2);
        for c in fragment.chars() {
            if matches!(c, ' '..='~') {
                escaped.push(c);
                continue;
            }
            for unit in c.encode_utf16(&mut [0; 2]) {
                // A String takes everything.
                let _ = write!(escaped, "\\u{unit:04x}");
            }
        }
        writer.write_all(escaped.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_line_has_one_line_end_and_no_control_characters() {
        let text = "a\nb\r\u{1b}[31m\u{7f}\u{85}\u{2028}\u{202e}\u{9b}\"\\\u{0} é 日 🦀";
        let event = json!({text: text});
        let line = write(&event).unwrap();
        let line = String::from_utf8(line).unwrap();
        assert_eq!(line.matches('\n').count(), 1);
        assert!(line.ends_with('\n'));
        assert_eq!(printable::line(&line), line.trim_end());
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), event);
        let plain = write(&json!({"name": "é 日 🦀"})).unwrap();
        assert_eq!(plain, "{\"name\":\"é 日 🦀\"}\n".as_bytes());
    }
}
