//! What every process does the same way: logging, shutdown, owning its tasks, and serving gRPC.
//!
//! It knows nothing of podplane's objects. Start reading at [`server`].

#![warn(missing_docs)]

pub mod logging;
pub mod probes;
pub mod server;
pub mod shutdown;
pub mod tasks;

mod reflection;

pub use tasks::Tasks;
