//! YAML, a list's items one by one.

use std::{
    fmt,
    io::{self, BufRead, BufReader, Read},
};

use serde::{
    Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};
use serde_saphyr::Options;

use super::{InputError, WINDOW};
use crate::{
    dump::{Dump, Keep},
    item::{Item, Lenient},
};

/// Reads documents that follow one another.
pub(super) fn read(reader: impl Read, dump: &mut Dump) -> Result<(), InputError> {
    let mut lines = Lines {
        reader: BufReader::with_capacity(WINDOW, reader),
        held: Vec::new(),
    };
    for number in 1.. {
        let document = Document {
            lines: &mut lines,
            line: Vec::new(),
            given: 0,
            has_begun: false,
        };
        let whole = |deserializer: serde_saphyr::Deserializer<'_, '_>| {
            deserializer.deserialize_any(DocumentVisitor { dump })
        };
        serde_saphyr::with_deserializer_from_reader_with_options(document, options(), whole)
            .map_err(|error| InputError::Yaml {
                document: number,
                problem: error.to_string(),
            })?;
        if lines.is_at_end().map_err(InputError::Read)? {
            break;
        }
    }
    Ok(())
}

fn options() -> Options {
    serde_saphyr::options! {
        // The file is the user's own, and may be the dump of a large cluster. What could be a bomb, aliases, stays limited.
        budget: serde_saphyr::budget! {
            max_reader_input_bytes: None,
            max_events: usize::MAX,
            max_nodes: usize::MAX,
            max_total_scalar_bytes: usize::MAX,
            max_total_comment_bytes: usize::MAX,
        },
        with_snippet: false,
    }
}

struct Lines<R> {
    reader: R,
    /// The first line of the next document, read already.
    held: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    fn is_at_end(&mut self) -> io::Result<bool> {
        Ok(self.held.is_empty() && self.reader.fill_buf()?.is_empty())
    }
}

/// One document of several. It ends before a line that begins with `---`: in YAML, such a line is nothing else wherever it stands.
struct Document<'a, R> {
    lines: &'a mut Lines<R>,
    line: Vec<u8>,
    /// How much of the line has been read.
    given: usize,
    /// Whether there was more than comments and directives.
    has_begun: bool,
}

impl<R: BufRead> Document<'_, R> {
    fn next_line(&mut self) -> io::Result<()> {
        let Self {
            lines,
            line,
            given,
            has_begun,
        } = self;
        *given = 0;
        line.clear();
        if *has_begun && !lines.held.is_empty() {
            return Ok(());
        }
        line.append(&mut lines.held);
        if line.is_empty() {
            lines.reader.read_until(b'\n', line)?;
        }
        let is_marker = line.starts_with(b"---") && line.get(3).is_none_or(u8::is_ascii_whitespace);
        if is_marker && *has_begun {
            std::mem::swap(line, &mut lines.held);
        }
        let is_before = |first: &u8| matches!(first, b'#' | b'%' | b'\n' | b'\r');
        *has_begun |= line.first().is_some_and(|first| !is_before(first));
        Ok(())
    }
}

impl<R: BufRead> Read for Document<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.given == self.line.len() {
            self.next_line()?;
        }
        let given = self.line[self.given..].as_ref().read(into)?;
        self.given += given;
        Ok(given)
    }
}

/// A list, a single object, or nothing.
struct DocumentVisitor<'a> {
    dump: &'a mut Dump,
}

impl<'de> Visitor<'de> for DocumentVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or a list of objects")
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    /// What kubectl says instead of a list is text.
    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<(), A::Error> {
        let kind = None;
        ItemsVisitor {
            dump: self.dump,
            kind,
        }
        .visit_seq(items)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut fields = Map::new();
        let mut has_items = false;
        while let Some(name) = map.next_key::<String>()? {
            if name == "items" {
                has_items = true;
                let kind = fields.get("kind").and_then(Value::as_str);
                let dump = &mut *self.dump;
                map.next_value_seed(ItemsVisitor { dump, kind })?;
            } else {
                fields.insert(name, map.next_value()?);
            }
        }
        super::finish(fields, has_items, self.dump);
        Ok(())
    }
}

struct ItemsVisitor<'a> {
    dump: &'a mut Dump,
    kind: Option<&'a str>,
}

impl<'de> DeserializeSeed<'de> for ItemsVisitor<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, items: D) -> Result<(), D::Error> {
        items.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ItemsVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        IgnoredAny.visit_map(map).map(|_| ())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        if self.dump.keep == Keep::Nodes {
            while let Some(item) = items.next_element::<Value>()? {
                self.dump.add_value(&item, self.kind);
            }
        } else {
            while let Some(Lenient(item)) = items.next_element::<Lenient<Item<'_>>>()? {
                self.dump.add(&item, self.kind, || None);
            }
        }
        Ok(())
    }
}
