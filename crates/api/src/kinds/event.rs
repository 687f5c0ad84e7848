//! Events.

mod table;
mod validation;

use std::borrow::Cow;

use jiff::Timestamp;

use crate::{
    core::Event,
    object::{Object, Scope, json_conversions},
    selector::{FieldSelectable, SelectableField, field::text},
    strategy::Strategy,
};

pub use table::{event_age, event_count, event_source, last_seen};
pub use validation::{validate_new_event, validate_new_event_update};

impl Object for Event {
    const SCOPE: Scope = Scope::Namespaced;
    const SINGULAR: &'static str = "event";
    const SHORT_NAMES: &'static [&'static str] = &["ev"];

    json_conversions!();
}

impl FieldSelectable for Event {
    const FIELDS: &'static [SelectableField<Self>] = &[
        ("involvedObject.kind", |event| {
            text(event.involved_object.kind.as_deref())
        }),
        ("involvedObject.namespace", |event| {
            text(event.involved_object.namespace.as_deref())
        }),
        ("involvedObject.name", |event| {
            text(event.involved_object.name.as_deref())
        }),
        ("involvedObject.uid", |event| {
            text(event.involved_object.uid.as_deref())
        }),
        ("involvedObject.apiVersion", |event| {
            text(event.involved_object.api_version.as_deref())
        }),
        ("involvedObject.resourceVersion", |event| {
            text(event.involved_object.resource_version.as_deref())
        }),
        ("involvedObject.fieldPath", |event| {
            text(event.involved_object.field_path.as_deref())
        }),
        ("reason", |event| text(event.reason.as_deref())),
        ("reportingComponent", |event| {
            text(event.reporting_component.as_deref())
        }),
        ("source", |event| {
            match event
                .source
                .as_ref()
                .and_then(|source| source.component.as_deref())
            {
                None | Some("") => text(event.reporting_component.as_deref()),
                Some(component) => Cow::Borrowed(component),
            }
        }),
        ("type", |event| text(event.type_.as_deref())),
    ];
}

impl Strategy for Event {
    const SERVICE: &'static str = "podplane.core.v1.EventService";
    const IS_COLLECTED: bool = false;
    const CREATE_ON_UPDATE: bool = true;

    fn last_happened(&self) -> Option<Timestamp> {
        let times = [
            self.last_timestamp.as_ref().map(|time| time.0),
            self.first_timestamp.as_ref().map(|time| time.0),
            self.event_time.as_ref().map(|time| time.0),
            self.series
                .as_ref()
                .and_then(|series| series.last_observed_time.as_ref())
                .map(|time| time.0),
            self.metadata.creation_timestamp.as_ref().map(|time| time.0),
        ];
        times.into_iter().flatten().max()
    }
}

#[cfg(test)]
mod tests {
    use crate::meta::Time;

    use super::*;

    #[test]
    fn last_happened_is_the_latest_timestamp() {
        let at = |text: &str| Some(Time(text.parse().unwrap()));
        let mut event = Event::default();
        assert_eq!(event.last_happened(), None);
        event.metadata.creation_timestamp = at("2026-01-01T00:00:00Z");
        event.last_timestamp = at("2026-01-01T02:00:00Z");
        assert_eq!(
            event.last_happened().unwrap().to_string(),
            "2026-01-01T02:00:00Z"
        );
    }
}
