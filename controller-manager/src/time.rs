//! The clock, which decisions are given as an argument.

use podplane_api::jiff::Timestamp;

/// Now, in whole seconds, as Kubernetes' times are.
pub(crate) fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}
