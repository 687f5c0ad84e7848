//! The table of events.

use jiff::Timestamp;

use crate::{
    Object as _,
    core::{Event, ObjectReference},
    meta::{MicroTime, Time},
    table::{Column, TableRow, age, always, wide},
};

impl TableRow for Event {
    const COLUMNS: &'static [Column] = &[
        always("LAST SEEN"),
        always("TYPE"),
        always("REASON"),
        always("OBJECT"),
        wide("SUBOBJECT"),
        wide("SOURCE"),
        always("MESSAGE"),
        wide("FIRST SEEN"),
        wide("COUNT"),
        wide("NAME"),
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        vec![
            event_age(self, now),
            text(&self.type_),
            text(&self.reason),
            reference(&self.involved_object),
            text(&self.involved_object.field_path),
            event_source(self),
            text(&self.message).trim().to_owned(),
            first_seen(self).map_or_else(|| age::since(None, now), |time| age::between(time, now)),
            event_count(self).to_string(),
            self.name().into(),
        ]
    }

    /// Sorts by the time when events were last seen.
    fn sort(events: &mut [Self]) {
        events.sort_by_key(last_seen);
    }
}

/// The time since the event was last seen, and its count: `5s`, or `5s (x3 over 2m)`.
pub fn event_age(event: &Event, now: Timestamp) -> String {
    let ago = |time: Option<Timestamp>| {
        time.map_or_else(|| age::since(None, now), |time| age::between(time, now))
    };
    match event_count(event) {
        ..=1 => ago(last_seen(event)),
        count => format!(
            "{} (x{count} over {})",
            ago(last_seen(event)),
            ago(first_seen(event))
        ),
    }
}

/// The component that reported the event, and its host.
pub fn event_source(event: &Event) -> String {
    let source = event.source.as_ref();
    let component = source
        .and_then(|source| source.component.as_ref())
        .or(event.reporting_component.as_ref());
    let host = source
        .and_then(|source| source.host.as_ref())
        .or(event.reporting_instance.as_ref());
    let parts: Vec<_> = [component, host]
        .into_iter()
        .flatten()
        .map(String::as_str)
        .filter(|part| !part.is_empty())
        .collect();
    parts.join(", ")
}

/// The number of times that the event was seen.
pub fn event_count(event: &Event) -> i32 {
    let of_series = event.series.as_ref().and_then(|series| series.count);
    of_series.or(event.count).unwrap_or(1)
}

fn first_seen(event: &Event) -> Option<Timestamp> {
    let first = event.first_timestamp.as_ref().map(|Time(time)| *time);
    first.or_else(|| event.event_time.as_ref().map(|MicroTime(time)| *time))
}

/// The time when the event was last seen.
pub fn last_seen(event: &Event) -> Option<Timestamp> {
    let series = event
        .series
        .as_ref()
        .and_then(|series| series.last_observed_time.as_ref());
    series
        .map(|MicroTime(time)| *time)
        .or_else(|| event.last_timestamp.as_ref().map(|Time(time)| *time))
        .or_else(|| first_seen(event))
}

/// Formats a reference, such as `pod/web-0`.
fn reference(object: &ObjectReference) -> String {
    let kind = object.kind.as_deref().unwrap_or_default().to_lowercase();
    format!("{kind}/{}", object.name.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::strict;

    #[test]
    fn an_event_row_shows_its_count() {
        let event: Event = strict::decode(
            json!({"metadata": {"name": "a.1"}, "type": "Warning", "reason": "FailedScheduling",
            "message": "0/3 nodes are available: 3 Insufficient pod IPs.\n", "count": 3,
            "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:02:00Z",
            "source": {"component": "scheduler"}, "involvedObject": {"kind": "Pod", "name": "a"}}),
        )
        .unwrap();
        let now = "2026-01-01T00:02:05Z".parse().unwrap();
        assert_eq!(
            event.cells(now),
            [
                "5s (x3 over 2m5s)",
                "Warning",
                "FailedScheduling",
                "pod/a",
                "",
                "scheduler",
                "0/3 nodes are available: 3 Insufficient pod IPs.",
                "2m5s",
                "3",
                "a.1"
            ]
        );
        assert_eq!(event.cells(now).len(), Event::COLUMNS.len());
    }
}
