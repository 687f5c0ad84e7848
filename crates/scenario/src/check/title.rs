//! Titles of steps that have no name.

use serde_json::Value;

use super::Checker;
use crate::{document::Path, format::Subject};

/// The number of characters of an expectation in a title on a terminal.
pub(super) const SHORT: Option<usize> = Some(70);

impl Checker<'_> {
    /// Returns the title of a step that has no name: its action in a few words. Long expectations
    /// are cut after `most` characters, if there is such a limit.
    pub(super) fn title(&self, path: &Path, action: &str, most: Option<usize>) -> String {
        if action.is_empty() {
            return "check the invariants".into();
        }
        let value = self.document.value_at(&path.key(action));
        let detail = match (action, &value) {
            (_, Value::String(text)) => text.clone(),
            ("wait", Value::Object(wait)) => {
                return format!("wait until {}", brief(&wait["expect"], most));
            }
            ("expect", expect) => brief(expect, most),
            ("run", Value::Object(run)) => match run.get("command") {
                Some(Value::Array(words)) => words.iter().map(flow).collect::<Vec<_>>().join(" "),
                Some(Value::String(line)) => line.lines().next().unwrap_or_default().to_owned(),
                _ => String::new(),
            },
            ("apply", Value::Object(object)) => format!(
                "{}/{}",
                object
                    .get("kind")
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_lowercase(),
                object
                    .get("metadata")
                    .and_then(|metadata| metadata.get("name")?.as_str())
                    .unwrap_or_default()
            ),
            ("apply", Value::Array(objects)) => format!("{} objects or files", objects.len()),
            (_, Value::Object(fields)) => fields.iter().map(pair).collect::<Vec<_>>().join(", "),
            (_, other) => flow(other),
        };
        format!("{action} {detail}")
    }
}

fn pair((key, value): (&String, &Value)) -> String {
    format!("{key} {}", flow(value))
}

/// Returns an expectation in a line: its subject first, then its rules.
pub(super) fn expectation(expect: &Value) -> String {
    let Value::Object(fields) = expect else {
        return flow(expect);
    };
    let is_subject = |key: &str| Subject::ALL.iter().any(|subject| subject.key() == key);
    let (subject, rules): (Vec<_>, Vec<_>) = fields.iter().partition(|(key, _)| is_subject(key));
    let each = subject.into_iter().chain(rules);
    let each = each.map(|(key, value)| format!("{key}: {}", flow(value)));
    each.collect::<Vec<_>>().join(", ")
}

/// Returns a value in a line, in the flow style of YAML without the quotes of texts.
fn flow(value: &Value) -> String {
    match value {
        Value::String(text) => text.trim_end().replace('\n', "\\n"),
        Value::Array(items) => {
            let items = items.iter().map(flow).collect::<Vec<_>>();
            format!("[{}]", items.join(", "))
        }
        Value::Object(fields) => {
            let fields = fields.iter();
            let fields = fields.map(|(key, value)| format!("{key}: {}", flow(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

/// Returns expectations in a line: all of them, or the beginning of the first one and the number of
/// others.
fn brief(expect: &Value, most: Option<usize>) -> String {
    let each = expect.as_array().map(Vec::as_slice).unwrap_or_default();
    let Some(most) = most else {
        let each = each.iter().map(expectation);
        return each.collect::<Vec<_>>().join("; ");
    };
    let Some(first) = each.first() else {
        return String::new();
    };
    let mut text = expectation(first);
    if let Some((end, _)) = text.char_indices().nth(most) {
        text.truncate(end);
        text.push('…');
    }
    match each.len() {
        1 => text,
        more => format!("{text} and {} more", more - 1),
    }
}
