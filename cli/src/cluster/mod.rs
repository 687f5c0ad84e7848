//! The local cluster: what `up` starts, how it is kept, and how others get at it.
//!
//! `up` ([`launch`]) starts a [`supervisor`] as a process of its own; that chooses a network [`mode`], enters [`namespaces`], makes the
//! [`fabric`] and runs every [`service`] ([`instance`]). They meet in the data directory ([`data_dir`]) and at its control socket
//! ([`control`]).

pub(crate) mod control;
pub(crate) mod data_dir;
pub(crate) mod departure;
pub(crate) mod echo;
pub(crate) mod extra;
pub(crate) mod fabric;
mod instance;
pub(crate) mod kubeconfig;
pub(crate) mod launch;
mod lifeline;
pub(crate) mod limits;
pub(crate) mod lone_node;
mod mode;
pub(crate) mod namespaces;
pub(crate) mod pods;
pub(crate) mod processes;
pub(crate) mod progress;
pub(crate) mod ready;
mod service;
pub(crate) mod settings;
pub(crate) mod supervisor;
pub(crate) mod trust;
