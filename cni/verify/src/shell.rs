//! Quoting for a POSIX shell.

use std::fmt;

/// A word for a shell, quoted on one line.
pub(super) struct QuotedWord<'a>(pub(super) &'a str);

impl fmt::Display for QuotedWord<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:,+@%".contains(c);
        if !self.0.is_empty() && self.0.chars().all(plain) {
            f.write_str(self.0)
        } else if self.0.contains(char::is_control) {
            write!(f, "\"$(printf '{}')\"", Octal(self.0.as_bytes()))
        } else {
            write!(f, "'{}'", self.0.replace('\'', r"'\''"))
        }
    }
}

/// Bytes as printf(1) reads them in a single-quoted word.
pub(super) struct Octal<'a>(pub(super) &'a [u8]);

impl fmt::Display for Octal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0 {
            match byte {
                b'\'' | b'\\' | b'%' => write!(f, "\\{byte:03o}")?,
                b' '..=b'~' => write!(f, "{}", char::from(*byte))?,
                _ => write!(f, "\\{byte:03o}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_words_for_a_shell() {
        let quoted: Vec<_> = ["a/b", "", "a b", "it's", "a\nb"]
            .map(|word| QuotedWord(word).to_string())
            .into();
        assert_eq!(
            quoted,
            [
                "a/b",
                "''",
                "'a b'",
                r"'it'\''s'",
                r#""$(printf 'a\012b')""#
            ]
        );
        assert_eq!(Octal(b"5%\xff'").to_string(), r"5\045\377\047");
    }
}
