#![doc = include_str!("../README.md")]
//!
//! ## Where to begin
//!
//! [`Cluster::builder`] starts one. [`Cluster::check`] asks the invariant checker about all that
//! can be seen ([`world`]); a [`monitor`] checks every revision of pods and nodes, and [`live`]
//! compares the sandboxes that nodes really have; [`eventually`] waits on state. Nothing here
//! decides anything about a cluster: `podplane up` starts it, and every change goes through the
//! interfaces that users have.

#![warn(missing_docs)]

mod builder;
mod carrier;
mod cluster;
pub mod disk;
mod error;
pub mod fault;
pub mod link;
pub mod live;
pub mod monitor;
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
pub use tonic::Code;
pub use wait::{DEADLINE, eventually, within};
