//! The corpus of backups and records, run through the body of its fuzz target (`fuzz/`) without a
//! nightly compiler.
#![expect(clippy::disallowed_methods, reason = "a test")]
#![expect(
    clippy::print_stderr,
    reason = "which input it was must be seen when it fails"
)]

#[path = "../../../fuzz/replay.rs"]
mod replay;
#[path = "../../../fuzz/bodies/store.rs"]
mod store;

#[test]
fn damaged_records_and_backups_are_refused() {
    replay::corpus("store", store::run);
}
