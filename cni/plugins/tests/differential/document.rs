//! Documents that are almost JSON: keys in an order, twice, in any case; values that are not JSON.

use std::fmt;

use serde_json::Value;

use crate::dice::Dice;

#[derive(Debug, Clone)]
pub(crate) enum JsonDocument {
    /// Text that is printed as it is.
    Raw(String),
    Array(Vec<JsonDocument>),
    Object(Vec<(String, JsonDocument)>),
}

impl From<Value> for JsonDocument {
    fn from(value: Value) -> Self {
        match value {
            Value::Array(items) => Self::Array(items.into_iter().map(Self::from).collect()),
            Value::Object(map) => {
                Self::Object(map.into_iter().map(|(k, v)| (k, v.into())).collect())
            }
            other => Self::Raw(other.to_string()),
        }
    }
}

impl fmt::Display for JsonDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Raw(text) => f.write_str(text),
            Self::Array(items) => {
                let items: Vec<_> = items.iter().map(Self::to_string).collect();
                write!(f, "[{}]", items.join(", "))
            }
            Self::Object(entries) => {
                let entry = |(key, value): &(String, Self)| {
                    format!("{}: {value}", Value::from(key.as_str()))
                };
                let entries: Vec<_> = entries.iter().map(entry).collect();
                write!(f, "{{{}}}", entries.join(", "))
            }
        }
    }
}

/// Keys of a route that the packaged reference does not know. Their values are not mutated.
const UNKNOWN_TO_1_1_1: [&str; 5] = ["mtu", "advmss", "priority", "table", "scope"];

const JUNK: &[&str] = &[
    "5",
    "-1",
    "0",
    "1.5",
    "1e3",
    "true",
    "false",
    "null",
    "null",
    "\"\"",
    "\"x\"",
    "\"<&\u{e9}>\"",
    "[]",
    "{}",
    "[null]",
    "[5]",
    "[\"x\"]",
    "[[]]",
    "[{}]",
    "{\"a\": 1}",
    "[[{}]]",
    "[[5]]",
    "\"10.1.2.3\"",
    "\"10.1.2.0/29\"",
    "\"fd00::2\"",
];

impl JsonDocument {
    pub(crate) fn push(&mut self, key: &str, value: Self) {
        if let Self::Object(entries) = self {
            entries.push((key.to_owned(), value));
        }
    }

    /// Breaks, doubles, renames or moves one element. The entry of the data directory stays in
    /// effect, so that no plugin ever uses the default one.
    pub(crate) fn mutate(&mut self, dice: &mut Dice) {
        match self {
            Self::Raw(_) => *self = junk(dice, false),
            Self::Array(items) => {
                let action = dice.below(10);
                if items.is_empty() || action == 0 {
                    items.push(junk(dice, false));
                } else if action == 1 {
                    *self = junk(dice, true);
                } else if action == 2 {
                    let item = dice.pick(items);
                    items.push(item);
                } else if action == 3 {
                    let index = dice.below(items.len());
                    items.remove(index);
                } else if action == 4 {
                    let index = dice.below(items.len());
                    items[index] = Self::Raw("null".to_owned());
                } else {
                    let index = dice.below(items.len());
                    items[index].mutate(dice);
                }
            }
            Self::Object(entries) => Self::mutate_entries(entries, dice),
        }
    }

    fn mutate_entries(entries: &mut Vec<(String, Self)>, dice: &mut Dice) {
        let action = dice.below(12);
        if entries.is_empty() || action == 0 {
            entries.push(("unknown".to_owned(), junk(dice, false)));
            return;
        }
        let index = dice.below(entries.len());
        let (key, value) = entries[index].clone();
        let lower = key.to_lowercase();
        if UNKNOWN_TO_1_1_1.contains(&lower.as_str()) {
            return;
        }
        let holds_dir = lower == "ipam";
        let is_dir = lower == "datadir";
        match action {
            1 => {
                // Another object would lack a data directory.
                if !is_dir {
                    entries[index].1 = junk(dice, holds_dir);
                }
            }
            2 => {
                if !is_dir {
                    entries.remove(index);
                }
            }
            3 => entries[index].0 = other_case(dice, &key),
            4 | 5 => {
                let second = if is_dir {
                    Self::Raw(dice.pick(&["null", "5", "[]"]).to_owned())
                } else if dice.percent(50) {
                    let mut second = value;
                    if !holds_dir {
                        second.mutate(dice);
                    }
                    second
                } else {
                    junk(dice, holds_dir)
                };
                let key = if dice.percent(30) {
                    other_case(dice, &key)
                } else {
                    key
                };
                let at = dice.below(entries.len() + 1);
                entries.insert(at, (key, second));
            }
            6 => {
                let entry = entries.remove(index);
                let at = dice.below(entries.len() + 1);
                entries.insert(at, entry);
            }
            _ if is_dir => {}
            _ => entries[index].1.mutate(dice),
        }
    }
}

/// A value that is likely to be wrong.
fn junk(dice: &mut Dice, not_an_object: bool) -> JsonDocument {
    loop {
        let text = dice.pick(JUNK);
        if !(not_an_object && text.starts_with('{')) {
            return JsonDocument::Raw(text.to_owned());
        }
    }
}

/// A key that Go takes for the same one, or nearly.
fn other_case(dice: &mut Dice, key: &str) -> String {
    match dice.below(4) {
        0 => key.to_uppercase(),
        1 => key.to_lowercase(),
        2 => key.replacen('s', "\u{17f}", 1),
        _ => {
            let flip = |(i, c): (usize, char)| {
                if i % 2 == 0 {
                    c.to_ascii_uppercase()
                } else {
                    c
                }
            };
            key.chars().enumerate().map(flip).collect()
        }
    }
}

/// Damages a text in one place, except in the entry of the data directory.
pub(crate) fn damage(dice: &mut Dice, text: &str) -> String {
    let entry = text.find("\"dataDir\"").unwrap_or(text.len());
    let after = entry + text[entry..].find(['}', ',']).unwrap_or_default();
    let places: Vec<usize> = text
        .char_indices()
        .map(|(place, _)| place)
        .filter(|place| *place < entry || *place >= after)
        .collect();
    if places.is_empty() {
        return "{".to_owned();
    }
    let place = dice.pick(&places);
    let (before, rest) = text.split_at(place);
    let mut chars = rest.chars();
    match dice.below(5) {
        0 => before.to_owned(),
        1 => {
            chars.next();
            format!("{before}{}", chars.as_str())
        }
        2 => {
            let tail = dice.pick(&[" x", "{}", "]", "\n", "\u{0}", ","]);
            format!("{text}{tail}")
        }
        3 => {
            let head = dice.pick(&["\u{feff}", " \n\t", "x", "//", "[", "\u{a0}"]);
            format!("{head}{text}")
        }
        _ => {
            let odd = [
                "\"", "{", "}", "[", "]", ",", ":", "\\", "x", "0", "-", ".", "e", "\n", "\t",
                "\u{1}", "\\u00zz", "\\x", "\\ud800", "tru", "nul", "'", "\u{e9}", "/", "\u{7f}",
            ];
            let odd = dice.pick(&odd);
            if dice.percent(50) {
                chars.next();
            }
            format!("{before}{odd}{}", chars.as_str())
        }
    }
}
