use std::{path::PathBuf, time::Duration};

use ipnet::IpNet;
use podplane_api::{Quantity, quantity::units};
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

    /// The bounds of history and events.
    #[command(flatten)]
    pub bounds: Bounds,
}

/// The bounds of history and events: what may be forgotten.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Bounds {
    /// Keep at most so many bytes of history, which watches and lists of earlier revisions are served from, as in 64Mi: at
    /// least 1Mi. History is kept for five minutes if it is not more.
    #[arg(
        long,
        env = "PODPLANE_HISTORY_BYTES",
        value_name = "BYTES",
        default_value = "64Mi",
        value_parser = history_bytes
    )]
    pub history_bytes: u64,

    /// How long an event is kept after it last happened: at least 1s.
    #[arg(
        long,
        env = "PODPLANE_EVENT_TTL",
        value_name = "DURATION",
        default_value = "1h",
        value_parser = event_ttl
    )]
    pub event_ttl: Duration,

    /// Keep at most so many events; the oldest go first.
    #[arg(
        long,
        env = "PODPLANE_MAX_EVENTS",
        value_name = "N",
        default_value_t = 10_000
    )]
    pub max_events: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            history_bytes: 64 << 20,
            event_ttl: Duration::from_secs(60 * 60),
            max_events: 10_000,
        }
    }
}

fn history_bytes(text: &str) -> Result<u64, String> {
    // The suffixes are those of quantities in Kubernetes.
    let quantity = Quantity(text.strip_suffix('B').unwrap_or(text).to_owned());
    let bytes = units(&quantity).map_err(|error| error.to_string())?;
    match u64::try_from(bytes) {
        Ok(bytes) if bytes >= 1 << 20 => Ok(bytes),
        _ => Err("must be at least 1Mi".to_owned()),
    }
}

fn event_ttl(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text).map_err(|error| error.to_string())? {
        short if short < Duration::from_secs(1) => Err("must be at least 1s".to_owned()),
        time => Ok(time),
    }
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        bounds: Bounds,
    }

    #[test]
    fn the_bounds_have_the_defaults_that_they_say() {
        let Bounds {
            history_bytes,
            event_ttl,
            max_events,
        } = Line::parse_from(["line"]).bounds;
        let default = Bounds::default();
        assert_eq!(history_bytes, default.history_bytes);
        assert_eq!(event_ttl, default.event_ttl);
        assert_eq!(max_events, default.max_events);
    }

    #[test]
    fn bytes_of_history_are_a_quantity() {
        for (text, bytes) in [
            ("64Mi", 64 << 20),
            ("64MiB", 64 << 20),
            ("2000000", 2_000_000),
        ] {
            assert_eq!(history_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "0", "1Ki", "-1Gi", "much"] {
            assert!(history_bytes(text).is_err(), "{text}");
        }
    }
}
