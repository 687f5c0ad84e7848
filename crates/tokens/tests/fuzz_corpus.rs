//! The corpus of tokens, run through the body of its fuzz target (`fuzz/`) without a nightly
//! compiler.
#![expect(clippy::disallowed_methods, reason = "a test")]
#![expect(
    clippy::print_stderr,
    reason = "which input it was must be seen when it fails"
)]

#[path = "../../../fuzz/replay.rs"]
mod replay;
#[path = "../../../fuzz/bodies/tokens.rs"]
mod tokens;

#[test]
fn only_issued_tokens_are_accepted() {
    replay::corpus("tokens", tokens::run);
}
