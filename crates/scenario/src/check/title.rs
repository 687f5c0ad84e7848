//! Titles of steps that have no name.

use serde_json::Value;

use super::Checker;
use crate::{document::Path, format::plain};

impl Checker<'_> {
    /// Returns the title of a step that has no name: its action in a few words.
    pub(super) fn title(&self, path: &Path, action: &str) -> String {
        if action.is_empty() {
            return "look at the invariants".into();
        }
        let value = self.document.value_at(&path.key(action));
        let detail = match (action, &value) {
            (_, Value::String(text)) => text.clone(),
            ("wait", Value::Object(wait)) => {
                return format!("wait until {}", brief(&wait["expect"]));
            }
            ("expect", expect) => brief(expect),
            ("run", Value::Object(run)) => match run.get("command") {
                Some(Value::Array(words)) => words.iter().map(plain).collect::<Vec<_>>().join(" "),
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
            (_, other) => other.to_string(),
        };
        format!("{action} {detail}")
    }
}

fn pair((key, value): (&String, &Value)) -> String {
    format!("{key} {}", plain(value))
}

/// Abbreviates expectations: the first one, cut to 70 characters, and the number of others.
fn brief(expect: &Value) -> String {
    const LENGTH: usize = 70;
    let each = expect.as_array().map(Vec::as_slice).unwrap_or_default();
    let Some(Value::Object(first)) = each.first() else {
        return String::new();
    };
    let mut text = first.iter().map(pair).collect::<Vec<_>>().join(", ");
    if let Some((end, _)) = text.char_indices().nth(LENGTH) {
        text.truncate(end);
        text.push('…');
    }
    match each.len() {
        1 => text,
        more => format!("{text} and {} more", more - 1),
    }
}
