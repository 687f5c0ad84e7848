//! What the CRI server adds to the journey of a pod: its own steps, and those of CNI plugins.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use podplane_cni::trace::Step;
use podplane_telemetry::trace::{Journey, Span, attribute};

use crate::NodeName;

/// A part of a pod's journey that is not said by whoever calls.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    Creation,
    Deletion,
}

/// A step for the pod begins, as part of the journey that the caller's context says.
pub(super) fn begin(uid: &str, (part, name): (Part, &str), node: &NodeName) -> Span {
    let journey = Journey::under_way(uid).or_else(|| match part {
        Part::Creation => Journey::creation(uid),
        Part::Deletion => Journey::deletion(uid),
    });
    let mut span = Span::of(journey, name.to_owned());
    span.set(attribute::NODE, node.to_string());
    span
}

/// A step that a plugin made, or that is the execution of one.
pub(super) fn tell(of: &Span, step: Step, node: &NodeName) {
    let Step {
        id,
        parent,
        name,
        plugin,
        start,
        end,
        error,
        ips,
    } = step;
    let mut span = of.foreign(id, parent, name);
    span.set(attribute::PLUGIN, plugin);
    span.set(attribute::NODE, node.to_string());
    if !ips.is_empty() {
        span.set(attribute::IPS, ips.join(","));
    }
    if let Some(error) = error {
        span.fail(error);
    }
    span.end_between(moment(start), moment(end));
}

/// A plugin may print any number; one that is no time is the beginning of time.
fn moment(unix_nano: u64) -> SystemTime {
    UNIX_EPOCH
        .checked_add(Duration::from_nanos(unix_nano))
        .unwrap_or(UNIX_EPOCH)
}
