//! The fast path: from JSON text to a message and back in one pass, without building a tree of
//! either.
//!
//! Unusual or invalid input is left to prost-reflect: each function here returns `None` for it, and
//! the caller takes the slow path, which knows every rule and reports errors. A test compares the
//! two paths.

mod read;
mod write;

use std::{collections::HashMap, sync::LazyLock};

use podplane_api::jiff;
use prost_reflect::{Kind, MessageDescriptor};
use prost_types::Timestamp;

pub(super) use read::json_of;
pub use write::UnstampedMessage;
pub(super) use write::{message_of, unstamped_message_of};

use super::POOL;

/// The shapes of all messages of objects.
static SHAPES: LazyLock<Shapes> = LazyLock::new(|| Shapes::of(POOL.all_messages()));

struct Shapes {
    messages: Vec<Shape>,
    /// The indices of messages by full name.
    places: HashMap<String, usize>,
}

/// The shape of a message.
struct Shape {
    fields: Vec<Field>,
    /// The indices of fields by number, which are small.
    numbers: Vec<Option<usize>>,
    /// The indices of fields by JSON name.
    names: HashMap<String, usize>,
}

struct Field {
    number: u32,
    /// The name with quotes and colon, as in JSON: `"hostNetwork":`.
    quoted: String,
    count: Cardinality,
    form: FieldForm,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cardinality {
    One,
    List,
    Map,
}

enum FieldForm {
    String,
    Bool,
    Int32,
    Int64,
    /// The message with this index.
    Message(usize),
    /// `google.protobuf.Timestamp`.
    Timestamp,
    /// Another type of `google.protobuf` whose JSON is not an object of its fields.
    WellKnown(MessageDescriptor),
    /// A type that objects rarely have.
    Other,
}

impl Shapes {
    fn of(messages: impl Iterator<Item = MessageDescriptor>) -> Self {
        let messages: Vec<_> = messages
            .filter(|message| message.package_name() != WELL_KNOWN)
            .collect();
        let places = messages.iter().enumerate();
        let places = places
            .map(|(place, message)| (message.full_name().to_owned(), place))
            .collect();
        let messages = messages
            .iter()
            .map(|message| Shape::of(message, &places))
            .collect();
        Self { messages, places }
    }

    fn named(&self, name: &str) -> Option<&Shape> {
        self.messages.get(*self.places.get(name)?)
    }
}

const WELL_KNOWN: &str = "google.protobuf";
const TIMESTAMP: &str = "google.protobuf.Timestamp";

/// The JSON text of a time; `None` for times before 1970 and invalid ones.
fn timestamp_text(time: Timestamp) -> Option<String> {
    jiff::Timestamp::new(time.seconds, time.nanos).ok()?;
    Some(time.to_string()).filter(|_| time.seconds >= 0 && time.nanos >= 0)
}

impl Shape {
    fn of(message: &MessageDescriptor, places: &HashMap<String, usize>) -> Self {
        let mut shape = Self {
            fields: Vec::new(),
            numbers: Vec::new(),
            names: HashMap::new(),
        };
        let form = |kind: Kind| match kind {
            Kind::String => FieldForm::String,
            Kind::Bool => FieldForm::Bool,
            Kind::Int32 => FieldForm::Int32,
            Kind::Int64 => FieldForm::Int64,
            Kind::Message(message) if message.full_name() == TIMESTAMP => FieldForm::Timestamp,
            Kind::Message(message) if message.package_name() == WELL_KNOWN => {
                FieldForm::WellKnown(message)
            }
            Kind::Message(message) => match places.get(message.full_name()) {
                Some(place) => FieldForm::Message(*place),
                None => FieldForm::Other,
            },
            _ => FieldForm::Other,
        };
        for field in message.fields() {
            let (count, kind) = match field.kind() {
                Kind::Message(entry) if field.is_map() => {
                    (Cardinality::Map, entry.map_entry_value_field().kind())
                }
                kind if field.is_list() => (Cardinality::List, kind),
                kind => (Cardinality::One, kind),
            };
            // A field whose absence differs from its zero has rules of its own.
            let plain = count != Cardinality::One || field.supports_presence();
            let place = shape.fields.len();
            let number = field.number() as usize;
            shape
                .numbers
                .resize_with(shape.numbers.len().max(number + 1), || None);
            shape.numbers[number] = Some(place);
            shape.names.insert(field.json_name().to_owned(), place);
            shape.fields.push(Field {
                number: field.number(),
                quoted: format!("\"{}\":", field.json_name()),
                count,
                form: if plain { form(kind) } else { FieldForm::Other },
            });
        }
        shape
    }

    fn numbered(&self, number: u32) -> Option<(usize, &Field)> {
        let place = (*self.numbers.get(number as usize)?)?;
        Some((place, &self.fields[place]))
    }

    fn named(&self, name: &str) -> Option<&Field> {
        Some(&self.fields[*self.names.get(name)?])
    }
}
