//! The end-to-end tests' own tools, besides the test cluster: the state of the machine before a
//! test, the programs that they compare with, histories.
//!
//! [`Cluster::up`] starts a cluster of the test cluster. [`Cluster::finish`] asks the invariant
//! checker about all that is left, takes the cluster down, and checks that the machine is as it was
//! before.
//!
//! It never runs a service in a test's own process: all are processes of the built programs. Start
//! reading at [`cluster`].

#![warn(missing_docs)]

pub mod apiserver;
pub mod browser;
pub mod churn;
pub mod cluster;
pub mod console;
pub mod containerd;
pub mod cri;
pub mod history;
pub mod kubectl;
pub mod listener;
pub mod machine;
pub mod peers;
pub mod plugins;
pub mod programs;
pub mod prometheus;
pub mod secure;
pub mod service;
pub mod signing;
pub mod stranger;
pub mod terminal;
pub mod wait;

pub use cluster::{Cluster, builder};
pub use machine::Machine;
pub use podplane_test_cluster::{Network, pods, processes_of};
pub use wait::eventually;
