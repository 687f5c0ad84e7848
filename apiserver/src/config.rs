use std::{path::PathBuf, time::Duration};

use ipnet::IpNet;
use podplane_ipam::{Compat, ServiceRanges, parse_cidr};
use podplane_telemetry::{boundary::AllowedHosts, server::Listen};

/// How the API server runs.
#[derive(Clone, Debug, clap::Args)]
pub struct Config {
    /// Where to serve gRPC: HOST:PORT with a numeric host, port 0 for any free one, or unix:PATH.
    #[arg(
        long,
        env = "PODPLANE_APISERVER_LISTEN",
        default_value = "127.0.0.1:7080",
        value_name = "ADDR"
    )]
    pub listen: Listen,

    /// The names by which it may be addressed.
    #[command(flatten)]
    pub allowed_hosts: AllowedHosts,

    /// Write the address to this file once it is served, for those who look for the server. Default: `apiserver.address` in --data-dir, if there is one.
    #[arg(long, env = "PODPLANE_APISERVER_ADDRESS_FILE", value_name = "FILE")]
    pub address_file: Option<PathBuf>,

    /// Where the data is kept: the store is in the directory `store` in it, made if it is not there. Required by --store sled.
    #[arg(
        long,
        env = "PODPLANE_APISERVER_DATA_DIR",
        value_name = "DIR",
        required_if_eq("store", "sled")
    )]
    pub data_dir: Option<PathBuf>,

    /// Which engine keeps the objects.
    #[arg(
        long,
        env = "PODPLANE_APISERVER_STORE",
        value_enum,
        default_value_t,
        value_name = "ENGINE"
    )]
    pub store: StoreKind,

    /// The range of services, or one for each address family: no node may have a block that touches it. Without it, nodes are not measured against services.
    #[arg(
        long,
        env = "PODPLANE_SERVICE_CLUSTER_IP_RANGE",
        value_name = "CIDR[,CIDR]",
        default_value = "",
        hide_default_value = true
    )]
    pub service_cluster_ip_range: ServiceRanges,

    /// The range of nodes' blocks, or one for each address family: a node whose block is refused is told of a free one in it. Default: near the one refused.
    #[arg(
        long,
        env = "PODPLANE_CLUSTER_CIDR",
        value_name = "CIDR[,CIDR]",
        value_delimiter = ',',
        value_parser = parse_cidr
    )]
    pub cluster_cidr: Vec<IpNet>,

    /// Let through what another system lets through: nodes with overlapping blocks, and blocks of the service range.
    /// upstream (Kubernetes), upstream-1.30, upstream-1.31, upstream-1.32 or gcp.
    #[arg(long, env = "PODPLANE_COMPAT", default_value_t, value_name = "SYSTEM")]
    pub compat: Compat,

    /// End the hold of a deleted node's block when the node has been silent for so long, though its
    /// sandboxes may still have addresses of it: at least 1s. 0s: never; the node itself, `podplane
    /// node remove` or `podplane node forget` ends it.
    #[arg(
        long,
        env = "PODPLANE_RELEASE_AFTER",
        value_name = "DURATION",
        default_value = "0s",
        value_parser = release_after
    )]
    pub release_after: Duration,
}

/// A time for `--release-after`.
///
/// # Errors
///
/// In words: it is no time, or too short for a node to be heard of in it.
pub fn release_after(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text).map_err(|error| error.to_string())? {
        short if !short.is_zero() && short < Duration::from_secs(1) => {
            Err("must be 0s or at least 1s".to_owned())
        }
        time => Ok(time),
    }
}

/// An engine of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum StoreKind {
    /// On disk, in --data-dir; a write is acknowledged once it is durable.
    #[default]
    Sled,
    /// In memory, and gone when the process ends.
    Memory,
}
