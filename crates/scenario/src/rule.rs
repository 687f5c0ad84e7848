//! Rules about one value: JSONPath, CEL, text, numbers.

use std::{
    fmt::Write as _,
    sync::{Arc, LazyLock},
};

use cel::{Context, Env, Program, Value as CelValue, extensions};
use regex::Regex;
use serde_json::Value;
use serde_json_path::JsonPath;

use podplane_api::schema::Type;

use crate::{
    compared::differences,
    fields::{StrayField, stray},
    format::{Text, TextRules},
};

/// A key with escaped dots, as kubectl writes it: `.podplane\.io/pod-ips`.
static ESCAPED: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\.((?:[\w/-]|\\\.)*\\\.(?:[\w/-]|\\\.)*)").expect("a constant pattern")
});

/// CEL with its standard functions and those for strings, lists and numbers.
static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::stdlib();
    for extension in [extensions::strings, extensions::lists, extensions::math] {
        // They declare functions of different names, so none conflicts with another.
        let _ = env.add_extension(extension);
    }
    Arc::new(env)
});

/// A mistake in a rule, at an offset in its text that counts characters from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BadRule {
    pub(crate) offset: usize,
    pub(crate) message: String,
}

impl BadRule {
    fn new(offset: usize, message: impl Into<String>) -> Self {
        Self {
            offset,
            message: message.into(),
        }
    }
}

/// A CEL expression about `object`.
#[derive(Clone, Debug)]
pub(crate) struct Cel(Arc<Program>);

impl Cel {
    pub(crate) fn parse(text: &str) -> Result<Self, BadRule> {
        let program = ENV.compile(text).map_err(|errors| {
            let first = errors.errors.first();
            let offset = first.map_or(0, |error| usize::try_from(error.pos.1 - 1).unwrap_or(0));
            let message = first.map_or_else(|| errors.to_string(), |error| error.msg.clone());
            BadRule::new(offset, format!("not CEL: {message}"))
        })?;
        let cel = Self(Arc::new(program));
        cel.undeclared(text)?;
        Ok(cel)
    }

    /// Checks the fields that the expression names. Fails for a field that objects of the type
    /// cannot have: the expression would be false for all of them.
    pub(crate) fn of(self, text: &str, ty: Type) -> Result<Self, BadRule> {
        let Some(StrayField { field, message }) = stray(self.0.expression(), ty) else {
            return Ok(self);
        };
        let named = Regex::new(&format!(r"[.\['\x22]\s*({})\b", regex::escape(&field))).ok();
        let named = named.and_then(|named| named.captures(text)?.get(1).map(|found| found.start()));
        let offset = named.map_or(0, |at| text[..at].chars().count());
        Err(BadRule::new(offset, message))
    }

    /// Fails for a name that is not declared, which would otherwise show only at evaluation.
    fn undeclared(&self, text: &str) -> Result<(), BadRule> {
        let offset = |name: &str| {
            let word = Regex::new(&format!(r"(^|[^\w.])({})\b", regex::escape(name))).ok();
            let found =
                word.and_then(|word| word.captures(text)?.get(2).map(|found| found.start()));
            found.map_or(0, |at| text[..at].chars().count())
        };
        let references = self.0.references();
        let mut variables = references.variables();
        variables.sort_unstable();
        for name in variables {
            // A macro declares its variable: `list.exists(item, …)`.
            let declared = format!(r"\.\s*\w+\s*\(\s*(\w+\s*,\s*)?{}\s*,", regex::escape(name));
            let is_declared = Regex::new(&declared).is_ok_and(|declared| declared.is_match(text));
            let is_type = [
                "int", "uint", "double", "string", "bool", "list", "map", "bytes", "type",
                "optional", "math",
            ]
            .contains(&name);
            if name != "object" && !is_declared && !is_type {
                let message = format!("unknown name {name:?} in CEL: only `object` is defined");
                return Err(BadRule::new(offset(name), message));
            }
        }
        match self.value(&Value::Object(serde_json::Map::new())) {
            Err(cel::ExecutionError::UndeclaredReference(name)) => {
                let message = format!("CEL has no function {name:?}");
                Err(BadRule::new(offset(&name), message))
            }
            _ => Ok(()),
        }
    }

    fn value(&self, object: &Value) -> Result<CelValue, cel::ExecutionError> {
        let mut context = Context::with_env(ENV.clone());
        context.add_variable_from_value("object", cel_value(object));
        self.0.execute(&context)
    }

    /// Returns `Ok` if the expression is true for the object, else the reason. A missing field
    /// makes it false.
    pub(crate) fn holds(&self, object: &Value) -> Result<(), String> {
        self.judge(object).unwrap_or_else(Err)
    }

    /// The fields that the expression compares, with their values in an object for which it is not
    /// as wanted; a line each.
    pub(crate) fn differences(&self, object: &Value) -> Vec<String> {
        differences(self.0.expression(), object)
    }

    /// Returns true if the expression is true for the object.
    ///
    /// # Errors
    ///
    /// If the value is neither true nor false: then it is unknown which objects are meant.
    pub(crate) fn picks(&self, object: &Value) -> Result<bool, String> {
        self.judge(object).map(|held| held.is_ok())
    }

    /// Evaluates the expression: the inner error says why it is false, the outer one why it is
    /// neither true nor false.
    fn judge(&self, object: &Value) -> Result<Result<(), String>, String> {
        match self.value(object) {
            Ok(CelValue::Bool(true)) => Ok(Ok(())),
            Ok(CelValue::Bool(false)) => Ok(Err("it is false".into())),
            Ok(other) => Err(match other.json() {
                Ok(value) => format!("it is {value}, not true or false"),
                Err(_) => "it is not true or false".into(),
            }),
            Err(cel::ExecutionError::NoSuchKey(key)) => Ok(Err(format!("there is no {key:?}"))),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Converts JSON to CEL. Whole numbers become `int`, so that expressions can calculate with them.
fn cel_value(value: &Value) -> CelValue {
    match value {
        Value::Null => CelValue::Null,
        Value::Bool(value) => CelValue::Bool(*value),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(int), _) => CelValue::Int(int),
            (None, Some(uint)) => CelValue::UInt(uint),
            (None, None) => CelValue::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => text.as_str().into(),
        Value::Array(items) => items.iter().map(cel_value).collect::<Vec<_>>().into(),
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(key, value)| (key.clone(), cel_value(value)));
            fields.collect::<std::collections::HashMap<_, _>>().into()
        }
    }
}

/// A JSONPath into an object.
#[derive(Clone, Debug)]
pub(crate) struct Path(JsonPath);

impl Path {
    /// Parses RFC 9535, or the same as kubectl writes it: in braces, and without the `$`.
    pub(crate) fn parse(text: &str) -> Result<Self, BadRule> {
        let trimmed = text.trim();
        let inner = trimmed
            .strip_prefix('{')
            .and_then(|inner| inner.strip_suffix('}'))
            .unwrap_or(trimmed);
        let start = text.find(inner).unwrap_or_default();
        let rooted = match inner.chars().next() {
            Some('$') => inner.to_owned(),
            Some('.' | '[') => format!("${inner}"),
            _ => {
                let message =
                    format!("invalid JSONPath {text:?}: want $.status.phase or {{.status.phase}}");
                return Err(BadRule::new(start, message));
            }
        };
        let query = ESCAPED.replace_all(&rooted, |found: &regex::Captures<'_>| {
            format!("['{}']", found[1].replace("\\.", "."))
        });
        let shift = rooted.len() - inner.len();
        JsonPath::parse(&query).map(Self).map_err(|error| {
            let offset = start + error.position().saturating_sub(shift);
            BadRule::new(
                offset,
                format!("not JSONPath (RFC 9535): {}", error.message()),
            )
        })
    }

    /// Returns the value at the path; a list if there are several.
    pub(crate) fn of(&self, object: &Value) -> Option<Value> {
        let found = self.0.query(object).all();
        match found.as_slice() {
            [] => None,
            [one] => Some((*one).clone()),
            several => Some(several.iter().copied().cloned().collect()),
        }
    }
}

/// A rule about a value. All parts of it must hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct ValueRule {
    pub(crate) exists: Option<bool>,
    pub(crate) equals: Option<Value>,
    pub(crate) not_equals: Option<Value>,
    pub(crate) matches: Option<Regex>,
    pub(crate) numbers: NumberRule,
}

impl ValueRule {
    /// Returns true if the rule allows a value, or its absence.
    pub(crate) fn allows(&self, value: Option<&Value>) -> bool {
        if let Some(exists) = self.exists
            && exists != value.is_some()
        {
            return false;
        }
        if self.exists == Some(false) {
            return true;
        }
        if let (Some(forbidden), Some(value)) = (&self.not_equals, value)
            && same(forbidden, value)
        {
            return false;
        }
        let Some(value) = value else {
            // An absent value differs from any value; all other rules need a value.
            return self.not_equals.is_some()
                && self.equals.is_none()
                && self.matches.is_none()
                && self.numbers.is_empty();
        };
        let text = || match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        self.equals
            .as_ref()
            .is_none_or(|wanted| same(wanted, value))
            && self
                .matches
                .as_ref()
                .is_none_or(|pattern| pattern.is_match(&text()))
            && (self.numbers.is_empty()
                || number(value).is_some_and(|number| self.numbers.allows(number)))
    }

    /// Describes the allowed values in words: `at least 2 and at most 3`.
    pub(crate) fn describe(&self) -> String {
        let mut each = Vec::new();
        match self.exists {
            Some(true) => each.push("something".to_owned()),
            Some(false) => each.push("nothing".to_owned()),
            None => {}
        }
        if let Some(value) = &self.equals {
            each.push(value.to_string());
        }
        if let Some(value) = &self.not_equals {
            each.push(format!("anything but {value}"));
        }
        if let Some(pattern) = &self.matches {
            each.push(format!("a match of /{pattern}/"));
        }
        if !self.numbers.is_empty() {
            each.push(self.numbers.describe());
        }
        match each.is_empty() {
            true => "something".into(),
            false => each.join(" and "),
        }
    }
}

/// Compares two values; 1 and 1.0 are equal.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len()
                && a.iter()
                    .all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        (a, b) => a == b,
    }
}

/// Returns a number, also one that is written as a text, as some quantities are.
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

/// A rule about a number. All parts of it must hold.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct NumberRule {
    pub(crate) equals: Option<f64>,
    pub(crate) at_least: Option<f64>,
    pub(crate) at_most: Option<f64>,
}

impl NumberRule {
    pub(crate) fn is_empty(self) -> bool {
        self == Self::default()
    }

    pub(crate) fn allows(self, number: f64) -> bool {
        self.equals.is_none_or(|wanted| number == wanted)
            && self.at_least.is_none_or(|least| number >= least)
            && self.at_most.is_none_or(|most| number <= most)
    }

    pub(crate) fn describe(self) -> String {
        let mut text = String::new();
        for (word, number) in [
            ("", self.equals),
            ("at least ", self.at_least),
            ("at most ", self.at_most),
        ] {
            if let Some(number) = number {
                let and = if text.is_empty() { "" } else { " and " };
                // Writing to a string cannot fail.
                let _ = write!(text, "{and}{word}{number}");
            }
        }
        text
    }
}

/// A rule about a text. All parts of it must hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct TextRule {
    equals: Option<String>,
    contains: Option<String>,
    matches: Option<Regex>,
}

impl TextRule {
    pub(crate) fn new(text: &Text) -> Result<Self, BadRule> {
        match text {
            Text::Part(part) => Ok(Self {
                contains: Some(part.clone()),
                ..Self::default()
            }),
            Text::Rules(TextRules {
                equals,
                contains,
                matches,
            }) => Ok(Self {
                equals: equals.clone(),
                contains: contains.clone(),
                matches: matches.as_deref().map(pattern).transpose()?,
            }),
        }
    }

    pub(crate) fn allows(&self, text: &str) -> bool {
        self.equals
            .as_ref()
            .is_none_or(|wanted| wanted.trim() == text.trim())
            && self
                .contains
                .as_ref()
                .is_none_or(|part| text.contains(part))
            && self
                .matches
                .as_ref()
                .is_none_or(|pattern| pattern.is_match(text))
    }

    /// Returns true if it demands anything.
    pub(crate) fn is_set(&self) -> bool {
        self.equals.is_some() || self.contains.is_some() || self.matches.is_some()
    }

    pub(crate) fn describe(&self) -> String {
        let equals = self.equals.iter().map(|text| format!("{text:?}"));
        let contains = self
            .contains
            .iter()
            .map(|part| format!("a text with {part:?}"));
        let matches = self
            .matches
            .iter()
            .map(|pattern| format!("a match of /{pattern}/"));
        equals
            .chain(contains)
            .chain(matches)
            .collect::<Vec<_>>()
            .join(" and ")
    }
}

/// Compiles a regular expression in which `^` and `$` match at each line.
pub(crate) fn pattern(text: &str) -> Result<Regex, BadRule> {
    regex::RegexBuilder::new(text)
        .multi_line(true)
        .build()
        .map_err(|error| {
            let message = error.to_string();
            let last = message.lines().last().unwrap_or_default();
            BadRule::new(
                0,
                format!(
                    "not a regular expression: {}",
                    last.trim_start_matches("error: ")
                ),
            )
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn accepts_paths_of_rfc_9535_and_of_kubectl() {
        let pod = json!({"metadata": {"annotations": {"podplane.io/pod-ips": "1"}}, "status": {"phase": "Running", "podIPs": [{"ip": "a"}, {"ip": "b"}],
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "False"}]}});
        for (text, want) in [
            ("$.status.phase", Some(json!("Running"))),
            ("{.status.phase}", Some(json!("Running"))),
            (".status.phase", Some(json!("Running"))),
            ("{.status.podIPs[*].ip}", Some(json!(["a", "b"]))),
            ("{.status.podIPs[0].ip}", Some(json!("a"))),
            (
                r#"{.status.conditions[?(@.type=="Ready")].status}"#,
                Some(json!("True")),
            ),
            (
                r"{.metadata.annotations.podplane\.io/pod-ips}",
                Some(json!("1")),
            ),
            (
                "$.metadata.annotations['podplane.io/pod-ips']",
                Some(json!("1")),
            ),
            (".spec.nodeName", None),
        ] {
            assert_eq!(Path::parse(text).unwrap().of(&pod), want, "{text}");
        }
        for text in ["status", "{.status", "$.a[", ""] {
            Path::parse(text).unwrap_err();
        }
    }

    #[test]
    fn cel_has_the_standard_functions() {
        let pod = json!({"metadata": {"name": "web-0", "labels": {"app": "web"}}, "spec": {"priority": 3},
            "status": {"podIP": "10.0.0.2", "conditions": [{"type": "Ready", "status": "True"}]}});
        for text in [
            "object.metadata.name == 'web-0'",
            "object.status.conditions.exists(c, c.type == 'Ready' && c.status == 'True')",
            "object.status.conditions.all(c, c.status != 'False')",
            "object.status.conditions.filter(c, c.type == 'Ready').size() == 1",
            "object.status.conditions.map(c, c.type) == ['Ready']",
            "has(object.status.podIP) && !has(object.status.hostIP)",
            "object.status.podIP.startsWith('10.0.') && object.status.podIP.matches('^10[.]')",
            "size(object.metadata.labels) == 1 && 'app' in object.metadata.labels",
            "object.spec.priority + 1 == 4 && object.spec.priority > 2.5",
            "object.status.podIP.split('.')[0] == '10'",
            "int('3') == object.spec.priority",
        ] {
            let held = Cel::parse(text)
                .unwrap_or_else(|error| panic!("{text}: {error:?}"))
                .holds(&pod);
            assert_eq!(held, Ok(()), "{text}");
        }
        assert_eq!(
            Cel::parse("object.status.hostIP == ''")
                .unwrap()
                .holds(&pod),
            Err(r#"there is no "hostIP""#.into())
        );
        assert_eq!(
            Cel::parse("object.spec.priority").unwrap().holds(&pod),
            Err("it is 3, not true or false".into())
        );
        let picks = |text: &str| Cel::parse(text).unwrap().picks(&pod);
        assert_eq!(picks("object.spec.priority == 3"), Ok(true));
        // A missing field makes the expression false, also when objects are picked.
        assert_eq!(picks("object.status.hostIP == ''"), Ok(false));
        for neither in ["object.spec.priority", "object.spec.priority < 'high'"] {
            picks(neither).unwrap_err();
        }
    }

    #[test]
    fn errors_of_cel_have_the_offset() {
        for (text, offset) in [
            ("object.a ==", 11),
            ("objekt.a == 1", 0),
            ("object.a == b", 12),
            ("sizeof(object) == 1", 0),
        ] {
            let error = Cel::parse(text).unwrap_err();
            assert_eq!(error.offset, offset, "{text}: {}", error.message);
        }
    }

    #[test]
    fn rules_accept_only_matching_values() {
        let rule = |rule: ValueRule, value: Option<Value>| rule.allows(value.as_ref());
        let equals = |value| ValueRule {
            equals: Some(value),
            ..ValueRule::default()
        };
        assert!(rule(equals(json!(1)), Some(json!(1.0))));
        assert!(!rule(equals(json!(1)), Some(json!("1"))));
        assert!(!rule(equals(json!(null)), None));
        let numbers = NumberRule {
            at_least: Some(2.0),
            at_most: Some(3.0),
            equals: None,
        };
        let between = || ValueRule {
            numbers,
            ..ValueRule::default()
        };
        assert!(rule(between(), Some(json!("2"))));
        assert!(!rule(between(), Some(json!(4))));
        assert!(!rule(between(), None));
        assert_eq!(between().describe(), "at least 2 and at most 3");
        let absent = || ValueRule {
            exists: Some(false),
            ..ValueRule::default()
        };
        assert!(rule(absent(), None));
        assert!(!rule(absent(), Some(json!(1))));
    }
}
