//! The journeys of pods: the spans that processes send, in memory and bounded. A restart forgets
//! them.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use opentelemetry_proto::tonic::trace::v1::ResourceSpans;
use podplane_api::trace::{DroppedSteps, failure};
use podplane_host::clock;
use podplane_service_runtime::trace::{Journey, ReceivedSpan, attribute, received_spans};
use tokio::sync::watch;

/// The limits of the kept spans.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TraceLimits {
    /// Traces; the least recently updated one goes first.
    pub(crate) traces: usize,
    /// Spans per trace. A pod that is retried for hours keeps its beginning and its end.
    pub(crate) spans: usize,
    /// Bytes of all spans, approximately.
    pub(crate) bytes: usize,
}

impl TraceLimits {
    pub(crate) const DEFAULT: Self = Self {
        traces: 4096,
        spans: 256,
        bytes: 16 << 20,
    };
}

/// The kept traces. Cheap to clone; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Journeys {
    kept: Arc<Mutex<TraceBuffer>>,
    /// The number of batches received.
    turns: watch::Sender<u64>,
}

#[derive(Debug)]
struct TraceBuffer {
    limits: TraceLimits,
    traces: BTreeMap<u128, BufferedTrace>,
    /// The traces by the time of their last update.
    order: BTreeMap<u64, u128>,
    turn: u64,
    bytes: usize,
}

#[derive(Debug)]
struct BufferedTrace {
    turn: u64,
    /// The first half of the kept spans.
    first: Vec<ReceivedSpan>,
    /// The last half of the kept spans; nothing before `first` was full once.
    last: VecDeque<ReceivedSpan>,
    dropped: DroppedSteps,
    received: SystemTime,
}

/// A snapshot of a trace.
#[derive(Clone, Debug)]
pub(crate) struct TraceSnapshot {
    pub(crate) id: u128,
    /// The spans by start time.
    pub(crate) spans: Vec<ReceivedSpan>,
    /// The spans that were dropped.
    pub(crate) dropped: DroppedSteps,
    /// The time at which the last span arrived.
    pub(crate) received: SystemTime,
}

/// The pod that a trace is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TracedPod {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

impl Journeys {
    pub(crate) fn new(limits: TraceLimits) -> Self {
        let kept = TraceBuffer {
            limits,
            traces: BTreeMap::new(),
            order: BTreeMap::new(),
            turn: 0,
            bytes: 0,
        };
        Self {
            kept: Arc::new(Mutex::new(kept)),
            turns: watch::Sender::new(0),
        }
    }

    /// Adds exported spans; a span with a known id replaces the earlier one.
    pub(crate) fn take(&self, exported: Vec<ResourceSpans>) {
        let mut kept = self.lock();
        for (trace, span) in received_spans(exported) {
            kept.take(trace, span);
        }
        drop(kept);
        self.turns.send_modify(|turns| *turns += 1);
    }

    /// A receiver that is notified of each batch.
    pub(crate) fn turns(&self) -> watch::Receiver<u64> {
        self.turns.subscribe()
    }

    /// The kept trace of a journey.
    pub(crate) fn get(&self, journey: Journey) -> Option<TraceSnapshot> {
        let kept = self.lock();
        let trace = kept.traces.get(&journey.trace())?;
        let mut spans: Vec<_> = trace.first.iter().chain(&trace.last).cloned().collect();
        spans.sort_by_key(|span| (span.start_unix_nano, span.id));
        Some(TraceSnapshot {
            id: journey.trace(),
            spans,
            dropped: trace.dropped.clone(),
            received: trace.received,
        })
    }

    /// The last pod of that name whose creation is kept.
    pub(crate) fn last_of(&self, namespace: &str, name: &str) -> Option<TracedPod> {
        let kept = self.lock();
        let roots = kept.traces.values().flat_map(|trace| trace.first.iter());
        let of_name = roots.filter_map(|span| Some((span.start_unix_nano, traced_pod(span)?)));
        let of_name = of_name
            .filter(|(_, of)| (of.namespace.as_str(), of.name.as_str()) == (namespace, name));
        let (_, last) = of_name.max_by_key(|(start, _)| *start)?;
        Some(last)
    }

    fn lock(&self) -> MutexGuard<'_, TraceBuffer> {
        // The state is whole between any two statements that could panic, so a panic elsewhere does
        // not spoil it.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pod whose journey a root span begins.
pub(crate) fn traced_pod(span: &ReceivedSpan) -> Option<TracedPod> {
    if span.parent != 0 {
        return None;
    }
    let value = |key| span.attribute(key).map(str::to_owned);
    Some(TracedPod {
        namespace: value(attribute::NAMESPACE)?,
        name: value(attribute::POD)?,
        uid: value(attribute::UID)?,
    })
}

impl TraceBuffer {
    fn take(&mut self, id: u128, span: ReceivedSpan) {
        self.turn += 1;
        let (turn, limits) = (self.turn, self.limits);
        let trace = self.traces.entry(id).or_insert_with(|| BufferedTrace {
            turn,
            first: Vec::new(),
            last: VecDeque::new(),
            dropped: DroppedSteps::default(),
            received: clock::system_time(),
        });
        self.order.remove(&trace.turn);
        self.order.insert(turn, id);
        trace.turn = turn;
        trace.received = clock::system_time();
        self.bytes += span.bytes();
        self.bytes -= trace.keep(span, limits.spans);
        while self.traces.len() > limits.traces || self.bytes > limits.bytes {
            let Some((_, oldest)) = self.order.pop_first() else {
                break;
            };
            if let Some(trace) = self.traces.remove(&oldest) {
                let spans = trace.first.iter().chain(&trace.last);
                self.bytes -= spans.map(ReceivedSpan::bytes).sum::<usize>();
            }
        }
    }
}

impl BufferedTrace {
    /// Keeps a span; returns the bytes of the spans that were replaced or dropped.
    fn keep(&mut self, span: ReceivedSpan, limit: usize) -> usize {
        let mut known = self.first.iter_mut().chain(&mut self.last);
        if let Some(known) = known.find(|known| known.id == span.id) {
            return std::mem::replace(known, span).bytes();
        }
        if self.last.is_empty() && self.first.len() < limit / 2 {
            self.first.push(span);
            return 0;
        }
        self.last.push_back(span);
        match self.first.len() + self.last.len() <= limit {
            true => 0,
            false => self.drop_oldest(limit),
        }
    }

    /// Drops the oldest span of the last half with its whole attempt: the parts that are kept would
    /// have no parent. Returns their bytes.
    fn drop_oldest(&mut self, limit: usize) -> usize {
        let spans = self.first.iter().chain(&self.last);
        let parents: HashMap<u64, u64> = spans.map(|span| (span.id, span.parent)).collect();
        let Some(oldest) = self.last.front() else {
            return 0;
        };
        let attempt = attempt_of(oldest.id, &parents);
        let is_of_it = |span: &ReceivedSpan| attempt_of(span.id, &parents) == attempt;
        let size = self.last.iter().filter(|span| is_of_it(span)).count();
        if size > limit / 4 {
            // What goes on for long keeps its end, and what is around it.
            let is_around: HashSet<u64> = parents.into_values().collect();
            let mut oldest = self.last.iter();
            let oldest = oldest.position(|span| !is_around.contains(&span.id));
            self.dropped.count += 1;
            let dropped = self.last.remove(oldest.unwrap_or_default());
            return dropped.map_or(0, |dropped| dropped.bytes());
        }
        let spans: Vec<&ReceivedSpan> = self.first.iter().chain(&self.last).collect();
        if let Some(failed) = failed_step(&spans, attempt) {
            self.dropped.add_attempt(&failed.name, failed.actor());
        }
        let mut bytes = 0;
        let mut keep = |span: &ReceivedSpan| {
            let is_kept = !is_of_it(span);
            if !is_kept {
                bytes += span.bytes();
                self.dropped.count += 1;
            }
            is_kept
        };
        self.first.retain(&mut keep);
        self.last.retain(&mut keep);
        bytes
    }
}

/// The span with that id, if it failed.
fn failed_step<'a>(spans: &[&'a ReceivedSpan], id: u64) -> Option<&'a ReceivedSpan> {
    let mut parts = HashMap::<u64, Vec<&ReceivedSpan>>::new();
    for span in spans {
        parts.entry(span.parent).or_default().push(span);
    }
    let error = |span: &'a ReceivedSpan| span.error.as_deref();
    let parts = |span: &'a ReceivedSpan| parts.get(&span.id).cloned().unwrap_or_default();
    let step = spans.iter().find(|span| span.id == id)?;
    failure(*step, &error, &parts).map(|_| *step)
}

/// The span that the step is a part of, which is itself a part of the root.
fn attempt_of(id: u64, parents: &HashMap<u64, u64>) -> u64 {
    let mut attempt = id;
    // Spans that are parts of each other end, too.
    for _ in 0..parents.len() {
        let parent = parents.get(&attempt).copied().unwrap_or_default();
        let is_root = parents.get(&parent).is_some_and(|above| *above == 0);
        if parent == 0 || is_root {
            break;
        }
        attempt = parent;
    }
    attempt
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::{
        common::v1::{AnyValue, KeyValue, any_value::Value},
        trace::v1::{ScopeSpans, Span, Status, status::StatusCode},
    };

    use podplane_api::trace::DroppedAttempts;

    use super::*;

    fn uid(n: u8) -> String {
        format!("00000000-0000-4000-8000-0000000000{n:02x}")
    }

    fn journey(n: u8) -> Journey {
        Journey::creation(&uid(n)).unwrap()
    }

    fn span(n: u8, id: u64) -> Span {
        Span {
            trace_id: journey(n).trace().to_be_bytes().into(),
            span_id: id.to_be_bytes().into(),
            parent_span_id: vec![9; 8],
            name: format!("step {id}"),
            start_time_unix_nano: id,
            ..Span::default()
        }
    }

    /// The root span of pod `n`, which is called `web`.
    fn root(n: u8) -> Span {
        let pair = |key: &str, value: &str| KeyValue {
            key: key.into(),
            value: Some(AnyValue {
                value: Some(Value::StringValue(value.into())),
            }),
            ..KeyValue::default()
        };
        Span {
            parent_span_id: Vec::new(),
            start_time_unix_nano: n.into(),
            attributes: vec![
                pair(attribute::NAMESPACE, "default"),
                pair(attribute::POD, "web"),
                pair(attribute::UID, &uid(n)),
            ],
            ..span(n, 1)
        }
    }

    fn exported(spans: Vec<Span>) -> Vec<ResourceSpans> {
        vec![ResourceSpans {
            scope_spans: vec![ScopeSpans {
                spans,
                ..ScopeSpans::default()
            }],
            ..ResourceSpans::default()
        }]
    }

    #[test]
    fn drops_the_least_recently_updated_trace_first() {
        let journeys = Journeys::new(TraceLimits {
            traces: 2,
            ..TraceLimits::DEFAULT
        });
        journeys.take(exported(vec![root(1), root(2), span(1, 5), root(3)]));
        assert!(journeys.get(journey(2)).is_none());
        let snapshot = journeys.get(journey(1)).unwrap();
        let names: Vec<_> = snapshot
            .spans
            .iter()
            .map(|span| span.name.as_str())
            .collect();
        assert_eq!(names, ["step 1", "step 5"]);
        let last = journeys.last_of("default", "web").unwrap();
        assert_eq!(last.uid, uid(3));
        assert_eq!(journeys.last_of("other", "web"), None);
    }

    #[test]
    fn a_long_trace_keeps_its_beginning_and_its_end() {
        let journeys = Journeys::new(TraceLimits {
            spans: 4,
            ..TraceLimits::DEFAULT
        });
        journeys.take(exported((1..=9).map(|id| span(1, id)).collect()));
        journeys.take(exported(vec![span(1, 9), span(1, 1)])); // Sent again.
        let snapshot = journeys.get(journey(1)).unwrap();
        let ids: Vec<_> = snapshot.spans.iter().map(|span| span.id).collect();
        assert_eq!((ids, snapshot.dropped.count), (vec![1, 2, 8, 9], 5));
    }

    /// A span within another one.
    fn part(id: u64, parent: u64) -> Span {
        Span {
            parent_span_id: parent.to_be_bytes().into(),
            ..span(1, id)
        }
    }

    #[test]
    fn a_long_trace_keeps_whole_attempts() {
        let journeys = Journeys::new(TraceLimits {
            spans: 40,
            ..TraceLimits::DEFAULT
        });
        journeys.take(exported(vec![root(1)]));
        let root = journeys.get(journey(1)).unwrap().spans[0].id;
        // Each attempt has five steps, which arrive before it.
        for attempt in (100..300).step_by(10) {
            let mut spans: Vec<_> = (1..=5).map(|step| part(attempt + step, attempt)).collect();
            if let Some(last) = spans.last_mut() {
                last.status = Some(Status {
                    code: StatusCode::Error.into(),
                    ..Status::default()
                });
            }
            spans.push(Span {
                name: "sync".into(),
                ..part(attempt, root)
            });
            journeys.take(exported(spans));
        }
        let snapshot = journeys.get(journey(1)).unwrap();
        let attempts = snapshot.spans.iter().filter(|span| span.parent == root);
        let attempts: Vec<u64> = attempts.map(|span| span.id).collect();
        assert_eq!(attempts, [100, 110, 120, 270, 280, 290]);
        let steps = snapshot.spans.len() - 1 - attempts.len();
        let sync = DroppedAttempts {
            name: "sync".into(),
            process: String::new(),
            count: 14,
        };
        let dropped = DroppedSteps {
            count: 14 * 6,
            attempts: vec![sync],
        };
        assert_eq!((steps, snapshot.dropped), (6 * 5, dropped));
    }

    #[test]
    fn each_kept_part_of_a_long_attempt_has_its_parent() {
        let journeys = Journeys::new(TraceLimits {
            spans: 40,
            ..TraceLimits::DEFAULT
        });
        journeys.take(exported(vec![root(1)]));
        let root = journeys.get(journey(1)).unwrap().spans[0].id;
        journeys.take(exported((10..40).map(|id| part(id, root)).collect()));
        // An attempt with calls that arrive before their steps.
        let calls = (100..200).step_by(10);
        let steps = calls.flat_map(|call| {
            let steps = (call + 1..call + 10).map(move |step| part(step, call));
            [part(call, 99)].into_iter().chain(steps)
        });
        journeys.take(exported(
            [part(99, root)].into_iter().chain(steps).collect(),
        ));
        let snapshot = journeys.get(journey(1)).unwrap();
        let ids: Vec<u64> = snapshot.spans.iter().map(|span| span.id).collect();
        let parents = snapshot.spans.iter().map(|span| span.parent);
        assert!(
            parents
                .filter(|parent| *parent != 0)
                .all(|id| ids.contains(&id)),
            "{ids:?}"
        );
        assert_eq!(ids.last(), Some(&199));
    }

    #[test]
    fn traces_stay_within_the_limit_of_bytes() {
        let journeys = Journeys::new(TraceLimits {
            bytes: 10_000,
            ..TraceLimits::DEFAULT
        });
        for n in 1..=200 {
            journeys.take(exported(vec![root(n), span(n, 7)]));
            let kept = journeys.lock();
            let traces = kept.traces.values();
            let spans = traces.flat_map(|trace| trace.first.iter().chain(&trace.last));
            let bytes: usize = spans.map(ReceivedSpan::bytes).sum();
            assert_eq!(bytes, kept.bytes);
            assert!(bytes <= 10_000);
            assert_eq!(kept.order.len(), kept.traces.len());
        }
        assert!(journeys.get(journey(200)).is_some());
        assert!(journeys.get(journey(1)).is_none());
    }
}
