//! Documents decoded as Go's `encoding/json` decodes them into given types: what is merged, what is
//! ignored, what is refused.
//!
//! The result holds the known fields only, under lower-case names, each of the right type; serde
//! makes a structure of it.

use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor,
};
use serde_json::{Map, Value};
use serde_path_to_error::Track;

use super::json::folded_key;

/// A type of Go's.
#[derive(Debug)]
pub enum GoType {
    /// `string`
    String,
    /// `bool`
    Bool,
    /// `int`
    Int,
    /// `uint64`
    Uint,
    /// A string that a function checks; `null` is none.
    Text(fn(&str) -> Result<(), String>),
    /// A string that a function checks; `null` is the empty one.
    Checked(fn(&str) -> Result<(), String>),
    /// `*T`
    Pointer(&'static GoType),
    /// A value that replaces an earlier one of the same key, and is not merged with it.
    Replaced(&'static GoType),
    /// `[]T`
    Slice(&'static GoType),
    /// `map[string]T`, of which the last of two equal keys counts.
    Map(&'static GoType),
    /// `map[string]T` in which no key may come twice.
    UniqueMap(&'static GoType),
    /// A map whose values may be anything, and are not kept.
    AnyMap,
    /// `struct`
    Struct(&'static [(&'static str, GoType)]),
}

/// Decodes a document.
///
/// # Errors
/// The path of the field, its value and what is expected there; or the place where the text is no
/// longer JSON.
pub fn decode(text: &[u8], kind: &GoType) -> Result<Value, String> {
    let text = String::from_utf8_lossy(text);
    let (mut value, mut track) = (Value::Null, Track::new());
    let mut json = serde_json::Deserializer::from_str(&text);
    let document = serde_path_to_error::Deserializer::new(&mut json, &mut track);
    let into = &mut value;
    let decoded = Field { kind, into }.deserialize(document);
    decoded.and_then(|()| json.end()).map_err(|error| {
        let path = track.path().to_string();
        if error.is_data() && path != "." {
            format!("{path}: {error}")
        } else {
            error.to_string()
        }
    })?;
    Ok(value)
}

/// A value of a kind, and the place for it, which has the value of an earlier field of the name.
struct Field<'a> {
    kind: &'a GoType,
    into: &'a mut Value,
}

impl<'de> DeserializeSeed<'de> for Field<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Field<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind.pointee() {
            GoType::Bool => "true or false",
            GoType::Int => "an integer",
            GoType::Uint => "an integer of at least 0",
            GoType::Slice(_) => "a list",
            GoType::Map(_) | GoType::UniqueMap(_) | GoType::AnyMap | GoType::Struct(_) => {
                "an object"
            }
            _ => "a string",
        })
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        match self.kind {
            // As if the field were not there.
            GoType::String | GoType::Bool | GoType::Int | GoType::Uint | GoType::Struct(_) => {}
            GoType::Checked(check) => {
                *self.into = Value::Null;
                check("").map_err(E::custom)?;
            }
            _ => *self.into = Value::Null,
        }
        Ok(())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        match self.kind.pointee() {
            GoType::Bool => *self.into = value.into(),
            _ => return Err(E::invalid_type(Unexpected::Bool(value), &self)),
        }
        Ok(())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        match self.kind.pointee() {
            GoType::Int => *self.into = value.into(),
            _ => return Err(E::invalid_value(Unexpected::Signed(value), &self)),
        }
        Ok(())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        match self.kind.pointee() {
            GoType::Uint => *self.into = value.into(),
            GoType::Int if i64::try_from(value).is_ok() => *self.into = value.into(),
            _ => return Err(E::invalid_value(Unexpected::Unsigned(value), &self)),
        }
        Ok(())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        match self.kind.pointee() {
            GoType::String => {}
            GoType::Text(check) | GoType::Checked(check) => check(value).map_err(E::custom)?,
            _ => return Err(E::invalid_type(Unexpected::Str(value), &self)),
        }
        *self.into = value.into();
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let GoType::Slice(kind) = self.kind.pointee() else {
            return Err(A::Error::invalid_type(Unexpected::Seq, &self));
        };
        // Items of an earlier list are decoded into again.
        let mut earlier = match self.into.take() {
            Value::Array(items) => items,
            _ => Vec::new(),
        }
        .into_iter();
        let mut items = Vec::new();
        loop {
            let mut item = earlier.next().unwrap_or_default();
            let into = &mut item;
            if seq.next_element_seed(Field { kind, into })?.is_none() {
                break;
            }
            items.push(item);
        }
        *self.into = items.into();
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let kind = self.kind.pointee();
        let is_object = matches!(
            kind,
            GoType::Struct(_) | GoType::Map(_) | GoType::UniqueMap(_) | GoType::AnyMap
        );
        if !is_object {
            return Err(A::Error::invalid_type(Unexpected::Map, &self));
        }
        let mut items = match self.into.take() {
            Value::Object(items) if !matches!(self.kind, GoType::Replaced(_)) => items,
            _ => Map::new(),
        };
        while let Some(key) = entries.next_key::<String>()? {
            match kind {
                GoType::Map(kind) | GoType::UniqueMap(kind) => {
                    let is_unique = matches!(self.kind.pointee(), GoType::UniqueMap(_));
                    if is_unique && items.contains_key(&key) {
                        return Err(A::Error::custom(format!(
                            "key `{key}` comes twice: remove one"
                        )));
                    }
                    let mut item = Value::Null;
                    let into = &mut item;
                    entries.next_value_seed(Field { kind, into })?;
                    items.insert(key, item);
                }
                GoType::Struct(fields) => {
                    let key = folded_key(&key);
                    let known = fields
                        .iter()
                        .find(|(name, _)| name.eq_ignore_ascii_case(&key));
                    if let Some((_, kind)) = known {
                        let into = items.entry(key).or_insert(Value::Null);
                        entries.next_value_seed(Field { kind, into })?;
                    } else {
                        entries.next_value::<IgnoredAny>()?;
                    }
                }
                _ => {
                    entries.next_value::<IgnoredAny>()?;
                }
            }
        }
        if matches!(kind, GoType::Struct(_)) {
            items.retain(|_, value| !value.is_null());
        }
        *self.into = items.into();
        Ok(())
    }
}

impl GoType {
    /// The kind of the value itself.
    fn pointee(&self) -> &Self {
        match self {
            Self::Pointer(kind) | Self::Replaced(kind) => kind.pointee(),
            kind => kind,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    static IP: GoType = GoType::Text(|text| match text {
        "x" => Err("invalid IP address: x".to_owned()),
        _ => Ok(()),
    });
    static CIDR: GoType = GoType::Checked(|text| match text {
        "" => Err("invalid CIDR address: ".to_owned()),
        _ => Ok(()),
    });
    static INNER: GoType = GoType::Struct(&[
        ("ip", GoType::Pointer(&IP)),
        ("net", GoType::Pointer(&CIDR)),
        ("text", GoType::String),
        ("n", GoType::Int),
        ("u", GoType::Uint),
        ("map", GoType::Map(&GoType::String)),
        ("set", GoType::UniqueMap(&GoType::Bool)),
    ]);
    static OUTER: GoType = GoType::Struct(&[
        ("One", GoType::Pointer(&INNER)),
        ("many", GoType::Slice(&INNER)),
        ("new", GoType::Slice(&GoType::Replaced(&INNER))),
    ]);

    fn outcome(text: &str) -> Result<Value, String> {
        decode(text.as_bytes(), &OUTER)
    }

    #[test]
    fn merges_duplicate_fields() {
        let text = r#"{"one": {"ip": "a", "TEXT": "b"}, "many": [{"n": 1}, {"n": 2}], "ONE": {"ip": "c", "text": null}, "Many": [{"text": "t"}]}"#;
        let expected = json!({"one": {"ip": "c", "text": "b"}, "many": [{"n": 1, "text": "t"}]});
        assert_eq!(outcome(text).unwrap(), expected);
        let text = r#"{"one": {"map": {"a": "1", "a": "2"}, "Map": {"b": "3"}, "u": 18446744073709551615}}"#;
        let expected = json!({"one": {"map": {"a": "2", "b": "3"}, "u": u64::MAX}});
        assert_eq!(outcome(text).unwrap(), expected);
        assert_eq!(
            outcome(r#"{"one": {}, "many": [{}], "one": null, "many": null, "other": 5}"#).unwrap(),
            json!({})
        );
        assert_eq!(
            outcome(r#"{"new": [{"n": 1}], "new": [{"text": "t"}]}"#).unwrap(),
            json!({"new": [{"text": "t"}]})
        );
    }

    #[test]
    fn errors_name_the_field_the_value_and_the_expected_type() {
        for (text, expected) in [
            ("[]", "invalid type: sequence, expected an object"),
            (
                r#"{"one": 5, "many": 6}"#,
                "one: invalid value: integer `5`, expected an object",
            ),
            (
                r#"{"Many": [{}, {"text": true}]}"#,
                "Many[1].text: invalid type: boolean `true`, expected a string",
            ),
            (
                r#"{"many": [{"ip": "x"}]}"#,
                "many[0].ip: invalid IP address: x",
            ),
            (r#"{"one": {"net": null}}"#, ""),
            (
                r#"{"one": {"n": 1.5}}"#,
                "one.n: invalid type: floating point `1.5`, expected an integer",
            ),
            (
                r#"{"one": {"n": 9223372036854775808}}"#,
                "one.n: invalid value: integer `9223372036854775808`, expected an integer",
            ),
            (
                r#"{"one": {"u": -1}}"#,
                "one.u: invalid value: integer `-1`, expected an integer of at least 0",
            ),
            (
                r#"{"one": {"map": {"a": 5}}}"#,
                "one.map.a: invalid value: integer `5`, expected a string",
            ),
            (
                r#"{"one": {"map": []}}"#,
                "one.map: invalid type: sequence, expected an object",
            ),
            (
                r#"{"one": {"set": {"a": true}, "SET": {"a": true}}}"#,
                "one.SET: key `a` comes twice: remove one",
            ),
            (
                r#"{"one": {"net": {}}}"#,
                "one.net: invalid type: map, expected a string",
            ),
            ("", "EOF while parsing a value"),
            ("{} x", "trailing characters"),
            (r#"{"other": 5,}"#, "trailing comma"),
        ] {
            match outcome(text) {
                Ok(_) => assert_eq!(expected, "", "{text}"),
                Err(error) => {
                    let (said, place) = error.split_once(" at line ").unwrap();
                    assert_eq!(said, expected, "{text}");
                    assert!(place.contains("column"), "{error}");
                }
            }
        }
    }
}
