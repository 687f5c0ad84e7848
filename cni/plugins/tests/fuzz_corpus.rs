//! The corpus of inputs that fuzzing found worth keeping, run through the same bodies (`fuzz/`)
//! without a nightly compiler.
#![expect(
    clippy::print_stderr,
    reason = "which input it was must be seen when it fails"
)]

#[path = "../../../fuzz/bodies/config.rs"]
mod config;
#[path = "../../../fuzz/bodies/data_dir.rs"]
mod data_dir;
#[path = "../../../fuzz/bodies/environment.rs"]
mod environment;
#[path = "../../../fuzz/replay.rs"]
mod replay;
#[path = "../../../fuzz/bodies/results.rs"]
mod results;

#[test]
fn configurations_are_read_or_refused() {
    replay::corpus("config", config::run);
}

#[test]
fn every_environment_is_answered() {
    replay::corpus("environment", environment::run);
}

#[test]
fn gives_no_address_twice_from_any_data_directory() {
    replay::corpus("data_dir", data_dir::run);
}

#[test]
fn results_round_trip() {
    replay::corpus("results", results::run);
}
