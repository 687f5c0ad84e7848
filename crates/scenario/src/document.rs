//! A YAML document that records the position of each key and value.

use std::{collections::BTreeMap, fmt, path::Path as FilePath, sync::LazyLock};

use regex::{Captures, Regex};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Number, Value};
use serde_saphyr::{Location, Spanned};

use crate::problem::{Position, Problem, suggestion};

/// `${name}`, and `$${name}`, which stands for the text `${name}`.
static REFERENCE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(\$?)\$\{([A-Za-z_][A-Za-z0-9_.-]*)\}").expect("a constant pattern")
});

/// The path to a value: keys and indices from the root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Path(Vec<Segment>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Key(String),
    Index(usize),
}

impl Path {
    pub(crate) fn key(&self, key: &str) -> Self {
        self.with(Segment::Key(key.into()))
    }

    pub(crate) fn index(&self, index: usize) -> Self {
        self.with(Segment::Index(index))
    }

    /// The path to the value around it.
    pub(crate) fn parent(&self) -> Self {
        let mut path = self.clone();
        path.0.pop();
        path
    }

    fn with(&self, segment: Segment) -> Self {
        let mut path = self.clone();
        path.0.push(segment);
        path
    }
}

impl Path {
    fn join(&self, path: &serde_path_to_error::Path) -> Self {
        use serde_path_to_error::Segment as S;
        let segment = |segment: &S| match segment {
            S::Seq { index } => Some(Segment::Index(*index)),
            S::Map { key } => Some(Segment::Key(key.clone())),
            S::Enum { .. } | S::Unknown => None,
        };
        Self(
            self.0
                .iter()
                .cloned()
                .chain(path.iter().map_while(segment))
                .collect(),
        )
    }
}

/// A value, and the position at which it begins.
#[derive(Clone, Debug)]
struct Node {
    at: Position,
    content: Content,
    /// True if an invalid part was taken out of it, so that a field may only seem to be missing.
    is_damaged: bool,
}

#[derive(Clone, Debug)]
enum Content {
    Scalar(Value),
    List(Vec<Node>),
    /// The key, the position of the key, the value.
    Map(Vec<(String, Position, Node)>),
}

/// A document, and the file that it was read from.
#[derive(Clone, Debug)]
pub(crate) struct Document<'a> {
    file: &'a FilePath,
    text: &'a str,
    root: Node,
}

impl<'a> Document<'a> {
    pub(crate) fn parse(file: &'a FilePath, text: &'a str) -> Result<Self, Problem> {
        // `on` and `no` are texts here, as in YAML 1.2.
        let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
        let root = serde_saphyr::from_str_with_options(text, options).map_err(|error| Problem {
            file: file.into(),
            position: error.location().map(position),
            message: plain(&error.without_snippet().to_string()),
        })?;
        Ok(Self { file, text, root })
    }

    /// Replaces each `${…}` with its value. A scalar that is only a reference gets the type of the
    /// value. A scalar with an unknown name is taken out.
    pub(crate) fn substitute(&self, values: &BTreeMap<String, Value>) -> (Self, Vec<Problem>) {
        let mut problems = Vec::new();
        let mut filled = self.clone();
        filled.root.fill(values, &mut |at, name| {
            let known = values.keys().map(String::as_str);
            problems.push(Problem {
                file: self.file.into(),
                position: Some(at),
                message: format!(
                    "unknown value ${{{name}}}: neither a parameter nor of the matrix{}; write $${{{name}}} for the text itself",
                    suggestion(name, known)
                ),
            });
        });
        (filled, problems)
    }

    /// Decodes the document as `T`, and reports all parts that do not fit. Each such part is taken
    /// out, and the rest is decoded again; `None` if nothing is left.
    pub(crate) fn decode<T: DeserializeOwned>(&mut self) -> (Option<T>, Vec<Problem>) {
        let mut empty = Vec::new();
        self.root.take_out_empty(&mut empty);
        let mut problems: Vec<_> = empty
            .into_iter()
            .map(|(at, key)| {
                let message = format!("{key} has no value: give it one, or leave it out");
                self.problem_at(at, message)
            })
            .collect();
        loop {
            let (path, message) = match self.attempt(&Path::default()) {
                Ok(value) => return (Some(value), problems),
                Err(wrong) => wrong,
            };
            // JSON Schema takes 3.0 as an integer, too.
            if message.starts_with("invalid type: floating point")
                && self.node_mut(&path).is_some_and(Node::make_whole)
            {
                continue;
            }
            // The missing field may have been taken out.
            if !(message.starts_with("missing field") && self.is_damaged(&path)) {
                problems.push(self.decode_problem(&path, &message));
            }
            if !self.take_out(&path) {
                return (None, problems);
            }
        }
    }

    /// Decodes the value at `path` as `T`.
    pub(crate) fn decode_at<T: DeserializeOwned>(&self, path: &Path) -> Result<T, Problem> {
        self.attempt(path)
            .map_err(|(path, message)| self.decode_problem(&path, &message))
    }

    /// Decodes the value at `path` as `T`. The error has the path of the part that does not fit,
    /// and the message.
    fn attempt<T: DeserializeOwned>(&self, path: &Path) -> Result<T, (Path, String)> {
        serde_path_to_error::deserialize(self.value_at(path))
            .map_err(|error| (path.join(error.path()), error.inner().to_string()))
    }

    fn decode_problem(&self, path: &Path, message: &str) -> Problem {
        match message.starts_with("unknown field") {
            true => self.key_problem(path, explained(message)),
            false => self.problem(path, explained(message)),
        }
    }

    /// Removes the value at `path`, or the innermost existing value around it. Returns true if one
    /// was removed; the root never is.
    fn take_out(&mut self, path: &Path) -> bool {
        let is_there = |length: &usize| self.node(&Path(path.0[..*length].to_vec())).is_some();
        let length = (1..=path.0.len()).rev().find(is_there);
        let Some((last, parents)) = length.and_then(|length| path.0[..length].split_last()) else {
            return false;
        };
        let parent = self.node_mut(&Path(parents.to_vec()));
        parent.is_some_and(|parent| parent.take_out(last))
    }

    fn node_mut(&mut self, path: &Path) -> Option<&mut Node> {
        path.0.iter().try_fold(&mut self.root, child_mut)
    }

    /// Returns true if something was taken out of the value at `path`.
    pub(crate) fn is_damaged(&self, path: &Path) -> bool {
        self.node(path).is_some_and(|node| node.is_damaged)
    }

    /// Returns true if something was taken out of the value at `path` or of one inside it.
    pub(crate) fn is_damaged_inside(&self, path: &Path) -> bool {
        self.node(path).is_some_and(Node::is_damaged_inside)
    }

    /// The file that it was read from.
    pub(crate) fn file(&self) -> &'a FilePath {
        self.file
    }

    /// The value at `path`; null if there is none.
    pub(crate) fn value_at(&self, path: &Path) -> Value {
        self.node(path).map_or(Value::Null, Node::value)
    }

    /// A problem with the value at `path`.
    pub(crate) fn problem(&self, path: &Path, message: impl Into<String>) -> Problem {
        self.problem_at(self.at(path), message)
    }

    /// A problem with the key that `path` ends with.
    pub(crate) fn key_problem(&self, path: &Path, message: impl Into<String>) -> Problem {
        self.problem_at(self.key_at(path), message)
    }

    /// A problem inside the text of the scalar at `path`, `offset` characters after its beginning.
    pub(crate) fn inner_problem(
        &self,
        path: &Path,
        scalar: &str,
        offset: usize,
        message: impl Into<String>,
    ) -> Problem {
        let mut at = self.at(path);
        let line = self.text.lines().nth(index(at.line)).unwrap_or_default();
        let rest: String = line.chars().skip(index(at.column)).collect();
        let quote = usize::from(rest.starts_with(['"', '\'']));
        // The offset fits only a scalar that stands literally in the file: not folded, not escaped,
        // not filled in.
        if rest
            .chars()
            .skip(quote)
            .collect::<String>()
            .starts_with(scalar)
        {
            at.column += u64::try_from(quote + offset).unwrap_or_default();
        }
        self.problem_at(at, message)
    }

    fn problem_at(&self, at: Position, message: impl Into<String>) -> Problem {
        Problem {
            file: self.file.into(),
            position: Some(at),
            message: message.into(),
        }
    }

    /// The position of the value at `path`, or of the innermost existing value around it.
    pub(crate) fn at(&self, path: &Path) -> Position {
        self.find(path).1
    }

    /// The position of the key that `path` ends with, or of the innermost existing key around it.
    fn key_at(&self, path: &Path) -> Position {
        self.find(path).0
    }

    /// The keys of the mapping at `path`, in their order.
    pub(crate) fn keys(&self, path: &Path) -> Vec<&str> {
        match self.node(path).map(|node| &node.content) {
            Some(Content::Map(entries)) => entries.iter().map(|(key, ..)| key.as_str()).collect(),
            _ => Vec::new(),
        }
    }

    fn node(&self, path: &Path) -> Option<&Node> {
        let mut segments = path.0.iter();
        segments.try_fold(&self.root, |node, segment| {
            child(node, segment).map(|(_, value)| value)
        })
    }

    fn find(&self, path: &Path) -> (Position, Position) {
        let mut node = &self.root;
        let mut key = node.at;
        for segment in &path.0 {
            let Some((at, value)) = child(node, segment) else {
                break;
            };
            (key, node) = (at, value);
        }
        (key, node.at)
    }
}

fn child<'a>(node: &'a Node, segment: &Segment) -> Option<(Position, &'a Node)> {
    match (&node.content, segment) {
        (Content::Map(entries), Segment::Key(wanted)) => entries
            .iter()
            .find(|(key, ..)| key == wanted)
            .map(|(_, at, value)| (*at, value)),
        (Content::List(items), Segment::Index(index)) => {
            items.get(*index).map(|item| (item.at, item))
        }
        _ => None,
    }
}

fn child_mut<'a>(node: &'a mut Node, segment: &Segment) -> Option<&'a mut Node> {
    match (&mut node.content, segment) {
        (Content::Map(entries), Segment::Key(wanted)) => entries
            .iter_mut()
            .find(|(key, ..)| key == wanted)
            .map(|(.., value)| value),
        (Content::List(items), Segment::Index(index)) => items.get_mut(*index),
        _ => None,
    }
}

fn index(count: u64) -> usize {
    usize::try_from(count)
        .unwrap_or(usize::MAX)
        .saturating_sub(1)
}

fn position(location: Location) -> Position {
    Position {
        line: location.line(),
        column: location.column(),
    }
}

/// Returns the parser's message without the position, which is reported apart.
fn plain(message: &str) -> String {
    let message = message.lines().next().unwrap_or_default();
    match message.rsplit_once(" at line ") {
        Some((message, _)) => message.trim_end_matches(',').to_owned(),
        None => message.to_owned(),
    }
}

/// Returns serde's message; for an unknown field, with the field that was probably meant.
fn explained(message: &str) -> String {
    let names: Vec<_> = message.split('`').skip(1).step_by(2).collect();
    match names.as_slice() {
        [unknown, known @ ..] if message.starts_with("unknown ") => {
            let what = message.split_whitespace().nth(1).unwrap_or("field");
            let hint = match suggestion(unknown, known.iter().copied()) {
                hint if hint.is_empty() => format!("; known are {}", known.join(", ")),
                hint => hint,
            };
            format!("unknown {what} {unknown:?}{hint}")
        }
        _ => message.to_owned(),
    }
}

fn filled(text: &str, values: &BTreeMap<String, Value>, mut unknown: impl FnMut(&str)) -> Value {
    if let Some(found) = REFERENCE.captures(text)
        && found[0].len() == text.len()
        && found[1].is_empty()
        && let Some(value) = values.get(&found[2])
    {
        return value.clone();
    }
    let replace = |found: &Captures<'_>| match values.get(&found[2]) {
        _ if !found[1].is_empty() => found[0][1..].to_owned(),
        Some(Value::String(value)) => value.clone(),
        Some(value) => value.to_string(),
        None => {
            unknown(&found[2]);
            found[0].to_owned()
        }
    };
    Value::String(REFERENCE.replace_all(text, replace).into_owned())
}

/// Keys whose values are taken over into objects or compared with them, where null is a value, too.
const AS_IN_OBJECTS: [&str; 3] = ["apply", "equals", "notEquals"];

impl Node {
    /// Replaces each `${…}` with its value. Returns false if this is a scalar with an unknown name.
    fn fill(
        &mut self,
        values: &BTreeMap<String, Value>,
        unknown: &mut impl FnMut(Position, &str),
    ) -> bool {
        let mut is_known = true;
        match &mut self.content {
            Content::Scalar(Value::String(text)) => {
                let value = filled(text, values, |name| {
                    is_known = false;
                    unknown(self.at, name);
                });
                self.content = Content::Scalar(value);
            }
            Content::Scalar(_) => {}
            Content::List(_) | Content::Map(_) => {
                self.retain(|_, _, value| value.fill(values, unknown))
            }
        }
        is_known
    }

    /// Takes out keys without a value, and adds them to `found`.
    fn take_out_empty(&mut self, found: &mut Vec<(Position, String)>) {
        self.retain(|key, at, value| {
            let is_free = key.is_some_and(|key| AS_IN_OBJECTS.contains(&key));
            match (&value.content, key) {
                (Content::Scalar(Value::Null), Some(key)) if !is_free || key == "apply" => {
                    found.push((at, key.to_owned()));
                    return false;
                }
                _ if is_free => {}
                _ => value.take_out_empty(found),
            }
            true
        });
    }

    /// Turns the first float with an integral value, such as 3.0, into an integer. Returns false if
    /// there is none.
    fn make_whole(&mut self) -> bool {
        match &mut self.content {
            Content::Scalar(value) => {
                let float = value.as_f64().filter(|_| value.is_f64());
                let float = float.filter(|float| float.fract() == 0.0);
                // Adding zero drops the sign of a negative zero.
                let whole = float.and_then(|float| format!("{:.0}", float + 0.0).parse().ok());
                match whole.filter(|whole: &Number| !whole.is_f64()) {
                    Some(whole) => {
                        *value = Value::Number(whole);
                        true
                    }
                    None => false,
                }
            }
            Content::List(items) => items.iter_mut().any(Self::make_whole),
            Content::Map(entries) => entries.iter_mut().any(|(.., value)| value.make_whole()),
        }
    }

    /// Keeps the entries of a mapping, or the items of a list, for which `keep` returns true.
    /// `keep` gets the key, if there is one, the position at which the entry begins, and the value.
    fn retain(&mut self, mut keep: impl FnMut(Option<&str>, Position, &mut Self) -> bool) {
        let length = self.length();
        match &mut self.content {
            Content::Scalar(_) => {}
            Content::List(items) => items.retain_mut(|item| keep(None, item.at, item)),
            Content::Map(entries) => {
                entries.retain_mut(|(key, at, value)| keep(Some(key), *at, value))
            }
        }
        self.is_damaged |= self.length() < length;
    }

    fn take_out(&mut self, child: &Segment) -> bool {
        let length = self.length();
        match (&mut self.content, child) {
            (Content::Map(entries), Segment::Key(wanted)) => {
                entries.retain(|(key, ..)| key != wanted)
            }
            (Content::List(items), Segment::Index(index)) if *index < items.len() => {
                items.remove(*index);
            }
            _ => {}
        }
        self.is_damaged |= self.length() < length;
        self.length() < length
    }

    fn length(&self) -> usize {
        match &self.content {
            Content::Scalar(_) => 0,
            Content::List(items) => items.len(),
            Content::Map(entries) => entries.len(),
        }
    }

    fn is_damaged_inside(&self) -> bool {
        self.is_damaged
            || match &self.content {
                Content::Scalar(_) => false,
                Content::List(items) => items.iter().any(Self::is_damaged_inside),
                Content::Map(entries) => {
                    entries.iter().any(|(.., value)| value.is_damaged_inside())
                }
            }
    }

    fn value(&self) -> Value {
        match &self.content {
            Content::Scalar(value) => value.clone(),
            Content::List(items) => items.iter().map(Self::value).collect(),
            Content::Map(entries) => Value::Object(
                entries
                    .iter()
                    .map(|(key, _, value)| (key.clone(), value.value()))
                    .collect::<Map<_, _>>(),
            ),
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let Spanned {
            value, referenced, ..
        } = Spanned::<Content>::deserialize(from)?;
        Ok(Self {
            at: position(referenced),
            content: value,
            is_damaged: false,
        })
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Content, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("not a finite number"))?;
        Ok(Content::Scalar(Value::Number(number)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Content, E> {
        Ok(Content::Scalar(value.into()))
    }

    fn visit_unit<E>(self) -> Result<Content, E> {
        Ok(Content::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Content, E> {
        Ok(Content::Scalar(Value::Null))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Content, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Content::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Content, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<Spanned<Value>>()? {
            let name = match key.value {
                Value::String(name) => name,
                Value::Bool(_) | Value::Number(_) => key.value.to_string(),
                other => {
                    return Err(A::Error::custom(format!(
                        "invalid key {other}: must be a string"
                    )));
                }
            };
            entries.push((name, position(key.referenced), map.next_value()?));
        }
        Ok(Content::Map(entries))
    }
}
