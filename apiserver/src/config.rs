use std::{net::IpAddr, path::PathBuf, time::Duration};

use ipnet::IpNet;
use podplane_api::{Quantity, pod_ips::PodIpFlags, quantity::units};
use podplane_etcd::EtcdFlags;
use podplane_ipam::{Compat, NodePortRange, ServiceRanges, parse_cidr};
use podplane_service_runtime::{boundary::AllowedHosts, server::Listen};

use crate::{
    AccountTokenFlags, AuditFlags, AuthenticationFlags, AuthenticationModeFlag, AuthorizationFlags,
    LimitFlags, OwnCertificateFlags, TlsFlags, runtime_config::ApiVersionSetting,
};

/// The configuration of the API server.
#[derive(Clone, Debug, clap::Args)]
pub struct ApiserverConfig {
    /// Serve gRPC and the Kubernetes REST API at this address: IP:PORT (port 0: any free port) or
    /// unix:PATH
    #[arg(
        long,
        env = "PODPLANE_APISERVER_LISTEN",
        default_value = "127.0.0.1:7080",
        value_name = "ADDR"
    )]
    pub listen: Listen,

    /// The host names that requests may use.
    #[command(flatten)]
    pub allowed_hosts: AllowedHosts,

    /// The authentication of requests.
    #[command(flatten)]
    pub authentication: AuthenticationFlags,

    /// The tokens of ServiceAccounts.
    #[command(flatten)]
    pub account_tokens: AccountTokenFlags,

    /// The certificates.
    #[command(flatten)]
    pub tls: TlsFlags,

    /// The certificates that the server makes for itself.
    #[command(flatten)]
    pub own_certificates: OwnCertificateFlags,

    /// The authorization of requests.
    #[command(flatten)]
    pub authorization: AuthorizationFlags,

    /// The audit log of requests.
    #[command(flatten)]
    pub audit: AuditFlags,

    /// The limits of clients.
    #[command(flatten)]
    pub limits: LimitFlags,

    /// Write the listening address to this file, once it is served [default: `apiserver.address` in
    /// --data-dir, if that is given]
    #[arg(long, env = "PODPLANE_APISERVER_ADDRESS_FILE", value_name = "FILE")]
    pub address_file: Option<PathBuf>,

    /// Keep the objects in DIR/store, created if missing; required with --store sled, which is the
    /// default
    #[arg(
        long,
        env = "PODPLANE_APISERVER_DATA_DIR",
        value_name = "DIR",
        required_if_eq("store", "sled")
    )]
    pub data_dir: Option<PathBuf>,

    /// Store objects in this engine
    #[arg(
        long,
        env = "PODPLANE_APISERVER_STORE",
        value_enum,
        default_value_t,
        value_name = "ENGINE"
    )]
    pub store: StoreKind,

    /// The etcd cluster of --store etcd.
    #[command(flatten)]
    pub etcd: EtcdFlags,

    /// Give Services addresses of this range, and reject pod CIDRs of nodes that overlap it; for
    /// dual stack one IPv4 and one IPv6 range [default: Services get no addresses and node ports]
    #[arg(
        long,
        env = "PODPLANE_SERVICE_CLUSTER_IP_RANGE",
        value_name = "CIDR[,CIDR]",
        default_value = "",
        hide_default_value = true
    )]
    pub service_cluster_ip_range: ServiceRanges,

    /// Give Services node ports of this range, if they get addresses
    #[arg(
        long,
        env = "PODPLANE_SERVICE_NODE_PORT_RANGE",
        value_name = "PORT-PORT",
        default_value_t
    )]
    pub service_node_port_range: NodePortRange,

    /// Publish this address as the endpoint of the Service `kubernetes` [default: the address of
    /// --listen, unless it is a loopback address or 0.0.0.0]
    #[arg(long, env = "PODPLANE_ADVERTISE_ADDRESS", value_name = "IP")]
    pub advertise_address: Option<IpAddr>,

    /// Suggest a free block of this range in the error when a node's pod CIDR is rejected; for dual
    /// stack one IPv4 and one IPv6 range [default: a block near the rejected one]
    #[arg(
        long,
        env = "PODPLANE_CLUSTER_CIDR",
        value_name = "CIDR[,CIDR]",
        value_delimiter = ',',
        value_parser = parse_cidr
    )]
    pub cluster_cidr: Vec<IpNet>,

    /// Reproduce the node IPAM of another system, including its faults: none, upstream,
    /// upstream-1.30, upstream-1.31, upstream-1.32 or gcp
    ///
    /// none is podplane's own behaviour; upstream is the newest Kubernetes; upstream-1.30 is
    /// Kubernetes up to 1.30, upstream-1.31 from 1.31.0 to 1.31.3, upstream-1.32 from 1.31.4 on;
    /// gcp is the fork in cloud-provider-gcp. With all but none, the API server accepts pod CIDRs
    /// that overlap each other or the service range.
    #[arg(long, env = "PODPLANE_COMPAT", default_value_t, value_name = "SYSTEM")]
    pub compat: Compat,

    /// The addresses of pods.
    #[command(flatten)]
    pub pod_ips: PodIpFlags,

    /// The flags that the user of a cluster sets.
    #[command(flatten)]
    pub cluster: HoldFlags,

    /// The bounds of history and events.
    #[command(flatten)]
    pub bounds: HistoryBounds,

    /// Do not serve this version of a group by the REST API, such as
    /// networking.x-k8s.io/v1=false; a CustomResourceDefinition can have it then
    #[arg(
        long,
        env = "PODPLANE_RUNTIME_CONFIG",
        value_name = "GROUP/VERSION=BOOL",
        value_delimiter = ','
    )]
    pub runtime_config: Vec<ApiVersionSetting>,
}

/// The flags of holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub struct HoldFlags {
    /// End the hold on a deleted node's pod CIDR when the node has been silent for this long, such
    /// as 10m, at least 1s; 0s: never
    ///
    /// WARNING: if sandboxes of the silent node still run, their addresses may be used twice. A pod
    /// CIDR is held while sandboxes of its node may use its addresses; the node, `podplane node
    /// remove` and `podplane node forget` end the hold too.
    #[arg(
        long,
        env = "PODPLANE_RELEASE_AFTER",
        value_name = "DURATION",
        default_value = "0s",
        value_parser = release_after
    )]
    pub release_after: Duration,
}

/// The flags of which `podplane up` takes each by its own name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub struct ClusterFlags {
    #[command(flatten)]
    pub authentication: AuthenticationModeFlag,
    #[command(flatten)]
    pub own_certificates: OwnCertificateFlags,
    #[command(flatten)]
    pub holds: HoldFlags,
}

/// The bounds of history and events: what may be forgotten.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct HistoryBounds {
    /// Limit the history for watches and for lists at an earlier resourceVersion to BYTES, such as
    /// 64Mi; at least 1Mi
    ///
    /// History older than five minutes is dropped as well.
    #[arg(
        long,
        env = "PODPLANE_HISTORY_BYTES",
        value_name = "BYTES",
        default_value = "64Mi",
        value_parser = history_bytes
    )]
    pub history_bytes: u64,

    /// Keep an event for this long after it last happened, such as 30m; at least 1s
    #[arg(
        long,
        env = "PODPLANE_EVENT_TTL",
        value_name = "DURATION",
        default_value = "1h",
        value_parser = event_ttl
    )]
    pub event_ttl: Duration,

    /// Keep at most N events; the oldest are deleted first
    #[arg(
        long,
        env = "PODPLANE_MAX_EVENTS",
        value_name = "N",
        default_value_t = 10_000
    )]
    pub max_events: usize,
}

impl Default for HistoryBounds {
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

/// Parses the value of `--release-after`: zero, or at least a second.
fn release_after(text: &str) -> Result<Duration, String> {
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
    /// In the etcd cluster of --etcd-endpoints, which several API servers can share.
    Etcd,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct BoundsProgram {
        #[command(flatten)]
        bounds: HistoryBounds,
    }

    #[test]
    fn flags_and_bounds_have_the_same_defaults() {
        let HistoryBounds {
            history_bytes,
            event_ttl,
            max_events,
        } = BoundsProgram::parse_from(["line"]).bounds;
        let default = HistoryBounds::default();
        assert_eq!(history_bytes, default.history_bytes);
        assert_eq!(event_ttl, default.event_ttl);
        assert_eq!(max_events, default.max_events);
    }

    #[test]
    fn history_bytes_accept_binary_suffixes() {
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
