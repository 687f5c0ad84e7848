//! Helpers of the tests of several crates: pods and nodes, and an API server in memory, with faults
//! on demand.
//!
//! It is never part of a program: crates have it among their dev-dependencies. Start at
//! [`FakeApiserver`]; clusters of real processes are the test cluster's.

#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![expect(clippy::missing_panics_doc, reason = "a test fails by panicking")]

mod apiserver;
mod fixtures;
mod log;

pub use apiserver::{FakeApiserver, FakeState};
pub use fixtures::{NodeBuilder, PodBuilder};
pub use log::ChangeLog;

use bytes::Bytes;
use podplane_api::Object;
use podplane_proto::codec;
use prost::Message;

/// The object as it is sent.
pub fn encode<K: Object>(object: &K) -> Bytes {
    codec::encode(object).expect("the fake's objects are valid")
}

/// The message of a request.
pub fn decode<M: Message + Default>(request: &Bytes) -> M {
    M::decode(request.clone()).expect("the client's requests are valid")
}
