//! What a write means for the journey of a pod, told as a step of its trace once the write is durable.

use std::time::Instant;

use podplane_telemetry::trace::{Journey, Span, attribute};

/// How far an object is on its journey.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Station {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// Empty while it has none.
    pub(crate) node: String,
    pub(crate) phase: String,
    /// Why, if the phase is one that has reasons.
    pub(crate) message: String,
    pub(crate) ips: String,
    pub(crate) deleting: bool,
}

/// Tells of a write that was asked for at `begun`, from what was there to what is there now.
pub(super) fn tell(begun: Instant, from: Option<&Station>, to: Option<&Station>) {
    match (from, to) {
        (None, Some(to)) => root(Journey::creation(&to.uid), "create", begun, to),
        (Some(from), None) if from.deleting => {
            let journey = Journey::deletion(&from.uid);
            step(journey, "remove".to_owned(), begun, |_| {});
        }
        (Some(from), None) => root(Journey::deletion(&from.uid), "delete", begun, from),
        (Some(from), Some(to)) => changed(begun, from, to),
        (None, None) => {}
    }
}

fn changed(begun: Instant, from: &Station, to: &Station) {
    if to.deleting && !from.deleting {
        root(Journey::deletion(&to.uid), "delete", begun, to);
    }
    let journey = match to.deleting {
        true => Journey::deletion(&to.uid),
        false => Journey::creation(&to.uid),
    };
    if from.node != to.node {
        step(journey, "bind".to_owned(), begun, |span| {
            span.set(attribute::CHOSEN, to.node.clone());
        });
    }
    if from.phase != to.phase || from.ips != to.ips {
        step(journey, format!("status {}", to.phase), begun, |span| {
            if !to.ips.is_empty() {
                span.set(attribute::IPS, to.ips.clone());
            }
            // What ends because it was deleted has not failed at anything.
            if to.phase == "Failed" && !to.deleting {
                span.fail(to.message.clone());
            }
        });
    }
}

fn root(journey: Option<Journey>, name: &'static str, begun: Instant, of: &Station) {
    let mut span = Span::root(journey, name).server().since(begun);
    span.set(attribute::NAMESPACE, of.namespace.clone());
    span.set(attribute::POD, of.name.clone());
    span.set(attribute::UID, of.uid.clone());
    span.end();
}

fn step(journey: Option<Journey>, name: String, begun: Instant, describe: impl FnOnce(&mut Span)) {
    let mut span = Span::of(journey, name).server().since(begun);
    describe(&mut span);
    span.end();
}
