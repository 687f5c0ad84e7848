//! The services of a cluster, by name, and what the program that is each of them tells about it.

use std::{fmt, io, path::Path};

use clap::Command;
use podplane_proto::ipam::HoldChange;

/// The services that have flags. There may be many kubelets and CRI servers, and all have the same.
pub const SERVICES: [&str; 6] = [
    "apiserver",
    "ipam-controller",
    "controller-manager",
    "scheduler",
    "kubelet",
    "cri",
];

/// The services of a control plane that are clients of the API server. They elect a leader each.
pub const CLIENTS: [&str; 3] = ["ipam-controller", "controller-manager", "scheduler"];

/// The name of the second process of one of the [`CLIENTS`], with `up --standby`.
pub fn standby(service: &str) -> String {
    format!("{service}-standby")
}

/// The knowledge of services that is in their crates. This crate depends on none of them, so the
/// program that has them hands it in.
pub trait ServiceCatalog: fmt::Debug + Sync {
    /// The parser of a service's command line; `None` if there is no service of that name.
    fn command(&self, service: &str) -> Option<Command>;

    /// Writes into the records of a node's sandboxes, which are in this directory, that none of
    /// them runs.
    ///
    /// # Errors
    ///
    /// The operating system's.
    fn power_cycle(&self, sandboxes: &Path) -> io::Result<()>;

    /// The change with which the node of this directory ends a hold of its own; `None` if `holder`
    /// is another instance, or nothing is known of the node's.
    fn end_of_hold(&self, node_dir: &Path, holder: &str) -> Option<HoldChange>;
}
