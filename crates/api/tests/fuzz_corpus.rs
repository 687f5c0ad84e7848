//! The corpora of selectors and patches, run through the bodies of their fuzz targets (`fuzz/`)
//! without a nightly compiler.
#![expect(
    clippy::print_stderr,
    reason = "which input it was must be seen when it fails"
)]

#[path = "../../../fuzz/bodies/patches.rs"]
mod patches;
#[path = "../../../fuzz/replay.rs"]
mod replay;
#[path = "../../../fuzz/bodies/selectors.rs"]
mod selectors;

#[test]
fn accepted_selectors_print_and_parse() {
    replay::corpus("selectors", selectors::run);
}

#[test]
fn patches_are_applied_or_refused() {
    replay::corpus("patches", patches::run);
}
