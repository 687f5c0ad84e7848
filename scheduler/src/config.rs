//! The flags of the scheduler.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use podplane_client::Endpoint;
use podplane_telemetry::{boundary::AllowedHosts, server::Listen};

/// How the scheduler is set up.
#[derive(Clone, Debug, Args)]
pub struct Config {
    /// The API server: HOST:PORT, a URL, or unix:PATH.
    #[arg(long, env = "PODPLANE_SERVER", value_name = "ADDR")]
    pub server: Endpoint,

    /// Where to serve podplane.scheduler.v1: HOST:PORT, port 0 for any free one, or unix:PATH.
    #[arg(
        long,
        env = "PODPLANE_SCHEDULER_LISTEN",
        value_name = "ADDR",
        default_value = "127.0.0.1:0"
    )]
    pub listen: Listen,

    /// The names by which it may be addressed.
    #[command(flatten)]
    pub allowed_hosts: AllowedHosts,

    /// A file to write the address to once it is served.
    #[arg(long, env = "PODPLANE_SCHEDULER_ADDRESS_FILE", value_name = "FILE")]
    pub address_file: Option<PathBuf>,

    /// How the addresses of a node limit its pods.
    #[arg(
        long,
        env = "PODPLANE_IP_POLICY",
        value_enum,
        default_value_t,
        value_name = "POLICY"
    )]
    pub ip_policy: IpPolicy,
}

/// How the addresses of a node limit its pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum IpPolicy {
    /// An address is a resource: each pod that is not hostNetwork takes one of what the node reports
    #[default]
    Resource,
    /// A node takes min(2^(32-mask) - 3, allocatable pods) pods, hostNetwork ones included
    PodCidr,
    /// Not at all, as in Kubernetes
    Off,
}
