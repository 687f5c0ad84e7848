//! Validation of events: rules for the stored form, and stricter ones for events written as
//! `events.k8s.io/v1` (source: `k8s.io/kubernetes/pkg/apis/core/validation/events.go`). Paths are
//! those of `v1`, except for `reportingController`.

use serde::Serialize;
use serde_json::json;

use crate::{
    Object,
    core::Event,
    names,
    validation::{ErrorList, FieldPath, Validate, metadata},
};

const NOT_IN_NAMESPACE: &str = "does not match event.namespace";
/// The most bytes of a reporting instance, an action or a reason.
const WORD_MAX_BYTES: usize = 128;
/// The most bytes of the message of an event with an event time.
const NOTE_MAX_BYTES: usize = 1024;

impl Validate for Event {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        legacy(self, "reportingComponent", &mut errors);
        errors
    }
}

/// The rules for the stored form: few for events without an event time, more for those with one.
fn legacy(event: &Event, controller: &str, errors: &mut ErrorList) {
    let involved = text(event.involved_object.namespace.as_ref());
    let path = FieldPath::new("involvedObject").child("namespace");
    if event.event_time.is_none() {
        // Events of cluster-scoped objects are in the default namespace.
        let agrees = match involved {
            "" => event.namespace() == "default",
            namespace => event.namespace() == namespace,
        };
        if !agrees {
            errors.invalid(&path, involved, NOT_IN_NAMESPACE);
        }
        return;
    }
    if involved.is_empty() && !matches!(event.namespace(), "default" | "kube-system") {
        errors.invalid(&path, involved, NOT_IN_NAMESPACE);
    }
    let component = text(event.reporting_component.as_ref());
    let path = FieldPath::new(controller);
    if component.is_empty() {
        errors.required(&path, "");
    }
    errors.invalid_each(&path, component, names::qualified_name(component));
    let mut word = |field: &str, value: Option<&String>| {
        let (path, value) = (FieldPath::new(field), text(value));
        if value.is_empty() {
            errors.required(&path, "");
        }
        at_most(&path, value, WORD_MAX_BYTES, errors);
    };
    word("reportingInstance", event.reporting_instance.as_ref());
    word("action", event.action.as_ref());
    word("reason", event.reason.as_ref());
    let message = text(event.message.as_ref());
    at_most(&FieldPath::new("message"), message, NOTE_MAX_BYTES, errors);
}

fn at_most(path: &FieldPath, value: &str, max: usize, errors: &mut ErrorList) {
    if value.len() > max {
        errors.invalid(path, "", &format!("can have at most {max} characters"));
    }
}

fn text(value: Option<&String>) -> &str {
    value.map(String::as_str).unwrap_or_default()
}

/// Additional rules for an event that is created as `events.k8s.io/v1`, besides those of
/// [`Validate::validate`].
pub fn validate_new_event(event: &Event) -> ErrorList {
    let mut errors = ErrorList::new();
    series(event, &mut errors);
    if event.event_time.is_none() {
        errors.required(&FieldPath::new("eventTime"), "");
    }
    let kind = text(event.type_.as_ref());
    if !matches!(kind, "Normal" | "Warning") {
        errors.invalid(
            &FieldPath::new("type"),
            "",
            &format!("has invalid value: {kind}"),
        );
    }
    let source = event.source.as_ref();
    let sourced = source.is_some_and(|source| {
        !text(source.component.as_ref()).is_empty() || !text(source.host.as_ref()).is_empty()
    });
    for (field, set) in [
        ("firstTimestamp", event.first_timestamp.is_some()),
        ("lastTimestamp", event.last_timestamp.is_some()),
        ("count", event.count.is_some_and(|count| count != 0)),
        ("source", sourced),
    ] {
        if set {
            errors.invalid(&FieldPath::new(field), "", "needs to be unset");
        }
    }
    errors
}

/// The rules for an event that is updated as `events.k8s.io/v1`: only its series may change.
pub fn validate_new_event_update(event: &Event, old: &Event) -> ErrorList {
    let mut errors = ErrorList::new();
    if event.series != old.series {
        series(event, &mut errors);
    }
    macro_rules! immutable {
        ($($field:ident $name:literal)*) => {
            $(same($name, &event.$field, &old.$field, &mut errors);)*
        };
    }
    immutable! {
        involved_object "involvedObject" reason "reason" message "message" source "source"
        first_timestamp "firstTimestamp" last_timestamp "lastTimestamp" count "count" type_ "type"
        event_time "eventTime" action "action" related "related"
        reporting_component "reportingController" reporting_instance "reportingInstance"
    }
    errors
}

fn same<T: PartialEq + Serialize>(field: &str, new: &T, old: &T, errors: &mut ErrorList) {
    if new != old {
        errors.invalid(&FieldPath::new(field), json!(new), "field is immutable");
    }
}

fn series(event: &Event, errors: &mut ErrorList) {
    let Some(series) = &event.series else {
        return;
    };
    if series.count.unwrap_or_default() < 2 {
        let path = FieldPath::new("series.count");
        errors.invalid(&path, "", "should be at least 2");
    }
    if series.last_observed_time.is_none() {
        errors.required(&FieldPath::new("series.lastObservedTime"), "");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn event(change: Value) -> Event {
        let mut event = json!({
            "metadata": {"name": "e", "namespace": "default"}, "involvedObject": {"kind": "Node", "name": "n"},
            "eventTime": "2026-01-01T00:00:00.000000Z", "reportingComponent": "podplane.io/c", "reportingInstance": "i",
            "action": "Do", "reason": "Done", "type": "Normal", "message": "m",
        });
        for (field, value) in change.as_object().unwrap() {
            event[field] = value.clone();
        }
        serde_json::from_value(event).unwrap()
    }

    fn texts(errors: &ErrorList) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn events_with_a_time_need_controller_and_action() {
        let long = "x".repeat(129);
        for (change, want) in [
            (json!({}), &[][..]),
            (
                json!({"reportingComponent": ""}),
                &["reportingComponent: Required value"],
            ),
            (
                json!({"reportingInstance": ""}),
                &["reportingInstance: Required value"],
            ),
            (json!({"action": null}), &["action: Required value"]),
            (
                json!({"reason": long}),
                &[r#"reason: Invalid value: "": can have at most 128 characters"#],
            ),
            (
                json!({"message": "x".repeat(1025)}),
                &[r#"message: Invalid value: "": can have at most 1024 characters"#],
            ),
            (
                json!({"metadata": {"name": "e", "namespace": "elsewhere"}}),
                &[r#"involvedObject.namespace: Invalid value: "": does not match event.namespace"#],
            ),
            // An event without an event time needs none of these fields.
            (
                json!({"eventTime": null, "action": null, "reportingComponent": ""}),
                &[],
            ),
            (
                json!({"eventTime": null, "involvedObject": {"namespace": "other"}}),
                &[
                    r#"involvedObject.namespace: Invalid value: "other": does not match event.namespace"#,
                ],
            ),
        ] {
            let errors = texts(&event(change.clone()).validate());
            assert_eq!(
                errors.first().map(String::as_str),
                want.first().copied(),
                "{change}"
            );
        }
    }

    #[test]
    fn events_in_the_new_form_must_not_use_deprecated_fields() {
        assert!(validate_new_event(&event(json!({}))).is_empty());
        let old = json!({"eventTime": null, "type": "Odd", "count": 1, "source": {"host": "h"},
            "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z", "series": {"count": 1}});
        assert_eq!(
            texts(&validate_new_event(&event(old))),
            [
                r#"series.count: Invalid value: "": should be at least 2"#,
                "series.lastObservedTime: Required value",
                "eventTime: Required value",
                r#"type: Invalid value: "": has invalid value: Odd"#,
                r#"firstTimestamp: Invalid value: "": needs to be unset"#,
                r#"lastTimestamp: Invalid value: "": needs to be unset"#,
                r#"count: Invalid value: "": needs to be unset"#,
                r#"source: Invalid value: "": needs to be unset"#,
            ]
        );
    }

    #[test]
    fn only_the_series_of_a_new_event_changes() {
        let old = event(json!({}));
        let again =
            json!({"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:09.000000Z"}});
        assert!(validate_new_event_update(&event(again), &old).is_empty());
        let other = event(json!({"message": "other", "action": "Undo"}));
        assert_eq!(
            texts(&validate_new_event_update(&other, &old)),
            [
                r#"message: Invalid value: "other": field is immutable"#,
                r#"action: Invalid value: "Undo": field is immutable"#,
            ]
        );
    }
}
