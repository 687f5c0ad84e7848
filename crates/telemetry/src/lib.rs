//! What every process does the same way: logging, shutdown, owning its tasks, serving gRPC and showing how it is.
//!
//! It knows nothing of podplane's objects. Start reading at [`process`].

#![warn(missing_docs)]

pub mod boundary;
pub mod logging;
pub mod process;
pub mod server;
pub mod shutdown;
pub mod tasks;
pub mod trace;

mod health;
mod probes;
mod reflection;
mod usage;

pub use process::{Process, Services};
pub use tasks::Tasks;
