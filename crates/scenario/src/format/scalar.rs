//! Values that are written as text.

use std::{borrow::Cow, fmt, str::FromStr, sync::LazyLock, time::Duration};

use ipnet::IpNet;
use podplane_ipam::invariants::Violation;
use regex::Regex;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _, IntoDeserializer as _},
};
use serde_json::{Value, json};
use serde_untagged::UntaggedEnumVisitor;

/// The pattern of a text that contains a value of the matrix.
const REFERENCE: &str = r"\$\{";

/// The pattern of times that `humantime` reads. Numbers are short enough for every unit.
const TIME: &str = concat!(
    r"^(0|\s*([0-9]{1,9}\s*(nanos|nsec|ns)\s*|[0-9]{1,9}(\.[0-9]{1,3})?\s*(usec|us|µs|millis|msec|ms|",
    r"seconds|second|secs|sec|s|minutes|minute|mins|min|m|hours|hour|hrs|hr|h|days|day|d|",
    r"weeks|week|wks|wk|w|months|month|M|years|year|yrs|yr|y)\s*)+)$"
);

/// The pattern of a block of IPv4 addresses, or of a text that looks like one of IPv6 addresses.
const BLOCK: &str = concat!(
    r"\s*(((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])(\.(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])){3}/(3[0-2]|[12]?[0-9]))|",
    r"([0-9A-Fa-f.]*:[0-9A-Fa-f.:]*/(12[0-8]|1[01][0-9]|[1-9]?[0-9])))\s*"
);

/// A duration: `200ms`, `20s`, `1m 30s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period(pub Duration);

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        static PATTERN: LazyLock<Regex> =
            LazyLock::new(|| Regex::new(TIME).expect("a constant pattern"));
        let text = String::deserialize(from)?;
        let read = humantime::parse_duration(&text).ok();
        let period = read.filter(|_| PATTERN.is_match(&text)).map(Self);
        period.ok_or_else(|| {
            D::Error::custom(format!(
                "invalid duration {text:?}: want one such as 200ms, 20s or 1m 30s"
            ))
        })
    }
}

impl JsonSchema for Period {
    fn schema_name() -> Cow<'static, str> {
        "Period".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "A duration: 200ms, 20s, 1m 30s",
            "pattern": format!("{TIME}|{REFERENCE}"),
        })
    }
}

/// An object, by kind and name: `pod/web-0`, `deployments/web`. The kind is any that the API server
/// serves, by any of its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRef {
    /// The kind: `pod`, `pods`, `po`, `lease.coordination.k8s.io`.
    pub kind: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.name)
    }
}

impl<'de> Deserialize<'de> for ObjectRef {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        match text.split_once('/') {
            Some((kind, name)) if !kind.is_empty() && !name.is_empty() && !name.contains('/') => {
                Ok(Self {
                    kind: kind.into(),
                    name: name.into(),
                })
            }
            _ => Err(D::Error::custom(format!(
                "invalid object {text:?}: want KIND/NAME, such as pod/web-0"
            ))),
        }
    }
}

impl JsonSchema for ObjectRef {
    fn schema_name() -> Cow<'static, str> {
        "ObjectRef".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "KIND/NAME, such as pod/web-0",
            "pattern": format!("^[^/]+/[^/]+$|{REFERENCE}"),
        })
    }
}

/// A block of addresses: `10.244.3.0/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block(pub IpNet);

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Block {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        static PATTERN: LazyLock<Regex> =
            LazyLock::new(|| Regex::new(&format!("^{BLOCK}$")).expect("a constant pattern"));
        let read = text.trim().parse().ok();
        let block = read.filter(|_| PATTERN.is_match(text)).map(Self);
        block.ok_or_else(|| {
            format!("invalid block {text:?}: want one such as 10.244.3.0/24 or fd00:10::/56")
        })
    }
}

impl<'de> Deserialize<'de> for Block {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(D::Error::custom)
    }
}

impl JsonSchema for Block {
    fn schema_name() -> Cow<'static, str> {
        "Block".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "A block of addresses: 10.244.3.0/24",
            "pattern": format!("^{BLOCK}$|{REFERENCE}"),
        })
    }
}

/// Ranges, one for each address family: `10.244.0.0/16,fd00:10::/56`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranges(pub Vec<Block>);

impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each: Vec<_> = self.0.iter().map(Block::to_string).collect();
        f.write_str(&each.join(","))
    }
}

impl FromStr for Ranges {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split(',')
            .map(Block::from_str)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

impl<'de> Deserialize<'de> for Ranges {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(D::Error::custom)
    }
}

impl JsonSchema for Ranges {
    fn schema_name() -> Cow<'static, str> {
        "Ranges".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "Ranges, one for each address family: 10.244.0.0/16,fd00:10::/56",
            "pattern": format!("^{BLOCK}(,{BLOCK})*$|{REFERENCE}"),
        })
    }
}

/// One value, or a list of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Several<T>(pub Vec<T>);

impl<'de, T: DeserializeOwned> Deserialize<'de> for Several<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let one = |one| Self(vec![one]);
        UntaggedEnumVisitor::new()
            .expecting("one, or a list")
            .string(|text| T::deserialize(text.into_deserializer()).map(one))
            .map(|map| map.deserialize().map(one))
            .seq(|items| match items.deserialize::<Vec<T>>()? {
                none if none.is_empty() => {
                    Err(serde_untagged::de::Error::custom("want at least one"))
                }
                items => Ok(Self(items)),
            })
            .deserialize(from)
    }
}

impl<T: JsonSchema> JsonSchema for Several<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("Several_{}", T::schema_name()).into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<T>();
        json_schema!({"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]})
    }
}

/// A text, a number or a boolean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scalar(pub Value);

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&plain(&self.0))
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match Value::deserialize(from)? {
            other @ (Value::Null | Value::Array(_) | Value::Object(_)) => Err(D::Error::custom(
                format!("want a text, a number or a boolean, not {other}"),
            )),
            scalar => Ok(Self(scalar)),
        }
    }
}

impl JsonSchema for Scalar {
    fn schema_name() -> Cow<'static, str> {
        "Scalar".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": ["string", "number", "boolean"]})
    }
}

/// A signal, by its name without SIG.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "UPPERCASE")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Signal {
    #[default]
    Kill,
    Term,
    Int,
    Hup,
    Quit,
    Abrt,
    Usr1,
    Usr2,
}

/// A kind of violation that the invariant checker finds.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case")]
pub enum ViolationKind {
    /// Two live pods have one address
    DuplicatePodIp,
    /// A live pod has an address that is not in its node's block
    PodOutsideBlock,
    /// The blocks of two nodes share addresses, or are the same
    OverlappingPodCidr,
    /// A node has more live pods that need an address than it has addresses
    IpCapacity,
    /// An address is allocated to a sandbox that does not exist
    LeakedAddress,
    /// The store lacks an acknowledged write
    LostWrite,
    /// The store has undone an acknowledged delete
    UndoneDelete,
}

impl ViolationKind {
    /// The name in scenarios.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DuplicatePodIp => "duplicate-pod-ip",
            Self::PodOutsideBlock => "pod-outside-block",
            Self::OverlappingPodCidr => "overlapping-pod-cidr",
            Self::IpCapacity => "ip-capacity",
            Self::LeakedAddress => "leaked-address",
            Self::LostWrite => "lost-write",
            Self::UndoneDelete => "undone-delete",
        }
    }
}

impl From<&Violation> for ViolationKind {
    fn from(violation: &Violation) -> Self {
        match violation {
            Violation::DuplicateAddress { .. } => Self::DuplicatePodIp,
            Violation::OutsideBlock { .. } => Self::PodOutsideBlock,
            Violation::OverlappingBlocks { .. } => Self::OverlappingPodCidr,
            Violation::OverCapacity { .. } => Self::IpCapacity,
            Violation::LeakedAddress(_) => Self::LeakedAddress,
            Violation::LostWrite { .. } => Self::LostWrite,
            Violation::UndoneDelete { .. } => Self::UndoneDelete,
        }
    }
}

/// Formats a scalar as text: a text without quotes, anything else as JSON.
pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns a schema for each of these properties, which requires it.
pub(super) fn required(keys: &[&str]) -> Vec<Value> {
    keys.iter().map(|key| json!({"required": [key]})).collect()
}

/// Requires in a schema that exactly one of these properties is present.
pub(super) fn one_of(schema: &mut Schema, keys: &[&str]) {
    schema.insert("oneOf".into(), required(keys).into());
}
