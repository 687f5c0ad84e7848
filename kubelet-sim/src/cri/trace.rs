//! The CRI server's part of a pod's journey: its own steps, and those of CNI plugins.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use podplane_cni::trace::TraceStep;
use podplane_service_runtime::trace::{Journey, Span, attribute};

use crate::NodeName;

/// The part of a pod's journey that a step belongs to if the caller's context has no journey.
#[derive(Clone, Copy, Debug)]
pub(super) enum JourneyPart {
    /// From the pod's creation until it runs.
    Creation,
    /// From the pod's deletion until it is gone.
    Deletion,
}

/// Begins a step for the pod, as part of the journey in the caller's context.
pub(super) fn begin(uid: &str, (part, name): (JourneyPart, &'static str), node: &NodeName) -> Span {
    let journey = Journey::under_way(uid).or_else(|| match part {
        JourneyPart::Creation => Journey::creation(uid),
        JourneyPart::Deletion => Journey::deletion(uid),
    });
    let mut span = Span::of(journey, name);
    span.set(attribute::NODE, || node.to_string());
    span
}

/// Records a step made by a plugin, or the execution of one.
pub(super) fn record(of: &Span, step: TraceStep, node: &NodeName) {
    let TraceStep {
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
    span.set(attribute::PLUGIN, || plugin);
    span.set(attribute::NODE, || node.to_string());
    if !ips.is_empty() {
        span.set(attribute::IPS, || ips.join(","));
    }
    if let Some(error) = error {
        span.fail(|| error);
    }
    span.end_between(moment(start), moment(end));
}

/// The time of a plugin's step. A plugin may print any number; one outside of the range becomes the
/// year 1970.
fn moment(unix_nano: u64) -> SystemTime {
    UNIX_EPOCH
        .checked_add(Duration::from_nanos(unix_nano))
        .unwrap_or(UNIX_EPOCH)
}
