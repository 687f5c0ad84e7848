//! Conversion between the two forms of an event: `v1`, in which it is stored, and
//! `events.k8s.io/v1`. They differ only in the names of fields.
//!
//! Source: `k8s.io/kubernetes/pkg/apis/events/v1/conversion.go`.

use serde_json::{Map, Value};

/// The names of fields in `events.k8s.io/v1` and in `v1`, where they differ.
const NAMES: [(&str, &str); 7] = [
    ("deprecatedCount", "count"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedSource", "source"),
    ("note", "message"),
    ("regarding", "involvedObject"),
    ("reportingController", "reportingComponent"),
];

/// Converts an event, or a part of one, from `events.k8s.io/v1` to `v1`. Fields that only `v1` has
/// are dropped.
pub fn to_core(document: Value) -> Value {
    let known = |field: &str| {
        NAMES
            .iter()
            .find(|(new, core)| *new == field || *core == field)
    };
    let name = |field: &str| match known(field) {
        Some((new, core)) => (*new == field).then_some(*core),
        None => Some(""),
    };
    renamed(document, name, "v1")
}

/// Converts an event from `v1` to `events.k8s.io/v1`.
pub fn from_core(document: Value) -> Value {
    let name = |field: &str| match NAMES.iter().find(|(_, core)| *core == field) {
        Some((new, _)) => Some(*new),
        None => Some(""),
    };
    renamed(document, name, "events.k8s.io/v1")
}

/// Renames the fields of a document. `name` returns the new name of a field: empty to keep it,
/// `None` to drop the field.
fn renamed(document: Value, name: impl Fn(&str) -> Option<&'static str>, version: &str) -> Value {
    let Value::Object(fields) = document else {
        return document;
    };
    let rename = |(field, value): (String, Value)| match name(&field)? {
        "" if field == "apiVersion" => Some((field, version.into())),
        "" => Some((field, value)),
        other => Some((other.to_owned(), value)),
    };
    Value::Object(fields.into_iter().filter_map(rename).collect::<Map<_, _>>())
}

/// The fields of a document that `events.k8s.io/v1` does not have, because it uses other names for
/// them.
pub fn core_only(document: &Value) -> Vec<String> {
    let core = |field: &&String| NAMES.iter().any(|(_, core)| core == field);
    let fields = document.as_object().into_iter().flat_map(Map::keys);
    fields.filter(core).cloned().collect()
}

/// Converts a JSON patch, which names fields by pointers, to the `v1` form.
pub fn json_patch_to_core(patch: Value) -> Value {
    let Value::Array(steps) = patch else {
        return patch;
    };
    let pointer = |text: &str| {
        let (field, rest) = match text.strip_prefix('/')?.split_once('/') {
            Some((field, rest)) => (field, format!("/{rest}")),
            None => (text.strip_prefix('/')?, String::new()),
        };
        let (_, core) = NAMES.iter().find(|(new, _)| *new == field)?;
        Some(format!("/{core}{rest}"))
    };
    let convert = |mut step: Value| {
        let whole = step["path"] == "";
        for field in ["path", "from"] {
            if let Some(core) = step[field].as_str().and_then(pointer) {
                step[field] = core.into();
            }
        }
        if whole && let Some(value) = step.get_mut("value") {
            *value = to_core(value.take());
        }
        step
    };
    steps.into_iter().map(convert).collect()
}

/// Converts a field selector to the `v1` form.
pub fn selector_to_core(selector: &str) -> String {
    let term = |term: &str| {
        let end = term.find(['=', '!']).unwrap_or(term.len());
        let (field, rest) = term.split_at(end);
        match (field, field.strip_prefix("regarding.")) {
            (_, Some(part)) => format!("involvedObject.{part}{rest}"),
            ("reportingController", _) => format!("reportingComponent{rest}"),
            _ => term.to_owned(),
        }
    };
    let terms: Vec<_> = selector.split(',').map(term).collect();
    terms.join(",")
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::{core::v1, events};
    use serde_json::json;

    use super::*;

    fn new() -> Value {
        json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e", "namespace": "default"},
            "action": "Binding", "eventTime": "2026-01-01T00:00:00.123456Z", "note": "bound", "reason": "Scheduled",
            "regarding": {"kind": "Pod", "name": "a"}, "related": {"kind": "Node", "name": "n"},
            "reportingController": "scheduler", "reportingInstance": "s-1", "type": "Normal",
            "series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"},
            "deprecatedCount": 3, "deprecatedFirstTimestamp": "2026-01-01T00:00:00Z",
            "deprecatedLastTimestamp": "2026-01-01T00:00:00Z", "deprecatedSource": {"component": "c", "host": "h"},
        })
    }

    #[test]
    fn both_forms_convert_without_loss() {
        let core = to_core(new());
        // Both decode strictly: no field is lost, and none is renamed wrongly.
        let kept: v1::Event = crate::strict::decode(core.clone()).unwrap();
        assert_eq!(serde_json::to_value(kept).unwrap(), core);
        assert_eq!(core["apiVersion"], "v1");
        assert_eq!(core["involvedObject"]["name"], "a");
        assert_eq!(core["message"], "bound");
        let back = from_core(core);
        assert_eq!(back, new());
        let _: events::v1::Event = crate::strict::decode(back).unwrap();
    }

    #[test]
    fn drops_fields_of_the_other_form() {
        let patch = json!({"message": "x", "note": "y", "series": null});
        assert_eq!(core_only(&patch), ["message"]);
        assert_eq!(to_core(patch), json!({"message": "y", "series": null}));
    }

    #[test]
    fn pointers_and_selectors_are_renamed() {
        let patch = json!([{"op": "replace", "path": "/note", "value": "x"}, {"op": "test", "path": "/regarding/name", "value": "a"},
            {"op": "add", "path": "/series", "value": {}}, {"op": "replace", "path": "", "value": {"note": "n"}}]);
        let want = json!([{"op": "replace", "path": "/message", "value": "x"}, {"op": "test", "path": "/involvedObject/name", "value": "a"},
            {"op": "add", "path": "/series", "value": {}}, {"op": "replace", "path": "", "value": {"message": "n"}}]);
        assert_eq!(json_patch_to_core(patch), want);
        assert_eq!(
            selector_to_core("regarding.name=regarding.x,type!=Normal,reportingController==c"),
            "involvedObject.name=regarding.x,type!=Normal,reportingComponent==c"
        );
    }
}
