//! The corpora of objects and of requests, run through the bodies of their fuzz targets (`fuzz/`)
//! without a nightly compiler.
#![expect(clippy::disallowed_methods, reason = "a test")]
#![expect(clippy::duplicate_mod, reason = "two fuzz targets have the server")]
#![expect(
    clippy::print_stderr,
    reason = "which input it was must be seen when it fails"
)]

#[path = "../../fuzz/bodies/grpc.rs"]
mod grpc;
#[path = "../../fuzz/bodies/objects.rs"]
mod objects;
#[path = "../../fuzz/replay.rs"]
mod replay;
#[path = "../../fuzz/bodies/rest.rs"]
mod rest;

#[test]
fn objects_round_trip() {
    replay::corpus("objects", objects::run);
}

#[test]
fn rest_requests_are_answered() {
    replay::corpus("rest", rest::run);
}

#[test]
fn grpc_requests_are_answered() {
    replay::corpus("grpc", grpc::run);
}
