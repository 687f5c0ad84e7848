//! Documents decoded as Go's `encoding/json` decodes them into given types: what is merged, what is
//! ignored, what is refused, and in which words.
//!
//! The result holds the known fields only, under lower-case names, each of the right type; serde makes a
//! structure of it.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::{go_syntax, json::folded_key};

/// A type of Go's.
#[derive(Debug)]
pub(crate) enum Kind {
    /// `string`
    String,
    /// `bool`
    Bool,
    /// `int`
    Int,
    /// What is read from a string by a method of its own; `null` is none.
    Text(&'static str, fn(&str) -> Result<(), String>),
    /// `*T`
    Pointer(&'static Kind),
    /// `[]T`, with its full name
    Slice(&'static str, &'static Kind),
    /// `struct`
    Struct(Struct),
    /// What decodes itself, by way of the given type, `null` included; a string is then looked at.
    Itself(&'static Kind, fn(&str) -> Result<(), String>),
}

/// A structure of Go's.
#[derive(Debug)]
pub(crate) struct Struct {
    /// Its name, without the package; none has none.
    pub(crate) name: &'static str,
    /// Its type in full, as errors tell it.
    pub(crate) full: &'static str,
    /// Its fields.
    pub(crate) fields: &'static [(&'static str, Kind)],
}

/// Decodes a document.
///
/// # Errors
/// Go's text.
pub(crate) fn decode(text: &[u8], kind: &Kind) -> Result<Value, String> {
    let lossy = String::from_utf8_lossy(text);
    let node: Node =
        serde_json::from_str(&lossy).map_err(|error| go_syntax::error(text, &error))?;
    let mut value = Value::Null;
    decode_node(&node, kind, &mut value).map_err(|error| error.to_string())?;
    Ok(value)
}

fn decode_node(node: &Node, kind: &Kind, into: &mut Value) -> Result<(), Error> {
    let mut decoder = Decoder::default();
    decoder.value(node, kind, into)?;
    decoder
        .first
        .map_or(Ok(()), |first| Err(Error::Type(first)))
}

/// A document as it is written: keys in order, and as often as they come.
enum Node {
    Null,
    Bool(bool),
    Number(serde_json::Number),
    String(String),
    Array(Vec<Node>),
    Object(Vec<(String, Node)>),
}

enum Error {
    Type(TypeError),
    Text(String),
}

struct TypeError {
    found: String,
    place: String,
    full: &'static str,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Type(TypeError { found, place, full }) => {
                write!(
                    f,
                    "json: cannot unmarshal {found} into Go {place} of type {full}"
                )
            }
        }
    }
}

impl Kind {
    fn full_name(&self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Text(full, _) | Self::Slice(full, _) => full,
            Self::Struct(structure) => structure.full,
            Self::Pointer(kind) | Self::Itself(kind, _) => kind.full_name(),
        }
    }
}

#[derive(Default)]
struct Decoder {
    /// A wrong type does not end the work; the first one is reported when it is done.
    first: Option<TypeError>,
    structure: &'static str,
    path: Vec<&'static str>,
}

impl Decoder {
    fn place(&self) -> Option<String> {
        let path = self.path.join(".");
        (!path.is_empty()).then(|| format!("struct field {}.{path}", self.structure))
    }

    fn wrong(&mut self, found: String, kind: &Kind) {
        let error = TypeError {
            found,
            place: self.place().unwrap_or_else(|| "value".to_owned()),
            full: kind.full_name(),
        };
        self.first.get_or_insert(error);
    }

    fn value(&mut self, node: &Node, kind: &Kind, into: &mut Value) -> Result<(), Error> {
        match (kind, node) {
            (Kind::Itself(inner, check), _) => {
                *into = Value::Null;
                let decoded = decode_node(node, inner, into).and_then(|()| match &**inner {
                    Kind::String => check(into.as_str().unwrap_or_default()).map_err(Error::Text),
                    _ => Ok(()),
                });
                // The place is the one known here, which is not where inside it happened.
                return decoded.map_err(|error| match error {
                    Error::Type(mut error) => {
                        error.place = self.place().unwrap_or(error.place);
                        Error::Type(error)
                    }
                    text => text,
                });
            }
            (Kind::Pointer(_) | Kind::Slice(..) | Kind::Text(..), Node::Null) => {
                *into = Value::Null;
            }
            (Kind::Pointer(inner), _) => return self.value(node, inner, into),
            (_, Node::Null) => {}
            (Kind::Bool, Node::Bool(bool)) => *into = (*bool).into(),
            (Kind::String, Node::String(text)) => *into = text.as_str().into(),
            (Kind::Int, Node::Number(number)) if number.is_i64() => {
                *into = number.clone().into();
            }
            (Kind::Int, Node::Number(number)) => self.wrong(format!("number {number}"), kind),
            (Kind::Text(_, check), Node::String(text)) => {
                check(text).map_err(Error::Text)?;
                *into = text.as_str().into();
            }
            (Kind::Slice(_, inner), Node::Array(nodes)) => {
                // What is there already is decoded into again.
                let mut items = match into.take() {
                    Value::Array(items) => items,
                    _ => Vec::new(),
                };
                items.resize(nodes.len(), Value::Null);
                for (node, item) in nodes.iter().zip(&mut items) {
                    self.value(node, inner, item)?;
                }
                *into = items.into();
            }
            (Kind::Struct(structure), Node::Object(entries)) => {
                return self.structure(structure, entries, into);
            }
            _ => self.wrong(node.name().to_owned(), kind),
        }
        Ok(())
    }

    fn structure(
        &mut self,
        structure: &Struct,
        entries: &[(String, Node)],
        into: &mut Value,
    ) -> Result<(), Error> {
        if !into.is_object() {
            *into = Map::new().into();
        }
        let outer = self.structure;
        for (key, node) in entries {
            let key = folded_key(key);
            let known = |(name, _): &&(&str, Kind)| name.eq_ignore_ascii_case(&key);
            let Some((name, kind)) = structure.fields.iter().find(known) else {
                continue;
            };
            self.structure = structure.name;
            self.path.push(name);
            self.value(node, kind, &mut into[&key])?;
            self.path.pop();
        }
        self.structure = outer;
        if let Some(map) = into.as_object_mut() {
            map.retain(|_, value| !value.is_null());
        }
        Ok(())
    }
}

impl Node {
    fn name(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "bool",
            Self::Number(_) => "number",
            Self::String(_) => "string",
            Self::Array(_) => "array",
            Self::Object(_) => "object",
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, bool: bool) -> Result<Node, E> {
        Ok(Node::Bool(bool))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Node, E> {
        Ok(Node::Number(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Node, E> {
        Ok(Node::Number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Node, E> {
        let number = serde_json::Number::from_f64(number);
        Ok(Node::Number(number.unwrap_or_else(|| 0.into())))
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::String(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Node::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Node::Object(entries))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    static IP: Kind = Kind::Text("net.IP", |text| match text {
        "x" => Err("invalid IP address: x".to_owned()),
        _ => Ok(()),
    });
    static CIDR: Kind = Kind::Itself(&Kind::String, |text| match text {
        "" => Err("invalid CIDR address: ".to_owned()),
        _ => Ok(()),
    });
    static INNER: Kind = Kind::Struct(Struct {
        name: "Inner",
        full: "p.Inner",
        fields: &[
            ("ip", Kind::Pointer(&IP)),
            ("net", Kind::Pointer(&CIDR)),
            ("text", Kind::String),
            ("n", Kind::Int),
        ],
    });
    static OUTER: Kind = Kind::Struct(Struct {
        name: "Outer",
        full: "p.Outer",
        fields: &[
            ("One", Kind::Pointer(&INNER)),
            ("many", Kind::Slice("[]p.Inner", &INNER)),
        ],
    });

    fn outcome(text: &str) -> Result<Value, String> {
        decode(text.as_bytes(), &OUTER)
    }

    #[test]
    fn what_comes_twice_is_merged() {
        let text = r#"{"one": {"ip": "a", "TEXT": "b"}, "many": [{"n": 1}, {"n": 2}], "ONE": {"ip": "c", "text": null}, "Many": [{"text": "t"}]}"#;
        let expected = json!({"one": {"ip": "c", "text": "b"}, "many": [{"n": 1, "text": "t"}]});
        assert_eq!(outcome(text).unwrap(), expected);
        assert_eq!(
            outcome(r#"{"one": {}, "many": [{}], "one": null, "many": null, "other": 5}"#).unwrap(),
            json!({})
        );
    }

    #[test]
    fn the_first_wrong_type_is_told_unless_a_method_fails() {
        for (text, expected) in [
            (
                "[]",
                "json: cannot unmarshal array into Go value of type p.Outer",
            ),
            (
                r#"{"one": 5, "many": 6}"#,
                "json: cannot unmarshal number into Go struct field Outer.One of type p.Inner",
            ),
            (
                r#"{"many": [{"text": true}]}"#,
                "json: cannot unmarshal bool into Go struct field Inner.many.text of type string",
            ),
            (
                r#"{"many": [{"text": true, "ip": "x"}]}"#,
                "invalid IP address: x",
            ),
            (
                r#"{"one": {"n": 1.5}}"#,
                "json: cannot unmarshal number 1.5 into Go struct field Inner.One.n of type int",
            ),
            (
                r#"{"many": 6, "one": {"net": {}}}"#,
                "json: cannot unmarshal object into Go struct field Inner.One.net of type string",
            ),
        ] {
            assert_eq!(outcome(text), Err(expected.to_owned()), "{text}");
        }
    }
}
