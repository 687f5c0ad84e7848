#![doc = include_str!("../README.md")]
//!
//! ## What it never does
//!
//! It decides nothing about a cluster: `podplane up` starts the cluster, and every change goes
//! through the interfaces that users have.
//!
//! ## Where to begin
//!
//! [`Cluster::builder`] starts a cluster. [`Cluster::check`] runs the invariant checker on
//! everything that can be observed ([`world`]); a [`monitor`] checks every revision of pods and
//! nodes; [`live`] checks the sandboxes that nodes really have; [`eventually`] waits on state.

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

pub use builder::ClusterBuilder;
pub use cluster::Cluster;
pub use error::{ClusterError, Result};
pub use podplane_cluster::settings::Network;
pub use podplane_ipam::IpPolicy;
pub use process::{Process, processes_of};
pub use program::{Program, ProgramOutput, run};
pub use rustix::process::Signal;
pub use tonic::Code;
pub use wait::{DEADLINE, eventually, within};
