//! The corpus of sessions, run through the body of its fuzz target (`fuzz/`) without a nightly
//! compiler.
#![expect(
    clippy::print_stderr,
    reason = "which input it was must be seen when it fails"
)]

#[path = "../../../fuzz/replay.rs"]
mod replay;
#[path = "../../../fuzz/bodies/spdy.rs"]
mod spdy;

#[test]
fn sessions_end_with_their_connections() {
    replay::corpus("spdy", spdy::run);
}
