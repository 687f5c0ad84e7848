//! YAML, with a list's items read one by one.

use std::{
    collections::BTreeSet,
    fmt,
    io::{self, BufRead, BufReader, Read},
};

use serde::{
    Deserialize, Deserializer,
    de::{
        DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer,
    },
};
use serde_json::{Map, Value};
use serde_saphyr::Options;

use super::{InputError, NO_LIST, WINDOW};
use crate::{
    dump::{Dump, DumpScope},
    item::RawObject,
};

/// Reads documents that follow one another.
pub(super) fn read(reader: impl Read, dump: &mut Dump) -> Result<(), InputError> {
    let mut lines = YamlLines {
        reader: BufReader::with_capacity(WINDOW, reader),
        held: Vec::new(),
        has_run_on: false,
    };
    for number in 1.. {
        let document = YamlDocument {
            lines: &mut lines,
            line: Vec::new(),
            given: 0,
            has_begun: false,
            keys: BTreeSet::new(),
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
    if lines.has_run_on {
        dump.note("documents follow one another without a line `---` between them, and were read as several");
    }
    Ok(())
}

fn options() -> Options {
    serde_saphyr::options! {
        // The file is the user's own, and may be the dump of a large cluster. Aliases, which could
        // be a bomb, stay limited.
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

struct YamlLines<R> {
    reader: R,
    /// The first line of the next document, which has been read.
    held: Vec<u8>,
    /// Set once documents followed one another without a `---`.
    has_run_on: bool,
}

/// The longest line that is accepted. A longer one is JSON on one line, which the JSON reader
/// streams and this one cannot.
const LONGEST_LINE: u64 = 64 << 20;

impl<R: BufRead> YamlLines<R> {
    fn is_at_end(&mut self) -> io::Result<bool> {
        Ok(self.held.is_empty() && self.reader.fill_buf()?.is_empty())
    }
}

/// One of several documents. It ends before a line that begins with `---`, which has no other
/// meaning in YAML wherever it stands. It also ends before a line that repeats a key of the top
/// level, as where `cat` joined two files.
struct YamlDocument<'a, R> {
    lines: &'a mut YamlLines<R>,
    line: Vec<u8>,
    /// The number of bytes of the line that have been returned.
    given: usize,
    /// True after a line that is not a comment or a directive.
    has_begun: bool,
    /// The keys of the top level so far.
    keys: BTreeSet<Vec<u8>>,
}

impl<R: BufRead> YamlDocument<'_, R> {
    fn next_line(&mut self) -> io::Result<()> {
        let Self {
            lines,
            line,
            given,
            has_begun,
            keys,
        } = self;
        *given = 0;
        line.clear();
        if *has_begun && !lines.held.is_empty() {
            return Ok(());
        }
        line.append(&mut lines.held);
        if line.is_empty() {
            let mut limited = (&mut lines.reader).take(LONGEST_LINE);
            if limited.read_until(b'\n', line)? as u64 == LONGEST_LINE {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "a line is longer than 64 MiB: pass JSON (kubectl -o json) without anything before it",
                ));
            }
        }
        let is_marker = line.starts_with(b"---") && line.get(3).is_none_or(u8::is_ascii_whitespace);
        if is_marker && *has_begun {
            std::mem::swap(line, &mut lines.held);
        } else if let Some(key) = top_level_key(line)
            && !keys.insert(key.to_owned())
        {
            lines.has_run_on = true;
            std::mem::swap(line, &mut lines.held);
        }
        let is_before = |first: &u8| matches!(first, b'#' | b'%' | b'\n' | b'\r');
        *has_begun |= line.first().is_some_and(|first| !is_before(first));
        Ok(())
    }
}

impl<R: BufRead> Read for YamlDocument<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.given == self.line.len() {
            self.next_line()?;
        }
        let given = self.line[self.given..].as_ref().read(into)?;
        self.given += given;
        Ok(given)
    }
}

/// The key of a line of a block mapping at the top level, such as `apiVersion`.
fn top_level_key(line: &[u8]) -> Option<&[u8]> {
    let end = line.iter().position(|byte| !byte.is_ascii_alphabetic())?;
    let (key, rest) = line.split_at(end);
    let is_key = rest.first() == Some(&b':') && rest.get(1).is_none_or(u8::is_ascii_whitespace);
    (!key.is_empty() && is_key).then_some(key)
}

/// Scalars, which are not objects, are ignored.
macro_rules! ignored {
    ($($visit:ident: $type:ty),+) => {
        $(fn $visit<E>(self, _: $type) -> Result<(), E> {
            Ok(())
        })+
    };
}

/// Visits a list, a single object, or nothing.
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

    /// kubectl may print a text in place of a list.
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
        super::finish(fields, has_items, NO_LIST, self.dump);
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
        let Self { dump, kind } = self;
        while let Some(()) = items.next_element_seed(ElementVisitor { dump, kind })? {}
        Ok(())
    }
}

/// Visits an object of a list, or a nested list.
struct ElementVisitor<'a> {
    dump: &'a mut Dump,
    kind: Option<&'a str>,
}

impl<'de> DeserializeSeed<'de> for ElementVisitor<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, element: D) -> Result<(), D::Error> {
        element.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ElementVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    ignored!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_i128: i128, visit_u128: u128, visit_f64: f64, visit_str: &str);

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        let map = MapAccessDeserializer::new(map);
        if self.dump.keep != DumpScope::Fields {
            let item = Value::deserialize(map)?;
            self.dump.add_value(&item, self.kind);
        } else {
            let item = RawObject::deserialize(map)?;
            self.dump.add(&item, self.kind, || None);
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<(), A::Error> {
        let Self { dump, kind } = self;
        ItemsVisitor { dump, kind }.visit_seq(items)
    }
}
