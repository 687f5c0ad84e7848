#![no_main]

#[path = "../bodies/selectors.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
