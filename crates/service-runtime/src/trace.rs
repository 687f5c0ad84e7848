//! Journeys of pods as traces: recording, export and display of spans.
//!
//! A pod's UID is the id of the trace of its creation, and the root span's id is part of it too, so
//! every process can add a span to the journey of a pod of which it knows only the UID
//! ([`Journey`], ADR 0016). An ended [`Span`] is enqueued at every outlet of the process; that
//! never blocks, and an outlet without room drops and counts it.

mod context;
mod outlet;
mod received;
mod sampler;
pub mod waterfall;

use std::{borrow::Cow, sync::LazyLock, time::SystemTime};

use futures::future::BoxFuture;
use opentelemetry::{
    InstrumentationScope, KeyValue, Value,
    trace::{
        Link, SpanContext, SpanId, SpanKind, Status, TraceContextExt as _, TraceFlags, TraceId,
        TraceState,
    },
};
use opentelemetry_sdk::trace::{
    IdGenerator as _, RandomIdGenerator, SpanData, SpanEvents, SpanLinks,
};
use podplane_host::clock::{self, Instant};
use uuid::Uuid;

pub(crate) use context::AdoptContext;
pub use context::from_environment;
pub use opentelemetry::{Context, context::FutureExt as InContext};
pub(crate) use outlet::{Outlet, register};
pub use outlet::{TraceConfig, UnusableEndpoint, init};
pub use received::{ReceivedSpan, received_spans};
pub use sampler::{InvalidSamplingRatio, SamplingRatio};

/// Names of attributes: OpenTelemetry's where it has one.
pub mod attribute {
    pub use podplane_api::trace::CNI_PLUGIN as PLUGIN;

    /// The pod's namespace.
    pub const NAMESPACE: &str = "k8s.namespace.name";
    /// The pod's name.
    pub const POD: &str = "k8s.pod.name";
    /// The pod's UID.
    pub const UID: &str = "k8s.pod.uid";
    /// The node that the span was recorded on.
    pub const NODE: &str = "k8s.node.name";
    /// The node that the scheduler chose.
    pub const CHOSEN: &str = "podplane.chosen.node";
    /// The pod's addresses, separated by commas.
    pub const IPS: &str = "podplane.pod.ips";
    /// The number of the attempt, from 1.
    pub const ATTEMPT: &str = "podplane.attempt";
    /// The id of the sandbox.
    pub const SANDBOX: &str = "podplane.sandbox.id";
    /// The name of the CNI network.
    pub const NETWORK: &str = "cni.network";
}

static SCOPE: LazyLock<InstrumentationScope> = LazyLock::new(|| {
    InstrumentationScope::builder("podplane")
        .with_version(env!("CARGO_PKG_VERSION"))
        .build()
});

/// The creation or the deletion of a pod, which is one trace each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Journey {
    trace: TraceId,
    root: SpanId,
}

/// The position of a UUID's version digit, in bits.
const VERSION: u32 = 76;

impl Journey {
    /// The journey from the request for the pod until it runs. `None` if the UID is not a UUID, as
    /// a foreign kubelet may have it.
    pub fn creation(uid: &str) -> Option<Self> {
        Self::of(Uuid::parse_str(uid).ok()?.as_u128())
    }

    /// The journey from the request for the pod's deletion to its end: the UID with the version
    /// digit 8 in place of 4, which no UID of a pod has.
    pub fn deletion(uid: &str) -> Option<Self> {
        let uid = Uuid::parse_str(uid).ok()?.as_u128();
        Self::of(uid & !(0xf << VERSION) | (8 << VERSION))
    }

    /// The journey of the pod that the current context belongs to, if any.
    pub fn under_way(uid: &str) -> Option<Self> {
        let current = Context::current().span().span_context().trace_id();
        let journeys = [Self::creation(uid), Self::deletion(uid)];
        let mut journeys = journeys.into_iter().flatten();
        journeys.find(|journey| journey.trace == current)
    }

    /// Returns true if the journeys of this pod are recorded here: as the caller decided if the
    /// current context is part of one, else by the id ([`SamplingRatio`]).
    pub fn is_sampled(uid: &str) -> bool {
        let journey = Self::under_way(uid).or_else(|| Self::creation(uid));
        journey.is_some_and(|journey| Parent::current(&journey).is_sampled)
    }

    fn of(id: u128) -> Option<Self> {
        let low = id & u128::from(u64::MAX);
        let root = SpanId::from(u64::try_from(low).ok()?);
        let trace = TraceId::from(id);
        let is_valid = trace != TraceId::INVALID && root != SpanId::INVALID;
        is_valid.then_some(Self { trace, root })
    }

    /// The id of the trace.
    pub fn trace(&self) -> u128 {
        u128::from_be_bytes(self.trace.to_bytes())
    }

    fn root_context(self) -> SpanContext {
        context_of(self.trace, self.root)
    }
}

fn context_of(trace: TraceId, span: SpanId) -> SpanContext {
    SpanContext::new(trace, span, TraceFlags::SAMPLED, false, TraceState::NONE)
}

/// The place of a new span in the trace of its journey.
struct Parent {
    /// The enclosing span in the current context, if that is part of the same journey.
    context: Option<SpanContext>,
    /// The decision of the caller, or of the sampler if there is none.
    is_sampled: bool,
}

impl Parent {
    fn current(journey: &Journey) -> Self {
        Context::map_current(|current| {
            let current = current.span();
            let current = current.span_context();
            match current.trace_id() == journey.trace {
                true => Self {
                    context: current.is_sampled().then(|| current.clone()),
                    is_sampled: current.is_sampled(),
                },
                false => Self {
                    context: None,
                    is_sampled: SamplingRatio::of_process().samples(journey.trace()),
                },
            }
        })
    }
}

/// An operation of a journey that is running. [`Span::end`] records it; a dropped one is not
/// recorded. A span without a journey does nothing, and one of a journey that is not sampled only
/// tells the processes that it calls so.
#[derive(Debug)]
#[must_use]
pub struct Span(SpanState);

#[derive(Debug)]
enum SpanState {
    /// Outside of journeys.
    Detached,
    /// Of a journey that is not sampled.
    NotSampled(Journey),
    Recording(Box<SpanRecord>),
}

/// The ids of a span, as W3C's `traceparent` has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanIds {
    /// The id of the trace.
    pub trace: u128,
    /// The id of the span; the root's if the trace is not sampled.
    pub span: u64,
    /// True if the trace is sampled.
    pub is_sampled: bool,
}

#[derive(Debug)]
struct SpanRecord {
    data: SpanData,
    begun: Instant,
}

impl Span {
    /// The first span of a journey, with a link to the caller's span.
    pub fn root(journey: Option<Journey>, name: impl Into<Cow<'static, str>>) -> Self {
        let Some(journey) = journey else {
            return Self(SpanState::Detached);
        };
        if !Parent::current(&journey).is_sampled {
            return Self(SpanState::NotSampled(journey));
        }
        let mut step = SpanRecord::new(journey.root_context(), SpanId::INVALID, name.into());
        step.link(Context::current().span().span_context());
        Self(SpanState::Recording(step))
    }

    /// A span of a journey: a child of the current context's span if that is of the same journey,
    /// else of the root.
    pub fn of(journey: Option<Journey>, name: impl Into<Cow<'static, str>>) -> Self {
        let Some(journey) = journey else {
            return Self(SpanState::Detached);
        };
        let Parent {
            context,
            is_sampled,
        } = Parent::current(&journey);
        if !is_sampled {
            return Self(SpanState::NotSampled(journey));
        }
        let id = RandomIdGenerator::default().new_span_id();
        let parent = context.as_ref().map_or(journey.root, SpanContext::span_id);
        let mut step = SpanRecord::new(context_of(journey.trace, id), parent, name.into());
        let current = Context::current();
        let current = current.span();
        let current = current.span_context();
        step.data.parent_span_is_remote = current.is_remote();
        step.link(current);
        Self(SpanState::Recording(step))
    }

    /// A child span.
    pub fn child(&self, name: impl Into<Cow<'static, str>>) -> Self {
        self.part(|SpanData { span_context, .. }| {
            let id = RandomIdGenerator::default().new_span_id();
            let context = context_of(span_context.trace_id(), id);
            SpanRecord::new(context, span_context.span_id(), name.into())
        })
    }

    /// A span of the same journey that another process measured, with the ids that it has there.
    pub fn foreign(&self, id: u64, parent: u64, name: String) -> Self {
        self.part(|SpanData { span_context, .. }| {
            let context = context_of(span_context.trace_id(), SpanId::from(id));
            SpanRecord::new(context, SpanId::from(parent), name.into())
        })
    }

    fn part(&self, make: impl FnOnce(&SpanData) -> Box<SpanRecord>) -> Self {
        Self(match &self.0 {
            SpanState::Detached => SpanState::Detached,
            SpanState::NotSampled(journey) => SpanState::NotSampled(*journey),
            SpanState::Recording(step) => SpanState::Recording(make(&step.data)),
        })
    }

    /// Replaces the name by one that is made only if the span is recorded.
    pub fn named(self, name: impl FnOnce() -> String) -> Self {
        self.with(|step| step.data.name = name().into())
    }

    /// Marks it as the client's side of a call.
    pub fn client(self) -> Self {
        self.with(|step| step.data.span_kind = SpanKind::Client)
    }

    /// Marks it as the server's side of a call.
    pub fn server(self) -> Self {
        self.with(|step| step.data.span_kind = SpanKind::Server)
    }

    /// Sets an earlier start.
    pub fn since(self, begun: Instant) -> Self {
        self.with(|step| {
            step.data.start_time -= step.begun.saturating_duration_since(begun);
            step.begun = begun;
        })
    }

    fn with(mut self, change: impl FnOnce(&mut SpanRecord)) -> Self {
        if let SpanState::Recording(step) = &mut self.0 {
            change(step);
        }
        self
    }

    /// Sets an attribute. Its value is made only if the span is recorded.
    pub fn set<V: Into<Value>>(&mut self, key: &'static str, value: impl FnOnce() -> V) {
        if let SpanState::Recording(step) = &mut self.0 {
            step.data.attributes.push(KeyValue::new(key, value()));
        }
    }

    /// Marks it as failed, with the reason, which is made only if the span is recorded.
    pub fn fail<W: Into<Cow<'static, str>>>(&mut self, why: impl FnOnce() -> W) {
        if let SpanState::Recording(step) = &mut self.0 {
            step.data.status = Status::error(why());
        }
    }

    /// The context for calls within this span, which makes the other side's spans its children:
    /// `future.with_context(span.context())`.
    pub fn context(&self) -> Context {
        match self.span_context() {
            None => Context::current(),
            Some(context) => Context::new().with_remote_span_context(context),
        }
    }

    fn span_context(&self) -> Option<SpanContext> {
        match &self.0 {
            SpanState::Detached => None,
            SpanState::NotSampled(Journey { trace, root }) => Some(SpanContext::new(
                *trace,
                *root,
                TraceFlags::NOT_SAMPLED,
                false,
                TraceState::NONE,
            )),
            SpanState::Recording(step) => Some(step.data.span_context.clone()),
        }
    }

    /// The ids of the trace and of the span; `None` without a journey.
    pub fn ids(&self) -> Option<SpanIds> {
        let context = self.span_context()?;
        Some(SpanIds {
            trace: u128::from_be_bytes(context.trace_id().to_bytes()),
            span: u64::from_be_bytes(context.span_id().to_bytes()),
            is_sampled: context.is_sampled(),
        })
    }

    /// Ends and records the span now.
    pub fn end(self) {
        self.end_at(Instant::now());
    }

    /// Ends and records the span at the given time.
    pub fn end_at(self, over: Instant) {
        if let SpanState::Recording(mut step) = self.0 {
            let took = over.saturating_duration_since(step.begun);
            step.data.end_time = step.data.start_time + took;
            outlet::enqueue(step.data);
        }
    }

    /// Records the span with these times.
    pub fn end_between(self, start: SystemTime, end: SystemTime) {
        if let SpanState::Recording(mut step) = self.0 {
            step.data.start_time = start;
            step.data.end_time = end.max(start);
            outlet::enqueue(step.data);
        }
    }

    /// Runs a future within this span, and records its result. The future is boxed, since calls are
    /// large.
    pub fn around<'a, T, E: Send>(
        mut self,
        future: impl Future<Output = Result<T, E>> + Send + 'a,
        why: impl FnOnce(&E) -> String + Send + 'a,
    ) -> BoxFuture<'a, Result<T, E>> {
        let future = future.with_context(self.context());
        Box::pin(async move {
            let done = future.await;
            if let Err(error) = &done {
                self.fail(|| why(error));
            }
            self.end();
            done
        })
    }
}

impl SpanRecord {
    fn new(context: SpanContext, parent: SpanId, name: Cow<'static, str>) -> Box<Self> {
        let now = clock::system_time();
        let data = SpanData {
            span_context: context,
            parent_span_id: parent,
            parent_span_is_remote: false,
            span_kind: SpanKind::Internal,
            name,
            start_time: now,
            end_time: now,
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: SCOPE.clone(),
        };
        let begun = Instant::now();
        Box::new(Self { data, begun })
    }

    /// Links the caller's span, unless it is part of this trace.
    fn link(&mut self, to: &SpanContext) {
        if to.is_valid() && to.trace_id() != self.data.span_context.trace_id() {
            self.data.links.links.push(Link::with_context(to.clone()));
        }
    }
}

#[cfg(test)]
mod tests;
