//! The corpus of inputs that fuzzing found worth keeping, run through the same bodies (`fuzz/`)
//! without a nightly compiler.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(
    clippy::print_stderr,
    reason = "which input it was must be seen when it fails"
)]

use std::{fs, path::Path};

#[path = "../../../fuzz/bodies/config.rs"]
mod config;
#[path = "../../../fuzz/bodies/data_dir.rs"]
mod data_dir;
#[path = "../../../fuzz/bodies/environment.rs"]
mod environment;
#[path = "../../../fuzz/bodies/results.rs"]
mod results;

fn replay(target: &str, body: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let entries = fs::read_dir(corpus.join(target)).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "the corpus of {target} is there");
    for path in paths {
        let input = fs::read(&path).unwrap();
        let outcome = std::panic::catch_unwind(|| body(&input));
        if let Err(panic) = outcome {
            eprintln!("{} fails", path.display());
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn configurations_are_read_or_refused() {
    replay("config", config::run);
}

#[test]
fn every_environment_is_answered() {
    replay("environment", environment::run);
}

#[test]
fn gives_no_address_twice_from_any_data_directory() {
    replay("data_dir", data_dir::run);
}

#[test]
fn results_round_trip() {
    replay("results", results::run);
}
