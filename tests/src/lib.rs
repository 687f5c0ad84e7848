//! The harness of the end-to-end tests: a cluster of real processes from the built programs, what can be seen of it, and what must hold.
//!
//! [`Cluster::up`] runs `podplane up` on a data directory of its own; [`Cluster::finish`] asks the invariant checker about all that is
//! left and takes the cluster down. Tests wait on state with a deadline ([`eventually`]), never on time. Programs come from
//! `PODPLANE_BIN_DIR`, which `cargo xtask test` sets, or from `target/release`.

#![warn(missing_docs)]

pub mod apiserver;
pub mod cluster;
pub mod history;
pub mod kubectl;
pub mod leftovers;
pub mod peers;
pub mod programs;
pub mod rest;
pub mod service;
pub mod wait;
pub mod world;

pub use cluster::{Cluster, Network, Up};
pub use leftovers::Machine;
pub use wait::eventually;
