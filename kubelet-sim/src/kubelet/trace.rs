//! The kubelet's part of a pod's journey.

use podplane_api::{Object as _, core::Pod};
use podplane_host::clock::Instant;
use podplane_service_runtime::trace::{Journey, Span, attribute};

/// The trace of one sync of a pod. A sync with nothing to do leaves no span.
#[derive(Debug)]
pub(super) struct SyncTrace<'a> {
    journey: Option<Journey>,
    node: &'a str,
    started_at: Instant,
    span: Option<Span>,
}

impl<'a> SyncTrace<'a> {
    /// Begins the trace of a sync; `pod` is `None` if only its sandboxes may be left.
    pub(super) fn new(node: &'a str, uid: &str, pod: Option<&Pod>) -> Self {
        let is_going = pod.is_none_or(Pod::is_deleting);
        let journey = match is_going {
            true => Journey::deletion(uid),
            false => Journey::creation(uid),
        };
        Self {
            journey,
            node,
            started_at: Instant::now(),
            span: None,
        }
    }

    /// Begins a span for a step of the sync.
    pub(super) fn begin(&mut self, name: &'static str) -> Span {
        let Self {
            journey,
            started_at,
            ..
        } = self;
        let sync = self
            .span
            .get_or_insert_with(|| Span::of(*journey, "sync").since(*started_at));
        let mut span = sync.child(name);
        let node = self.node;
        span.set(attribute::NODE, || node.to_owned());
        span
    }

    /// Ends the trace; `error` if the sync failed.
    pub(super) fn end(self, error: Option<String>) {
        let Some(mut span) = self.span else { return };
        span.set(attribute::NODE, || self.node.to_owned());
        if let Some(error) = error {
            span.fail(|| error);
        }
        span.end();
    }
}
