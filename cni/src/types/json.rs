//! JSON as Go's `encoding/json` reads and writes it, since configurations are written for Go
//! programs.

use std::fmt::{self, Write as _};

use serde::{
    Deserialize, Serialize,
    de::{
        DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor, value::StringDeserializer,
    },
};
use serde_json::{Map, Value};

/// Parses a document and folds its keys to lower case, so that a struct with lower-case field names
/// reads it as Go does.
///
/// Keys match in any case, the later of two equal keys wins, two objects under one key merge, and
/// `null` leaves a field as it is (except where Go parses a CIDR, which `null` is not).
///
/// # Errors
/// If the text is not one JSON document.
pub fn parse_folded(text: &[u8]) -> Result<Value, serde_json::Error> {
    let text = String::from_utf8_lossy(text);
    serde_json::from_str::<FoldedValue>(&text).map(|folded| folded.0)
}

/// Folds the keys of a parsed document.
#[must_use]
pub fn fold(value: &Value) -> Value {
    let folded = FoldedValue::deserialize(value);
    folded.map_or(Value::Null, |folded| folded.0)
}

/// Reads a document with [folded](parse_folded) keys into a structure.
///
/// # Errors
/// The fault, and the field that has it.
pub fn read_folded<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    let folded = parse_folded(text).map_err(|error| go_error(&error))?;
    serde_path_to_error::deserialize(folded).map_err(|error| {
        let (field, words) = (error.path().to_string(), error.into_inner().to_string());
        // Other texts are the reference's, which names no field.
        let is_serdes = ["invalid type", "invalid value", "invalid length"]
            .iter()
            .any(|start| words.starts_with(start));
        if is_serdes && field != "." {
            format!("{field}: {words}")
        } else {
            words
        }
    })
}

struct FoldedValue(Value);

impl<'de> Deserialize<'de> for FoldedValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FoldVisitor).map(FoldedValue)
    }
}

struct FoldVisitor;

impl<'de> Visitor<'de> for FoldVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_str<E: serde::de::Error>(self, v: &str) -> Result<Value, E> {
        Value::deserialize(StringDeserializer::new(v.to_owned()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(FoldedValue(item)) = seq.next_element()? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((key, FoldedValue(value))) = entries.next_entry::<String, FoldedValue>()? {
            let key = folded_key(&key);
            match (map.get_mut(&key), value) {
                (Some(Value::Object(old)), Value::Object(new)) => old.extend(new),
                (_, Value::Null) if key == "subnet" || key == "dst" => {
                    map.insert(key, String::new().into());
                }
                (_, Value::Null) => {}
                (_, value) => {
                    map.insert(key, value);
                }
            }
        }
        Ok(Value::Object(map))
    }
}

/// Folds a key for comparison. Go folds as Unicode does: the long s is an s.
pub(super) fn folded_key(key: &str) -> String {
    key.to_lowercase().replace('\u{17f}', "s")
}

/// Go's text for a document that does not parse, as far as serde's error tells it.
#[must_use]
pub fn go_error(error: &serde_json::Error) -> String {
    if error.is_eof() {
        "unexpected end of JSON input".to_owned()
    } else {
        error.to_string()
    }
}

/// Formats with Go's indentation of four spaces, without a newline at the end, and with Go's
/// escapes for HTML.
pub(crate) fn pretty<T: Serialize>(value: &T) -> String {
    let mut out = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, formatter);
    // Maps with string keys and a writer in memory: neither of serde_json's two ways to fail
    // applies.
    let written = value.serialize(&mut serializer);
    debug_assert!(written.is_ok());
    escape_html(String::from_utf8_lossy(&out).into_owned())
}

/// Formats on one line, with Go's escapes for HTML.
pub(crate) fn compact<T: Serialize>(value: &T) -> String {
    escape_html(serde_json::to_string(value).unwrap_or_default())
}

/// Escapes the characters that Go escapes. They occur only inside strings, so the finished text can
/// be escaped as a whole.
fn escape_html(json: String) -> String {
    const SPECIAL: [char; 5] = ['<', '>', '&', '\u{2028}', '\u{2029}'];
    if !json.contains(SPECIAL) {
        return json;
    }
    let mut out = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if SPECIAL.contains(&c) {
            _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
}

/// Quotes a string as Go's `%q` does.
#[must_use]
pub fn go_quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x07' => out.push_str("\\a"),
            '\x08' => out.push_str("\\b"),
            '\x0b' => out.push_str("\\v"),
            '\x0c' => out.push_str("\\f"),
            c if c < ' ' || c == '\x7f' => _ = write!(out, "\\x{:02x}", u32::from(c)),
            // Characters that are not printable.
            c if c.escape_debug().len() > 2 && u32::from(c) > 0xffff => {
                _ = write!(out, "\\U{:08x}", u32::from(c));
            }
            c if c.escape_debug().len() > 2 => _ = write!(out, "\\u{:04x}", u32::from(c)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Quotes a list of strings as Go's `%q` does: `["a" "b"]`.
#[must_use]
pub(crate) fn go_quote_list<S: AsRef<str>>(items: &[S]) -> String {
    let quoted: Vec<_> = items.iter().map(|item| go_quote(item.as_ref())).collect();
    format!("[{}]", quoted.join(" "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_match_in_any_case_and_the_later_wins() {
        let text =
            br#"{"IPAM": {"Subnet": "a", "x": null}, "ipam": {"subnet": "b", "RangeStart": "c"}}"#;
        let folded = parse_folded(text).unwrap();
        assert_eq!(folded, json!({"ipam": {"subnet": "b", "rangestart": "c"}}));
    }

    #[test]
    fn null_means_empty_for_cidrs_and_missing_for_other_keys() {
        let folded = parse_folded(br#"{"subnet": null, "name": null, "l": [null]}"#).unwrap();
        assert_eq!(folded, json!({"subnet": "", "l": [null]}));
        assert!(parse_folded(b"{} x").is_err());
    }

    #[test]
    fn an_error_names_the_field() {
        #[derive(Debug, Deserialize)]
        struct Config {
            #[serde(rename = "mtu")]
            _mtu: u32,
        }
        let error = read_folded::<Config>(br#"{"MTU": "x"}"#).unwrap_err();
        assert_eq!(error, r#"mtu: invalid type: string "x", expected u32"#);
        let error = read_folded::<Config>(br#"{"MTU": "#).unwrap_err();
        assert_eq!(error, "unexpected end of JSON input");
    }

    #[test]
    fn strings_are_escaped_as_go_does() {
        assert_eq!(
            compact(&"<a>&\u{2028}é"),
            "\"\\u003ca\\u003e\\u0026\\u2028é\""
        );
        assert_eq!(go_quote("a\"\u{1}\n"), r#""a\"\x01\n""#);
        assert_eq!(go_quote_list(&["a", "b"]), r#"["a" "b"]"#);
    }
}
