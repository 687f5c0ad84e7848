//! Values of expressions. JSON is read where it is, without a copy.

use std::{
    cmp::Ordering,
    collections::BTreeMap,
    net::IpAddr,
    ops::Deref,
    sync::{Arc, LazyLock},
};

use base64::Engine as _;
use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp, civil::Date};
use serde_json::{Map as JsonMap, Value as Json};

use crate::{
    error::Failure,
    library::{access::Access, format::NamedFormat, quantity::Quantity, time, url::Url},
    list::List,
    meter::Meter,
    types::{DataShape, Declaration},
};

/// The most bytes of a message that an expression makes, as in the reference.
const MAX_MESSAGE: usize = 5 * 1024;

/// A value of an expression, which may borrow from data.
#[derive(Clone, Debug)]
pub enum Value<'a> {
    /// `null`.
    Null,
    /// A boolean.
    Bool(bool),
    /// A signed whole number.
    Int(i64),
    /// An unsigned whole number.
    Uint(u64),
    /// A floating-point number.
    Double(f64),
    /// A text.
    String(Text<'a>),
    /// Bytes.
    Bytes(Arc<[u8]>),
    /// A list.
    List(List<'a>),
    /// A map, or an object.
    Map(Entries<'a>),
    /// A duration.
    Duration(SignedDuration),
    /// A point in time.
    Timestamp(Timestamp),
    /// A type.
    Type(&'static str),
    /// A value that may be absent.
    Optional(Option<Arc<Value<'a>>>),
    /// A resource quantity.
    Quantity(Quantity),
    /// An IP address.
    Ip(IpAddr),
    /// An IP network.
    Cidr(IpNet),
    /// A URL.
    Url(Arc<Url>),
    /// A named format.
    Format(&'static NamedFormat),
    /// A question to authorizers, or its answer.
    Access(Arc<Access>),
}

/// A text, borrowed or shared.
#[derive(Clone, Debug)]
pub enum Text<'a> {
    /// Of data.
    Borrowed(&'a str),
    /// Made by an expression.
    Shared(Arc<str>),
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Self::Borrowed(text) => text,
            Self::Shared(text) => text,
        }
    }
}

/// The entries of a map.
#[derive(Clone, Debug)]
pub enum Entries<'a> {
    /// Data with its declaration.
    Json(&'a JsonMap<String, Json>, &'a Declaration),
    /// Made by an expression.
    Shared(Arc<BTreeMap<Key, Value<'a>>>),
}

/// A key of a map.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A boolean.
    Bool(bool),
    /// A whole number, signed or unsigned: equal ones are the same key.
    Number(i128),
    /// A text.
    String(Arc<str>),
}

static ANY: LazyLock<Declaration> = LazyLock::new(|| Declaration::ANY);

impl<'a> Value<'a> {
    /// Reads JSON of the declared shape. Other JSON is read by its own shape, since data is
    /// validated before.
    pub fn of(json: &'a Json, declared: &'a Declaration) -> Self {
        match (&declared.shape, json) {
            (_, Json::Null) => Self::Null,
            (DataShape::Double, Json::Number(number)) => {
                Self::Double(number.as_f64().unwrap_or_default())
            }
            (DataShape::Bytes, Json::String(text)) => {
                match base64::engine::general_purpose::STANDARD.decode(text) {
                    Ok(bytes) => Self::Bytes(bytes.into()),
                    Err(_) => Self::text(text),
                }
            }
            (DataShape::Duration, Json::String(text)) => match time::duration(text) {
                Some(duration) => Self::Duration(duration),
                None => Self::text(text),
            },
            (DataShape::Timestamp, Json::String(text)) => match timestamp(text) {
                Some(timestamp) => Self::Timestamp(timestamp),
                None => Self::text(text),
            },
            (_, Json::Bool(value)) => Self::Bool(*value),
            (_, Json::Number(number)) => match (number.as_i64(), number.as_f64()) {
                (Some(int), _) => Self::Int(int),
                (None, double) => Self::Double(double.unwrap_or_default()),
            },
            (_, Json::String(text)) => Self::text(text),
            (DataShape::List { .. }, Json::Array(items)) => Self::List(List::Json(items, declared)),
            (_, Json::Array(items)) => Self::List(List::Json(items, &ANY)),
            (DataShape::Map(_) | DataShape::Object(_), Json::Object(fields)) => {
                Self::Map(Entries::Json(fields, declared))
            }
            (_, Json::Object(fields)) => Self::Map(Entries::Json(fields, &ANY)),
        }
    }

    fn text(text: &'a str) -> Self {
        Self::String(Text::Borrowed(text))
    }

    pub(crate) fn string(text: impl Into<Arc<str>>) -> Self {
        Self::String(Text::Shared(text.into()))
    }

    pub(crate) fn optional(value: Option<Self>) -> Self {
        Self::Optional(value.map(Arc::new))
    }

    /// The name of the type, as `type()` gives it.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint",
            Self::Double(_) => "double",
            Self::String(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Duration(_) => "google.protobuf.Duration",
            Self::Timestamp(_) => "google.protobuf.Timestamp",
            Self::Type(_) => "type",
            Self::Optional(_) => "optional_type",
            Self::Quantity(_) => "kubernetes.Quantity",
            Self::Ip(_) => "net.IP",
            Self::Cidr(_) => "net.CIDR",
            Self::Url(_) => "kubernetes.URL",
            Self::Format(_) => "kubernetes.NamedFormat",
            Self::Access(access) => access.stage.type_name(),
        }
    }

    /// The number of characters, bytes, elements or entries; 1 for everything else.
    pub(crate) fn size(&self) -> usize {
        match self {
            // Counting characters is a traversal itself; bytes are an upper bound.
            Self::String(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
            Self::List(list) => list.len(),
            Self::Map(map) => map.len(),
            Self::Optional(Some(value)) => value.size(),
            Self::Ip(IpAddr::V4(_)) | Self::Cidr(IpNet::V4(_)) => 4,
            Self::Ip(IpAddr::V6(_)) | Self::Cidr(IpNet::V6(_)) => 16,
            _ => 1,
        }
    }

    /// True if the values are equal. Values of different types are not, except numbers. Its cost is
    /// that of everything that is compared.
    pub(crate) fn equals(&self, other: &Self, meter: &mut Meter) -> Result<bool, Failure> {
        let work = match (self, other) {
            (Self::String(_) | Self::Bytes(_), _) => self.size().min(other.size()),
            _ => 1,
        };
        meter.traverse(work, 1)?;
        Ok(match (self, other) {
            (Self::List(a), Self::List(b)) => return a.equals(b, meter),
            (Self::Map(a), Self::Map(b)) => return a.equals(b, meter),
            (Self::Optional(Some(a)), Self::Optional(Some(b))) => return a.equals(b, meter),
            (Self::Optional(a), Self::Optional(b)) => a.is_none() && b.is_none(),
            (Self::Null, Self::Null) => true,
            (Self::Bytes(a), Self::Bytes(b)) => a == b,
            (Self::Type(a), Self::Type(b)) => a == b,
            (Self::Ip(a), Self::Ip(b)) => a == b,
            (Self::Cidr(a), Self::Cidr(b)) => a == b,
            (Self::Url(a), Self::Url(b)) => a.text() == b.text(),
            (Self::Format(a), Self::Format(b)) => a.name == b.name,
            (Self::Quantity(a), Self::Quantity(b)) => a.cmp(b) == Ordering::Equal,
            _ => self.compare(other) == Some(Ordering::Equal),
        })
    }

    /// The order of two values that have one.
    pub(crate) fn compare(&self, other: &Self) -> Option<Ordering> {
        Some(match (self, other) {
            (Self::Bool(a), Self::Bool(b)) => a.cmp(b),
            (Self::String(a), Self::String(b)) => a.as_bytes().cmp(b.as_bytes()),
            (Self::Bytes(a), Self::Bytes(b)) => a.cmp(b),
            (Self::Duration(a), Self::Duration(b)) => a.cmp(b),
            (Self::Timestamp(a), Self::Timestamp(b)) => a.cmp(b),
            (Self::Double(a), Self::Double(b)) => return a.partial_cmp(b),
            (Self::Double(a), b) => return compare_double(*a, b.whole()?),
            (a, Self::Double(b)) => return compare_double(*b, a.whole()?).map(Ordering::reverse),
            (a, b) => a.whole()?.cmp(&b.whole()?),
        })
    }

    fn whole(&self) -> Option<i128> {
        match self {
            Self::Int(value) => Some(i128::from(*value)),
            Self::Uint(value) => Some(i128::from(*value)),
            _ => None,
        }
    }

    /// The value as a key of a map.
    pub(crate) fn key(&self) -> Result<Key, Failure> {
        match self {
            Self::Bool(value) => Ok(Key::Bool(*value)),
            Self::String(text) => Ok(Key::String(match text {
                Text::Borrowed(text) => Arc::from(*text),
                Text::Shared(text) => Arc::clone(text),
            })),
            Self::Double(value) => match whole_double(*value) {
                Some(whole) => Ok(Key::Number(whole)),
                None => Err(Failure::NoSuchKey(value.to_string())),
            },
            other => other
                .whole()
                .map(Key::Number)
                .ok_or(Failure::NoSuchOverload),
        }
    }

    /// The text of a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// The text of a message that can be shown: of one line, and not too long.
    pub fn message(&self) -> Option<&str> {
        let text = self.as_str()?.trim();
        let is_shown = !text.is_empty() && text.len() <= MAX_MESSAGE && !text.contains('\n');
        is_shown.then_some(text)
    }

    /// The zero value of a type: `optional.ofNonZeroValue` drops it.
    pub(crate) fn is_zero(&self) -> bool {
        match self {
            Self::Null
            | Self::Bool(false)
            | Self::Int(0)
            | Self::Uint(0)
            | Self::Optional(None) => true,
            Self::Double(value) => *value == 0.0,
            Self::String(_) | Self::Bytes(_) | Self::List(_) | Self::Map(_) => self.size() == 0,
            Self::Duration(value) => value.is_zero(),
            _ => false,
        }
    }
}

/// Compares a floating-point number with a whole one, exactly.
fn compare_double(double: f64, whole: i128) -> Option<Ordering> {
    if double.is_nan() {
        return None;
    }
    match whole_double(double.trunc()) {
        Some(truncated) => Some(
            truncated
                .cmp(&whole)
                .then_with(|| double.fract().partial_cmp(&0.0).unwrap_or(Ordering::Equal)),
        ),
        None if double > 0.0 => Some(Ordering::Greater),
        None => Some(Ordering::Less),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the range is checked, and the value is whole"
)]
fn whole_double(value: f64) -> Option<i128> {
    (value.fract() == 0.0 && value.abs() < 1e20).then_some(value as i128)
}

/// An RFC 3339 time, or a date, which is midnight in UTC.
pub(crate) fn timestamp(text: &str) -> Option<Timestamp> {
    if let Ok(date) = text.parse::<Date>()
        && text.len() == 10
    {
        return date
            .to_zoned(jiff::tz::TimeZone::UTC)
            .ok()
            .map(|zoned| zoned.timestamp());
    }
    time::timestamp(text)
}

impl Key {
    /// The key as a value.
    pub(crate) fn value<'a>(&self) -> Value<'a> {
        match self {
            Self::Bool(value) => Value::Bool(*value),
            Self::Number(number) => match (i64::try_from(*number), u64::try_from(*number)) {
                (Ok(int), _) => Value::Int(int),
                (_, Ok(uint)) => Value::Uint(uint),
                _ => Value::Null,
            },
            Self::String(text) => Value::String(Text::Shared(Arc::clone(text))),
        }
    }
}

impl<'a> Entries<'a> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Json(fields, _) => fields.len(),
            Self::Shared(entries) => entries.len(),
        }
    }

    /// The value of a field or key.
    pub(crate) fn field(&self, name: &str) -> Option<Value<'a>> {
        match self {
            Self::Json(fields, declared) => match &declared.shape {
                DataShape::Object(declared) => {
                    let declared = declared.get(name)?;
                    Some(Value::of(fields.get(&declared.name)?, &declared.data))
                }
                DataShape::Map(values) => Some(Value::of(fields.get(name)?, values)),
                _ => Some(Value::of(fields.get(name)?, &ANY)),
            },
            Self::Shared(entries) => entries.get(&Key::String(Arc::from(name))).cloned(),
        }
    }

    pub(crate) fn get(&self, key: &Value<'_>) -> Result<Option<Value<'a>>, Failure> {
        match (self, key) {
            (_, Value::String(name)) => Ok(self.field(name)),
            (Self::Json(..), _) => Ok(None),
            (Self::Shared(entries), key) => Ok(entries.get(&key.key()?).cloned()),
        }
    }

    /// The keys and values. Fields of objects that are not declared are not among them.
    pub(crate) fn iter(&self) -> Box<dyn Iterator<Item = (Value<'a>, Value<'a>)> + '_> {
        match self {
            Self::Json(fields, declared) => match &declared.shape {
                DataShape::Object(declared) => {
                    Box::new(declared.iter().filter_map(|(name, field)| {
                        let value = Value::of(fields.get(&field.name)?, &field.data);
                        Some((Value::text(name), value))
                    }))
                }
                shape => {
                    let values = match shape {
                        DataShape::Map(values) => &**values,
                        _ => &ANY,
                    };
                    Box::new(
                        fields
                            .iter()
                            .map(move |(key, value)| (Value::text(key), Value::of(value, values))),
                    )
                }
            },
            Self::Shared(entries) => Box::new(
                entries
                    .iter()
                    .map(|(key, value)| (key.value(), value.clone())),
            ),
        }
    }

    pub(crate) fn equals(&self, other: &Self, meter: &mut Meter) -> Result<bool, Failure> {
        if self.len() != other.len() {
            return Ok(false);
        }
        for (key, value) in self.iter() {
            let Some(theirs) = other.get(&key)? else {
                return Ok(false);
            };
            if !value.equals(&theirs, meter)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
