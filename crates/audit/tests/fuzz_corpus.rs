//! The corpus of dumps, run through the body of its fuzz target (`fuzz/`) without a nightly
//! compiler.
#![expect(
    clippy::print_stderr,
    reason = "which input it was must be seen when it fails"
)]

#[path = "../../../fuzz/bodies/dumps.rs"]
mod dumps;
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn dumps_are_audited_or_refused() {
    replay::corpus("dumps", dumps::run);
}
