//! Types of expressions, and the declarations of data.

use std::{collections::BTreeMap, fmt, sync::Arc};

use crate::library::access::AccessStage;

/// The declared shape of data: a JSON value of known type and bounded size.
#[derive(Clone, Debug, PartialEq)]
pub struct Declaration {
    /// The shape.
    pub shape: DataShape,
    /// The most elements, entries or characters; 0 for scalars of fixed size.
    pub max_elements: u64,
    /// The length of the shortest JSON text of such a value.
    pub min_size: u64,
}

/// The shape of declared data.
#[derive(Clone, Debug, PartialEq)]
pub enum DataShape {
    /// Any JSON: its type is known when it is read.
    Any,
    /// A boolean.
    Bool,
    /// A whole number of 64 bits.
    Int,
    /// A floating-point number.
    Double,
    /// A text.
    String,
    /// A text that is base64 of bytes.
    Bytes,
    /// A text that is a duration, as in Go: `1h30m`.
    Duration,
    /// A text that is an RFC 3339 date, or a date with a time.
    Timestamp,
    /// A list.
    List {
        /// The elements.
        items: Arc<Declaration>,
        /// The equality of lists.
        identity: ListIdentity,
    },
    /// An object with arbitrary keys.
    Map(Arc<Declaration>),
    /// An object with these fields.
    Object(BTreeMap<String, DeclaredField>),
}

/// The identity of the elements of a list (`x-kubernetes-list-type`).
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ListIdentity {
    /// By their position.
    #[default]
    Position,
    /// By their value: the order does not matter.
    Value,
    /// By the values of these fields.
    Fields(Vec<String>),
}

/// A field of an object. The key in [`DataShape::Object`] is its name in expressions.
#[derive(Clone, Debug, PartialEq)]
pub struct DeclaredField {
    /// The name in JSON.
    pub name: String,
    /// The data.
    pub data: Arc<Declaration>,
}

impl Declaration {
    /// Any JSON, of unknown size.
    pub const ANY: Self = Self {
        shape: DataShape::Any,
        max_elements: u64::MAX,
        min_size: 1,
    };

    /// The field with that name in expressions.
    pub(crate) fn field(&self, name: &str) -> Option<&DeclaredField> {
        match &self.shape {
            DataShape::Object(fields) => fields.get(name),
            _ => None,
        }
    }

    /// The elements of a list or the values of a map.
    pub(crate) fn elements(&self) -> Option<&Arc<Self>> {
        match &self.shape {
            DataShape::List { items, .. } => Some(items),
            DataShape::Map(values) => Some(values),
            _ => None,
        }
    }
}

/// The type of an expression.
#[derive(Clone, Debug)]
pub enum Type {
    /// Known when the expression is evaluated.
    Dyn,
    /// `null`.
    Null,
    /// A boolean.
    Bool,
    /// A signed whole number of 64 bits.
    Int,
    /// An unsigned whole number of 64 bits.
    Uint,
    /// A floating-point number.
    Double,
    /// A text.
    String,
    /// Bytes.
    Bytes,
    /// A duration.
    Duration,
    /// A point in time.
    Timestamp,
    /// A list of elements of one type.
    List(Arc<Type>),
    /// A map with keys and values of one type each.
    Map(Arc<(Type, Type)>),
    /// An object with declared fields.
    Object(Arc<Declaration>),
    /// A value that may be absent.
    Optional(Arc<Type>),
    /// A type, as a value.
    Type,
    /// A resource quantity.
    Quantity,
    /// An IP address.
    Ip,
    /// An IP network.
    Cidr,
    /// A URL.
    Url,
    /// A named format of texts.
    Format,
    /// A question to authorizers, or its answer.
    Access(AccessStage),
}

impl Type {
    /// The type of declared data.
    pub fn of(data: &Arc<Declaration>) -> Self {
        match &data.shape {
            DataShape::Any => Self::Dyn,
            DataShape::Bool => Self::Bool,
            DataShape::Int => Self::Int,
            DataShape::Double => Self::Double,
            DataShape::String => Self::String,
            DataShape::Bytes => Self::Bytes,
            DataShape::Duration => Self::Duration,
            DataShape::Timestamp => Self::Timestamp,
            DataShape::List { items, .. } => Self::list(Self::of(items)),
            DataShape::Map(values) => Self::map(Self::String, Self::of(values)),
            DataShape::Object(_) => Self::Object(Arc::clone(data)),
        }
    }

    pub(crate) fn list(items: Self) -> Self {
        Self::List(Arc::new(items))
    }

    pub(crate) fn map(keys: Self, values: Self) -> Self {
        Self::Map(Arc::new((keys, values)))
    }

    pub(crate) fn optional(value: Self) -> Self {
        Self::Optional(Arc::new(value))
    }

    /// True if values of one type may be used as the other: equal, or unknown until evaluation.
    pub(crate) fn fits(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Dyn, _) | (_, Self::Dyn) => true,
            // An absent object, duration or other message is null.
            (Self::Null, other) | (other, Self::Null) => matches!(
                other,
                Self::Null
                    | Self::Object(_)
                    | Self::Duration
                    | Self::Timestamp
                    | Self::Optional(_)
                    | Self::Quantity
                    | Self::Ip
                    | Self::Cidr
                    | Self::Url
                    | Self::Format
            ),
            (Self::List(a), Self::List(b)) | (Self::Optional(a), Self::Optional(b)) => a.fits(b),
            (Self::Map(a), Self::Map(b)) => a.0.fits(&b.0) && a.1.fits(&b.1),
            (Self::Object(a), Self::Object(b)) => Arc::ptr_eq(a, b) || a == b,
            (Self::Access(a), Self::Access(b)) => a == b,
            (a, b) => std::mem::discriminant(a) == std::mem::discriminant(b),
        }
    }

    /// True for values of a fixed size.
    pub(crate) fn is_scalar(&self) -> bool {
        match self {
            Self::Bool
            | Self::Int
            | Self::Uint
            | Self::Double
            | Self::Duration
            | Self::Timestamp => true,
            Self::Optional(value) => value.is_scalar(),
            _ => false,
        }
    }
}

/// Formatted as in the messages of the reference.
impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Dyn => "dyn",
            Self::Null => "null",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::Duration => "google.protobuf.Duration",
            Self::Timestamp => "google.protobuf.Timestamp",
            Self::List(items) => return write!(f, "list({items})"),
            Self::Map(entry) => return write!(f, "map({}, {})", entry.0, entry.1),
            Self::Object(_) => "object",
            Self::Optional(value) => return write!(f, "optional_type({value})"),
            Self::Type => "type",
            Self::Quantity => "kubernetes.Quantity",
            Self::Ip => "net.IP",
            Self::Cidr => "net.CIDR",
            Self::Url => "kubernetes.URL",
            Self::Format => "kubernetes.NamedFormat",
            Self::Access(stage) => stage.type_name(),
        };
        f.write_str(name)
    }
}
