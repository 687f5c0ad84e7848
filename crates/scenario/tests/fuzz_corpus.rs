//! The corpus of scenarios, run through the body of its fuzz target (`fuzz/`) without a nightly
//! compiler.
#![expect(
    clippy::print_stderr,
    reason = "which input it was must be seen when it fails"
)]

#[path = "../../../fuzz/replay.rs"]
mod replay;
#[path = "../../../fuzz/bodies/scenarios.rs"]
mod scenarios;

#[test]
fn scenarios_are_planned_or_refused() {
    replay::corpus("scenarios", scenarios::run);
}
