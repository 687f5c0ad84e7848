//! The runtime that every service process shares: logging, shutdown, ownership of tasks, gRPC and
//! HTTP servers, metrics, health and traces.
//!
//! It knows none of the objects that podplane serves. Start reading at [`process`].

#![warn(missing_docs)]
#![cfg_attr(
    test,
    expect(clippy::disallowed_methods, reason = "tests are outside of the seam")
)]

pub mod authentication;
pub mod boundary;
pub mod files;
pub mod flow;
pub mod gate;
pub mod limits;
pub mod logging;
pub mod peer;
pub mod process;
pub mod recorder;
pub mod server;
pub mod serving;
pub mod shutdown;
pub mod tasks;
pub mod tls;
pub mod trace;

mod health;
mod probes;
mod reflection;
mod refusal;
mod usage;

pub use podplane_access::identity;
pub use process::{Process, Services};
pub use tasks::Tasks;
