//! The columns of tables, and the paths to fields.

use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceColumnDefinition;
use podplane_api::table::age;
use serde_json::{Map, Value};
use serde_json_path::JsonPath;

/// A column of a custom kind's table.
#[derive(Clone, Debug)]
pub struct PrinterColumn {
    /// The heading.
    pub name: String,
    /// `string`, `integer`, `number`, `boolean` or `date`.
    pub ty: String,
    /// The format of the type; empty if it has none.
    pub format: String,
    /// The description.
    pub description: String,
    /// 0 for a column that is always shown; more for one of `-o wide`.
    pub priority: i32,
    path: Option<JsonPath>,
}

/// The path in the form of RFC 9535. Kubernetes' form begins with a dot, and has names with any
/// characters, of which dots are escaped.
pub(crate) fn json_path(text: &str) -> Option<JsonPath> {
    let mut out = String::from("$");
    let mut rest = text.strip_prefix('.')?;
    while !rest.is_empty() {
        let end = rest.char_indices().find(|(at, c)| {
            matches!(c, '.' | '[') && !rest.get(..*at).is_some_and(|before| before.ends_with('\\'))
        });
        let (name, after) = rest.split_at(end.map_or(rest.len(), |(at, _)| at));
        if name == "*" {
            out.push_str("[*]");
        } else if !name.is_empty() {
            let name = name.replace("\\.", ".");
            out.push('[');
            out.push_str(&Value::String(name).to_string());
            out.push(']');
        }
        let brackets = if after.starts_with('[') {
            bracket_end(after)?
        } else {
            0
        };
        let (selector, after) = after.split_at(brackets);
        out.push_str(selector);
        rest = after.strip_prefix('.').unwrap_or(after);
    }
    JsonPath::parse(&out).ok()
}

/// The length of the selectors in brackets at the start of a text.
fn bracket_end(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0_usize, None);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), c) if open == c => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') => {
                depth = depth.checked_sub(1)?;
                if depth == 0 && !text.get(at + 1..)?.starts_with('[') {
                    return Some(at + 1);
                }
            }
            (None, _) => {}
        }
    }
    None
}

/// The value of a field whose path has names alone.
pub(crate) fn field<'v>(object: &'v Value, path: &str) -> Option<&'v Value> {
    field_of(object.as_object()?, path)
}

/// The same of the fields of an object.
pub(crate) fn field_of<'v>(fields: &'v Map<String, Value>, path: &str) -> Option<&'v Value> {
    let mut names = path.trim_start_matches('.').split('.');
    let first = fields.get(names.next()?)?;
    names.try_fold(first, |at, name| at.get(name))
}

impl PrinterColumn {
    pub(crate) fn new(column: &CustomResourceColumnDefinition) -> Self {
        let path = &column.json_path;
        let description = column.description.clone().filter(|text| !text.is_empty());
        Self {
            name: column.name.clone(),
            ty: column.type_.clone(),
            format: column.format.clone().unwrap_or_default(),
            description: description.unwrap_or_else(|| {
                format!("Custom resource definition column (in JSONPath format): {path}")
            }),
            priority: column.priority.unwrap_or_default(),
            path: json_path(path),
        }
    }

    /// The column of kinds that declare none.
    pub(crate) fn age() -> Self {
        Self::new(&CustomResourceColumnDefinition {
            name: "Age".into(),
            type_: "date".into(),
            json_path: ".metadata.creationTimestamp".into(),
            ..CustomResourceColumnDefinition::default()
        })
    }

    /// The cell of an object; `null` if it has no such value.
    pub(crate) fn cell(&self, object: &Value, now: Timestamp) -> Value {
        let found = self
            .path
            .as_ref()
            .and_then(|path| path.query(object).first());
        let Some(value) = found.filter(|value| !value.is_null()) else {
            return Value::Null;
        };
        match (self.ty.as_str(), value) {
            ("string", Value::String(text)) => text.as_str().into(),
            ("string", other) => other.to_string().into(),
            ("integer", Value::Number(number)) => match number.as_i64() {
                Some(int) => int.into(),
                None => number.as_f64().map_or(Value::Null, truncated),
            },
            ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => value.clone(),
            ("date", Value::String(text)) => match text.parse() {
                Ok(time) => age::between(time, now).into(),
                Err(_) => "<invalid>".into(),
            },
            _ => Value::Null,
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "as in the reference")]
fn truncated(number: f64) -> Value {
    (number as i64).into()
}
