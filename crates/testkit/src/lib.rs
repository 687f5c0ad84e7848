//! A cluster of real processes for a test: started on random ports and in a temporary directory, looked at, disturbed, and taken down.
//!
//! [`Cluster::builder`] starts one; on it are a typed [`Client`](podplane_client::Client), the path of a kubeconfig, the processes with
//! their logs, and [`Cluster::check`], which asks the invariant checker about all that can be seen. Dropping a cluster takes it down, after
//! a panic too, and it ends by itself if the test's process is killed. Tests wait on state with a deadline ([`eventually`]), never on time.
//!
//! Nothing here decides anything about a cluster: `podplane up` starts it, and every change goes through the interfaces that users have.

#![warn(missing_docs)]

mod builder;
mod cluster;
pub mod disk;
mod error;
pub mod fault;
pub mod link;
pub mod plugins;
pub mod pods;
mod process;
mod program;
pub mod recording;
mod wait;
mod wiring;
pub mod world;

pub use builder::{ClusterBuilder, IpPolicy, Network};
pub use cluster::Cluster;
pub use error::{ClusterError, Result};
pub use process::{Process, processes_of};
pub use program::{Finished, Program, run};
pub use rustix::process::Signal;
pub use wait::{DEADLINE, eventually, within};
