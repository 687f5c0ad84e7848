//! Spans for the journey of a pod: each durable write that advances it becomes a step of its trace.

use std::borrow::Cow;

use podplane_api::{any::DynObject, strategy::JourneyState};
use podplane_host::clock::Instant;
use podplane_service_runtime::trace::{Journey, Span, attribute};

/// The state of the object's journey for [`record`]; `None` if it has none, or is not sampled.
pub(super) fn state(object: &DynObject) -> Option<JourneyState> {
    match Journey::is_sampled(object.uid()) {
        true => object.journey_state(),
        false => None,
    }
}

/// Records a write that was requested at `begun` and changed the state from `from` to `to`.
pub(super) fn record(begun: Instant, from: Option<&JourneyState>, to: Option<&JourneyState>) {
    match (from, to) {
        (None, Some(to)) => root(Journey::creation(&to.uid), "create", begun, to),
        (Some(from), None) if from.deleting => {
            let journey = Journey::deletion(&from.uid);
            step(journey, "remove", begun, |_| {});
        }
        (Some(from), None) => root(Journey::deletion(&from.uid), "delete", begun, from),
        (Some(from), Some(to)) => changed(begun, from, to),
        (None, None) => {}
    }
}

fn changed(begun: Instant, from: &JourneyState, to: &JourneyState) {
    if to.deleting && !from.deleting {
        root(Journey::deletion(&to.uid), "delete", begun, to);
    }
    let journey = match to.deleting {
        true => Journey::deletion(&to.uid),
        false => Journey::creation(&to.uid),
    };
    if from.node != to.node {
        step(journey, "bind", begun, |span| {
            span.set(attribute::CHOSEN, || to.node.clone());
        });
    }
    if from.phase != to.phase || from.ips != to.ips {
        step(journey, format!("status {}", to.phase), begun, |span| {
            if !to.ips.is_empty() {
                span.set(attribute::IPS, || to.ips.clone());
            }
            // A pod that ends because of its deletion has not failed.
            if to.phase == "Failed" && !to.deleting {
                span.fail(|| to.message.clone());
            }
        });
    }
}

fn root(journey: Option<Journey>, name: &'static str, begun: Instant, of: &JourneyState) {
    let mut span = Span::root(journey, name).server().since(begun);
    span.set(attribute::NAMESPACE, || of.namespace.clone());
    span.set(attribute::POD, || of.name.clone());
    span.set(attribute::UID, || of.uid.clone());
    span.end();
}

fn step(
    journey: Option<Journey>,
    name: impl Into<Cow<'static, str>>,
    begun: Instant,
    describe: impl FnOnce(&mut Span),
) {
    let mut span = Span::of(journey, name).server().since(begun);
    describe(&mut span);
    span.end();
}
