//! The common case: from JSON text to a message and back in one pass, without either in memory as a tree.
//!
//! What is out of the ordinary, in form or because it is wrong, is left to prost-reflect: each function here says `None` to
//! that, and the caller goes the long way, which knows every rule and names what is wrong. A test holds the two together.

mod read;
mod write;

use std::{collections::HashMap, sync::LazyLock};

use prost_reflect::{Kind, MessageDescriptor};

pub(super) use read::json_of;
pub(super) use write::message_of;

use super::POOL;

/// Every message of the objects.
static SHAPES: LazyLock<Shapes> = LazyLock::new(|| Shapes::of(POOL.all_messages()));

struct Shapes {
    messages: Vec<Shape>,
    /// The places of messages by their full names.
    places: HashMap<String, usize>,
}

/// A message.
struct Shape {
    fields: Vec<Field>,
    /// The places of fields by their numbers, which are small.
    numbers: Vec<Option<usize>>,
    /// The same by their names in JSON.
    names: HashMap<String, usize>,
}

struct Field {
    number: u32,
    /// With what follows it in JSON: `"hostNetwork":`
    quoted: String,
    count: Count,
    form: Form,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Count {
    One,
    List,
    Map,
}

enum Form {
    String,
    Bool,
    Int32,
    Int64,
    /// At this place.
    Message(usize),
    /// One of `google.protobuf`, whose JSON is not an object of its fields.
    WellKnown(MessageDescriptor),
    /// Whatever the objects seldom have.
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

impl Shape {
    fn of(message: &MessageDescriptor, places: &HashMap<String, usize>) -> Self {
        let mut shape = Self {
            fields: Vec::new(),
            numbers: Vec::new(),
            names: HashMap::new(),
        };
        let form = |kind: Kind| match kind {
            Kind::String => Form::String,
            Kind::Bool => Form::Bool,
            Kind::Int32 => Form::Int32,
            Kind::Int64 => Form::Int64,
            Kind::Message(message) if message.package_name() == WELL_KNOWN => {
                Form::WellKnown(message)
            }
            Kind::Message(message) => match places.get(message.full_name()) {
                Some(place) => Form::Message(*place),
                None => Form::Other,
            },
            _ => Form::Other,
        };
        for field in message.fields() {
            let (count, kind) = match field.kind() {
                Kind::Message(entry) if field.is_map() => {
                    (Count::Map, entry.map_entry_value_field().kind())
                }
                kind if field.is_list() => (Count::List, kind),
                kind => (Count::One, kind),
            };
            // One that is not told from its zero has rules of its own.
            let plain = count != Count::One || field.supports_presence();
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
                form: if plain { form(kind) } else { Form::Other },
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
