//! The trace of a pod as rows of a waterfall.

use std::collections::{BTreeMap, HashMap, HashSet};

use podplane_api::{
    jiff::Timestamp,
    trace::{CNI_PLUGIN, StepKind, dropped_steps, failure},
};
use podplane_proto::trace::{Span, Trace};
use serde::{Deserialize, Serialize};

const NANOS: f64 = 1e9;
/// The fewest alike steps of which those between the first and the last one are folded.
const FEWEST_FOLDED: usize = 4;
/// The shortest time without a step that has a row, in nanoseconds.
const SHORTEST_GAP: u64 = 1_000_000_000;

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
    /// The number of spans of the creation that the API server has dropped.
    #[serde(default)]
    pub dropped_spans: u64,
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
            dropped_spans: traces.first().map_or(0, |trace| trace.dropped_spans),
            began: Timestamp::from_nanosecond(began.into()).unwrap_or_default(),
        };
        for trace in traces {
            Outline::of(trace, row.spans.len()).add_to(&mut row, began);
        }
        Some(row)
    }
}

/// A span with its place among the rows.
struct PlacedSpan<'a> {
    span: &'a Span,
    parent: Option<usize>,
    /// The reason for which it failed.
    failure: Option<&'a str>,
}

/// The spans of one trace in the order of their rows, and what can be said about several of them.
struct Outline<'a> {
    /// The place of its first row.
    first: usize,
    /// By the ids of their parents, in the order of their starts.
    parts: HashMap<&'a str, Vec<&'a Span>>,
    placed: Vec<PlacedSpan<'a>>,
    folds: Vec<FoldRow>,
    gaps: Vec<Gap>,
    dropped: Option<String>,
}

struct Gap {
    before: usize,
    from: u64,
    until: u64,
    text: String,
}

impl<'a> Outline<'a> {
    fn of(trace: &'a Trace, first: usize) -> Self {
        let mut spans: Vec<&Span> = trace.spans.iter().collect();
        spans.sort_by_key(|span| span.start_time_unix_nano);
        let ids: HashSet<&str> = spans.iter().map(|span| span.span_id.as_str()).collect();
        let root = spans.iter().find(|span| span.parent_span_id.is_empty());
        let root = root.map(|span| span.span_id.as_str());
        let mut outline = Self {
            first,
            parts: HashMap::new(),
            placed: Vec::with_capacity(spans.len()),
            folds: Vec::new(),
            gaps: Vec::new(),
            dropped: dropped_steps(trace.dropped_spans),
        };
        let mut roots = Vec::new();
        for span in &spans {
            let parent = match span.parent_span_id.as_str() {
                parent if ids.contains(parent) => Some(parent),
                "" => None,
                // The root is around all steps whose parent is not kept.
                _ => root,
            };
            match parent {
                Some(parent) => outline.parts.entry(parent).or_default().push(span),
                None => roots.push(*span),
            }
        }
        outline.place(roots, None);
        // Spans that are parts of each other, which no tracer makes.
        let left: Vec<_> = std::mem::take(&mut outline.parts)
            .into_values()
            .flatten()
            .collect();
        outline.place(left, None);
        outline.find_gaps(&spans);
        outline
    }

    /// Places spans that have the same parent, each with its parts.
    fn place(&mut self, spans: Vec<&'a Span>, parent: Option<usize>) {
        let kinds: Vec<_> = spans.iter().map(|span| self.kind(span)).collect();
        let folded = self.folded(&spans, &kinds);
        let mut run = Vec::new();
        let mut from = 0;
        for ((span, kind), is_folded) in spans.iter().zip(kinds).zip(folded) {
            let place = self.first + self.placed.len();
            match is_folded {
                true if run.is_empty() => from = place,
                true => {}
                false => self.fold(from, std::mem::take(&mut run)),
            }
            if is_folded {
                run.push(kind);
            }
            self.placed.push(PlacedSpan {
                span,
                parent,
                failure: kind.failure,
            });
            let parts = self.parts.remove(span.span_id.as_str());
            self.place(parts.unwrap_or_default(), Some(place));
        }
        self.fold(from, run);
    }

    /// For each span of one parent: true if it is between the first and the last one of its kind,
    /// as are the spans of other kinds between those whose parents are not kept.
    fn folded(&self, spans: &[&Span], kinds: &[StepKind<'_>]) -> Vec<bool> {
        let mut groups: Vec<(StepKind<'_>, Vec<usize>)> = Vec::new();
        for (index, kind) in kinds.iter().copied().enumerate() {
            match groups.iter_mut().find(|(first, _)| first.is_alike(&kind)) {
                Some((_, group)) => group.push(index),
                None => groups.push((kind, vec![index])),
            }
        }
        let groups = groups.into_iter().map(|(_, group)| group);
        let repeated = |group: &Vec<usize>| group.len() >= FEWEST_FOLDED;
        let mut folded = vec![false; spans.len()];
        for group in groups.filter(repeated) {
            let (Some(first), Some(last)) = (group.first(), group.last()) else {
                continue;
            };
            for index in *first + 1..*last {
                let is_loose = spans.get(index).is_some_and(|span| self.is_loose(span));
                if let Some(folded) = folded.get_mut(index) {
                    *folded |= is_loose || group.contains(&index);
                }
            }
        }
        folded
    }

    /// Returns true if its parent was dropped.
    fn is_loose(&self, span: &Span) -> bool {
        let parent = span.parent_span_id.as_str();
        let is_kept = |placed: &PlacedSpan<'_>| placed.span.span_id == parent;
        self.dropped.is_some() && !parent.is_empty() && !self.placed.iter().any(is_kept)
    }

    fn kind(&self, span: &'a Span) -> StepKind<'a> {
        let parts_of = |span: &'a Span| self.parts.get(span.span_id.as_str());
        let parts = |span: &'a Span| parts_of(span).cloned().unwrap_or_default();
        StepKind {
            name: &span.name,
            process: process(span),
            failure: failure(span, &|span: &'a Span| span.error.as_deref(), &parts),
            has_parts: parts_of(span).is_some(),
        }
    }

    /// Notes that a run of rows, up to the present one, can be folded. `steps` are those that have
    /// the same parent.
    fn fold(&mut self, from: usize, steps: Vec<StepKind<'_>>) {
        let until = self.first + self.placed.len();
        if steps.is_empty() || until - from < 2 {
            return;
        }
        let mut attempts = BTreeMap::<(&str, &str), Vec<&str>>::new();
        for step in &steps {
            if let Some(failure) = step.failure {
                let of_kind = attempts.entry((step.name, step.process)).or_default();
                of_kind.push(failure);
            }
        }
        let text = match attempts.values().max_by_key(|failures| failures.len()) {
            None => format!("{} similar steps in between", steps.len()),
            Some(failures) => attempts_text(failures),
        };
        self.folds.push(FoldRow { from, until, text });
        // One around others comes before them.
        self.folds
            .sort_by_key(|fold| (fold.from, usize::MAX - fold.until));
    }

    /// Finds the times without a step. `spans` are all, in the order of their starts.
    fn find_gaps(&mut self, spans: &[&Span]) {
        let places: HashMap<&str, usize> = self
            .placed
            .iter()
            .enumerate()
            .map(|(place, placed)| (placed.span.span_id.as_str(), self.first + place))
            .collect();
        let mut gaps: Vec<Gap> = Vec::new();
        let mut until = spans.first().map_or(0, |span| span.start_time_unix_nano);
        for span in spans {
            let start = span.start_time_unix_nano;
            if let (true, Some(before)) = (start > until, places.get(span.span_id.as_str())) {
                gaps.push(Gap {
                    before: *before,
                    from: until,
                    until: start,
                    text: match self.cause(span, until) {
                        Some(cause) => format!("without a step: {cause}"),
                        None => "without a step".to_owned(),
                    },
                });
            }
            until = until.max(span.end_time_unix_nano);
        }
        // The steps that were dropped are missing where no step is known for the longest time.
        let longest = gaps.iter_mut().max_by_key(|gap| gap.until - gap.from);
        let missing = longest.zip(self.dropped.take()).map(|(gap, remark)| {
            gap.text = format!("in which {remark}");
            (gap.before, remark)
        });
        if let Some((place, remark)) = &missing {
            let within = |fold: &&mut FoldRow| (fold.from..=fold.until).contains(place);
            if let Some(fold) = self.folds.iter_mut().find(within) {
                fold.text = format!("{}; {remark}", fold.text);
            }
        }
        let missing = missing.map(|(place, _)| place);
        gaps.retain(|gap| gap.until - gap.from >= SHORTEST_GAP || Some(gap.before) == missing);
        self.gaps = gaps;
        self.gaps.sort_by_key(|gap| gap.before);
    }

    /// The cause of the time from `until` to `span`, if that repeats a step that failed before.
    fn cause(&self, span: &Span, until: u64) -> Option<String> {
        let is_before = |other: &&PlacedSpan<'_>| {
            other.span.end_time_unix_nano <= until
                && (&other.span.name, process(other.span)) == (&span.name, process(span))
        };
        let before = self.placed.iter().filter(is_before);
        let last = before.max_by_key(|other| other.span.end_time_unix_nano)?;
        let (process, name) = (process(span), &span.name);
        last.failure
            .map(|_| format!("the back-off of {process} after its failed {name}"))
    }

    fn add_to(self, row: &mut TraceRow, began: u64) {
        row.spans
            .extend(self.placed.iter().map(|PlacedSpan { span, parent, .. }| {
                let start = span.start_time_unix_nano;
                let attributes = span.attributes.iter();
                SpanRow {
                    name: span.name.clone(),
                    service: span.service.clone(),
                    process: process(span).to_owned(),
                    start: seconds(start.saturating_sub(began)),
                    seconds: seconds(span.end_time_unix_nano.saturating_sub(start)),
                    parent: *parent,
                    attributes: attributes
                        .map(|attribute| (attribute.key.clone(), attribute.value.clone()))
                        .collect(),
                    error: span.error.clone(),
                }
            }));
        row.folds.extend(self.folds);
        row.gaps.extend(self.gaps.into_iter().map(|gap| GapRow {
            before: gap.before,
            start: seconds(gap.from.saturating_sub(began)),
            seconds: seconds(gap.until - gap.from),
            text: gap.text,
        }));
    }
}

/// A line about attempts that failed with these errors.
fn attempts_text(errors: &[&str]) -> String {
    let count = match errors.len() {
        1 => "1 attempt in between".to_owned(),
        count => format!("{count} attempts in between"),
    };
    let each = if errors.len() == 1 {
        "failed"
    } else {
        "each failed"
    };
    match errors.last() {
        None | Some(&"") => format!("{count}, {each}"),
        Some(last) if errors.iter().all(|error| error == last) => {
            format!("{count}, {each}: {last}")
        }
        Some(last) => format!("{count}, {each}, the last one: {last}"),
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

    /// `count` attempts of four spans each, ten seconds apart, which fail.
    fn attempts(count: u64) -> Vec<Span> {
        let mut spans = vec![span("root", "", 0, 1)];
        for attempt in 0..count {
            let (id, start) = (format!("sync{attempt}"), 100 + attempt * 10_000);
            spans.push(Span {
                name: "sync".into(),
                service: "kubelet".into(),
                ..span(&id, "root", start, start + 500)
            });
            // The error is that of the call, with the id of its sandbox.
            let call = format!("add{attempt}");
            spans.push(Span {
                error: Some(format!("sandbox {attempt}: no address")),
                ..span(&call, &id, start, start + 400)
            });
            spans.push(Span {
                error: Some("no address".into()),
                ..span(&format!("allocate{attempt}"), &call, start, start + 300)
            });
            spans.push(span(
                &format!("clean{attempt}"),
                &call,
                start + 300,
                start + 400,
            ));
        }
        spans
    }

    #[test]
    fn attempts_between_the_first_and_the_last_one_are_folded() {
        let row = TraceRow::of([&trace(attempts(9), 0)]).unwrap();
        let [fold] = row.folds.as_slice() else {
            panic!("{:?}", row.folds)
        };
        assert_eq!(
            (fold.from, fold.until),
            (5, 33),
            "the root and an attempt are before it"
        );
        assert_eq!(fold.text, "7 attempts in between, each failed: no address");
        assert_eq!(row.spans.len(), 37);
        assert_eq!(TraceRow::of([&trace(attempts(3), 0)]).unwrap().folds, []);
    }

    #[test]
    fn a_wait_after_a_failed_attempt_is_a_gap_with_its_cause() {
        let mut spans = attempts(2);
        spans.push(span("late", "root", 12_700, 12_701));
        let row = TraceRow::of([&trace(spans, 0)]).unwrap();
        let gaps: Vec<_> = row
            .gaps
            .iter()
            .map(|gap| (gap.before, gap.start, gap.seconds, gap.text.as_str()))
            .collect();
        let cause = "without a step: the back-off of kubelet after its failed sync";
        assert_eq!(
            gaps,
            [(5, 0.6, 9.5, cause), (9, 10.6, 2.1, "without a step")]
        );
    }

    #[test]
    fn steps_whose_parents_were_dropped_are_folded_with_the_attempts_around_them() {
        let mut spans = attempts(9);
        // Three attempts in the middle are dropped but for two steps of the first one.
        let is_dropped = |span: &Span| {
            let attempt = ["4", "5"]
                .iter()
                .any(|number| span.span_id.ends_with(number));
            attempt || ["sync3", "add3"].contains(&&*span.span_id)
        };
        spans.retain(|span| !is_dropped(span));
        let row = TraceRow::of([&trace(spans, 5)]).unwrap();
        let [fold] = row.folds.as_slice() else {
            panic!("{:?}", row.folds)
        };
        let remark = "5 steps in between are not kept";
        assert_eq!(
            fold.text,
            format!("4 attempts in between, each failed: no address; {remark}")
        );
        let loose = row.spans.iter().position(|span| span.name == "step clean3");
        let loose = loose.unwrap();
        assert!((fold.from..fold.until).contains(&loose));
        assert_eq!(row.spans[loose].parent, Some(0));
        let missing: Vec<_> = row
            .gaps
            .iter()
            .filter(|gap| gap.text.contains(remark))
            .collect();
        assert_eq!(missing.len(), 1);
        assert_eq!((missing[0].before, row.dropped_spans), (loose + 1, 5));
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
