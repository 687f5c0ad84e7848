//! The clock, which decisions are given as an argument.

use podplane_api::jiff::Timestamp;
use podplane_host::clock;

/// Now, in whole seconds, as Kubernetes' times are.
pub(crate) fn now() -> Timestamp {
    let now = clock::timestamp();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}
