//! `node run`: this machine, or this container, as a node of a cluster whose API server is elsewhere.

use std::{net::IpAddr, path::PathBuf, process::ExitCode};

use podplane_kubelet::{NodeName, cri::NetworkMode, cri::template::Template};
use podplane_scheduler::IpPolicy;
use podplane_telemetry::{
    boundary::AllowedHosts,
    logging::{self, LogConfig},
    server::Listen,
    trace::TraceConfig,
};

use crate::{
    cluster::{
        data_dir::DataDir,
        lone_node::{self, Farewell, LoneNode},
        settings::Settings,
    },
    global::Global,
};

/// Be a node of the cluster at --server: run a CRI server and a kubelet here, until SIGINT, SIGTERM or
/// SIGHUP
///
/// In kernel mode the network namespace that this is started in is the node's: its pods hang on a bridge there, and routes to other nodes' pods are kept there. A node that is started
/// again under its name goes on with what is in its data directory, as a machine does that was switched off.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane node run --server 10.0.0.1:7080 --network ledger\n  podplane node run edge-1 --server 10.0.0.1:7080 --leave-on-terminate"
)]
pub(crate) struct Args {
    /// The node's name [default: this host's]
    #[arg(env = "PODPLANE_NODE")]
    name: Option<NodeName>,

    /// Whether pods get devices: kernel executes all plugins, ledger the IPAM plugin alone
    #[arg(long, value_enum, env = "PODPLANE_NETWORK", default_value = "kernel")]
    network: NetworkMode,

    /// The addresses of the node, one for each address family [default: the one from which the API server is reached]
    #[arg(
        long = "node-ip",
        value_name = "IP",
        env = "PODPLANE_NODE_IP",
        value_delimiter = ','
    )]
    node_ips: Vec<IpAddr>,

    /// Whether a pod must find a free address to be admitted
    #[arg(
        long,
        value_enum,
        env = "PODPLANE_IP_POLICY",
        default_value = "resource"
    )]
    ip_policy: IpPolicy,

    /// The CNI configuration that is written when the node's podCIDR is known
    #[arg(
        long,
        value_enum,
        env = "PODPLANE_CNI_TEMPLATE",
        default_value = "containerd"
    )]
    cni_template: Template,

    /// Where the CNI plugins are [default: beside podplane]
    #[arg(long, env = "PODPLANE_CNI_BIN_DIR", value_name = "DIR")]
    cni_bin_dir: Option<PathBuf>,

    /// Where the kubelet serves podplane.node.v1
    #[arg(
        long,
        env = "PODPLANE_LISTEN",
        value_name = "ADDR",
        default_value = "127.0.0.1:0"
    )]
    listen: Listen,

    #[command(flatten)]
    allowed_hosts: AllowedHosts,

    /// At the end take the sandboxes down and delete the Node object: for a node that does not come back under its name
    #[arg(long, env = "PODPLANE_LEAVE_ON_TERMINATE")]
    leave_on_terminate: bool,

    #[command(flatten)]
    log: LogConfig,

    #[command(flatten)]
    trace: TraceConfig,
}

pub(crate) fn run(args: Args, dir: &DataDir, global: &Global) -> anyhow::Result<ExitCode> {
    let Args {
        name,
        network,
        node_ips,
        ip_policy,
        cni_template,
        cni_bin_dir,
        listen,
        allowed_hosts,
        leave_on_terminate,
        log,
        trace: TraceConfig { otlp_endpoint },
    } = args;
    logging::init(&log)?;
    let node = LoneNode {
        name: name.map_or_else(lone_node::host_name, Ok)?,
        network,
        ips: node_ips,
        server: global.server()?,
        listen,
        allowed_hosts,
        settings: Settings {
            ip_policy,
            cni_template,
            cni_bin_dir,
            otlp_endpoint,
            ..Settings::default()
        },
        farewell: match leave_on_terminate {
            true => Farewell::Leave,
            false => Farewell::Stay,
        },
    };
    lone_node::run(&node, dir)?;
    Ok(ExitCode::SUCCESS)
}
