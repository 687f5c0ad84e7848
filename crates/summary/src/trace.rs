//! The trace of a pod as rows of a waterfall.

use std::collections::{BTreeMap, HashMap, HashSet};

use podplane_api::{jiff::Timestamp, trace::CNI_PLUGIN};
use podplane_proto::trace::{Span, Trace};
use serde::{Deserialize, Serialize};

const NANOS: f64 = 1e9;

/// A span.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SpanRow {
    /// The step.
    pub name: String,
    /// The service that recorded it.
    pub service: String,
    /// The process that did it: a CNI plugin, or the service.
    pub process: String,
    /// The start, in seconds since [`TraceRow::began`].
    pub start: f64,
    /// The duration in seconds.
    pub seconds: f64,
    /// The place of the span that it is a part of, in [`TraceRow::spans`].
    pub parent: Option<usize>,
    /// The attributes.
    pub attributes: BTreeMap<String, String>,
    /// The error with which it ended.
    pub error: Option<String>,
}

/// The spans of a pod's creation and deletion.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TraceRow {
    /// The spans, each before its parts, which are in the order of their starts.
    pub spans: Vec<SpanRow>,
    /// The start of the first one.
    pub began: Timestamp,
}

impl TraceRow {
    /// The rows of these traces; `None` if they have no span.
    #[must_use]
    pub fn of<'a>(traces: impl IntoIterator<Item = &'a Trace>) -> Option<Self> {
        let spans: Vec<&Span> = traces.into_iter().flat_map(|trace| &trace.spans).collect();
        let spans = each_before_its_parts(spans);
        let starts = spans.iter().map(|span| span.start_time_unix_nano);
        let began = starts.min()?;
        let places: HashMap<&str, usize> = spans
            .iter()
            .enumerate()
            .map(|(place, span)| (span.span_id.as_str(), place))
            .collect();
        let rows = spans.iter().map(|span| {
            let start = span.start_time_unix_nano;
            SpanRow {
                name: span.name.clone(),
                service: span.service.clone(),
                process: process(span).to_owned(),
                start: seconds(start.saturating_sub(began)),
                seconds: seconds(span.end_time_unix_nano.saturating_sub(start)),
                parent: places.get(span.parent_span_id.as_str()).copied(),
                attributes: span
                    .attributes
                    .iter()
                    .map(|attribute| (attribute.key.clone(), attribute.value.clone()))
                    .collect(),
                error: span.error.clone(),
            }
        });
        Some(Self {
            spans: rows.collect(),
            began: Timestamp::from_nanosecond(began.into()).unwrap_or_default(),
        })
    }
}

fn process(span: &Span) -> &str {
    let plugin = span.attributes.iter().find(|one| one.key == CNI_PLUGIN);
    plugin.map_or(&span.service, |plugin| &plugin.value)
}

/// Sorts spans: each comes before its parts, and those of one parent are in the order of their
/// starts. A span whose parent is not there is a root.
fn each_before_its_parts(mut spans: Vec<&Span>) -> Vec<&Span> {
    spans.sort_by_key(|span| span.start_time_unix_nano);
    let ids: HashSet<&str> = spans.iter().map(|span| span.span_id.as_str()).collect();
    let mut parts: HashMap<&str, Vec<&Span>> = HashMap::new();
    let mut waiting = Vec::new();
    for span in spans.iter().rev() {
        match span.parent_span_id.as_str() {
            parent if ids.contains(parent) => parts.entry(parent).or_default().push(span),
            _ => waiting.push(*span),
        }
    }
    let mut sorted = Vec::with_capacity(spans.len());
    while let Some(span) = waiting.pop() {
        waiting.extend(parts.remove(span.span_id.as_str()).unwrap_or_default());
        sorted.push(span);
    }
    // Spans that are parts of each other, which no tracer makes.
    sorted.extend(parts.into_values().flatten());
    sorted
}

/// Nanoseconds as seconds. More than 2^53 of them, a hundred days, lose precision.
fn seconds(nanos: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "for a picture")]
    let nanos = nanos as f64;
    nanos / NANOS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_before_their_parts_and_know_the_place_of_their_parent() {
        let span = |id: &str, parent: &str, start: u64, end: u64| Span {
            span_id: id.into(),
            parent_span_id: parent.into(),
            name: format!("step {id}"),
            service: "scheduler".into(),
            start_time_unix_nano: 1_000_000_000 + start,
            end_time_unix_nano: 1_000_000_000 + end,
            ..Span::default()
        };
        let trace = Trace {
            spans: vec![
                span("b", "a", 500_000_000, 750_000_000),
                span("a", "", 0, 2_000_000_000),
                span("c", "gone", 600_000_000, 600_000_000),
                span("d", "b", 700_000_000, 700_000_000),
                span("e", "f", 0, 1),
                span("f", "e", 0, 1),
            ],
            ..Trace::default()
        };
        let row = TraceRow::of([&trace]).unwrap();
        let shown: Vec<_> = row
            .spans
            .iter()
            .map(|span| (span.name.as_str(), span.start, span.seconds, span.parent))
            .take(4)
            .collect();
        assert_eq!(
            shown,
            [
                ("step a", 0.0, 2.0, None),
                ("step b", 0.5, 0.25, Some(0)),
                ("step d", 0.7, 0.0, Some(1)),
                ("step c", 0.6, 0.0, None),
            ]
        );
        assert_eq!(row.spans.len(), 6, "none is lost: {row:?}");
        assert_eq!(row.began.to_string(), "1970-01-01T00:00:01Z");
        assert_eq!(TraceRow::of([&Trace::default()]), None);
    }
}
