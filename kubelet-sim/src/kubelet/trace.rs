//! What the kubelet adds to the journey of a pod.

use std::{borrow::Cow, time::Instant};

use podplane_api::{Object as _, core::Pod};
use podplane_telemetry::trace::{Journey, Span, attribute};

/// The steps of one look at a pod. A look that had nothing to do is no step itself.
#[derive(Debug)]
pub(super) struct Steps {
    journey: Option<Journey>,
    node: String,
    begun: Instant,
    look: Option<Span>,
}

impl Steps {
    /// A look at a pod begins, of which there may be nothing left but its sandboxes.
    pub(super) fn new(node: &str, uid: &str, pod: Option<&Pod>) -> Self {
        let is_going = pod.is_none_or(Pod::is_deleting);
        let journey = match is_going {
            true => Journey::deletion(uid),
            false => Journey::creation(uid),
        };
        Self {
            journey,
            node: node.to_owned(),
            begun: Instant::now(),
            look: None,
        }
    }

    /// A step of it begins.
    pub(super) fn begin(&mut self, name: impl Into<Cow<'static, str>>) -> Span {
        let Self { journey, begun, .. } = self;
        let look = self
            .look
            .get_or_insert_with(|| Span::of(*journey, "sync").since(*begun));
        let mut span = look.child(name);
        span.set(attribute::NODE, self.node.clone());
        span
    }

    /// It is over.
    pub(super) fn end(self, error: Option<String>) {
        let Some(mut look) = self.look else { return };
        look.set(attribute::NODE, self.node);
        if let Some(error) = error {
            look.fail(error);
        }
        look.end();
    }
}
