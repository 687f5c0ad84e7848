//! The flags of the node agent.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use podplane_api::{node::NodeName, pod_ips::PodIpResource};
use podplane_client::ServerFlags;
use podplane_service_runtime::{boundary::AllowedHosts, server::Listen, serving::ServingFlags};

use crate::sources::IpamKind;

/// The flags of the node agent.
#[derive(Clone, Debug, Args)]
pub struct NodeAgentConfig {
    /// The API server.
    #[command(flatten)]
    pub server: ServerFlags,

    /// Publish the addresses of this node, on which the agent runs
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub node_name: NodeName,

    /// Count the node's addresses by this rule
    #[arg(
        long,
        env = "PODPLANE_NODE_AGENT_IPAM",
        value_enum,
        value_name = "KIND",
        default_value_t = IpamKind::Auto
    )]
    pub ipam: IpamKind,

    /// Read the node's CNI configuration in this directory; its first file is that of the pods
    #[arg(
        long,
        env = "PODPLANE_CNI_CONF_DIR",
        value_name = "DIR",
        default_value = "/etc/cni/net.d"
    )]
    pub cni_conf_dir: PathBuf,

    /// Count the addresses of this pool with Cilium's multi-pool IPAM
    #[arg(
        long,
        env = "PODPLANE_CILIUM_POOL",
        value_name = "POOL",
        default_value = "default"
    )]
    pub cilium_pool: String,

    /// With --ipam=max-pods, subtract N pods with hostNetwork from the node's capacity of pods
    /// [default: 2 for AWS VPC CNI, whose --max-pods includes 2, else 0]
    #[arg(long, env = "PODPLANE_HOST_NETWORK_PODS", value_name = "N")]
    pub host_network_pods: Option<u32>,

    /// Publish the number of addresses as this extended resource
    #[arg(
        long,
        env = "PODPLANE_POD_IP_RESOURCE",
        value_name = "NAME",
        default_value_t
    )]
    pub pod_ip_resource: PodIpResource,

    /// Report an address as orphaned once no pod of the node has owned it for this time
    #[arg(
        long,
        env = "PODPLANE_ORPHAN_GRACE",
        value_name = "DURATION",
        default_value = "30s",
        value_parser = humantime::parse_duration
    )]
    pub orphan_grace: Duration,

    /// Read files, and compare the node's status with them, at least this often; changes of pods
    /// and of the node are followed at once
    #[arg(
        long,
        env = "PODPLANE_NODE_AGENT_INTERVAL",
        value_name = "DURATION",
        default_value = "5s",
        value_parser = humantime::parse_duration
    )]
    pub interval: Duration,

    /// Remove the resource and the annotations from the node, and end
    #[arg(long, env = "PODPLANE_NODE_AGENT_UNPUBLISH")]
    pub unpublish: bool,

    /// Serve health and metrics at this address: IP:PORT (port 0: any free port) or unix:PATH
    #[arg(
        long,
        env = "PODPLANE_NODE_AGENT_LISTEN",
        value_name = "ADDR",
        default_value = "127.0.0.1:0"
    )]
    pub listen: Listen,

    /// Host names that requests may be addressed to.
    #[command(flatten)]
    pub allowed_hosts: AllowedHosts,

    /// The clients of the address, and its TLS.
    #[command(flatten)]
    pub serving: ServingFlags,

    /// Write the listening address to this file, once it is served
    #[arg(long, env = "PODPLANE_NODE_AGENT_ADDRESS_FILE", value_name = "FILE")]
    pub address_file: Option<PathBuf>,
}
