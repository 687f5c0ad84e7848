//! The kubelet's part of a pod's journey.

use std::borrow::Cow;

use podplane_api::{Object as _, core::Pod};
use podplane_host::clock::Instant;
use podplane_service_runtime::trace::{Journey, Span, attribute};

/// The trace of one sync of a pod. A sync with nothing to do leaves no span.
#[derive(Debug)]
pub(super) struct SyncTrace {
    journey: Option<Journey>,
    node: String,
    started_at: Instant,
    span: Option<Span>,
}

impl SyncTrace {
    /// Begins the trace of a sync; `pod` is `None` if only its sandboxes may be left.
    pub(super) fn new(node: &str, uid: &str, pod: Option<&Pod>) -> Self {
        let is_going = pod.is_none_or(Pod::is_deleting);
        let journey = match is_going {
            true => Journey::deletion(uid),
            false => Journey::creation(uid),
        };
        Self {
            journey,
            node: node.to_owned(),
            started_at: Instant::now(),
            span: None,
        }
    }

    /// Begins a span for a step of the sync.
    pub(super) fn begin(&mut self, name: impl Into<Cow<'static, str>>) -> Span {
        let Self {
            journey,
            started_at,
            ..
        } = self;
        let sync = self
            .span
            .get_or_insert_with(|| Span::of(*journey, "sync").since(*started_at));
        let mut span = sync.child(name);
        span.set(attribute::NODE, self.node.clone());
        span
    }

    /// Ends the trace; `error` if the sync failed.
    pub(super) fn end(self, error: Option<String>) {
        let Some(mut span) = self.span else { return };
        span.set(attribute::NODE, self.node);
        if let Some(error) = error {
            span.fail(error);
        }
        span.end();
    }
}
