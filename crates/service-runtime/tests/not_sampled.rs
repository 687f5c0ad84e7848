//! The cost of spans that are not sampled. A program of its own: the sampling ratio and the
//! allocator are those of the process.

use peak_alloc::PeakAlloc;
use podplane_host::clock::Instant;
use podplane_service_runtime::trace::{self, Journey, Span, TraceConfig, attribute};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// The spans of an attempt to schedule a pod, as the scheduler records them.
fn attempt(uid: &str, begun: Instant) {
    let journey = Journey::creation(uid);
    assert!(journey.is_some());
    Span::of(journey, "queue").since(begun).end_at(begun);
    let mut span = Span::of(journey, "schedule").since(begun);
    span.set(attribute::ATTEMPT, || 1);
    span.set(attribute::CHOSEN, || uid.to_owned());
    span.fail(|| uid.to_owned());
    span.end();
}

#[test]
fn a_span_that_is_not_sampled_allocates_nothing() {
    let config = TraceConfig {
        trace_sampling_ratio: Some("0".parse().unwrap()),
        ..TraceConfig::default()
    };
    trace::init(&config).unwrap();
    let begun = Instant::now();
    let uid = "1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed";
    // Makes what the thread keeps.
    attempt(uid, begun);
    MEMORY.reset_peak_usage();
    let before = MEMORY.peak_usage();
    for _ in 0..1000 {
        attempt(uid, begun);
    }
    assert_eq!(MEMORY.peak_usage(), before);
    assert!(!Journey::is_sampled(uid));
}
