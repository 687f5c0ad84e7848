//! The trace of a pod as rows of a waterfall.

use std::collections::BTreeMap;

use podplane_api::{
    jiff::Timestamp,
    trace::{CNI_PLUGIN, DroppedSteps, Outline, StepFold, StepGap, TraceStep},
};
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

/// Repeated steps, of which a reader needs to see the first and the last one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FoldRow {
    /// The place of the first one that can be hidden, in [`TraceRow::spans`].
    pub from: usize,
    /// The place after the last one.
    pub until: usize,
    /// A line in place of them.
    pub text: String,
}

/// A time without a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GapRow {
    /// The place of the span after it, in [`TraceRow::spans`].
    pub before: usize,
    /// The start, in seconds since [`TraceRow::began`].
    pub start: f64,
    /// The duration in seconds.
    pub seconds: f64,
    /// A phrase behind the duration, with the cause if the steps show it.
    pub text: String,
}

/// The spans of a pod's creation and deletion.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TraceRow {
    /// The spans, each before its parts, which are in the order of their starts.
    pub spans: Vec<SpanRow>,
    /// Runs of spans that can be folded, in order. One may be within another.
    #[serde(default)]
    pub folds: Vec<FoldRow>,
    /// Times without a step, in order.
    #[serde(default)]
    pub gaps: Vec<GapRow>,
    /// The spans of the creation that the API server has dropped.
    #[serde(flatten)]
    pub dropped: DroppedSteps,
    /// The start of the first one.
    pub began: Timestamp,
}

impl TraceRow {
    /// The rows of these traces, that of the creation first; `None` if they have no span.
    #[must_use]
    pub fn of<'a>(traces: impl IntoIterator<Item = &'a Trace>) -> Option<Self> {
        let traces: Vec<&Trace> = traces.into_iter().collect();
        let spans = traces.iter().flat_map(|trace| &trace.spans);
        let began = spans.map(|span| span.start_time_unix_nano).min()?;
        let mut row = Self {
            spans: Vec::new(),
            folds: Vec::new(),
            gaps: Vec::new(),
            dropped: traces
                .first()
                .map(|trace| trace.dropped_steps())
                .unwrap_or_default(),
            began: Timestamp::from_nanosecond(began.into()).unwrap_or_default(),
        };
        for trace in traces {
            row.add(trace, began);
        }
        Some(row)
    }

    fn add(&mut self, trace: &Trace, began: u64) {
        let first = self.spans.len();
        let steps: Vec<_> = trace.spans.iter().map(step).collect();
        let Outline { steps, folds, gaps } = Outline::of(&steps, &trace.dropped_steps());
        let spans = steps
            .iter()
            .filter_map(|step| Some((step, trace.spans.get(step.source)?)));
        self.spans.extend(spans.map(|(step, span)| {
            let start = span.start_time_unix_nano;
            let attributes = span.attributes.iter();
            SpanRow {
                name: span.name.clone(),
                service: span.service.clone(),
                process: process(span).to_owned(),
                start: seconds(start.saturating_sub(began)),
                seconds: seconds(span.end_time_unix_nano.saturating_sub(start)),
                parent: step.parent.map(|parent| first + parent),
                attributes: attributes
                    .map(|attribute| (attribute.key.clone(), attribute.value.clone()))
                    .collect(),
                error: span.error.clone(),
            }
        }));
        self.folds.extend(folds.iter().map(|fold| {
            let StepFold { places, .. } = fold;
            FoldRow {
                from: first + places.start,
                until: first + places.end,
                text: fold.text(),
            }
        }));
        self.gaps.extend(gaps.into_iter().map(|gap| {
            let StepGap {
                before,
                start,
                end,
                text,
            } = gap;
            GapRow {
                before: first + before,
                start: seconds(start.saturating_sub(began)),
                seconds: seconds(end.saturating_sub(start)),
                text,
            }
        }));
    }
}

fn step(span: &Span) -> TraceStep<'_, &str> {
    let parent = span.parent_span_id.as_str();
    TraceStep {
        id: &span.span_id,
        parent: Some(parent).filter(|parent| !parent.is_empty()),
        name: &span.name,
        process: process(span),
        error: span.error.as_deref(),
        start: span.start_time_unix_nano,
        end: span.end_time_unix_nano,
    }
}

fn process(span: &Span) -> &str {
    let plugin = span.attributes.iter().find(|one| one.key == CNI_PLUGIN);
    plugin.map_or(&span.service, |plugin| &plugin.value)
}

/// Nanoseconds as seconds. More than 2^53 of them, a hundred days, lose precision.
fn seconds(nanos: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "for a picture")]
    let nanos = nanos as f64;
    nanos / NANOS
}

#[cfg(test)]
mod tests {
    use podplane_proto::trace::DroppedAttempts;

    use super::*;

    /// A span from `start` to `end` in milliseconds.
    fn span(id: &str, parent: &str, start: u64, end: u64) -> Span {
        Span {
            span_id: id.into(),
            parent_span_id: parent.into(),
            name: format!("step {id}"),
            service: "scheduler".into(),
            start_time_unix_nano: 1_000_000_000 + start * 1_000_000,
            end_time_unix_nano: 1_000_000_000 + end * 1_000_000,
            ..Span::default()
        }
    }

    fn trace(spans: Vec<Span>, dropped_spans: u64) -> Trace {
        Trace {
            spans,
            dropped_spans,
            ..Trace::default()
        }
    }

    #[test]
    fn spans_are_before_their_parts_and_know_the_place_of_their_parent() {
        let trace = trace(
            vec![
                span("b", "a", 500, 750),
                span("a", "", 0, 2000),
                span("c", "gone", 600, 600),
                span("d", "b", 700, 700),
                span("e", "f", 0, 1),
                span("f", "e", 0, 1),
            ],
            0,
        );
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
                ("step c", 0.6, 0.0, Some(0)),
            ]
        );
        assert_eq!(row.spans.len(), 6, "none is lost: {row:?}");
        assert_eq!(row.began.to_string(), "1970-01-01T00:00:01Z");
        assert_eq!(TraceRow::of([&Trace::default()]), None);
    }

    #[test]
    fn folds_and_gaps_of_a_deletion_are_behind_those_of_the_creation() {
        let sync = |number: u64, part: &str| Span {
            name: "sync".into(),
            error: Some("no address".into()),
            ..span(
                &format!("{part}{number}"),
                part,
                number * 2000,
                number * 2000,
            )
        };
        let of = |root: &str| {
            let syncs = (1..=9).map(|number| sync(number, root));
            trace([span(root, "", 0, 1)].into_iter().chain(syncs).collect(), 0)
        };
        let mut creation = of("a");
        creation.dropped_spans = 5;
        creation.dropped_attempts = vec![DroppedAttempts {
            name: "sync".into(),
            process: "scheduler".into(),
            count: 3,
        }];
        let row = TraceRow::of([&creation, &of("d")]).unwrap();
        let folds: Vec<_> = row
            .folds
            .iter()
            .map(|fold| (fold.from, fold.until, fold.text.as_str()))
            .collect();
        let kept = "10 attempts in between, 7 kept, each failed: no address";
        let all = "7 attempts in between, each failed: no address";
        assert_eq!(folds, [(2, 9, kept), (12, 19, all)]);
        assert_eq!(row.gaps.len(), 2 * 9);
        let gap = &row.gaps[10];
        assert_eq!((gap.before, gap.start, gap.seconds), (12, 2.0, 2.0));
        assert_eq!((row.dropped.count, row.dropped.attempts.len()), (5, 1));
    }

    #[test]
    fn spans_of_a_deletion_are_under_its_own_root() {
        let creation = trace(vec![span("a", "", 0, 1)], 0);
        let deletion = trace(vec![span("d", "", 50, 60), span("e", "lost", 55, 56)], 0);
        let row = TraceRow::of([&creation, &deletion]).unwrap();
        let parents: Vec<_> = row.spans.iter().map(|span| span.parent).collect();
        assert_eq!(parents, [None, None, Some(1)]);
    }
}
