//! A reader of JSON that cuts strings which no Kubernetes object can have.
//!
//! An object has 1.5 MiB at most, so no rule needs a longer string. Without the cut, one string of
//! a gigabyte would be in memory several times.

use std::io::{self, Read};

/// The longest string that is passed on whole, in bytes.
const LONGEST: usize = 16 << 20;
const CHUNK: usize = 64 << 10;

/// Passes JSON on, without what a string has beyond [`LONGEST`] bytes.
#[derive(Debug)]
pub(super) struct ShortStrings<R> {
    reader: R,
    scanner: Scanner,
    buffer: Vec<u8>,
}

impl<R: Read> ShortStrings<R> {
    pub(super) fn new(reader: R) -> Self {
        Self {
            reader,
            scanner: Scanner::default(),
            buffer: vec![0; CHUNK],
        }
    }

    /// The number of bytes that were left out so far.
    pub(super) fn dropped(&self) -> u64 {
        self.scanner.dropped
    }
}

impl<R: Read> Read for ShortStrings<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let wanted = into.len().min(CHUNK);
            let found = self.reader.read(&mut self.buffer[..wanted])?;
            if found == 0 || wanted == 0 {
                return Ok(0);
            }
            let kept = self.scanner.pass(&self.buffer[..found], into);
            if kept > 0 {
                return Ok(kept);
            }
        }
    }
}

/// Position in the text: inside or outside of strings, escapes and surrogate pairs.
#[derive(Debug, Default)]
struct Scanner {
    is_in_string: bool,
    /// Bytes of the string so far.
    length: usize,
    is_cut: bool,
    /// Bytes that the escape sequence still has, the first after its backslash included.
    escape: u8,
    /// The digits of a `\u` sequence so far: the first half of a surrogate pair needs the second.
    digits: u16,
    is_half_pair: bool,
    dropped: u64,
}

impl Scanner {
    /// Copies the part of `text` that is passed on to the start of `into`, and returns its length.
    fn pass(&mut self, text: &[u8], into: &mut [u8]) -> usize {
        let mut kept = 0;
        let mut rest = text;
        while let Some(first) = rest.first() {
            // Most bytes are in short strings or outside of strings, and are copied in runs.
            let run = self.run(rest);
            if run > 0 {
                into[kept..kept + run].copy_from_slice(&rest[..run]);
                kept += run;
                rest = &rest[run..];
                continue;
            }
            if self.takes(*first) {
                into[kept] = *first;
                kept += 1;
            }
            rest = &rest[1..];
        }
        kept
    }

    /// The length of the part that is passed on without inspection of each byte.
    fn run(&mut self, text: &[u8]) -> usize {
        let is_plain = self.escape == 0 && !self.is_cut && !self.is_half_pair;
        if !is_plain {
            return 0;
        }
        let run = if self.is_in_string {
            let end = text.iter().position(|byte| matches!(byte, b'"' | b'\\'));
            let run = end.unwrap_or(text.len());
            run.min(LONGEST.saturating_sub(self.length))
        } else {
            let end = text.iter().position(|byte| *byte == b'"');
            end.unwrap_or(text.len())
        };
        self.length += run;
        run
    }

    /// Takes a byte into account. Returns whether it is passed on.
    fn takes(&mut self, byte: u8) -> bool {
        if !self.is_in_string {
            self.is_in_string = byte == b'"';
            self.length = 0;
            return true;
        }
        let is_inside_character = byte & 0xc0 == 0x80;
        let is_boundary = self.escape == 0 && !self.is_half_pair && !is_inside_character;
        self.is_cut |= self.length >= LONGEST && is_boundary;
        self.length += 1;
        let is_end = self.escape == 0 && byte == b'"';
        self.follow_escape(byte);
        if is_end {
            *self = Self {
                dropped: self.dropped,
                ..Self::default()
            };
            return true;
        }
        self.dropped += u64::from(self.is_cut);
        !self.is_cut
    }

    fn follow_escape(&mut self, byte: u8) {
        const UNICODE: u8 = 5;
        match self.escape {
            0 if byte == b'\\' => self.escape = UNICODE,
            0 => self.is_half_pair = false,
            UNICODE if byte == b'u' => (self.escape, self.digits) = (UNICODE - 1, 0),
            UNICODE => (self.escape, self.is_half_pair) = (0, false),
            left => {
                let digit = char::from(byte).to_digit(16).unwrap_or_default();
                self.digits = (self.digits << 4) | u16::try_from(digit).unwrap_or_default();
                self.escape = left - 1;
                if self.escape == 0 {
                    self.is_half_pair = (0xd800..0xdc00).contains(&self.digits);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass_through(text: &str) -> (String, u64) {
        let mut reader = ShortStrings::new(text.as_bytes());
        let mut out = Vec::new();
        reader.read_to_end(&mut out).unwrap();
        (String::from_utf8(out).unwrap(), reader.dropped())
    }

    #[test]
    fn passes_short_strings_on() {
        let text = r#"{"a": "b\"c\\", "d": ["é\u00e9\ud83d\ude00", 7], "": ""}"#;
        assert_eq!(pass_through(text), (text.to_owned(), 0));
    }

    #[test]
    fn cuts_long_strings_between_characters() {
        for unit in ["a", "é", "\\n", "\\\"", "\\u00e9", "\\ud83d\\ude00", "語x"] {
            let long = unit.repeat((LONGEST + (1 << 20)) / unit.len());
            let text = format!(r#"{{"a": "{long}", "b": "\\"}}"#);
            let (out, dropped) = pass_through(&text);
            assert!(out.len() < LONGEST + 100, "{unit}: {}", out.len());
            assert_eq!(out.len() as u64 + dropped, text.len() as u64, "{unit}");
            let value: serde_json::Value = serde_json::from_str(&out).unwrap();
            assert_eq!(value["b"], "\\", "{unit}");
        }
    }
}
