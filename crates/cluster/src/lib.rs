//! A cluster on this machine: its settings, its processes, and how they are kept running.
//!
//! It prints nothing to people, and depends on no service's crate: the program that has them hands
//! in what this crate must know of them ([`services::ServiceCatalog`]). A process of the cluster is
//! the calling program, started again with a service's name and flags. The test cluster has names,
//! paths and the record of a cluster from here.
//!
//! Start reading at [`flags`], [`settings`] and [`launch`]: `up` starts a [`supervisor`] as a
//! process of its own; that chooses a network mode, enters [`namespaces`], makes the [`fabric`] and
//! runs every service. They meet in the data directory ([`data_dir`]) and at its control socket
//! ([`control`]).

#![expect(
    clippy::missing_errors_doc,
    reason = "errors here are of the machine, for people: each says what failed, and no caller branches"
)]
#![cfg_attr(
    test,
    expect(clippy::disallowed_methods, reason = "tests are outside of the seam")
)]

pub mod certificates;
pub mod control;
pub mod data_dir;
pub mod departure;
pub mod echo;
pub mod extra;
pub mod fabric;
pub mod flags;
mod instance;
pub mod kubeconfig;
pub mod launch;
mod lifeline;
pub mod limits;
pub mod lone_node;
mod mode;
pub mod namespaces;
mod node_certificate;
pub mod processes;
mod remains;
mod service;
pub mod services;
pub mod settings;
pub mod supervisor;
pub mod trust;
