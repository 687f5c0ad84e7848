//! What the end-to-end tests have beyond the testkit: the machine as it was before, the programs that they are compared with, histories.
//!
//! [`Cluster::up`] starts a cluster of the testkit; [`Cluster::finish`] asks the invariant checker about all that is left, takes the cluster
//! down, and looks whether the machine is as it was.

#![warn(missing_docs)]

pub mod apiserver;
pub mod churn;
pub mod cluster;
pub mod console;
pub mod history;
pub mod kubectl;
pub mod machine;
pub mod peers;
pub mod programs;
pub mod rest;
pub mod service;
pub mod wait;

pub use cluster::{Cluster, builder};
pub use machine::Machine;
pub use podplane_testkit::{Network, pods, processes_of};
pub use wait::eventually;
