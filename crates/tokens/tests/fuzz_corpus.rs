//! The corpus of inputs for the fuzz target `tokens`, run through the same body without a nightly
//! compiler.

#![expect(clippy::disallowed_methods, reason = "a test")]

use std::{fs, path::Path};

#[path = "../../../fuzz/bodies/tokens.rs"]
mod tokens;

#[test]
fn only_issued_tokens_are_accepted() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/tokens");
    let mut count = 0;
    for entry in fs::read_dir(corpus).unwrap() {
        tokens::run(&fs::read(entry.unwrap().path()).unwrap());
        count += 1;
    }
    assert!(count >= 10, "the corpus is there");
}
