//! JSON, with a list's items read one by one.
//!
//! serde_json reads a slice several times faster than a reader, and a whole dump does not fit into
//! memory. So a window moves over the input, and serde_json reads one item, or one field of a
//! document, from the slice in it. Only the punctuation between them is read here.

use std::io::Read;

use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Deserializer, Map, Value};

use super::{InputError, MAX_DEPTH, NO_LIST, WINDOW, strings::ShortStrings};
use crate::{
    dump::Dump,
    item::{LenientValue, RawObject},
};

/// Reads documents that follow one another.
pub(super) fn read(reader: impl Read, dump: &mut Dump) -> Result<(), InputError> {
    let mut window = Window {
        reader: ShortStrings::new(reader),
        bytes: Vec::new(),
        start: 0,
        before: 0,
        is_last: false,
    };
    while let Some(first) = window.peek()? {
        match first {
            b'{' => object(&mut window, NO_LIST, 0, dump)?,
            b'[' => items(&mut window, None, 0, dump)?,
            _ => return Err(window.wrong("want an object")),
        }
    }
    Ok(())
}

/// Reads a list, or a single object, by its fields. `list_kind` is the kind of the list around it.
fn object(
    window: &mut Window<impl Read>,
    list_kind: Option<&str>,
    depth: usize,
    dump: &mut Dump,
) -> Result<(), InputError> {
    let outer = dump.take_pending();
    let mut fields = Map::new();
    let mut is_list = false;
    let mut is_first = true;
    window.skip();
    loop {
        match (window.peek()?, is_first) {
            (Some(b'}'), _) => break,
            (Some(b','), false) => window.skip(),
            (_, true) => {}
            _ => return Err(window.wrong("want `,` or `}`")),
        }
        is_first = false;
        if window.peek()? != Some(b'"') {
            return Err(window.wrong("want the name of a field"));
        }
        let name: String = window.value(|text, is_last| first(text, is_last))?;
        if window.peek()? != Some(b':') {
            return Err(window.wrong("want `:`"));
        }
        window.skip();
        if name == "items" && window.peek()? == Some(b'[') {
            is_list = true;
            let kind = fields.get("kind").and_then(Value::as_str);
            items(window, kind, depth, dump)?;
        } else {
            let value: Value = window.value(|text, is_last| first(text, is_last))?;
            fields.insert(name, value);
        }
    }
    window.skip();
    if is_list {
        super::finish(fields, is_list, None, dump);
        dump.put_pending(outer);
    } else {
        dump.put_pending(outer);
        super::finish(fields, is_list, list_kind, dump);
    }
    Ok(())
}

fn items(
    window: &mut Window<impl Read>,
    kind: Option<&str>,
    depth: usize,
    dump: &mut Dump,
) -> Result<(), InputError> {
    if depth > MAX_DEPTH {
        return Err(window.wrong("lists are nested too deeply"));
    }
    let mut is_first = true;
    window.skip();
    loop {
        match (window.peek()?, is_first) {
            (Some(b']'), _) => break,
            (Some(b','), false) => window.skip(),
            (_, true) => {}
            _ => return Err(window.wrong("want `,` or `]`")),
        }
        is_first = false;
        let begins = window.peek()?;
        if begins == Some(b'[') {
            items(window, kind, depth + 1, dump)?;
            continue;
        }
        let small = window.small_value(|text, is_last| {
            if let Some(used) = dump.pass_on(text) {
                return Ok(Some(((), used)));
            }
            let found = first::<LenientValue<RawObject<'_>>>(text, is_last)?;
            Ok(found.map(|(LenientValue(item), used)| {
                dump.add(&item, kind, || serde_json::from_slice(&text[..used]).ok());
                ((), used)
            }))
        })?;
        // A value larger than the window may be a list, which must not be in memory as a whole.
        match (small, begins) {
            (Some(()), _) => {}
            (None, Some(b'{')) => object(window, kind, depth + 1, dump)?,
            (None, _) => {
                window.value(|text, is_last| first::<IgnoredAny>(text, is_last))?;
            }
        }
    }
    window.skip();
    Ok(())
}

struct Window<R> {
    reader: ShortStrings<R>,
    bytes: Vec<u8>,
    /// The offset of the unread part in `bytes`.
    start: usize,
    /// The number of bytes before `bytes`.
    before: u64,
    is_last: bool,
}

impl<R: Read> Window<R> {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Reads more input, and doubles the window if all of it is unread. Returns whether there was
    /// more.
    fn fill(&mut self) -> Result<bool, InputError> {
        if self.is_last {
            return Ok(false);
        }
        self.bytes.drain(..self.start);
        self.before += self.start as u64;
        self.start = 0;
        let wanted = self.bytes.len().max(WINDOW);
        self.bytes.reserve(wanted);
        let more = self
            .reader
            .by_ref()
            .take(wanted as u64)
            .read_to_end(&mut self.bytes);
        let more = more.map_err(InputError::Read)?;
        self.is_last = more < wanted;
        Ok(more > 0)
    }

    /// The next byte other than white space; `None` at the end.
    fn peek(&mut self) -> Result<Option<u8>, InputError> {
        loop {
            let rest = self.rest();
            let blank = rest
                .iter()
                .take_while(|byte| matches!(byte, b' ' | b'\n' | b'\t' | b'\r'))
                .count();
            let next = rest.get(blank).copied();
            self.start += blank;
            if next.is_some() || !self.fill()? {
                return Ok(next);
            }
        }
    }

    /// Consumes the byte that [`Window::peek`] returned.
    fn skip(&mut self) {
        self.start += 1;
    }

    /// Reads a value with `take`, which is [`first`] or continues from it.
    fn value<T>(
        &mut self,
        mut take: impl FnMut(&[u8], bool) -> ParsedValue<T>,
    ) -> Result<T, InputError> {
        loop {
            match take(self.rest(), self.is_last) {
                Ok(Some((value, used))) => {
                    self.start += used;
                    return Ok(value);
                }
                Ok(None) if self.is_last => return Err(self.wrong("it ends here")),
                Ok(None) => self.fill()?,
                Err(error) => return Err(self.wrong(error)),
            };
        }
    }

    /// Reads a value, unless it is larger than a window.
    fn small_value<T>(
        &mut self,
        mut take: impl FnMut(&[u8], bool) -> ParsedValue<T>,
    ) -> Result<Option<T>, InputError> {
        loop {
            let found = take(self.rest(), self.is_last);
            match found {
                Ok(Some((value, used))) => {
                    self.start += used;
                    return Ok(Some(value));
                }
                Ok(None) if self.is_last => return Err(self.wrong("it ends here")),
                Ok(None) if self.rest().len() >= WINDOW => return Ok(None),
                Ok(None) => self.fill()?,
                Err(error) => return Err(self.wrong(error)),
            };
        }
    }

    fn wrong(&self, problem: impl ToString) -> InputError {
        let has_ended = self.is_last && self.rest().is_empty();
        let ended = || "it ends here".to_owned();
        InputError::Json {
            at: self.before + self.start as u64 + self.reader.dropped(),
            problem: if has_ended {
                ended()
            } else {
                problem.to_string()
            },
        }
    }
}

/// A value and the length of its text; `None` if it needs more input.
type ParsedValue<T> = serde_json::Result<Option<(T, usize)>>;

/// The value at the start of `text`, which is the rest of the input if `is_last`.
fn first<'a, T: Deserialize<'a>>(text: &'a [u8], is_last: bool) -> ParsedValue<T> {
    let mut values = Deserializer::from_slice(text).into_iter::<T>();
    match values.next() {
        // A number at the end of the window may continue after it.
        Some(Ok(value)) => {
            let used = values.byte_offset();
            Ok((is_last || used < text.len()).then_some((value, used)))
        }
        Some(Err(error)) if is_last || !error.is_eof() => Err(error),
        Some(Err(_)) | None => Ok(None),
    }
}
